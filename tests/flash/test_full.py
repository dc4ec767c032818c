"""Finishing fits (P7): a disk that is filled to the last byte or inode between claim and completion.

Whatever was accepted is acked, retried or buried all the same, and nothing runs twice. Then intake: refused early, by the word
for what is short, and nothing left behind.
"""

import errno
import os
import subprocess

import pytest

from edgeq.errors import StoreFull
from edgeq.job import DLQ, DONE, FAILED, INCOMING, PROCESSING, Job
from edgeq.space import Guard
from edgeq.store import open_store
from tests.harness import Board, recover

HOW = ("bytes", "inodes")


@pytest.fixture(params=HOW)
def small(request, make_flash):
    """(folder on a file system of 8 MiB, fill): `fill` leaves it without a byte, or without an inode."""
    flash = make_flash(8, "-N", "128", "-m", "0", "-O", "^has_journal" if request.param == "inodes" else "has_journal")

    def fill():
        (fill_bytes if request.param == "bytes" else fill_inodes)(flash.folder("filler"))
        flash.sync()
    return flash.path, fill


def fill_bytes(folder):
    fd = os.open(folder + "/big", os.O_WRONLY | os.O_CREAT, 0o600)
    for size in (65536, 4096, 1):
        while True:
            try:
                os.write(fd, b"x" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                break
    os.close(fd)


def fill_inodes(folder):
    n = 0
    while True:
        try:
            os.close(os.open("%s/%d" % (folder, n), os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return
        n += 1


@pytest.fixture
def board(small, tmp_path):
    board = Board(tmp_path)
    with open(board.conf, "a") as conf:
        conf.write("SPOOL=%s/spool\nBALLAST_KB=64\nMIN_FREE_KB=512\nMIN_FREE_INODES=16\n" % small[0])
    from edgeq import config as configuration
    board.config = configuration.load(str(board.conf))
    board.spool = type(board.root)(small[0]) / "spool" / "default"
    return board


@pytest.fixture
def store(board):
    """A store as the worker has it: ballast loaded, given up when a settle meets a full disk."""
    store = board.open()
    guard = Guard(store.disk, store.root, store.run, board.config)
    assert guard.load_ballast()
    store.on_full = guard.drop_ballast
    yield store
    store._alive.drop()
    store.journal.close()


def test_everything_accepted_is_settled(board, store, small):
    """Acks, retries and dead letters, the journal not yet begun: more than one of each."""
    for n in range(12):
        store.enqueue(Job("mail", b'{"n":%d}' % n, id="j%02d" % n), board.now)
    leases = [store.claim(board.now, None, 60) for _ in range(12)]
    small[1]()
    for n, lease in enumerate(leases):
        if n < 6:
            store.ack(lease, board.now)
        elif n < 9:
            store.retry(lease, 0, "exit 1", board.now)
        else:
            store.bury(lease, "exit 65", board.now)
    store.flush(board.now)
    assert board.ls(PROCESSING) == [] and board.ls(INCOMING) == []
    assert [name.split(".")[5] for name in board.ls(FAILED)] == ["j06", "j07", "j08"]
    assert board.ls(DLQ) == ["j09.json", "j10.json", "j11.json"]
    assert all(store.journal.find("j%02d" % n) for n in range(6)) and store.check(board.now) == []


def test_nothing_runs_twice_after_a_cut_on_the_full_disk(board, store, small):
    for n in range(6):
        store.enqueue(Job("mail", id="j%d" % n), board.now)
    leases = [store.claim(board.now, None, 60) for _ in range(6)]
    small[1]()
    for lease in leases[:5]:
        store.ack(lease, board.now)
    store.flush(board.now)
    store._alive.drop()
    store.journal.close()
    board.reboot()
    again = open_store(board.config, board.clock, board.log, None)
    again.start(board.now)
    assert recover(again, board.now) == ["j5"]
    lease = again.claim(board.now, None, 60, True)
    assert lease.entry.id == "j5" and again.claim(board.now, None, 60, True) is None
    again.ack(lease, board.now)
    again.flush(board.now)
    assert again.check(board.now) == []
    again._alive.drop()
    again.journal.close()


def test_a_given_back_job_needs_no_room(board, store, small):
    store.enqueue(Job("mail", id="a"), board.now)
    lease = store.claim(board.now, None, 60)
    small[1]()
    store.give_back(lease, "stopped", board.now)
    store.flush(board.now)
    assert [name.split(".")[5] for name in board.ls(INCOMING)] == ["a"]


def test_intake_is_refused_by_name_and_leaves_nothing(board, store, small, request):
    word = request.node.callspec.params["small"]
    guard = Guard(store.disk, store.root, store.run, board.config)
    assert guard.ask(0) == ""
    small[1]()
    assert guard.ask(0).startswith(word + ": ")
    with pytest.raises(OSError) as found:
        for n in range(70):  # what slips past the guard meets the disk itself
            store.enqueue(Job("mail", b'"%s"' % (b"x" * 60_000)), board.now)
    assert found.value.errno == errno.ENOSPC
    assert [name for name in os.listdir(board.spool / INCOMING) if name[0] == "."] == []
    done = subprocess.run([os.sys.executable, "-m", "edgeq", "enqueue", "mail"], env={"EDGEQ_CONF": str(board.conf)},
                          capture_output=True, text=True)
    assert done.returncode == 75 and word in done.stderr and done.stderr.count("\n") == 1, done


def test_the_worker_runs_on_and_the_ballast_comes_back(board, small, tmp_path):
    """The shipped worker: the handler itself fills the disk, so it is full exactly between claim and completion."""
    place, fill = small
    (tmp_path / "handlers").mkdir()
    runs = tmp_path / "runs"
    handler = tmp_path / "handlers" / "mail"
    go = tmp_path / "go"
    handler.write_text('#!/bin/sh\necho "$EDGEQ_ID" >>%s\nwhile [ ! -e %s ]; do sleep 0.02; done\n' % (runs, go))
    handler.chmod(0o755)
    store = board.open()
    for n in range(4):
        store.enqueue(Job("mail", id="j%d" % n), store.clock.read())
    store._alive.drop()
    worker = subprocess.Popen([os.sys.executable, "-m", "edgeq", "work", "--once", "--concurrency", "4"],
                              env={"EDGEQ_CONF": str(board.conf)}, stderr=subprocess.PIPE, text=True)
    while not (runs.exists() and len(runs.read_text().split()) == 4) and worker.poll() is None:
        os.sched_yield()
    fill()
    go.touch()
    said = worker.communicate(timeout=60)[1]
    assert worker.returncode == 0, said
    assert sorted(runs.read_text().split()) == ["j0", "j1", "j2", "j3"]
    assert board.ls(PROCESSING) == [] and all(store.journal.find("j%d" % n) for n in range(4))
    store.journal.close()
    guard = Guard(store.disk, store.root, store.run, board.config)
    os.system("rm -r %s/filler" % place)
    assert guard.load_ballast() and os.path.getsize(board.spool / "ballast") == 65536


def test_a_living_workers_verdict_counts_and_a_dead_ones_does_not(board, store):
    guard = Guard(store.disk, store.root, store.run, board.config)
    start = store.leases.start
    path = os.path.join(store.run, "space")
    short = "bytes 500 KiB free, MIN_FREE_KB=512"
    for line, full in (("full %d %d %s" % (os.getpid(), start, short), short),
                       ("full %d %d inodes 3 free" % (os.getpid(), start + 1), ""), ("ok %d %d" % (os.getpid(), start), ""),
                       ("full %d" % os.getpid(), ""), ("nonsense", ""), ("", "")):
        with open(path, "w") as file:
            file.write(line + "\n")
        assert guard.ask(0) == full
    with open(path, "w") as file:
        file.write("full %d %d jobs 9 waiting, MAX_JOBS=9\n" % (os.getpid(), start))
    from edgeq.enqueue import enqueue
    with pytest.raises(StoreFull, match="jobs 9 waiting"):
        enqueue(store, guard, Job("mail"), board.now, 0)
    assert DONE  # the verdict is RAM: nothing below the spool was touched
    assert board.ls(INCOMING) == []
