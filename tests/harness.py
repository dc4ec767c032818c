"""What the in-process tests share: a board with a clock that stands still, and a disk that fails when told to.

A `Board` is one queue on one device: folders, configuration, both clocks. `open()` gives a started store; `reboot()` is a power
cut as far as a process can play one: another boot id, the boot clock from the start, /run empty. `Dead` is the identity of a
process that is gone: a store opened with it is, for every other store, a worker that died.
"""

import posix
import shutil
import subprocess
import tempfile
from pathlib import Path

from edgeq import config as configuration
from edgeq.clock import Now
from edgeq.disk import Disk
from edgeq.errors import LeaseLost
from edgeq.lease import start_time
from edgeq.store import open_store

WALL = 1_800_000_000  # January 2027: later than the program, so a clock that reads it is trusted
QUIET = {"BALLAST_KB": 0, "JITTER": 0}


class Clock:
    """Both clocks, moved by hand."""

    def __init__(self, wall=WALL, boot=1000.0):
        self.wall, self.boot, self.boots_n = float(wall), float(boot), 1

    @property
    def boot_id(self):
        return "%08x-0000-4000-8000-000000000000" % self.boots_n

    def read(self):
        return Now(self.wall, self.boot)

    def sleep(self, seconds):
        """Time passes: both clocks go on."""
        self.wall += seconds
        self.boot += seconds

    def step(self, seconds):
        """Somebody sets the clock."""
        self.wall += seconds


class Log:
    """What was said, as [(strength, event, fields)]."""

    def __init__(self):
        self.events = []

    def __getattr__(self, strength):
        if strength not in ("debug", "info", "warning", "error"):
            raise AttributeError(strength)
        return lambda event, **fields: self.events.append((strength, event, fields))

    def said(self, event):
        return [fields for _, word, fields in self.events if word == event]


class Board:
    """One queue below `root`. settings: lines of the configuration."""

    def __init__(self, root, **settings):
        self.root, self.clock, self.log = root, Clock(), Log()
        self.conf = root / "edgeq.conf"
        settings = dict(QUIET, SPOOL=root / "spool", RUN_DIR=root / "run", HANDLERS=root / "handlers", **settings)
        self.conf.write_text("".join("%s=%s\n" % item for item in settings.items()))
        self.config = configuration.load(str(self.conf))
        self.spool, self.run = root / "spool" / "default", root / "run" / "default"

    @property
    def now(self):
        return self.clock.read()

    def open(self, disk=None, owner=None, start=True):
        """A store as a worker has it. owner: the (pid, start time) it claims for, this process by default."""
        store = open_store(self.config, self.clock, self.log, disk)
        if owner:
            store.leases.pid, store.leases.start = owner
        if start:
            store.start(self.now)
        return store

    def reboot(self, wall=None, boot=5.0):
        """The power went and came back. Stores that are open belong to processes that are no more: drop them."""
        self.clock.boots_n += 1
        self.clock.boot = boot
        if wall is not None:
            self.clock.wall = float(wall)
        shutil.rmtree(self.run.parent, ignore_errors=True)

    def ls(self, folder):
        """Names in a folder of the spool, reasons left out."""
        return sorted(path.name for path in (self.spool / folder).iterdir()
                      if not path.name.endswith(".why") and path.name[0] != ".")


def fast_folder(tmp_path_factory):
    """A new folder in RAM where the board has such: what is tested does not hang on the medium."""
    if posix.access("/dev/shm", posix.W_OK):
        return Path(tempfile.mkdtemp(prefix="edgeq-test-", dir="/dev/shm"))
    return tmp_path_factory.mktemp("fast")


_dead = None


def dead_owner():
    """(pid, start time) of a process that is no more."""
    global _dead
    if _dead is None:
        child = subprocess.Popen(["sleep", "60"])
        _dead = child.pid, start_time(child.pid)
        child.kill()
        child.wait()
    return _dead


