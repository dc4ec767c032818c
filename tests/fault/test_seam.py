"""The disk seam fails call n, for n = 1, 2, ... until a run passes untouched (see sqlite's test_vfs, bbolt's robustness tests).

A scenario is what a worker or an operator does. Each of its calls to the disk fails in each way: once, from then on, a write cut
short, the process killed before or after the call. Then the store object is dropped (`drop`), or it is used on as the worker uses
it, reopened when it refuses (`carry`). A healthy worker recovers, runs what is left, and the ledger of what was acknowledged
must agree with the spool: nothing accepted is lost, nothing acknowledged undone, nothing run twice without leave, `check` silent.
"""

import shutil

import pytest

from edgeq.errors import Duplicate, EdgeqError, LeaseLost, NotFound
from edgeq.job import DLQ, FAILED, INCOMING, PROCESSING, Job
from edgeq.store import together
from tests.harness import Board, FaultyDisk, Killed, dead_owner, recover

EIO, EMFILE, ENOSPC, EROFS = 5, 24, 28, 30
FAULTS = {
    "eio": dict(errno=EIO), "eio-forever": dict(errno=EIO, forever=True),
    "enospc": dict(errno=ENOSPC), "enospc-forever": dict(errno=ENOSPC, forever=True),
    "erofs-forever": dict(errno=EROFS, forever=True), "emfile": dict(errno=EMFILE),
    "short": dict(short=True),
    "killed-before": dict(), "killed-after": dict(after=True),
}
pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]


class Stopped(Exception):
    """The scenario met an error and its store object is dropped."""


class Ledger:
    """What the store said, and what was asked of it without an answer."""

    def __init__(self):
        self.accepted, self.done, self.dead, self.gone = set(), set(), set(), set()
        self.acking, self.burying, self.kicking, self.removing = set(), set(), set(), set()
        self.runs, self.held, self.refunds = {}, {}, set()


class Shift:
    """A worker's or operator's work on a disk that may fail, with its ledger."""

    def __init__(self, board, disk, ledger, carries):
        self.board, self.disk, self.ledger, self.carries = board, disk, ledger, carries
        self.store = board.open(disk, dead_owner(), start=False)
        self.insist(lambda: self.store.start(board.now), False)

    def insist(self, call, promises=True):
        """The answer of `call`; an error ends the scenario, or is followed by what the worker does about it.

        promises: what it answers is safe, or what it begins needs something safe.
        """
        for _ in range(4):
            try:
                answer = call()
                assert not (promises and self.disk.is_unsafe), "a flush failed, and the store went on promising"
                return answer
            except (LeaseLost, NotFound, Duplicate):
                raise
            except (OSError, EdgeqError):
                if not self.carries:
                    raise Stopped() from None
            if self.store.is_broken:
                try:
                    self.store.reopen(self.board.now)
                    self.disk.is_unsafe = False
                except (OSError, EdgeqError):
                    pass
        raise Stopped()

    def enqueue(self, id):
        receipt = self.insist(lambda: self.store.enqueue(job(id), self.board.now))
        self.ledger.accepted.add(receipt.id)
        return receipt

    def enqueue_many(self, ids):
        receipts = self.insist(lambda: self.store.enqueue_many([job(id) for id in ids], self.board.now))
        self.ledger.accepted.update(receipt.id for receipt in receipts)

    def claim(self):
        lease = self.insist(lambda: self.store.claim(self.board.now, None, 60, True))
        if lease:
            self.ledger.ran(lease)
        return lease

    def ack(self, lease, note=""):
        self.ledger.acking.add(lease.entry.id)
        self.insist(lambda: self.store.ack(lease, self.board.now, note), False)
        self.ledger.held.pop(lease.token)

    def flush(self):
        self.insist(lambda: self.store.flush(self.board.now))
        self.ledger.done.update(self.ledger.acking)

    def settle(self, verb, lease, *args):
        getattr(self.ledger, {"bury": "burying", "drop": "removing"}.get(verb, "refunds")).add(lease.entry.id)
        self.insist(lambda: getattr(self.store, verb)(lease, *args, self.board.now))
        self.ledger.held.pop(lease.token)
        self.ledger.dead.update([lease.entry.id] if verb == "bury" else [])
        self.ledger.gone.update([lease.entry.id] if verb == "drop" else [])

    def kick(self, id):
        self.ledger.kicking.add(id)
        self.ledger.dead.discard(id)
        self.insist(lambda: self.store.kick(id, self.board.now))
        self.ledger.accepted.add(id)

    def cancel(self, id):
        self.ledger.removing.add(id)
        self.ledger.dead.discard(id)
        self.insist(lambda: self.store.cancel(id, self.board.now))
        self.ledger.gone.add(id)

    def close(self):
        try:
            self.store.close(self.board.now)  # a worker does not try twice: the running mark stays
        except (OSError, EdgeqError):
            raise Stopped() from None
        self.ledger.done.update(self.ledger.acking)

    def leave(self):
        """The object goes; what its process had open is closed by the kernel."""
        self.store._alive.drop()
        self.disk.bury()


