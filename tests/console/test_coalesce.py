"""Keys: at most one running, at most one waiting, the newest payload wins; whatever a crash leaves between publish and removal."""

import resource
import shutil

import pytest

from edgeq.job import Job
from edgeq.store.base import ALREADY_QUEUED, QUEUED
from tests.harness import Board, FaultyDisk, Killed


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path)


def put(store, board, payload, latest=False, key="k", **more):
    board.clock.sleep(0.001)
    return store.enqueue(Job("t", payload, key=key, latest=latest, **more), board.now)


def waiting(board):
    return sorted(name.split(".")[5] for folder in ("incoming", "failed") for name in board.ls(folder))


def claim(store, board):
    board.clock.sleep(2)
    return store.claim(board.now, fresh=True)


def close(store):
    store._alive.drop()
    store.journal.close()


def test_a_plain_key_is_the_job_that_waits(board):
    store = board.open()
    first = put(store, board, b"1")
    again = put(store, board, b"2")
    assert (first.status, again.status, again.id) == (QUEUED, ALREADY_QUEUED, first.id)
    assert put(store, board, b"3", key="other").status == QUEUED
    lease = claim(store, board)
    assert lease.record.payload == b"1"
    assert put(store, board, b"4").status == QUEUED, "the one that runs began before this was asked for"
    close(store)


def test_latest_takes_the_place_of_what_waits_and_not_of_what_runs(board):
    store = board.open()
    put(store, board, b"1")
    running = claim(store, board)
    two, three = put(store, board, b"2", True), put(store, board, b"3", True)
    assert waiting(board) == [three.id]
    assert store.gone() == (0, 1)
    assert board.log.said("superseded") == [{"id": two.id, "type": "t", "by": three.id}]
    store.ack(running, board.now)
    assert claim(store, board).record.payload == b"3"
    close(store)


def test_one_job_of_a_key_runs_at_a_time_and_the_other_is_still_counted(board):
    store = board.open()
    put(store, board, b"1")
    running = claim(store, board)
    put(store, board, b"2")
    assert claim(store, board) is None
    assert store.counts(board.now).ready == 1
    put(store, board, b"3", key="other")
    assert claim(store, board).record.payload == b"3", "other keys go on"
    store.ack(running, board.now)
    assert claim(store, board).record.payload == b"2"
    close(store)


def test_an_older_try_that_fails_is_not_tried_again_over_a_newer_one(board):
    store = board.open()
    put(store, board, b'"old"')
    running = claim(store, board)
    newer = put(store, board, b'"new"', True)
    store.retry(running, 5, "exit 1", board.now)
    assert waiting(board) == [newer.id] and store.gone() == (0, 1)
    close(store)


def test_a_retry_with_a_plain_key_beside_it_stays(board):
    """Plain keys take nobody's place: both were accepted (P1)."""
    store = board.open()
    put(store, board, b"1")
    running = claim(store, board)
    put(store, board, b"2")
    store.retry(running, 5, "exit 1", board.now)
    assert len(waiting(board)) == 2
    close(store)


def test_a_crash_between_publish_and_removal_leaves_the_newest_to_run(board):
    """Every point of an enqueue --latest at which the process can die: never none, and what runs last is the newest."""
    first = board.open()
    old = put(first, board, b'"old"')
    close(first)
    at = 0
    while True:
        at += 1
        copy = board.root.parent / ("%s-%d" % (board.root.name, at))
        shutil.copytree(board.root, copy, symlinks=True)
        there = Board(copy)
        there.clock = board.clock
        disk = FaultyDisk(at)
        store = there.open(disk, start=False)
        died = False
        try:
            put(store, there, b'"new"', True)
        except Killed:
            died = True
        disk.is_dead = False
        disk.bury()
        store.id_lock.drop()
        after = there.open()
        assert waiting(there), "call %d: an accepted job is gone" % at
        lease = claim(after, there)
        left = waiting(there)
        if lease.record.payload == b'"new"':
            assert left == []
        else:
            assert lease.record.payload == b'"old"' and left == [] and lease.entry.id == old.id, "call %d" % at
        assert after.check(there.now) == []
        close(after)
        if not died:
            assert lease.record.payload == b'"new"'
            break
    assert at > 5


def test_both_are_there_after_the_crash_and_the_older_goes_where_it_would_be_claimed(board):
    store = board.open()
    put(store, board, b'"old"')
    store.disk.unlink = lambda path: (_ for _ in ()).throw(Killed())
    with pytest.raises(Killed):
        put(store, board, b'"new"', True)
    store.id_lock.drop()
    close(store)
    assert len(waiting(board)) == 2
    board.reboot()
    after = board.open()
    assert claim(after, board).record.payload == b'"new"'
    assert waiting(board) == [] and after.gone() == (0, 1)
    close(after)


def test_the_index_is_made_again_from_the_records(board):
    store = board.open()
    first = put(store, board, b"1")
    (board.run / "keys/index").write_text("")
    assert put(store, board, b"2").id == first.id
    (board.run / "keys/index").unlink()
    assert put(store, board, b"2").id == first.id, "it cannot even be written: the records are read"
    close(store)
    board.reboot()
    after = board.open()
    assert put(after, board, b"3").id == first.id
    assert (board.run / "keys/index").read_text() == "whole\nk %s\n" % first.id
    close(after)