def recover(store, now, insist=lambda call: call()):
    """What the elected worker does at its start: dead letters swept, claims of the dead put back. [id] of these.

    insist: how to make a call that may fail.
    """
    back = []
    insist(lambda: store.sweep_dead(now))
    for entry, holder in insist(lambda: store.stale(now)):
        try:
            lease = insist(lambda: store.take_over(entry, holder, now, 60))
            if lease:
                insist(lambda: store.retry(lease, 0, "worker died", now))
                back.append(entry.id)
        except LeaseLost:
            pass
    insist(lambda: store.flush(now))
    return back


class Killed(BaseException):
    """The process died in this call."""


READS = "scandir listdir lstat fstat statvfs pread read".split()
FLUSHES = ("fsync", "fdatasync", "syncfs")
WRITES = "write pwrite rename unlink mkdir rmdir fchmod sync_file_range".split() + list(FLUSHES)
O_WRITES = posix.O_WRONLY | posix.O_RDWR


class FaultyDisk(Disk):
    """Fails its n-th call. Flushes are counted and take no time.

    fail_at: number of the call, from 1; 0 never. errno: what it raises, or None: the process dies, before the call or, with
    `after`, when it has had its effect. forever: and every later call that the error can hit. short: the write is cut short.
    is_unsafe: a flush failed, so nothing may be called safe until the store was reopened.
    """

    def __init__(self, fail_at=0, errno=None, forever=False, after=False, short=False):
        Disk.__init__(self)
        self.fail_at, self.errno, self.forever, self.after, self.short = fail_at, errno, forever, after, short
        self.trace = []  # (name, may it write) of every call
        self.hits = 0
        self.is_dead = self.is_unsafe = False
        self.fds = set()
        for name in ["open"] + READS + WRITES:
            setattr(self, name, self._wrapped(name, getattr(Disk, name)))

    def close(self, fd):
        if self.is_dead:
            raise Killed()
        self.fds.discard(fd)
        posix.close(fd)

    def bury(self):
        """The kernel closes what a dead process had open."""
        for fd in self.fds:
            posix.close(fd)
        self.fds.clear()

    def _wrapped(self, name, call):
        def wrapper(*args, **kwargs):
            if self.is_dead:
                raise Killed()
            is_write = name in WRITES or name == "open" and bool(args[1] & O_WRITES)
            self.trace.append((name, is_write))
            at = len(self.trace)
            if self.fail_at and (at == self.fail_at or self.forever and at > self.fail_at) and self._can_hit(name, is_write):
                self.hits += 1
                return self._fail(name, call, args, kwargs)
            return self._do(name, call, args, kwargs)
        return wrapper

    def _do(self, name, call, args, kwargs):
        if name in FLUSHES or name == "sync_file_range":
            return posix.fstat(args[0]) and None  # a bad descriptor must still show
        result = call(*args, **kwargs)
        if name == "open":
            self.fds.add(result)
        if name == "rename" and self.is_unsafe and args[1].rpartition("/")[0] == self.unsafe_path:
            self.is_unsafe = False  # the folder changed: the next flush writes it again
        return result

    def _can_hit(self, name, is_write):
        if self.short:
            return name in ("write", "pwrite")
        if self.errno is None or self.errno == 5:
            return True
        if self.errno == 24:
            return name in ("open", "scandir", "listdir")
        return is_write and name not in (
            ("unlink", "rmdir", "fchmod") if self.errno == 28 else ("fchmod",) + FLUSHES)

    def _fail(self, name, call, args, kwargs):
        if self.short:
            return call(args[0], bytes(args[1])[:max(len(args[1]) // 2, 1)], *args[2:])
        if self.errno is None:
            if self.after:
                result = self._do(name, call, args, kwargs)
                if name == "scandir":
                    result.close()
            self.is_dead = True
            raise Killed()
        if name in FLUSHES:
            # the kernel forgets what it could not write; only a file that nobody can see yet does no harm
            # (a journal segment is begun anew, elsewhere)
            path = posix.readlink("/proc/self/fd/%d" % args[0])
            if not ("/." in path or "/done/" in path and name == "fsync"):
                self.is_unsafe, self.unsafe_path = True, path
        raise OSError(self.errno, posix.strerror(self.errno), args[0] if isinstance(args[0], str) else None)
