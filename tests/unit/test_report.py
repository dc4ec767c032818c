"""The status line: one line, the fields of DESIGN 7, ages that no clock step moves."""

import os
from types import SimpleNamespace

import pytest

from edgeq.clock import Now
from edgeq.lease import start_time
from edgeq.report import FIELDS, Reporter, Status, Tally, merge, parse_run_line, read_tallies


def full():
    status = Status()
    for number, field in enumerate(("ready", "processing", "done", "dead", "delayed", "failed", "corrupt", "held", "flushes",
                                    "written_kb"), 1):
        setattr(status, field, number)
    status.oldest, status.retries, status.worker, status.boot_id = 60, {95: 2, 40: 5}, "up", "b"
    status.pid, status.start, status.stamp = 7, 8, 99
    status.last_error = r'mail a: exit 1: \"x\" last_error=y'
    return status


def test_the_line_is_that_of_the_design():
    assert full().line("q", Now(1_800_000_000, 108.5), 1, 10240) == (
        "2027-01-15T08:00:00Z queue=q ready=1 processing=2 done=3 dead=4 oldest_ready_s=48 retries_1m=2 delayed=5 failed=6 "
        'corrupt=7 held=8 paused=1 worker=up durable=yes clock=ok free_kb=10240 flushes=9 written_kb=10 '
        'last_error="mail a: exit 1: \\"x\\" last_error=y"')
    assert FIELDS[:6] == ("ready", "processing", "done", "dead", "oldest_ready_s", "retries_1m")


def test_the_line_in_run_comes_back():
    line = full().run_line()
    assert line.count("\n") == 1 and vars(parse_run_line(line)) == vars(full())


def test_the_brief_line_has_the_same_values_and_fewer_bytes():
    status = full()
    line = status.brief_line(4711)
    words, found = line.rstrip("\n").split(" ", 21), parse_run_line(status.run_line())
    assert line.count("\n") == 1 and words[:3] == [str(found.pid), str(found.start), found.boot_id[:8]]
    assert words[6:11] == [str(n) for n in (found.ready, found.processing, found.done, found.dead, found.oldest)]
    assert words[18:] == ["4711", str(found.flushes), str(found.written_kb), found.last_error]
    assert len(line) < len(status.run_line()) // 2


@pytest.mark.parametrize("text", ("", "garbage", "ready=1 last_error=", "pid=x last_error=", "pid=1"))
def test_a_line_that_is_none_is_refused(text):
    with pytest.raises(ValueError):
        parse_run_line(text)


@pytest.mark.parametrize("change, code, reason", (
    ({}, 0, "ok"), ({"dead": 1}, 1, "dead"), ({"corrupt": 1}, 1, "corrupt"), ({"held": 1}, 1, "held"),
    ({"clock": "untrusted"}, 1, "clock"),
    ({"durable": "no"}, 1, "durable"), ({"worker": "down", "dead": 1}, 2, "down"), ({"worker": "stalled"}, 2, "stalled"),
    ({"worker": "idle"}, 0, "ok")))
def test_the_worst_thing_decides(change, code, reason):
    status = Status()
    status.worker = "up"
    vars(status).update(change)
    status.judge("", False, True)
    assert (status.exit, status.reason) == (code, reason)


@pytest.mark.parametrize("arguments, reason",
                         ((("bytes: 1", False, True), "full"), (("", True, True), "store"), (("", False, False), "ballast")))
def test_no_room_and_a_broken_store_are_broken(arguments, reason):
    status = Status()
    status.worker = "up"
    status.judge(*arguments)
    assert (status.exit, status.reason) == (2, reason)


def test_a_tally_comes_back_from_run_and_only_the_living_count(tmp_path):
    (tmp_path / "workers").mkdir()
    tally = Tally()
    for boot in (1, 3, 7):
        tally.count_retry(boot)
    tally.note_error("mail a: exit 1: b c", 9)
    tally.done_n, tally.is_elected, tally.stamp = 4, True, 9
    me = os.getpid(), start_time(os.getpid())
    (tmp_path / "workers" / ("%d-%d" % me)).write_text(tally.line())
    (tmp_path / "workers" / "999999999-1").write_text(tally.line())
    (tmp_path / "workers" / ("%d-%d.77~" % me)).write_text("half")
    found = read_tallies(str(tmp_path))
    assert list(found) == [me] and vars(found[me]) == vars(tally) and tally.retries == {0: 2, 5: 1}
    assert read_tallies(str(tmp_path / "none")) == {}


def test_retries_are_counted_in_a_bounded_memory():
    tally = Tally()
    for boot in range(0, 100_000, 5):
        tally.count_retry(boot)
    assert len(tally.retries) <= 25 and tally.retried_n == 20_000


def test_tallies_add_up_and_the_newest_error_shows():
    one, two, status = Tally(), Tally(), Status()
    one.flushes_n, one.retries, one.last_error, one.error_at = 2, {5: 1}, "old", 5
    two.flushes_n, two.retries, two.last_error, two.error_at, two.is_elected, two.stamp = 3, {5: 1, 10: 1}, "new", 9, True, 77
    merge(status, {(1, 1): one, (2, 2): two})
    assert (status.flushes, status.retries, status.last_error, status.pid, status.stamp) == (5, {5: 2, 10: 1}, "new", 2, 77)


def test_on_demand_workers_take_turns_at_the_log(tmp_path):
    def make_reporter(report_s=300, linger_s=2):
        config = SimpleNamespace(run_path=str(tmp_path), report_s=report_s, linger_s=linger_s)
        return Reporter(config, "boot", "1-1", None, None, None, None)

    first = make_reporter()
    assert first.takes_turn(Now(0, 100)) and not first.takes_turn(Now(0, 399)) and first.takes_turn(Now(0, 401))
    assert not make_reporter().takes_turn(Now(0, 500))  # the next one, started by a poke
    assert make_reporter().takes_turn(Now(0, 701.5))
    assert not make_reporter(report_s=0).takes_turn(Now(0, 2000))
    assert make_reporter(linger_s=0).takes_turn(Now(0, 702)), "a worker that stays tells at its start"
    (tmp_path / "reported").write_text("?")
    assert make_reporter().takes_turn(Now(0, 702))
