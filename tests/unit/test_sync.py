"""The batch: when the barrier falls."""

from edgeq.clock import Now
from edgeq.store.sync import Batch


def test_an_empty_batch_is_never_due():
    assert Batch().due_at(0, 1) is None


def test_the_window_counts_from_the_oldest():
    batch = Batch()
    batch.add_move("failed", Now(0, 100))
    batch.add_done("entry", "line", Now(0, 105))
    assert batch.due_at(10_000, 32) == 110


def test_a_full_batch_is_due_at_once():
    batch = Batch()
    for n in range(3):
        assert batch.due_at(10_000, 3) != 0
        batch.add_done(n, n, Now(0, 7))
    assert batch.due_at(10_000, 3) == 0 and (batch.settled, batch.lines, batch.size) == ([0, 1, 2], [0, 1, 2], 3)


def test_a_cleared_batch_is_empty():
    batch = Batch()
    batch.add_move("failed", Now(0, 1))
    batch.clear()
    assert (batch.size, batch.since, batch.folders, batch.due_at(1, 1)) == (0, None, set(), None)
