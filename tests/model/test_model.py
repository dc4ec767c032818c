"""Random verbs against a dict, with reboots and with crashes at random calls to the disk.

The model says for each id what may be true of it: a set of possible states, since what was not acknowledged may or may not have
happened. The seed is printed; EDGEQ_MODEL_SEED repeats a run, EDGEQ_MODEL_S lengthens it.
"""

import os
import random
import subprocess
import time

import pytest

from edgeq.errors import Busy, Duplicate, EdgeqError, LeaseLost, NotFound
from edgeq.job import DLQ, Job
from edgeq.store.base import ALREADY_DEAD, ALREADY_DONE, ALREADY_QUEUED, QUEUED
from edgeq.lease import start_time
from tests.harness import Board, FaultyDisk, Killed, recover

BUDGET_S = float(os.environ.get("EDGEQ_MODEL_S", "5"))
WAITING, CLAIMED, DONE, DEAD, NOWHERE = "waiting", "claimed", "done", "dead", "nowhere"
IDS = ["j%d" % n for n in range(12)]


class Model:
    """id -> the states it may be in; payload of the accepted ones; runs since the last time it began anew."""

    def __init__(self):
        self.states = {id: {NOWHERE} for id in IDS}
        self.payloads = {}
        self.leases = {}  # id -> Lease that a living worker holds


