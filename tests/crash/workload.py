"""What is recorded: edgeq at work, noting what it asks for and what it is told (see facts.py for the notes).

`Driver` holds a store as a worker and an operator do and takes random steps, each verb at least once; boots end without a clean
stop, so that the next one suspects every job. `Shipped` runs the shell wrapper and the zipapp as a device does, a
real worker with real handlers among them. `again` is the boot after a cut, itself cut: it begins on a crash image.

The canaries are the same driver with one fault each. A bench that does not catch them proves nothing.
"""

import json
import os
import posix
import shutil
import subprocess
import sys
import time

from edgeq import disk as seam
from edgeq.cli import move
from edgeq.disk import is_folder
from edgeq.errors import Busy, NotFound
from edgeq.job import FAILED, INCOMING, PROCESSING, Job, Retry
from edgeq.lease import start_time
from edgeq.policy import after_death
from edgeq.reap import reap
from edgeq.store import intake, together
from edgeq.store.base import QUEUED
from edgeq.store.spool import Spool
from tests.crash import device
from tests.crash.facts import BoardClock, QuietLog, make_config, payload

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Notes:
    """The writer's side of the mark file."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def say(self, k, **fields):
        os.write(self.fd, json.dumps(dict(k=k, **fields)).encode())

    def close(self):
        os.close(self.fd)


# --- the seam, with a step of its own ------------------------------------------------------------------


def _stepped(real):
    def step(self, *args):
        result = real(*args)
        device.syncfs(self.folder)
        return result
    return step


class Stepping(seam.Disk):
    """After each call that changes something, everything is flushed, as any other program's sync may do: every state between
    two calls is on the disk once."""

    folder = None
    write, pwrite, rename, unlink, mkdir = (
        _stepped(real) for real in (posix.write, posix.pwrite, posix.rename, posix.unlink, posix.mkdir))


# --- canaries ------------------------------------------------------------------------------------------


class NeverFlushes(seam.Disk):
    """A writer without a flush."""

    def fsync(self, fd):
        pass

    fdatasync = fsync


class FlushesFolder(seam.Disk):
    """Flushes the folder and not the file."""

    def fsync(self, fd):
        if is_folder(posix.fstat(fd)):
            return posix.fsync(fd)
        folder = posix.open(os.path.dirname(os.readlink("/proc/self/fd/%d" % fd)), posix.O_RDONLY)
        try:
            posix.fsync(folder)
        finally:
            posix.close(folder)


class CauseFirst(Spool):
    """Removes the claim before the journal line and the dead letter are there. A batch of one: each completion is a chance."""

    def __init__(self, config, clock, log, disk):
        config.sync_jobs = 1
        Spool.__init__(self, config, clock, log, disk)

    def flush(self, now):
        for entry in self.batch.settled:
            self._remove(self.path(entry.path))
        self.disk.flush_folder(self.path(PROCESSING))
        Spool.flush(self, now)

    def _write_letter(self, lease, entry, why, now, attempts):
        self._remove(self.path(entry.path))
        self.disk.flush_folder(self.path(PROCESSING))
        Spool._write_letter(self, lease, entry, why, now, attempts)


class NeverSends(seam.Disk):
    """A batch whose files' bytes nobody sends on their way: the flush of the last one commits all names, and its own bytes."""

    @staticmethod
    def sync_file_range(fd, flags):
        pass


class NeverWaits(seam.Disk):
    """Bytes of a batch are sent and not waited for. Only a disk that takes them in another order shows it: device.Late."""

    @staticmethod
    def sync_file_range(fd, flags):
        if not flags & together.WAIT_AFTER:
            seam.Disk.sync_file_range(fd, flags)


class EarlyFlush(together.Together):
    """Flushes the last file of a batch before the renames."""

    def show(self):
        self.disk.flush(self.last)
        together.Together.show(self)

    def commit(self):
        pass


class FlushesEarly(Spool):
    """Its batches are of that kind. (In the recorded process, which ends with the recording.)"""

    def enqueue_many(self, jobs, now):
        intake.Together = EarlyFlush
        return Spool.enqueue_many(self, jobs, now)


