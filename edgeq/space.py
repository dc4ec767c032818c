"""Room: whether more jobs may come in, and the ballast that lets every accepted job finish on a full disk (P7).

Intake is refused early, while there is still room to settle what was accepted: under MIN_FREE_KB or MIN_FREE_INODES, over
MAX_JOBS or SPOOL_MAX_KB; accepted again only when a tenth more than the limit is free, so that it does not flap. The worker
publishes the verdict in `R/space` for the shell wrapper, which has no `stat` and no `df -i`.

UBIFS counts free space as if nothing compressed and may report less than there is; it has no inodes to run out of. The limits
are of what is reported: lower MIN_FREE_KB there; `edgeq check` tells what was seen.

Also here: what the spool lies on (`find_mount`): a spool in RAM is not durable (B43), one on a mount point whose partition
is not there yet must not be written (B44).
"""

import posix

from edgeq import disk as seam
from edgeq.lease import is_alive, start_time
from edgeq.log import escape

BALLAST = "ballast"
PIECE = 16384


class Guard:
    """The intake guard of one spool folder `root`; `run`: its folder in RAM."""

    def __init__(self, disk, root, run, config):
        self.disk, self.root, self.run, self.config = disk, root, run, config
        self.full = ""  # why intake is refused now, "" when it is not
        self.free_kb = self.free_inodes = 0
        self._published = None

    def measure(self):
        """Read free bytes and inodes. Inodes are -1 where the file system has no such number (btrfs, UBIFS)."""
        found = self.disk.statvfs(self.root)
        self.free_kb = found.f_bavail * found.f_frsize // 1024
        self.free_inodes = found.f_favail if found.f_files else -1

    def judge(self, jobs_n):
        """Why no more jobs may come in (one line: what, how much, the limit), "" when they may. jobs_n: waiting now."""
        config = self.config
        self.measure()
        slack = 1.1 if self.full else 1
        if self.free_kb < config.min_free_kb * slack:
            self.full = "bytes: %d KiB free, MIN_FREE_KB=%d" % (self.free_kb, config.min_free_kb)
        elif 0 <= self.free_inodes < config.min_free_inodes * slack:
            self.full = "inodes: %d free, MIN_FREE_INODES=%d" % (self.free_inodes, config.min_free_inodes)
        elif jobs_n >= config.max_jobs / slack and (self.full or jobs_n >= config.max_jobs):
            self.full = "jobs: %d waiting, MAX_JOBS=%d" % (jobs_n, config.max_jobs)
        elif config.spool_max_kb and (used_kb := self.used_kb()) > config.spool_max_kb / slack:
            self.full = "SPOOL_MAX_KB: %d KiB used, SPOOL_MAX_KB=%d" % (used_kb, config.spool_max_kb)
        else:
            self.full = ""
        return self.full

    def ask(self, jobs_n):
        """For a producer: what a living worker says of itself (`R/space`: it has the hysteresis), else our own judgement."""
        return self.published() or self.judge(jobs_n)

    def published(self):
        """Why a living worker refuses intake, "" when none does."""
        try:
            word, pid, start, *why = seam.read_text(self.run + "/space").rstrip("\n").split(" ", 3)
            if word == "full" and is_alive(int(pid), int(start)):
                return escape(why[0] if why else "the worker says so", 200)
        except (OSError, ValueError):
            pass  # none, or half of one
        return ""

    def used_kb(self):
        """KiB that the store's files take, a database among them, counted in blocks; the ballast is no job's."""
        total = 0
        for folder in list(self.disk.names(self.root)):
            try:
                for name in self.disk.names(self.root + "/" + folder):
                    total += self.disk.lstat("%s/%s/%s" % (self.root, folder, name)).st_blocks
            except NotADirectoryError:
                total += 0 if folder == BALLAST else self.disk.lstat("%s/%s" % (self.root, folder)).st_blocks
            except FileNotFoundError:
                continue
        return total // 2

    def publish(self):
        """Put the verdict into R/space when it changed; valid while this process lives."""
        pid = posix.getpid()
        line = "%s %d %d %s" % ("full" if self.full else "ok", pid, start_time(pid), self.full.replace(":", "", 1))
        if line != self._published:
            seam.write_run(self.run + "/space", line.rstrip().encode() + b"\n", 0o644)
            self._published = line

    # --- ballast ---------------------------------------------------------------------------------------

    def has_ballast(self):
        return self.config.ballast_kb == 0 or self.disk.exists("%s/%s" % (self.root, BALLAST))

    def drop_ballast(self):
        """Give the ballast up for a settle that met a full disk; True when that made room."""
        try:
            self.disk.unlink("%s/%s" % (self.root, BALLAST))
        except FileNotFoundError:
            return False
        return True

    def load_ballast(self):
        """Put the ballast back when there is room for it and more; True when it is there.

        Real bytes that do not compress: a hole, or zeros on UBIFS, would hold no room.
        """
        if self.has_ballast():
            return True
        self.measure()
        if self.free_kb < self.config.min_free_kb + 2 * self.config.ballast_kb:
            return False
        size = self.config.ballast_kb * 1024
        self.disk.publish(self.root, BALLAST, (posix.urandom(min(PIECE, size - at)) for at in range(0, size, PIECE)))
        return True


def find_mount(path):
    """(mount point, file system type, is in RAM) of the file system that `path` lies on, links followed.

    An overlay is in RAM when its upper layer is.
    """
    real = _real_path(path)
    point, kind, options = "/", "?", ""
    for line in seam.read_text("/proc/self/mountinfo", 1 << 20).split("\n"):
        head, dash, tail = line.partition(" - ")
        fields = head.split(" ")
        if not dash or len(fields) < 5:
            continue
        mounted = _unescaped(fields[4])
        if len(mounted) >= len(point) and (real == mounted or real.startswith(mounted.rstrip("/") + "/")):
            point, kind, options = mounted, tail.split(" ")[0], tail.split(" ")[-1]
    if kind == "overlay" and "upperdir=" in options:
        upper = _unescaped(options.partition("upperdir=")[2].partition(",")[0])
        if upper.startswith("/") and upper != real:
            try:
                return point, kind, find_mount(upper)[2]
            except OSError:
                return point, kind, False
    return point, kind, kind in ("tmpfs", "ramfs", "rootfs")


def is_mounted(path):
    """True when something is mounted on exactly `path`."""
    try:
        return find_mount(path)[0] == _real_path(path)
    except OSError:
        return False


def _real_path(path):
    fd = posix.open(path, 0o10000000 | posix.O_CLOEXEC)  # O_PATH
    try:
        return posix.readlink("/proc/self/fd/%d" % fd)
    finally:
        posix.close(fd)


def _unescaped(text):
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