def ran(ledger, lease):
    """A run begins: of a job that was not acknowledged as over."""
    id = lease.entry.id
    assert id not in ledger.done | ledger.dead | ledger.gone, "ran %s, which was acknowledged as over" % id
    assert lease.record.payload == payload(id), "the payload of %s changed" % id
    ledger.runs[id] = ledger.runs.get(id, 0) + 1
    ledger.held[lease.token] = lease


Ledger.ran = ran


def payload(id):
    return b'{"to": 1e999}' if id is None or len(id) > 9 else b'{"to":"%s"}' % id.encode()


def job(id):
    return Job("mail", payload(id), id=id, max_attempts=3)


# --- scenarios: (prepare with a healthy disk, act on the faulty one) ---------------------------------------------------


def with_jobs(*ids):
    """Prepares a spool with waiting jobs, after a clean stop."""
    def prepare(board, ledger):
        shift = Shift(board, FaultyDisk(), ledger, False)
        for id in ids:
            shift.enqueue(id)
        shift.close()
    return prepare


def with_dead(*ids, waiting=()):
    def prepare(board, ledger):
        shift = Shift(board, FaultyDisk(), ledger, False)
        for id in ids:
            shift.enqueue(id)
            shift.settle("bury", shift.claim(), "exit 65")
        for id in waiting:
            shift.enqueue(id)
        shift.close()
    return prepare


def with_wreck(board, ledger):
    """What a killed worker leaves: a claim, settled claims with a line and with a letter, a retry, an unflushed line."""
    shift = Shift(board, FaultyDisk(), ledger, False)
    for id in ("claimed", "done", "dead", "failed", "unsure"):
        shift.enqueue(id)
    leases = {}
    for _ in range(5):
        lease = shift.claim()
        leases[lease.entry.id] = lease
    shift.ack(leases["done"])
    shift.store._write_lines()
    shift.store.journal.flush()
    ledger.done.add("done")
    shift.store._settle(leases["dead"])
    shift.store._write_letter(leases["dead"], leases["dead"].entry, "exit 65", board.now, 1)
    ledger.burying.add("dead")
    ledger.dead.add("dead")
    shift.store.retry(leases["failed"], 1, "exit 1", board.now)
    shift.ack(leases["unsure"])
    ledger.acking.discard("unsure")
    ledger.held.clear()
    shift.leave()
    board.clock.sleep(5)


def with_dropped(board, ledger):
    """Files that a person dropped: a job, one without id, one that is torn, a letter moved by hand."""
    with_dead("moved")(board, ledger)
    incoming = board.spool / "incoming"
    (incoming / "note.txt").write_bytes(b'{"id":"dropped","type":"mail","payload":{"to":"dropped"}}\n')
    (incoming / "torn.json").write_bytes(b'{"type":"mail","pay')
    (board.spool / "dlq" / "moved.json").rename(incoming / "moved.json")
    ledger.dead.discard("moved")
    ledger.burying.discard("moved")
    ledger.kicking.add("moved")
    ledger.accepted.update(("dropped", "moved"))


def with_full_journal(board, ledger):
    """One line short of the segment's end."""
    shift = Shift(board, FaultyDisk(), ledger, False)
    for n in range(20):
        shift.enqueue("old-%d" % n)
        shift.ack(shift.claim(), "n" * 120)
    shift.flush()
    shift.enqueue("a")
    shift.enqueue("b")
    shift.close()


def with_surplus(board, ledger):
    """More journal and more dead letters than are kept."""
    shift = Shift(board, FaultyDisk(), ledger, False)
    for n in range(90):
        shift.enqueue("old-%d" % n)
        shift.ack(shift.claim(), "n" * 120)
    shift.flush()
    for id in ("x", "y"):
        shift.enqueue(id)
        shift.settle("bury", shift.claim(), "exit 65")
    shift.enqueue("w")
    shift.close()
    ledger.removing.update("xy", ledger.done)  # one letter may go, and the memory of what was done longest ago
    ledger.dead.clear()


def with_unclean_end(board, ledger):
    with_jobs("a", "b")(board, ledger)
    shift = Shift(board, FaultyDisk(), ledger, False)
    shift.claim()
    ledger.held.clear()
    shift.leave()
    board.reboot()


def act_enqueue(shift):
    shift.enqueue(None)
    shift.enqueue("given")
    shift.enqueue("given")


