"""The stores under test: a factory each, with what the store declares it cannot promise. Nothing else may name a store.

A factory makes a `Bench`: one queue, its clocks, and as many store objects on it as there are workers.
"""

import os
import subprocess

from edgeq.lease import start_time
from tests import redis_server
from tests.harness import Board, Clock, FaultyDisk


class Bench:
    """One queue on a store. settings: the configuration's. capabilities: words of `CAPABILITIES` that the store has."""

    def __init__(self, root, **settings):
        self.board = Board(root, **settings)
        self.clock, self.log, self.config = self.board.clock, self.board.log, self.board.config
        self._stores, self._children = [], []

    @property
    def now(self):
        return self.clock.read()

    def open(self):
        """The store object of one more worker; the first one is of this process."""
        return self.open_mortal()[0] if self._stores else self._keep(self.board.open())

    def open_producer(self):
        """The store object of a process that only queues jobs, no worker being up."""
        store = self._keep(self.board.open(start=False))
        store.make_folders()
        return store

    def open_mortal(self):
        """(store, kill): a worker's store object, and what kills that worker as kill -9 does."""
        child = subprocess.Popen(["sleep", "600"])
        self._children.append(child)
        store = self._keep(self.board.open(owner=(child.pid, start_time(child.pid))))

        def kill():
            child.kill()
            child.wait()
            self.drop(store)
        return store, kill

    def open_failing(self, fail_flush):
        """(store, disk): its next flush after `disk.fail_next_flush()` fails once."""
        disk = FailingFlush()
        return self._keep(self.board.open(disk)), disk

    def _keep(self, store):
        self._stores.append(store)
        return store

    def drop(self, store):
        """The process is gone: what it held open is closed, nothing else happens."""
        self._stores.remove(store)
        store._alive.drop()
        store.journal.close()

    def reboot(self, **clock):
        """A power cut: every worker is gone, /run is empty, another boot."""
        for store in list(self._stores):
            self.drop(store)
        self.board.reboot(**clock)

    def close(self):
        for store in list(self._stores):
            self.drop(store)
        for child in self._children:
            child.kill()
            child.wait()


class FailingFlush(FaultyDisk):
    """Fails one flush when asked to."""

    def fail_next_flush(self):
        self.armed = True

    def flush(self, fd):
        self._check()
        FaultyDisk.flush(self, fd)

    def flush_data(self, fd):
        self._check()
        FaultyDisk.flush_data(self, fd)

    def _check(self):
        if getattr(self, "armed", False):
            self.armed = False
            raise OSError(5, "Input/output error")


class Spool(Bench):
    capabilities = frozenset(("durable", "disk-seam"))


class Sqlite(Bench):
    capabilities = frozenset(("durable", "disk-seam"))

    def __init__(self, root, **settings):
        Bench.__init__(self, root, STORE="sqlite:%s/spool/queue.db" % root, **settings)

    def drop(self, store):
        self._stores.remove(store)
        store._alive.drop()
        store.db.close()


class Redis(Bench):
    """On a real server. Its clock is the test's: one that never steps, and the wall clock's."""

    capabilities = frozenset(("durable", "shared"))

    def __init__(self, root, **settings):
        Redis.made_n += 1
        server = redis_server.shared()
        self._before, self._url = 0.0, "%s?queue=q%d_%d" % (server.url, os.getpid(), Redis.made_n)
        Bench.__init__(self, root, STORE=self._url, **settings)

    made_n = 0

    def server_clock(self):
        return 1.7e15 + (self._before + self.clock.boot) * 1e6, self.clock.wall * 1e6

    def _keep(self, store):
        store.server_clock = self.server_clock
        store.start(self.now)
        return Bench._keep(self, store)

    def open(self):
        return self.open_mortal()[0] if self._stores else self._keep(self.board.open(start=False))

    def open_mortal(self):
        child = subprocess.Popen(["sleep", "600"])
        self._children.append(child)
        store = self._keep(self.board.open(owner=(child.pid, start_time(child.pid)), start=False))

        def kill():
            child.kill()
            child.wait()
            self.drop(store)
        return store, kill

    def open_failing(self, fail_flush):
        store = self.open()
        line = FailingBarrier(store.barrier)
        store.barrier = line
        return store, line

    def reboot(self, **clock):
        self._before += self.clock.boot
        Bench.reboot(self, **clock)

    def drop(self, store):
        self._stores.remove(store)
        store._alive.drop()
        store.link.close()


class FailingBarrier:
    """The line breaks at one barrier when asked to."""

    def __init__(self, barrier):
        self.barrier, self.armed = barrier, False

    def fail_next_flush(self):
        self.armed = True

    def __call__(self):
        if self.armed:
            self.armed = False
            raise OSError(5, "Input/output error")
        self.barrier()


FACTORIES = {"redis": Redis, "spool": Spool, "sqlite": Sqlite}

__all__ = ["FACTORIES", "Clock"]
