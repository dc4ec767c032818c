"""The spool's front door, where the crash images found something: what a person drops or moves back by hand."""

import os

from edgeq.job import INCOMING, Job
from edgeq.store.base import ALREADY_QUEUED

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
