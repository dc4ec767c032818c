"""Who is alone does not look for others' claims; who is not, does. Of two claims of one id one gives back [M]."""

import os
import shutil
import subprocess

import pytest

from edgeq.disk import Disk
from edgeq.job import INCOMING, PROCESSING, Job
from edgeq.lease import start_time
from tests.harness import Board, dead_owner


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path)


@pytest.fixture
def living_owner():
    """(pid, start time) of another process that lives."""
    child = subprocess.Popen(["sleep", "600"])
    yield child.pid, start_time(child.pid)
    child.kill()
    child.wait()


class CountingDisk(Disk):
    """How often processing/ was read."""

    looks_n = 0

    def listdir(self, path):
        self.looks_n += path.endswith(PROCESSING)
        return Disk.listdir(path)


def put(board, store, id):
    return store.enqueue(Job("mail", id=id), board.now).id


def copy(board, id, place):
    """The file of a job that waits once more, as a person's cp leaves it."""
    (name,) = [name for name in board.ls(INCOMING) if ".%s." % id in name]
    path = board.spool / INCOMING / name
    shutil.copy(path, path.with_name(name[:2] + "%016d" % (int(name[2:18]) + place) + name[18:]))


def take(board, store):
    return store.claim(board.now, None, 60, True)


def claim_both(board, one, two, id):
    """`one` claims the job, then `two` its copy: the Leases."""
    put(board, one, id)
    copy(board, id, 1)
    return take(board, one), take(board, two)


def test_who_is_alone_reads_the_folder_once(board):
    disk = CountingDisk()
    store = board.open(disk)
    for n in range(20):
        put(board, store, "j%d" % n)
        store.ack(take(board, store), board.now)
    assert disk.looks_n == 1
    store.make_folders()  # the safety scan: once more
    put(board, store, "again")
    assert take(board, store) and disk.looks_n == 2


def test_its_own_claims_count(board):
    store = board.open()
    put(board, store, "first")
    store.ack(take(board, store), board.now)
    first, second = claim_both(board, store, store, "a")
    assert first and second is None and [name.split(".")[3] for name in board.ls(INCOMING)] == ["0"]


@pytest.mark.parametrize("was_there", [True, False])
def test_the_claims_of_another_one_count(board, living_owner, was_there):
    """Whether it was there when we found that we were alone, or came after."""
    ours, other = board.open(), board.open(owner=living_owner)
    if was_there:
        put(board, other, "its-first")
        other.ack(take(board, other), board.now)
    for id in ("x", "y"):
        put(board, ours, id)
        ours.ack(take(board, ours), board.now)
    assert ours.company.is_alone() != was_there
    for n, (one, two) in enumerate(((ours, other), (other, ours), (ours, other))):
        first, second = claim_both(board, one, two, "a%d" % n)
        assert first and second is None, n
        one.ack(first, board.now)
        one.flush(board.now)
        board.clock.sleep(2)
        take(board, two)  # the copy, which meets the journal
    assert not ours.company.is_alone() and not other.company.is_alone()
    assert board.ls(INCOMING) == [] and ours.check(board.now) == []


def test_when_the_other_one_is_gone_we_are_alone_again_after_the_safety_scan(board):
    ours, other = board.open(), board.open(owner=dead_owner())
    put(board, other, "its-own")
    assert take(board, other)  # a claim that it left behind
    for id in ("x", "y"):
        put(board, ours, id)
        ours.ack(take(board, ours), board.now)
    assert not ours.company.is_alone(), "there is a claim of somebody else"
    for entry, holder in ours.stale(board.now):
        ours.retry(ours.take_over(entry, holder, board.now, 60), 0, "worker died", board.now)
    ours.make_folders()
    put(board, ours, "z")
    assert take(board, ours) and ours.company.is_alone()


def test_a_claim_that_became_nobodys_counts(board):
    """Our own disk's trouble between claim and start: it is in the folder, and not ours any more."""
    store = board.open()
    for id in ("x", "y"):
        put(board, store, id)
        store.ack(take(board, store), board.now)
    put(board, store, "a")
    copy(board, "a", 1)
    store._abandon(take(board, store))
    assert take(board, store) is None and not store.company.is_alone()


def test_where_run_was_emptied_nobody_is_ever_sure_again(board, living_owner):
    """B45: the others enter their lines again at their own safety scan, and until then one looks lonely."""
    ours, other = board.open(), board.open(owner=living_owner)
    for store, id in ((ours, "x"), (other, "y"), (ours, "z")):
        put(board, store, id)
        store.ack(take(board, store), board.now)
        store.flush(board.now)
    for path in board.run.iterdir():
        shutil.rmtree(path) if path.is_dir() else os.unlink(path)
    ours.make_folders()
    for n, (one, two) in enumerate(((ours, other), (other, ours), (ours, other))):
        first, second = claim_both(board, one, two, "a%d" % n)
        assert first and second is None, n
        one.ack(first, board.now)
        one.flush(board.now)
        board.clock.sleep(2)
        take(board, two)
    new = board.open(owner=(os.getppid(), start_time(os.getppid())))
    other.make_folders()
    put(board, new, "b")
    take(board, new)
    assert not new.company.is_alone()
    assert (board.run / "began").read_text().count("\n") == 3


def test_the_file_holds_only_the_living(board, living_owner):
    for n, owner in enumerate((dead_owner(), living_owner, None)):
        store = board.open(owner=owner)
        put(board, store, "j%d" % n)
        assert take(board, store)
    pids = [int(line.split()[0]) for line in (board.run / "began").read_text().splitlines()]
    assert pids == [living_owner[0], os.getpid()]


def test_where_it_cannot_be_written_nobody_is_alone(board):
    store = board.open()
    (board.run / "began").mkdir()
    for id in ("x", "y"):
        put(board, store, id)
        store.ack(take(board, store), board.now)
    assert not store.company.is_alone()
    first, second = claim_both(board, store, store, "a")
    assert first and second is None


def test_who_cannot_enter_does_not_claim(board, living_owner, monkeypatch):
    """RAM is full: the other one is alone in the file, and would never look for a claim of ours."""
    other, ours = board.open(owner=living_owner), board.open()
    for id in ("x", "y"):
        put(board, other, id)
        other.ack(take(board, other), board.now)
    other.flush(board.now)
    assert other.company.is_alone()
    put(board, ours, "a")
    copy(board, "a", 1)
    with monkeypatch.context() as patch:
        patch.setattr("edgeq.disk.write_run", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError):
            take(board, ours)
    assert board.ls(PROCESSING) == []
    assert take(board, ours), "there is room again"
    assert take(board, other) is None and not other.company.is_alone()