CANARIES = {  # what is wrong: (the seam, the store, the disk)
    "no flush": (NeverFlushes, Spool, device.Server),
    "the folder flushed, not the file": (FlushesFolder, Spool, device.Server),
    "the cause removed before the effect": (seam.Disk, CauseFirst, device.Server),
    "a batch's bytes not sent": (NeverSends, Spool, device.Server),
    "a batch's bytes not waited for": (NeverWaits, Spool, device.Late),
    "a batch flushed before its renames": (seam.Disk, FlushesEarly, device.Server),
}


# --- the driver ----------------------------------------------------------------------------------------


BATCH_CALLS = ("sync_file_range", "syncfs")


class Driver:
    """A worker and an operator in one process. `run`: a folder in RAM."""

    def __init__(self, mount, notes, run, rng, make_disk=seam.Disk, make_store=Spool, first_n=1):
        self.mount, self.notes, self.run, self.rng = mount, notes, run, rng
        self.make_disk, self.make_store = make_disk, make_store
        self.config = make_config(mount, run)
        self.numbers = {}  # id -> its payload's number
        self.next_n = first_n
        self.open = []  # leases whose handlers run
        self.unflushed = []  # ids that ran since the last flush
        self.retried = {}  # id -> try, since the last flush
        self.clock = self.store = None
        self.batch_calls = set()  # which of BATCH_CALLS the current batch made
        together.GROUP = 3  # a batch of six is more than one group
        self.notes.say("limits", jobs=self.config.sync_jobs + 3)

    # --- boots

    def boot(self, clean=False, repair=False):
        """The next boot: nothing in RAM, another boot id."""
        if clean:
            self._stop()
        self.end()
        self.open, self.unflushed, self.retried = [], [], {}
        shutil.rmtree(self.run, ignore_errors=True)
        wall = self.clock.wall if self.clock else time.time()
        self.clock = BoardClock("%08x-boot" % self.rng.getrandbits(32), wall + 10)
        disk = self.make_disk()
        disk.folder = self.mount
        for name in BATCH_CALLS:
            self._watch(disk, name)
        self.store = self.make_store(self.config, self.clock, QuietLog(), disk)
        self.notes.say("boot", clean=clean)
        now = self.clock.read()
        if repair:
            self.store.make_folders()
            self.store.check(now, True)
        self.store.start(now)
        self._reap()

    def _watch(self, disk, name):
        real = getattr(disk, name)

        def watched(*args):
            self.batch_calls.add(name)
            return real(*args)
        setattr(disk, name, watched)

    def end(self):
        """The process is gone, as the kernel sees it."""
        if self.store:
            self.store.journal.close()

    def _reap(self):
        now = self.clock.read()
        self.store.sweep_dead(now)

        def decide(lease):
            return after_death(lease.entry.attempts, lease.record.max_attempts or 5, self.config, 0, lambda: 0.0)

        for lease, verdict in reap(self.store, now, 60, lambda *_: 0, decide, self.store.log):
            if isinstance(verdict, Retry):
                self.store.retry(lease, 0, verdict.why, now)
            else:
                self._bury(lease, verdict.why)

    def _stop(self):
        for lease in self.open:
            self.notes.say("refund", id=lease.entry.id)
            self.store.give_back(lease, "stopped", self.clock.read())
        self.store.close(self.clock.read())
        self._note_flush()

    # --- steps

    def act(self, steps, each=True):
        """Each kind of step once if asked, then `steps` of them at random."""
        kinds = [self.enqueue] * 6 + [self.work] * 12 + [
            self.batch, self.enqueue_again, self.drop_in, self.hang, self.flush, self.kick, self.kick_by_hand, self.cancel,
            self.purge, self.prune, self.pause]
        first = [self.enqueue] * 4 + [self.batch, self.drop_in] + list(dict.fromkeys(kinds)) if each else []
        for step in first + self.rng.choices(kinds, k=steps):
            self.clock.go_on(self.rng.choice((0.01, 0.5, 3)))
            step()

    def _want(self, **options):
        n = self.next_n
        self.next_n += 1
        id = "job-%03d-%s" % (n, "x" * self.rng.choice((0, 0, 50))) if self.rng.random() < 0.4 else None
        self.notes.say("want", n=n, id=id, type="ok")
        return n, Job("ok", payload(n), id=id, **options)

    def _have(self, n, id):
        self.numbers[id] = n
        self.notes.say("have", n=n, id=id)

    def enqueue(self):
        rng = self.rng
        n, job = self._want(priority=rng.choice((5, 5, 0, 9)), delay_s=rng.choice((0, 0, 0, 1, 3600)),
                            at=rng.choice((None,) * 9 + (1_899_999_999,)), max_attempts=rng.choice((None, 2)))
        fast = rng.random() < 0.1
        receipt = self.store.enqueue(job, self.clock.read(), fast)
        if not fast:
            self._have(n, receipt.id)

    def batch(self):
        wanted = [self._want() for _ in range(self.rng.randint(2, 6))]
        self.batch_calls.clear()
        receipts = self.store.enqueue_many([job for _, job in wanted], self.clock.read())
        self.notes.say("batch", calls=sorted(self.batch_calls))
        for (n, _), receipt in zip(wanted, receipts):
            self._have(n, receipt.id)

    def enqueue_again(self):
        """A producer that did not hear the answer asks again, with the same id."""
        if not self.numbers:
            return
        id = self.rng.choice(sorted(self.numbers))
        try:
            status = self.store.enqueue(Job("ok", payload(self.numbers[id]), id=id), self.clock.read()).status
        except Busy:
            return
        assert status != QUEUED, "%s was accepted a second time" % id
        self.notes.say("have", n=self.numbers[id], id=id)

    def drop_in(self):
        """A person puts a file there, the careful way."""
        n, _ = self._want()
        id = "hand-%d" % n
        self.notes.say("want", n=n, id=id, type="ok")
        path = self.store.path(INCOMING, "note %d.json" % n)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        os.write(fd, b'{"id":"%s","type":"ok","payload":%s}\n' % (id.encode(), payload(n)))
        os.fsync(fd)
        os.close(fd)
        self.notes.say("have", n=n, id=id)  # but its name says nobody's id: asking again is another job

    def _claim(self):
        now = self.clock.read()
        lease = self.store.claim(now, None, 60, True)
        if lease is None and self.store.adopt(now):
            lease = self.store.claim(now, None, 60, True)
        if lease:
            if lease.is_suspect:
                self.notes.say("charged", id=lease.entry.id, att=lease.entry.attempts)
            self.notes.say("start", id=lease.entry.id)
        return lease

    def hang(self):
        """A handler that is still at it when the power goes."""
        if len(self.open) < 3:
            lease = self._claim()
            if lease:
                self.open.append(lease)

    def work(self):
        """One job, and one of the ways it can end."""
        lease = self.open.pop(0) if len(self.open) >= 3 else self._claim()
        if lease is None:
            return
        id, now, store = lease.entry.id, self.clock.read(), self.store
        way = self.rng.choice(("ack",) * 10 + ("retry", "retry", "bury", "bury", "hold", "give back", "drop"))
        if lease.entry.attempts > 4:
            way = "bury"
        if way == "ack":
            self.notes.say("ran", id=id)
            store.ack(lease, now, "n" * self.rng.choice((0, 0, 120)), 7)
            self.unflushed.append(id)
        elif way == "retry":
            store.retry(lease, self.rng.choice((0, 1)), "exit 1: not now", now)
            self.retried[id] = lease.entry.attempts
        elif way == "bury":
            self._bury(lease, "exit 65: hopeless")
        elif way in ("hold", "give back"):
            self.notes.say("refund", id=id)
            self.retried.pop(id, None)
            if way == "hold":
                store.hold(lease, "exit 69: offline", True, now)
            else:
                store.give_back(lease, "stopped", now)
        else:
            self.notes.say("lose", ids=[id])
            store.drop(lease, "cancelled", now)
            self._lost([id])
        if store.flush_due_at() is not None and store.flush_due_at() <= now.boot:
            self.flush()

    def _bury(self, lease, why):
        self.notes.say("bury", id=lease.entry.id)
        self.store.bury(lease, why, self.clock.read())
        self.retried.pop(lease.entry.id, None)
        self.notes.say("dead", id=lease.entry.id, why=why)

    def flush(self):
        self.store.flush(self.clock.read())
        self._note_flush()

    def _note_flush(self):
        if self.unflushed:
            self.notes.say("done", ids=self.unflushed)
        for id, attempts in self.retried.items():
            self.notes.say("charged", id=id, att=attempts)
        self.unflushed, self.retried = [], {}

    def _lost(self, ids):
        for id in ids:
            self.numbers.pop(id, None)
            self.retried.pop(id, None)
        self.notes.say("lost", ids=ids)

    def _dead_ids(self):
        return [entry.id for entry in self.store.entries("dlq")]

    def kick(self):
        ids = self._dead_ids()
        if ids:
            id = self.rng.choice(ids)
            self.notes.say("kick", id=id)
            self.store.kick(id, self.clock.read())
            self.notes.say("kicked", id=id)

    def kick_by_hand(self):
        """mv dlq/ID.json incoming/: nothing is flushed, nothing is promised but the job itself."""
        ids = self._dead_ids()
        if ids:
            id = self.rng.choice(ids)
            self.notes.say("kick", id=id)
            os.rename(self.store.path("dlq", id + ".json"), self.store.path(INCOMING, id + ".json"))

    def cancel(self):
        ids = [entry.id for folder in (INCOMING, FAILED) for entry in self.store.entries(folder)] + self._dead_ids()
        if not ids:
            return
        id = self.rng.choice(ids)
        self.notes.say("lose", ids=[id])
        try:
            self.store.cancel(id, self.clock.read())
        except (Busy, NotFound):
            self.notes.say("keep", ids=[id])
            return
        self._lost([id])

    def purge(self):
        state = self.rng.choice(("dlq", "corrupt", "done"))
        ids = self._dead_ids() if state == "dlq" else []
        self.notes.say("lose", ids=ids)
        if state == "done":
            self._forget()
        self.store.purge([state], self.clock.read())
        self._lost(ids)

    def prune(self):
        self._forget()
        self.store.prune(self.clock.read())

    def _forget(self):
        """Lines may go from here on: these ids are not asked for again."""
        self.notes.say("forget")
        for entry in [id for id in self.numbers if self.store.journal.find(id)]:
            self.numbers.pop(entry)

    def pause(self):
        is_on = not self.store.pauses.all(self.clock.read())
        self.notes.say("pause", on=is_on)
        if is_on:
            self.store.pauses.set("", 3600, self.clock.read())
        else:
            self.store.pauses.clear("")
        self.notes.say("paused", on=is_on)

    def move(self, home):
        """As `edgeq move` does it, in chunks of three."""
        self.end()
        now, source = self.clock.read(), self.store
        self.config = make_config(self.mount, self.run)
        self.config.spool = "%s/%s" % (self.mount, home)
        target = self.store = self.make_store(self.config, self.clock, QuietLog(), self.make_disk())
        target.disk.folder = self.mount
        self.notes.say("moving", to=home)
        move.CHUNK = 3
        source.make_folders()
        target.make_folders()
        move.carry(source, target, now)
        for store in (source, target):
            store.close(now, clean=False)
        self.notes.say("moved")


