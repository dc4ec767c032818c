"""Why a type may not run now: paused, held, offline, its need, its limit."""

import pytest

from edgeq.gate import Gate


class Paused:
    types = ()

    def is_paused(self, type, now):
        return type in self.types


@pytest.fixture
def gate(board):
    board.open(start=False).make_folders()
    (board.root / "handlers").mkdir()
    (board.root / "edgeq.conf.d").mkdir()
    return Gate(board.config, Paused(), lambda: 0.0, board.log)


def test_an_open_gate(board, gate):
    assert gate.may_run("mail", board.now) and gate.why_not("mail", board.now) == "" and gate.next_change(board.now) is None


def test_a_paused_type(board, gate):
    gate.pauses.types = ("mail",)
    assert not gate.may_run("mail", board.now) and gate.why_not("mail", board.now) == "paused" and not gate.is_held("mail",
                                                                                                                    board.now)


def test_a_type_has_its_own_limit(board, gate):
    (board.root / "edgeq.conf.d" / "mail.conf").write_text("CONCURRENCY=2\n")
    gate.started("mail")
    assert gate.may_run("mail", board.now)
    gate.started("mail")
    assert not gate.may_run("mail", board.now) and gate.may_run("other", board.now)
    gate.ended("mail")
    assert gate.may_run("mail", board.now)


def test_a_bad_type_file_holds_the_type_until_it_is_mended(board, gate):
    path = board.root / "edgeq.conf.d" / "mail.conf"
    path.write_text("CONCURRENCY=many\n")
    assert gate.is_held("mail", board.now) and "CONCURRENCY=many" in gate.why_not("mail", board.now)
    path.write_text("CONCURRENCY=1\n")
    gate.reload()
    assert gate.may_run("mail", board.now)


def test_a_need_is_a_flag_file(board, gate):
    (board.root / "edgeq.conf.d" / "mail.conf").write_text("NEEDS=net\n")
    assert gate.why_not("mail", board.now) == "waits for net"
    (board.root / "run" / "cond").mkdir()
    (board.root / "run" / "cond" / "net").touch()
    assert gate.may_run("mail", board.now)


def test_a_held_type_is_freed_when_its_handler_appears(board, gate):
    gate.close("mail", "held", "no handler", board.now)
    assert gate.is_held("mail", board.now) and not gate.may_run("mail", board.now)
    assert (board.run / "types" / "mail").read_text().startswith("held ")
    (board.root / "handlers" / "mail").write_text("#!/bin/sh\n")
    assert gate.may_run("mail", board.now) and not (board.run / "types" / "mail").exists()


def test_a_held_type_is_tried_again_each_max_delay(board, gate):
    gate.close("mail", "held", "no handler", board.now)
    assert gate.next_change(board.now) == board.clock.boot + board.config.max_delay_s
    board.clock.sleep(board.config.max_delay_s + 1)
    assert gate.may_run("mail", board.now)


def test_resume_ends_the_wait(board, gate):
    gate.close("mail", "offline", "exit 69", board.now)
    assert not gate.may_run("mail", board.now)
    (board.run / "types" / "mail").unlink()
    assert gate.may_run("mail", board.now)


def test_an_offline_type_waits_longer_each_time_and_then_one_goes_first(board, gate):
    waits = []
    for _ in range(4):
        gate.close("mail", "offline", "exit 69", board.now)
        gate.close("mail", "offline", "exit 69", board.now)  # another one of the same round
        waits.append(gate.next_change(board.now) - board.clock.boot)
        board.clock.sleep(waits[-1])
    assert waits == [5, 10, 20, 40]
    assert gate.may_run("mail", board.now)
    gate.started("mail")
    assert not gate.may_run("mail", board.now), "one goes first to see whether it is over"
    gate.ended("mail")
    gate.succeeded("mail")
    gate.started("mail")
    assert gate.may_run("mail", board.now)