class Walk:
    """One walk with one seed."""

    def __init__(self, root, seed):
        self.random, self.board, self.model = random.Random(seed), Board(root, DONE_KEEP_KB=512), Model()
        self.verbs = [self.enqueue] * 6 + [self.claim] * 6 + [self.ack] * 4 + [
            self.flush, self.retry, self.retry, self.bury, self.hold, self.give_back, self.kick, self.kick, self.cancel,
            self.sleep, self.sleep, self.step_clock, self.check, self.prune]
        self.disk = self.store = None
        self.steps = self.crashes = self.reboots = 0
        self.restart()

    # --- life and death -------------------------------------------------------------------------------------------------------

    def restart(self):
        """A new worker process: whatever was claimed is reaped."""
        self.disk = FaultyDisk()
        self.owner = subprocess.Popen(["sleep", "600"])
        self.store = self.board.open(self.disk, (self.owner.pid, start_time(self.owner.pid)))
        for states in self.model.states.values():
            if CLAIMED in states:
                states.discard(CLAIMED)
                states.add(WAITING)
        self.model.leases.clear()
        recover(self.store, self.board.now)

    def crash(self, reboots=False):
        """The process, or the board, dies now. Unflushed completions may be undone by that (never in this double)."""
        self.leave()
        self.crashes += 1
        if reboots:
            self.reboots += 1
            self.board.reboot(wall=self.random.choice((None, 5, self.board.clock.wall + 10 ** 6)))
        self.restart()

    def leave(self):
        """kill -9."""
        self.store._alive.drop()
        self.disk.bury()
        self.owner.kill()
        self.owner.wait()

    def step(self):
        verb, dies = self.random.choice(self.verbs), self.random.random()
        if dies < 0.15:
            self.disk.fail_at = len(self.disk.trace) + self.random.randrange(1, 12)
            self.disk.after = self.random.random() < 0.5
        self.steps += 1
        try:
            verb()
            self.disk.fail_at = 0
        except Killed:
            self.crash(self.random.random() < 0.4)
        if dies > 0.99:
            self.crash(dies > 0.995)

    # --- verbs: what may be true is widened before the call, narrowed by its answer -----------------------------------------------

    def pick(self, *states):
        """A random id that may be in one of `states`, else any."""
        fitting = [id for id, may in self.model.states.items() if may & set(states)]
        return self.random.choice(fitting or IDS)

    def held(self):
        id = self.random.choice(sorted(self.model.leases)) if self.model.leases else None
        return (id, self.model.leases[id]) if id else (None, None)

    def enqueue(self):
        id, may = self.random.choice(IDS), None
        may = self.model.states[id]
        payload = b'{"n":%d}' % self.steps
        possible = set(may)
        if NOWHERE in may:
            may.add(WAITING)
        self.model.payloads.setdefault(id, set()).add(payload)
        receipt = self.store.enqueue(Job("mail", payload, id=id, priority=self.random.randrange(10),
                                         delay_s=self.random.choice((0, 0, 30))), self.board.now)
        allowed = {QUEUED: {NOWHERE}, ALREADY_QUEUED: {WAITING, CLAIMED, DONE}, ALREADY_DONE: {DONE},
                   ALREADY_DEAD: {DEAD}}[receipt.status]
        assert possible & allowed, "%s: %s, but it was %s" % (id, receipt.status, possible)
        self.model.states[id] = {WAITING} if receipt.status == QUEUED else possible & allowed

    def claim(self):
        before = {id: set(may) for id, may in self.model.states.items()}
        for may in self.model.states.values():
            if WAITING in may:
                may.add(CLAIMED)
        lease = self.store.claim(self.board.now, None, 10 ** 6, True)
        self.model.states = before
        if lease:
            id = lease.entry.id
            assert WAITING in before[id], "%s runs, but it was %s" % (id, before[id])
            assert lease.record.payload in self.model.payloads[id], "the payload changed"
            assert 1 <= lease.entry.attempts
            self.model.states[id] = {CLAIMED}
            self.model.leases[id] = lease

    def settle(self, call, *after):
        id, lease = self.held()
        if id:
            self.model.states[id] |= set(after)
            call(lease)
            del self.model.leases[id]
            self.model.states[id] = set(after)

    def ack(self):
        self.settle(lambda lease: self.store.ack(lease, self.board.now), DONE)

    def retry(self):
        self.settle(lambda lease: self.store.retry(lease, self.random.choice((0, 20)), "exit 1", self.board.now), WAITING)

    def bury(self):
        self.settle(lambda lease: self.store.bury(lease, "exit 65", self.board.now), DEAD)

    def hold(self):
        self.settle(lambda lease: self.store.hold(lease, "exit 69", True, self.board.now), WAITING)

    def give_back(self):
        self.settle(lambda lease: self.store.give_back(lease, "stopped", self.board.now), WAITING)

    def kick(self):
        id = self.pick(DEAD)
        may = self.model.states[id]
        possible = set(may)
        may |= {WAITING} if DEAD in may else set()
        try:
            self.store.kick(id, self.board.now)
            assert DEAD in possible, "%s was kicked, but it was %s" % (id, possible)
            self.model.states[id] = {WAITING}
        except (NotFound, Duplicate) as error:
            self.model.states[id] = possible - {DEAD}
            assert self.model.states[id], "%s: %s" % (id, error)

    def cancel(self):
        id = self.random.choice(IDS)
        may = self.model.states[id]
        possible = set(may)
        may |= {NOWHERE} if may & {WAITING, DEAD} else set()
        try:
            self.store.cancel(id, self.board.now)
            assert possible & {WAITING, DEAD}, "%s was cancelled, but it was %s" % (id, possible)
            self.model.states[id] = {NOWHERE}
        except NotFound:
            self.model.states[id] = possible & {DONE, NOWHERE}
            assert self.model.states[id], "%s is not found, but it was %s" % (id, possible)
        except Busy:
            self.model.states[id] = possible & {CLAIMED, DONE}
            assert self.model.states[id], "%s is busy, but it was %s" % (id, possible)

    def flush(self):
        self.store.flush(self.board.now)

    def sleep(self):
        self.board.clock.sleep(self.random.choice((1, 40, 4000)))

    def step_clock(self):
        self.board.clock.step(self.random.choice((-10 ** 6, -5, 5, 10 ** 5)))

    def check(self):
        assert self.store.check(self.board.now) == []

    def prune(self):
        self.store.prune(self.board.now)

    # --- the end ------------------------------------------------------------------------------------------------------------------

    def finish(self):
        """Everything that waits runs; then each id is where the model says."""
        self.crash(True)
        idle = 0
        while idle < 3:
            lease = self.store.claim(self.board.now, None, 60, True)
            if lease:
                id = lease.entry.id
                assert WAITING in self.model.states[id], "%s runs at the end, but it was %s" % (id, self.model.states[id])
                self.store.ack(lease, self.board.now)
                self.model.states[id] = {DONE}
            else:
                self.store.flush(self.board.now)
                self.board.clock.sleep(10 ** 5)
                idle += 1
        assert self.store.check(self.board.now) == []
        for id, may in self.model.states.items():
            where = self.store.find(id)[0]
            found = {None: NOWHERE, DLQ: DEAD}.get(where, where)
            assert found in may, "%s is %s, and should be one of %s" % (id, found, may)
        self.store.close(self.board.now)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("turn", range(4))
def test_a_random_walk_agrees_with_the_model(ram_path, turn, capsys):
    first = int(os.environ.get("EDGEQ_MODEL_SEED", "0")) or random.SystemRandom().randrange(1, 10 ** 9)
    ends, walks, steps, crashes = time.monotonic() + BUDGET_S, 0, 0, 0
    while time.monotonic() < ends:
        seed = first + turn * 10 ** 9 + walks if "EDGEQ_MODEL_SEED" not in os.environ else first
        root = ram_path / str(walks)
        root.mkdir()
        walk = None
        try:
            walk = Walk(root, seed)
            for _ in range(300):
                walk.step()
            walk.finish()
        except (AssertionError, OSError, EdgeqError, LeaseLost) as error:
            raise AssertionError("EDGEQ_MODEL_SEED=%d, step %d: %s: %s" % (
                seed, walk.steps if walk else 0, type(error).__name__, error)) from error
        finally:
            if walk:
                walk.leave()
        walks, steps, crashes = walks + 1, steps + walk.steps, crashes + walk.crashes
    with capsys.disabled():
        print(" seed %d: %d walks, %d steps, %d crashes" % (first, walks, steps, crashes), end="")
    assert steps and crashes