def drive(mount, mark, run, rng, make_disk=seam.Disk, make_store=Spool, boots=3, steps=14):
    """Boots, of which the first ends with handlers running, and one with a clean stop."""
    notes = Notes(mark)
    driver = Driver(mount, notes, run, rng, make_disk, make_store)
    for boot in range(boots):
        driver.boot(clean=boot == 2, repair=boot % 3 == 1)
        driver.act(steps, each=boot == 0)
    driver.flush()
    driver.end()
    notes.close()


def drive_beside_syncs(mount, mark, run, rng):
    """The same while another program calls sync at random moments."""
    device.spawn(lambda: _sync_for_ever(mount, rng))
    try:
        drive(mount, mark, run, rng)
    finally:
        device.end_children()


def _sync_for_ever(mount, rng):
    while True:
        device.syncfs(mount)
        time.sleep(rng.random() * 0.004)


def drive_step_by_step(mount, mark, run, rng):
    drive(mount, mark, run, rng, make_disk=Stepping, boots=2, steps=4)


def drive_batches(mount, mark, run, rng):
    """Batches alone, for a disk that takes their bytes late."""
    notes = Notes(mark)
    driver = Driver(mount, notes, run, rng)
    driver.boot()
    notes.say("whole")
    for _ in range(12):
        driver.clock.go_on(0.5)
        driver.batch()
    driver.end()
    notes.close()