def test_the_index_stays_small(board):
    store = board.open()
    (board.run / "keys/index").write_text("whole\n" + "x y\n" * 20000)
    store.prune(board.now)
    assert (board.run / "keys/index").read_text() == ""
    for _ in range(40):
        put(store, board, b"1", True)
        store.ack(claim(store, board), board.now)
    store.flush(board.now)
    assert len((board.run / "keys/index").read_text().splitlines()) < 20
    close(store)


def test_a_kicked_old_letter_takes_nobodys_place(board):
    store = board.open()
    old = put(store, board, b'"old"', True)
    store.bury(claim(store, board), "exit 65", board.now)
    put(store, board, b'"new"', True)
    board.clock.sleep(5)
    store.kick(old.id, board.now)
    assert len(waiting(board)) == 2
    assert claim(store, board).record.payload == b'"new"'
    close(store)


def test_a_fast_latest_is_flushed_before_the_accepted_one_goes(board):
    store = board.open()
    put(store, board, b"1")
    calls = []
    for name in ("fsync", "unlink"):
        setattr(store.disk, name, lambda target, name=name, call=getattr(store.disk, name): (calls.append(name), call(target))[1])
    board.clock.sleep(1)
    store.enqueue(Job("t", b"2", key="k", latest=True), board.now, True)
    assert calls.index("fsync") < calls.index("unlink")
    close(store)


def test_a_batch_keeps_to_the_keys(board):
    store = board.open()
    first = put(store, board, b"0", key="plain")
    jobs = [Job("t", b"1", key="plain"), Job("t", b"2", key="k", latest=True), Job("t", b"3", key="k", latest=True),
            Job("t", b"4", key="p2"), Job("t", b"5", key="p2")]
    got = store.enqueue_many(jobs, board.now)
    assert [receipt.status for receipt in got] == [ALREADY_QUEUED, QUEUED, QUEUED, QUEUED, ALREADY_QUEUED]
    assert got[0].id == first.id and got[4].id == got[3].id
    assert waiting(board) == sorted([first.id, got[2].id, got[3].id])
    close(store)


# --- as typed -------------------------------------------------------------------------------------------------


def test_the_wrapper_answers_for_a_plain_key_without_python(console):
    first = console.ok("enqueue", "t", "--key", "sync-config", "1")
    console.pyz.write_text("#!/bin/sh\nexit 99\n")
    again = console.edgeq("enqueue", "t", "2", "--key=sync-config", by="wrapper")
    assert (again.code, again.out.strip()) == (0, first) and "already queued" in again.err
    other = console.edgeq("enqueue", "t", "3", "--key", "sync.config", by="wrapper")
    assert other.code == 0 and other.out.strip() != first
    assert sorted(console.ids("incoming")) == sorted([first, other.out.strip()])
    assert console.ok("enqueue", "t", "4", "--key", "sync.config") == other.out.strip(), "and wrote it down for the others"


def test_the_wrapper_hands_over_when_nobody_knows_the_keys(console):
    first = console.ok("enqueue", "t", "--key", "k", "1")
    (console.r / "keys/index").write_text("")
    assert console.ok("enqueue", "t", "--key", "k", "2", by="wrapper") == first
    assert console.run_text("keys/index").startswith("whole\n")


def test_an_index_that_finds_no_room_in_run_is_made_again(console):
    first = console.ok("enqueue", "t", "--key", "a", "1")
    with open(console.r / "keys/index", "a") as index:
        index.write("x y\n" * 2048)
    got = console.edgeq("enqueue", "t", "--key", "k", "1", by="wrapper", restore_signals=False,  # SIGXFSZ stays ignored
                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    assert (got.code, got.err) == (0, ""), got
    assert console.ok("enqueue", "t", "--key", "k", "2", by="wrapper") == got.out.strip()
    assert sorted(console.ids("incoming")) == sorted([first, got.out.strip()])


def test_the_wrapper_reads_the_records_on_a_board_without_python(console):
    first = console.ok("enqueue", "t", "--key", "k", "1")
    (console.r / "keys/index").write_text("")
    console.pyz.unlink()
    assert console.ok("enqueue", "t", "--key", "k", "2", by="wrapper") == first
    assert console.ok("enqueue", "t", "--key", "k2", "2", by="wrapper") != first


def test_a_key_in_the_payload_is_no_key(console):
    console.ok("enqueue", "t", '{"key":"k"}')
    console.pyz.unlink()
    got = console.edgeq("enqueue", "t", "--key", "k", by="wrapper")
    assert got.code == 0 and got.err == "" and len(console.names("incoming")) == 2


def test_one_running_one_waiting_the_newest_last(console):
    """Ten configurations in a row while the first is being applied: the first and the last are, in this order."""
    console.gate("sync")
    console.start()
    ids = [console.ok("enqueue", "sync", "--key", "sync-config", "--latest", "0")]
    from tests.console.console import wait_for
    wait_for(lambda: console.began("sync") == ids, "the first runs")
    ids += [console.ok("enqueue", "sync", "--key", "sync-config", "--latest", str(n)) for n in range(1, 6)]
    assert console.ids("incoming") == ids[-1:] and console.running() == ids[:1]
    console.open_gate("sync")
    wait_for(lambda: console.began("sync") == [ids[0], ids[-1]], "the last runs")
    console.open_gate("sync")
    console.ok("wait", ids[0], ids[-1], "--timeout", "10")
    assert "superseded=4" in console.edgeq("status", "-v").out