def act_batch(shift):
    shift.enqueue_many([None, "given", "a", "given", "b"])


def act_ack(shift):
    first, second = shift.claim(), shift.claim()
    shift.ack(first, "a result")
    shift.ack(second)
    shift.flush()
    shift.close()


def act_roll(shift):
    for _ in range(2):
        shift.ack(shift.claim(), "n" * 120)
    shift.flush()


def act_retry(shift):
    lease = shift.claim()
    shift.insist(lambda: shift.store.retry(lease, 5, "exit 1", shift.board.now))
    shift.ledger.held.pop(lease.token)
    shift.flush()
    shift.board.clock.sleep(10)
    shift.ack(shift.claim())
    shift.flush()


def act_bury(shift):
    shift.settle("bury", shift.claim(), "exit 65")
    shift.enqueue("a")


def act_return(shift):
    """Held after it ran, then given back by a worker that stops."""
    lease = shift.claim()
    shift.ledger.refunds.add(lease.entry.id)
    shift.insist(lambda: shift.store.hold(lease, "exit 69", True, shift.board.now))
    shift.ledger.held.pop(lease.token)
    lease = shift.claim()
    shift.settle("give_back", lease, "stopped")
    shift.close()


def act_kick(shift):
    shift.kick("a")
    shift.ack(shift.claim())
    shift.flush()


def act_remove(shift):
    shift.cancel("a")
    shift.cancel("w")
    shift.settle("drop", shift.claim(), "cancelled")


def act_purge(shift):
    shift.ledger.removing.update("aw")
    shift.ledger.dead.clear()
    shift.insist(lambda: shift.store.purge([INCOMING, FAILED, DLQ, "corrupt", "done"], shift.board.now))
    shift.ledger.gone.update("aw")


def act_prune(shift):
    for _ in range(3):
        shift.insist(lambda: shift.store.prune(shift.board.now))
    shift.ack(shift.claim())
    shift.flush()


def act_adopt(shift):
    for _ in range(3):
        shift.insist(lambda: shift.store.claim(shift.board.now, lambda type: False, 60, True))
        shift.insist(lambda: shift.store.adopt(shift.board.now))
        shift.board.clock.sleep(3)


def act_recover(shift):
    recover(shift.store, shift.board.now, shift.insist)


def act_repair(shift):
    shift.insist(lambda: shift.store.check(shift.board.now, True))


def act_suspect(shift):
    act_recover(shift)
    for _ in range(2):
        shift.ack(shift.claim())
    shift.close()


SCENARIOS = {
    "enqueue": (with_jobs(), act_enqueue), "batch": (with_jobs("a"), act_batch),
    "batch in order": (with_jobs("a"), act_batch), "ack": (with_jobs("a", "b"), act_ack),
    "roll": (with_full_journal, act_roll), "retry": (with_jobs("a"), act_retry), "bury": (with_jobs("a"), act_bury),
    "return": (with_jobs("a"), act_return), "kick": (with_dead("a"), act_kick),
    "remove": (with_dead("a", waiting="wz"), act_remove), "purge": (with_dead("a", waiting="w"), act_purge),
    "prune": (with_surplus, act_prune), "adopt": (with_dropped, act_adopt), "recover": (with_wreck, act_recover),
    "repair": (with_wreck, act_repair), "suspect": (with_unclean_end, act_suspect),
}


# --- the walk over all calls --------------------------------------------------------------------------------------------


class Bench:
    """Runs one scenario over and over. The prepared spool is kept and copied."""

    def __init__(self, root, scenario):
        self.root, self.scenario, (self.prepare, self.act) = root, scenario, SCENARIOS[scenario]
        self.board = Board(root, DONE_KEEP_KB=16, DLQ_KEEP=1 if scenario == "prune" else 500)
        self.ledger = Ledger()
        self.prepare(self.board, self.ledger)
        self.start = vars(self.board.clock).copy()
        for part in ("spool", "run"):
            if (root / part).exists():
                (root / part).rename(root / (part + ".kept"))

    def fresh(self):
        """The prepared board again, and a copy of its ledger."""
        for part in ("spool", "run"):
            shutil.rmtree(self.root / part, ignore_errors=True)
            if (self.root / (part + ".kept")).exists():
                shutil.copytree(self.root / (part + ".kept"), self.root / part)
        vars(self.board.clock).update(self.start)
        self.board.log.events.clear()
        ledger = Ledger()
        for field, value in vars(self.ledger).items():
            setattr(ledger, field, value.copy())
        ledger.runs = {}
        return ledger

    def run(self, disk, carries=False, reboots=False):
        """The scenario on `disk`, then recovery and the reckoning."""
        ledger, shift = self.fresh(), None
        try:
            shift = Shift.__new__(Shift)
            shift.__init__(self.board, disk, ledger, carries)
            self.act(shift)
        except (Killed, Stopped, NotFound, Duplicate):
            pass
        except AttributeError as error:  # a claim that gave nothing, because a fault hid the job for now
            if "NoneType" not in str(error):
                raise
        if carries and not disk.is_dead:
            check_no_claim_is_nobodys(self.board, shift, ledger)
        shift.leave()
        if reboots:
            self.board.reboot()
        reckon(self.board, ledger)