def drive_and_move(mount, mark, run, rng):
    """All jobs are carried to another spool, a few at a time, and life goes on there."""
    notes = Notes(mark)
    driver = Driver(mount, notes, run, rng)
    driver.boot()
    driver.act(10)
    driver.boot(clean=rng.random() < 0.5)
    driver.move("spool2")
    driver.boot()
    driver.act(6, each=False)
    driver.flush()
    driver.end()
    notes.close()


def again(mount, mark, run, rng):
    """The boot after a cut, recorded to be cut once more: it recovers and works on."""
    notes = Notes(mark)
    driver = Driver(mount, notes, run, rng, first_n=100_000 + rng.randrange(1000) * 1000)
    driver.boot(repair=rng.random() < 0.3)
    for _ in range(15):
        driver.clock.go_on(rng.choice((0.01, 3)))
        rng.choice((driver.enqueue, driver.work, driver.work, driver.work, driver.kick))()
    driver.flush()
    driver.end()
    notes.close()


# --- the shipped program ---------------------------------------------------------------------------------

HANDLERS = {  # type: shell; $note says to the mark file what the test must know
    "ok": 'note ran; exit 0',
    "flaky": '[ "$EDGEQ_ATTEMPT" -ge 2 ] || { echo not now; exit 1; }\nnote ran; exit 0',
    "hopeless": 'exit 65',
}
HANDLER = '''#!/bin/sh
note() { printf '{"k":"%%s","id":"%%s"}' "$1" "$EDGEQ_ID" >>%s; }
note start
%s
'''


