"""Reaping: the old handler is ended at the right moment, the verdict is the caller's."""

from edgeq.job import Job, Retry
from edgeq.reap import reap
from tests.harness import dead_owner


def claim(board, store, lease_s=10):
    store.enqueue(Job("mail", id="a"), board.now)
    return store.claim(board.now, None, lease_s, True)


def run(board, store, events):
    real = store.take_over
    store.take_over = lambda *args: events.append("taken") or real(*args)
    return reap(store, board.now, 60, lambda holder, token: events.append("ended"), lambda lease: Retry(0, "worker died"),
                board.log)


def test_a_dead_owners_handler_is_ended_before_the_claim_is_taken(board, store):
    claim(board, board.open(owner=dead_owner()))
    events = []
    (lease, verdict), = run(board, store, events)
    assert events == ["ended", "taken"] and lease.entry.id == "a" and verdict.why == "worker died"
    assert board.log.said("reaped")[0]["because"] == "worker died"


def test_a_late_owners_handler_is_ended_after_the_claim_is_taken(board):
    claim(board, board.open(owner=(1, __import__("edgeq.lease").lease.start_time(1))))
    board.clock.sleep(11)
    events = []
    assert len(run(board, board.open(), events)) == 1 and events == ["taken", "ended"]
    assert board.log.said("reaped")[0]["because"] == "late"


def test_nothing_stale_nothing_done(board, store):
    claim(board, store)
    events = []
    assert run(board, store, events) == [] and events == []


def test_a_claim_that_somebody_else_took_is_left_alone(board, store):
    claim(board, board.open(owner=dead_owner()))
    store.take_over = lambda *args: None
    assert reap(store, board.now, 60, lambda *args: None, None, board.log) == []
