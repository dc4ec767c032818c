"""What goes from the store and from /run, and what stays."""

import os

from edgeq.lease import start_time
from edgeq.retain import retain, sweep_run
from tests.harness import dead_owner


class Store:
    def __init__(self, gone):
        self.gone = gone

    def prune(self, now):
        return self.gone


def test_what_went_is_told(board):
    assert retain(Store(3), board.now, board.log) == 3 and board.log.said("pruned") == [{"files": 3}]
    assert retain(Store(0), board.now, board.log) == 0 and len(board.log.said("pruned")) == 1


def test_only_what_dead_workers_left_in_run_goes(board, store):
    dead, alive = "%d-%d" % dead_owner(), "%d-%d" % (os.getpid(), start_time(os.getpid()))
    for owner in (dead, alive):
        for name in ("wake/" + owner, "wake/%s.asleep" % owner, "workers/" + owner, "workers/%s.7~" % owner,
                     "leases/00000001-%s-1" % owner, "leases/00000001-%s-2" % owner, "ctl/00000001-%s-1" % owner):
            (board.run / name).touch()
    sweep_run(str(board.run), {"00000001-%s-2" % dead})
    left = {str(path.relative_to(board.run)) for folder in ("wake", "workers", "leases", "ctl")
            for path in (board.run / folder).iterdir()}
    assert left == {"wake/" + alive, "wake/%s.asleep" % alive, "workers/" + alive, "workers/%s.7~" % alive,
                    "leases/00000001-%s-1" % alive, "leases/00000001-%s-2" % alive, "ctl/00000001-%s-1" % alive,
                    "leases/00000001-%s-2" % dead}


def test_names_that_are_nobodys_go_too(board, store):
    for name in ("wake/x", "leases/garbage", "workers/1-x"):
        (board.run / name).touch()
    sweep_run(str(board.run), set())
    assert [name for folder in ("wake", "leases", "workers") for name in os.listdir(board.run / folder)] == []
