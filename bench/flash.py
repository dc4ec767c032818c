"""A fresh ext4 on a loop device, and what reaches it: sectors written and flush requests of /sys/block/loopN/stat.

Nothing is left behind, however we end: the mount lives in a mount namespace of our own, the loop device detaches itself when
that goes, and its file has no name. The file lies in RAM where there is room (the counts are the same, and nobody waits for
this machine's own disk).
"""

import atexit
import ctypes
import os
import subprocess
import tempfile

CLONE_NEWNS, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 0x4000, 1 << 18, 2
SECTORS_WRITTEN, FLUSHES = 6, 15  # fields of /sys/block/*/stat
MIB = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_is_private = False


class Cost:
    """What a stretch of work wrote: kib, flushes; syncs: how often somebody else's sync(2) fell upon us meanwhile.

    Such a sync reaches every file system of the machine: a flush more, and a commit (up to two flushes and some 24 KiB) when
    something was dirty. A file system that nobody uses, the canary, counts them.
    """

    def __init__(self, kib, flushes, syncs=0):
        self.kib, self.flushes, self.syncs = kib, flushes, syncs

    def per(self, n):
        return Cost(self.kib / n, self.flushes / n, self.syncs / n)

    def is_within(self, kib, flushes):
        """True within these bounds, what others' syncs may have added left out."""
        return self.kib <= kib + 24 * self.syncs and self.flushes <= flushes + 2 * self.syncs

    def __repr__(self):
        return "%.2f KiB, %.3f flushes, %.3f syncs by others" % (self.kib, self.flushes, self.syncs)


class Flash:
    """A file system of `size_mib`, mounted at `path`. mkfs_args: more words for mkfs.ext4; options: for mount."""

    def __init__(self, size_mib=1024, mkfs_args=(), options="noinit_itable"):
        _own_mounts()
        self.path = tempfile.mkdtemp(prefix="edgeq-")
        image = tempfile.NamedTemporaryFile(prefix="edgeq-flash-", dir=_roomy_folder())
        try:
            image.truncate(size_mib * MIB)
            # nothing may be written behind our back later: no lazy tables
            run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0", *mkfs_args, image.name)
            self.device = run("losetup", "--find", "--show", image.name).strip()
        finally:
            image.close()
        try:
            run("mount", "-o", options, self.device, self.path)
        finally:
            run("losetup", "--detach", self.device)  # as soon as it is unmounted
        self.sync()

    def close(self):
        if self.path:
            _call("umount2", self.path.encode(), MNT_DETACH)
            os.rmdir(self.path)
            self.path = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def folder(self, name):
        """A new folder on it."""
        path = os.path.join(self.path, name)
        os.makedirs(path)
        return path

    def sync(self):
        """syncfs: everything that was written so far counts."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            _call("syncfs", fd)
        finally:
            os.close(fd)

    def read(self):
        """(sectors, flushes, flushes of the canary) since the devices were made."""
        return self._count() + (_canary()._count()[1],)

    def _count(self):
        with open("/sys/block/%s/stat" % os.path.basename(self.device)) as stat:
            fields = stat.read().split()
        return int(fields[SECTORS_WRITTEN]), int(fields[FLUSHES])

    def start(self):
        """The reading before a stretch of work: all older changes are on the device."""
        self.sync()
        return self.read()

    def since(self, before):
        """The Cost of everything since the reading `before`, what still lay in the page cache included."""
        self.sync()
        return self._cost(before, *self.read())

    def seen(self, before):
        """The Cost of what has reached the device since the reading `before`; what still lies in the page cache is left out."""
        return self._cost(before, *self.read())

    def since_quiet(self, before):
        """As `since`, without the flush that our own syncfs sends even when nothing is dirty: for what must be nothing."""
        flushes = self.read()[1]
        self.sync()
        sectors, _, syncs = self.read()
        return self._cost(before, sectors, flushes, syncs)

    @staticmethod
    def _cost(before, sectors, flushes, syncs):
        return Cost((sectors - before[0]) / 2, flushes - before[1], syncs - before[2])


_idle_flash = []


def _canary():
    if not _idle_flash:
        _idle_flash.append(Flash(8))
        _idle_flash[0].sync()
        atexit.register(_close_canary, os.getpid())
    return _idle_flash[0]


def _close_canary(pid):
    if os.getpid() == pid:  # not in a child that was forked off
        _idle_flash.pop().close()


def _own_mounts():
    """A mount namespace of our own: what we mount nobody else sees, and it goes with us."""
    global _is_private
    if not _is_private:
        _call("unshare", CLONE_NEWNS)
        _call("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
        _is_private = True


def _roomy_folder():
    try:
        space = os.statvfs("/dev/shm")
        if space.f_bavail * space.f_frsize > 512 * MIB:
            return "/dev/shm"
    except OSError:
        pass
    return None


def _call(name, *args):
    if getattr(_libc, name)(*args) != 0:
        error = ctypes.get_errno()
        raise OSError(error, "%s: %s" % (name, os.strerror(error)))


def run(*command):
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, PATH=path))
    if done.returncode != 0:
        raise SystemExit("bench: %s failed (root is needed, and loop devices): %s" % (" ".join(command), done.stderr.strip()))
    return done.stdout