def check_no_claim_is_nobodys(board, shift, ledger):
    """A claim that its own worker forgot must become stale, or it stays for as long as the worker lives."""
    store, later = shift.store, board.clock.read()
    later.boot += 3600
    settled = {entry.token for entry in store.batch.settled}
    disk, store.disk = store.disk, FaultyDisk()
    stale = {entry.token for entry, _ in store.stale(later)}
    forgotten = {entry.token for entry in store.entries(PROCESSING)} - settled - set(ledger.held) - stale
    store.disk = disk
    assert not forgotten, "claims that nobody will settle: %s" % forgotten


def reckon(board, ledger):
    """Recover as a healthy worker, run everything once, compare with the ledger."""
    board.clock.sleep(3600)
    before, ledger.runs, ledger.held = ledger.runs, {}, {}
    disk = FaultyDisk()
    store = board.open(disk)
    recover(store, board.now)
    idle = 0
    while idle < 2:
        lease = store.claim(board.now, None, 60, True)
        if lease:
            ran(ledger, lease)
            store.ack(lease, board.now)
            idle = 0
        elif not store.adopt(board.now):
            store.flush(board.now)
            board.clock.sleep(3)
            idle += 1
    recover(store, board.now)
    assert store.check(board.now) == []
    assert {folder: board.ls(folder) for folder in (INCOMING, PROCESSING, FAILED)} == {INCOMING: [], PROCESSING: [], FAILED: []}
    assert all(n == 1 for n in ledger.runs.values()), "ran twice after recovery: %s" % ledger.runs
    dead = {name[:-5] for name in board.ls(DLQ)}
    for id in ledger.accepted - ledger.gone:
        is_done, is_dead = store.journal.find(id) is not None, id in dead
        if id in ledger.dead:
            assert is_dead and not is_done, "%s was acknowledged as dead" % id
        elif id not in ledger.removing:
            assert is_done or (is_dead and id in ledger.burying | ledger.kicking), "%s was accepted and is lost" % id
    for id in ledger.gone:
        assert id not in dead and store.journal.find(id) is None, "%s was removed and is back" % id
    for id, n in before.items():
        line = store.journal.find(id)
        if line and not ledger.refunds | ledger.kicking and id not in ledger.done:
            assert line.attempts >= n, "%s ran %d times and was charged %d" % (id, n, line.attempts)
    store.close(board.now)
    assert disk.fds == set(), "descriptors leak"


@pytest.fixture
def bench(request, ram_path, monkeypatch):
    """The folder lies in RAM: the batch goes by syncfs, unless it is told that commits are in order there. Two files a group."""
    monkeypatch.setattr(together, "GROUP", 2)
    if request.param == "batch in order":
        monkeypatch.setattr(together, "commits_in_order", lambda disk, folder: True)
    return Bench(ram_path, request.param)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("bench", SCENARIOS, indirect=True)
def test_every_call_may_fail(bench, fault, record_property):
    healthy = FaultyDisk()
    bench.run(healthy)
    assert healthy.trace, "the scenario never met the disk"
    if "batch" in bench.scenario:
        assert {"sync_file_range" if bench.scenario == "batch in order" else "syncfs"} == {
            name for name, _ in healthy.trace if name.startswith("sync")}
    kind, faulted = FAULTS[fault], 0
    for n in range(1, len(healthy.trace) + 1):
        modes = [(False, False), (False, True)] if "killed" in fault else [(False, False), (True, False)]
        for carries, reboots in modes:
            disk = FaultyDisk(n, kind.get("errno"), kind.get("forever", False), kind.get("after", False), kind.get("short", False))
            if not disk._can_hit(*healthy.trace[n - 1]) and not disk.forever:
                continue
            if carries and disk.forever:
                continue  # nothing to carry on with
            try:
                bench.run(disk, carries, reboots)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                raise AssertionError("call %d of %d (%s), %s%s%s: %s: %s" % (
                    n, len(healthy.trace), healthy.trace[n - 1][0], fault, ", carried on" * carries, ", rebooted" * reboots,
                    type(error).__name__, error)) from error
            faulted += disk.hits
    assert faulted or fault == "short"
    record_property("points", faulted)
