"""The SQLite store when one call fails: of the seam to the disk, or of a transaction. Accepted jobs stay, `check` finds nothing."""

import contextlib
import os
import posix

import pytest

from edgeq.errors import EdgeqError, LeaseLost
from edgeq.job import DLQ, DONE, Job
from edgeq.store.tables.database import Database
from tests.harness import Board, FaultyDisk, Killed, dead_owner, recover

STRIDE = 1 if os.environ.get("FULL", "") not in ("", "0") else 2


class Fault:
    """Fails call number `n` of the seam and of transactions, counted together. errno None: the process dies there.

    after: the call has its effect first. Everything else works.
    """

    def __init__(self, n, errno, after):
        self.n, self.errno, self.after, self.seen = n, errno, after, 0
        self.is_dead = False

    def wrap(self, call, *args):
        if self.is_dead:
            raise Killed()
        self.seen += 1
        if self.seen != self.n:
            return call(*args)
        if self.after:
            call(*args)
        if self.errno is None:
            self.is_dead = True
            raise Killed()
        raise OSError(self.errno, posix.strerror(self.errno))


CALLS = ("rename", "unlink", "fsync", "fdatasync", "write", "open", "lstat", "mkdir")


def work(board, store, accepted, over):
    """A little of everything. accepted: ids that are safe; over: ids that are done or removed, or may be."""
    now = board.now

    @contextlib.contextmanager
    def trouble():
        """Whoever meets an error reopens and goes on."""
        try:
            yield
        except LeaseLost:
            pass
        except (OSError, EdgeqError):
            for _ in range(3):
                if store.is_broken:
                    try:
                        store.reopen(now)
                    except (OSError, EdgeqError):
                        pass

    def put(*ids):
        with trouble():
            store.enqueue_many([Job("t", id=id) for id in ids], now)
            accepted.update(ids)

    def take():
        lease = None
        with trouble():
            lease = store.claim(now, None, 60, True)
        return lease

    def settle(verb, *args):
        lease = take()
        if lease:
            if verb in ("ack", "drop"):
                over.add(lease.entry.id)
            with trouble():
                getattr(store, verb)(lease, *args)
    put("a", "b", "c")
    put("d"), put("e"), put("f"), put("g")
    settle("ack", now)
    settle("retry", 1, "exit 1", now)
    settle("bury", "exit 65", now)
    settle("give_back", "stopped", now)
    settle("hold", "held", False, now)
    settle("drop", "cancelled", now)
    with trouble():
        store.flush(now)
    for state in (DLQ,):
        with trouble():
            for entry in list(store.entries(state)):
                store.kick(entry.id, now)
    over.add("g")
    with trouble():
        store.cancel("g", now)
    path = board.spool / "incoming" / "dropped"
    path.write_text('{"id":"dropped","type":"t","payload":{}}\n')
    accepted.add("dropped")
    with trouble():
        store.adopt(now)
    with trouble():
        store.prune(now)
    with trouble():
        store.close(now)


def judge(board, accepted, over, what):
    """Another boot, another worker: nothing that was accepted is gone, nothing runs twice, nothing is to be found fault with."""
    board.reboot(wall=board.clock.wall)
    store = board.open()
    recover(store, board.now)
    board.clock.sleep(10)
    store.adopt(board.now)
    for entry in list(store.entries(DLQ)):
        store.kick(entry.id, board.now)
    known = {id for id in accepted | over if store.find(id)[0] is not None}
    assert accepted - over <= known, "%s: lost %s" % (what, accepted - over - known)
    ran = []
    while lease := store.claim(board.now, None, 60, True):
        assert store.find(lease.entry.id)[0] != DONE
        ran.append(lease.entry.id)
        store.ack(lease, board.now)
    store.flush(board.now)
    assert len(ran) == len(set(ran)) and store.check(board.now) == [], what
    store.close(board.now)


@pytest.mark.fault
@pytest.mark.parametrize("errno, after", ((5, False), (28, False), (None, False), (None, True)))
def test_any_call_may_fail(tmp_path, monkeypatch, errno, after):
    begin, commit, fault = Database.begin, Database.commit, None
    monkeypatch.setattr(Database, "begin", lambda database: fault.wrap(begin, database) if fault else begin(database))
    monkeypatch.setattr(Database, "commit", lambda database: fault.wrap(commit, database) if fault else commit(database))
    n = 0
    while True:
        n += STRIDE
        root = tmp_path / ("%d" % n)
        root.mkdir()
        board = Board(root, STORE="sqlite:%s/spool/queue.db" % root)
        disk, accepted, over = FaultyDisk(), set(), set()
        store = board.open(disk, owner=dead_owner())
        fault = Fault(n, errno, after)
        for name in CALLS:
            setattr(disk, name, lambda *args, call=getattr(disk, name): fault.wrap(call, *args))
        try:
            work(board, store, accepted, over)
        except Killed:
            pass
        is_hit, fault = fault.seen >= n, None
        store._alive.drop()
        if store.db.connection:
            store.db.connection.close()
        store.db._open.drop()
        disk.bury()
        judge(board, accepted, over, "call %d, errno %s, after %s" % (n, errno, after))
        if not is_hit:
            break
    assert n > 60