class Shipped:
    """The wrapper under BusyBox ash and the zipapp, in an environment of their own."""

    def __init__(self, mount, mark, run, rng, etc):
        self.notes, self.rng = Notes(mark), rng
        self.mount, self.run, self.etc = mount, run, etc
        self.n = 0
        shutil.rmtree(etc, ignore_errors=True)
        os.makedirs(etc + "/handlers")
        for type, body in HANDLERS.items():
            self._put("%s/handlers/%s" % (etc, type), HANDLER % (mark, body), 0o755)
        self._put(etc + "/edgeq.conf", "SPOOL=%s/spool\nRUN_DIR=%s\nHANDLERS=%s/handlers\nSYNC_JOBS=4\nDONE_KEEP_KB=16\n"
                  "BASE_DELAY_S=0\nBALLAST_KB=16\nSAFETY_SCAN_S=1\nLOG=stderr\n" % (mount, run, etc), 0o644)
        self.reboot()
        self.notes.say("limits", jobs=4 + 2)

    @staticmethod
    def _put(path, text, mode):
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, mode)

    def reboot(self):
        shutil.rmtree(self.run, ignore_errors=True)
        self._put(self.etc + "/clock", "0 %08x-shipped 0\n" % self.rng.getrandbits(32), 0o644)

    def die(self, worker):
        """The worker is killed, its handlers end, and the board comes up again."""
        since = start_time(worker.pid)
        worker.kill()
        worker.wait()
        for pipe in (worker.stdout, worker.stderr):
            pipe.close()
        while any(_is_about(int(pid), since, self.etc, self.run) for pid in os.listdir("/proc") if pid.isdigit()):
            time.sleep(0.01)
        self.reboot()
        self.notes.say("boot", clean=False)

    def dead(self):
        return [name[:-5] for name in os.listdir(self.mount + "/spool/default/dlq") if name.endswith(".json")]

    def start(self, *args, shell=True, stdin=b""):
        """A process. shell: the wrapper (which execs the zipapp for what it does not do itself); else `python -m edgeq`."""
        command = ["busybox", "sh", REPO + "/overlay/usr/bin/edgeq"] if shell else [sys.executable, "-m", "edgeq"]
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "EDGEQ_CONF": self.etc + "/edgeq.conf", "PYTHONPATH": REPO,
                       "EDGEQ_PYZ": REPO + "/dist/edgeq.pyz", "EDGEQ_PYTHON": sys.executable,
                       "EDGEQ_TEST_CLOCK": self.etc + "/clock"}
        process = subprocess.Popen(command + list(args), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, cwd="/")
        process.stdin.write(stdin)
        process.stdin.close()
        return process

    def edgeq(self, *args, ok=(0,), **how):
        """Run to the end; the lines it printed."""
        process = self.start(*args, **how)
        out, err = process.stdout.read(), process.stderr.read()
        code = process.wait()
        if code not in ok:
            raise AssertionError("edgeq %s: exit %d: %s" % (" ".join(args), code, err.decode()))
        return out.decode().split()

    def _want(self, type, id=None):
        self.n += 1
        self.notes.say("want", n=self.n, id=id, type=type)
        return self.n

    def enqueue(self, type="ok", *options, id=None):
        n = self._want(type, id)
        named = ("--id", id) if id else ()
        found = self.edgeq("enqueue", type, payload(n).decode(), *options, *named)
        self.notes.say("have", n=n, id=found[0])
        return found[0]

    def batch(self, size):
        wanted = [self._want("ok") for _ in range(size)]
        lines = b"".join(b'{"type":"ok","payload":%s}\n' % payload(n) for n in wanted)
        for n, id in zip(wanted, self.edgeq("enqueue", "--batch", stdin=lines)):
            self.notes.say("have", n=n, id=id)

    def drain(self, shell=True):
        """A whole worker's life; a clean end means that everything is flushed."""
        self.edgeq("work", "--once", ok=(0, 75), shell=shell)
        self.notes.say("done", ids=None)


