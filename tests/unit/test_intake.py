"""The spool's front door, where the crash images found something: what a person drops or moves back by hand."""

import errno
import os

import pytest

from edgeq.errors import Busy, StoreDown
from edgeq.job import INCOMING, PROCESSING, Job
from edgeq.store.base import ALREADY_DONE, ALREADY_QUEUED

DROPPED = b'{"id":"by-hand","type":"t","payload":{}}\n'


def test_adopted_file_is_flushed_before_it_can_be_claimed(board, store, monkeypatch):
    """Else a job that takes the board down returns under its dropped name and a new SEQ each time, suspected by no boot (P4)."""
    with open(store.path(INCOMING, "note.json"), "wb") as file:
        file.write(DROPPED)
    flushed = []
    monkeypatch.setattr(store.disk, "fsync", lambda fd: flushed.append(os.path.basename(os.readlink("/proc/self/fd/%d" % fd))))
    now = board.clock.read()
    assert store.claim(now, fresh=True) is None
    assert store.adopt(now) == 1
    assert [name for name in flushed if name.endswith(".t.by-hand.json")]


def test_dead_letter_moved_back_by_hand_is_known_by_its_id(board, store):
    """The wrapper knows it, so must Python: one id, one job."""
    now = board.clock.read()
    store.enqueue(Job("t", b"{}", id="one"), now)
    store.bury(store.claim(now), "hopeless", now)
    os.rename(store.path("dlq", "one.json"), store.path(INCOMING, "one.json"))
    assert store.enqueue(Job("t", b"{}", id="one"), now).status == ALREADY_QUEUED
    assert [entry.id for entry in store.entries(INCOMING)] == ["one"]


def fail_once(store, monkeypatch):
    """The next flush fails, the ones after it work: what the kernel does with a page that it could not write."""
    real = store.disk.fsync

    def fsync(fd):
        monkeypatch.setattr(store.disk, "fsync", real)
        raise OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(store.disk, "fsync", fsync)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_repeat_after_a_failed_flush_puts_a_new_file_in_its_place(board, store, monkeypatch, key):
    """A second flush of the same file proves nothing (tests/crash/doubt.py)."""
    now = board.clock.read()
    job = Job("t", b'{"n":1}', id="one", key=key)
    fail_once(store, monkeypatch)
    with pytest.raises(StoreDown):
        store.enqueue(job, now)
    store.reopen(now)
    (name,) = board.ls(INCOMING)
    before = (board.spool / INCOMING / name).stat().st_ino, (board.spool / INCOMING / name).read_bytes()
    again = Job("t", b'{"n":1}', id=None if key else "one", key=key)
    assert store.enqueue(again, now).status == ALREADY_QUEUED
    assert board.ls(INCOMING) == [name]
    after = (board.spool / INCOMING / name).stat().st_ino, (board.spool / INCOMING / name).read_bytes()
    assert after[0] != before[0] and after[1] == before[1]


def test_without_a_failed_flush_a_repeat_writes_nothing(board, store):
    now = board.clock.read()
    store.enqueue(Job("t", b"{}", id="one"), now)
    (name,) = board.ls(INCOMING)
    before, written = (board.spool / INCOMING / name).stat(), store.disk.written_bytes
    assert store.enqueue(Job("t", b"{}", id="one"), now).status == ALREADY_QUEUED
    assert (board.spool / INCOMING / name).stat() == before and store.disk.written_bytes == written


def test_in_doubt_a_claim_is_not_touched(board, store, monkeypatch):
    """The producer repeats when the job has ended, and hears what became of it."""
    now = board.clock.read()
    fail_once(store, monkeypatch)
    with pytest.raises(StoreDown):
        store.enqueue(Job("t", b"{}", id="one"), now)
    store.reopen(now)
    lease = store.claim(now)
    with pytest.raises(Busy):
        store.enqueue(Job("t", b"{}", id="one"), now)
    store.ack(lease, now)
    assert store.enqueue(Job("t", b"{}", id="one"), now).status == ALREADY_DONE


def test_the_doubt_ends_with_the_boot(board, monkeypatch):
    store = board.open()
    now = board.clock.read()
    fail_once(store, monkeypatch)
    with pytest.raises(StoreDown):
        store.enqueue(Job("t", b"{}", id="one"), now)
    assert (board.run / "doubt").read_bytes() == b"1"
    store._alive.drop()
    board.reboot()
    store = board.open()
    assert (board.run / "doubt").read_bytes() == b""
    store.close(board.clock.read())


def test_in_doubt_a_claim_that_comes_between_still_runs_once(board, store, monkeypatch):
    """RACE: claimed between look and rename, so the id is in two places: the claim ranks higher, its line ends the other."""
    now = board.clock.read()
    fail_once(store, monkeypatch)
    with pytest.raises(StoreDown):
        store.enqueue(Job("t", b"{}", id="one"), now)
    store.reopen(now)
    leases, real = [], store.disk.replace

    def replace(folder, name, data):
        monkeypatch.setattr(store.disk, "replace", real)
        leases.append(store.claim(now))
        real(folder, name, data)
    monkeypatch.setattr(store.disk, "replace", replace)
    assert store.enqueue(Job("t", b"{}", id="one"), now).status == ALREADY_QUEUED
    assert len(board.ls(INCOMING)) == len(board.ls(PROCESSING)) == 1
    assert store.claim(now, fresh=True) is None
    store.ack(leases[0], now)
    store.flush(now)
    board.clock.sleep(5)
    assert store.claim(board.clock.read(), fresh=True) is None
    assert board.ls(INCOMING) == board.ls(PROCESSING) == [] and store.check(board.clock.read()) == []
    assert store.enqueue(Job("t", b"{}", id="one"), now).status == ALREADY_DONE