def _is_about(pid, since, *folders):
    """True when process `pid` was started with one of `folders` in its environment: a worker's child, or a handler.

    In the middle of an exec there is no environment to read: whatever shows none counts, unless it was there before the worker.
    """
    try:
        with open("/proc/%d/environ" % pid, errors="replace") as file:
            environment = file.read()
        if not environment:
            with open("/proc/%d/stat" % pid) as file:
                parent = file.read().rpartition(") ")[2].split()[1]
            return parent not in ("0", "2") and start_time(pid) >= since  # 2: the kernel's own; a zombie has no start time here
    except OSError:
        return False
    return any(folder + "/" in environment for folder in folders)


def ship(mount, mark, run, rng, etc):
    """Producers in the shell, a worker, an operator, a reboot without a stop."""
    board = Shipped(mount, mark, run, rng, etc)
    for at in range(5):
        board.enqueue("ok", *rng.choice(((), ("--priority", "0"), ("--delay", "1"))), id=rng.choice((None, "named-%d" % at)))
    board.batch(4)
    dead = [board.enqueue("hopeless", id="hopeless-%d" % at) for at in range(3)]
    board.enqueue("flaky")
    board.drain()
    for id in dead:
        board.notes.say("dead", id=id, why="exit 65")
    board.notes.say("kick", id=dead[0])
    board.edgeq("kick", dead[0])
    board.notes.say("kicked", id=dead[0])
    board.notes.say("lose", ids=dead[1:2])
    board.edgeq("cancel", dead[1])
    board.notes.say("lost", ids=dead[1:2])
    board.notes.say("pause", on=True)
    board.edgeq("pause")
    board.notes.say("paused", on=True)
    board.notes.say("pause", on=False)
    board.edgeq("resume")
    board.notes.say("paused", on=False)
    board.notes.say("bury", id=dead[0])  # it comes to the same end again
    worker = board.start("work", shell=False)
    for _ in range(6):
        board.enqueue(rng.choice(("ok", "ok", "flaky")))
    board.die(worker)
    board.edgeq("check", "--repair", ok=(0, 1))
    board.enqueue("ok", id="after-reboot")
    board.drain(shell=False)
    letters = board.dead()
    board.notes.say("lose", ids=letters)
    board.edgeq("purge", "dlq")
    board.notes.say("lost", ids=letters)
    board.enqueue("ok", id="last")
    board.notes.close()
