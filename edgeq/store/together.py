"""Many new files and one flush for all: what a batch of jobs is made safe by.

Everywhere: all dot-files are written before the first becomes visible (no room, no job), then all are renamed, then one call
makes everything safe. That call can be syncfs(2), which any file system gets right. It costs more than it must: it also writes
in place all metadata that earlier commits left in the block device's cache, and sends a flush more than a commit.

Where commits are in order (ext4 with its own journal, xfs), the fsync of ONE file is enough, if the bytes of all have reached the
device before. The steps, why each is where it is, and what a cut after it leaves (tests/crash runs them, and two canaries that
leave one out):

1. All dot-files are written. A cut leaves dot-files, whole or not: swept.
2. sync_file_range starts to write each (WRITE), then writes what is left of each and waits (all three flags: since Linux 5.2
   only these together pass over no page that is busy). Delayed allocation gives the bytes of a new file no place on the disk
   until they are written back, and the journal's commit writes back no file but the one that is flushed: without this step the
   names would be safe and the files empty. The blocks are allocated as unwritten; a transaction of its own converts them (on xfs
   it sets the size, too), and it begins only when the bytes are there. Both file systems end a page's writeback after that
   (ext4_end_io, xfs_end_io: in this order since Linux 3.11), so whoever waited for the page finds the conversion in the running
   transaction or an older one. An error here (EIO, ENOSPC) is told while nothing is visible. A cut leaves dot-files: swept.
3. All are renamed. Each rename joins a transaction that is no older than any conversion. Before step 2, somebody else's commit
   could make a name safe ahead of its bytes. A cut leaves some of the names, each with all its bytes; nobody was told yes.
4. fsync of the file that was renamed LAST. The rename changed its inode, so fsync waits for the commit of that transaction, the
   newest of all; transactions commit in order, so all are safe. Another file's fsync might stop at an older one. The commit's
   flush of the device's cache covers the bytes of step 2 as well: the device had them before. Should the transaction be
   committed already, fsync sends that flush itself. (A worker may have claimed the job by now: its inode is in a newer one still.)

Not so on btrfs (fsync logs one file), f2fs (rolls one file forward) and UBIFS; nor on ext4 without a journal, with one on another
device (whose flush is not that of the bytes), or with fast_commit (fsync may write less than a commit): syncfs there, and
wherever it cannot be told.
"""

import posix
from posix import O_CLOEXEC, O_DIRECTORY, O_RDONLY

from edgeq import disk as seam
from edgeq.errors import EINVAL, ENOSYS, ENOTSUP, EPERM, ESPIPE

GROUP = 32  # files that are open at once: few beside any RLIMIT_NOFILE, as many as a card's queue takes
WAIT_BEFORE, WRITE, WAIT_AFTER = 1, 2, 4  # SYNC_FILE_RANGE_*
NOT_HERE = (ENOSYS, EINVAL, ESPIPE, ENOTSUP, EPERM)  # the call is missing or forbidden; says nothing about the bytes
MOUNTS, FS, DEVICES = "/proc/self/mountinfo", "/proc/fs", "/sys/dev/block"


class Together:
    """New files of one folder. `write`, `show`, `commit`, in this order; `take_back` before the commit; `close` at the end."""

    def __init__(self, disk, folder):
        self.disk, self.folder = disk, folder
        self.hidden, self.visible = [], []  # (dot-file, its path to be); paths
        self.last = -1  # descriptor of the file that is renamed last
        self.is_ordered = False  # steps 2 and 4 instead of syncfs

    def write(self, files):
        """Steps 1 and 2, a group at a time. files: [(name, bytes)]."""
        self.is_ordered = commits_in_order(self.disk, self.folder)
        for at in range(0, len(files), GROUP):
            self._write_some(files[at:at + GROUP])

    def _write_some(self, files):
        fds = []
        try:
            for name, data in files:
                path, fd = self.disk.write_dot(self.folder, data)
                fds.append(fd)
                self.hidden.append((path, "%s/%s" % (self.folder, name)))
            if self.is_ordered:
                self._send_bytes(fds)
            self.last, before = fds.pop(), self.last
            fds.append(before)
        finally:
            for fd in fds:
                if fd >= 0:
                    self.disk.close(fd)

    def _send_bytes(self, fds):
        try:
            for flags in (WRITE, WAIT_BEFORE | WRITE | WAIT_AFTER):
                for fd in fds:
                    self.disk.sync_file_range(fd, flags)
        except OSError as error:
            if error.errno not in NOT_HERE:
                raise
            self.is_ordered = False

    def show(self):
        """Step 3."""
        for path, target in self.hidden:
            self.disk.rename(path, target)
            self.visible.append(target)

    def take_back(self, remove):
        """Nothing was acknowledged: what is still ours to take back goes."""
        n = len(self.visible)
        for path in [path for path, _ in self.hidden[n:]] + self.visible:
            remove(path)

    def commit(self):
        """Step 4. On OSError all are visible and none is safe."""
        if self.is_ordered:
            self.disk.flush(self.last)
            if commits_in_order(self.disk, self.folder):  # still: it was not this mount's first fast commit
                return
        sync_file_system(self.disk, self.folder)

    def close(self):
        if self.last >= 0:
            self.disk.close(self.last)
            self.last = -1


def sync_file_system(disk, folder):
    """syncfs(2): everything on the file system of `folder`. (Linux before 5.8 does not tell of bytes that the disk refused.)"""
    fd = disk.open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    try:
        disk.flushes_n += 1
        disk.syncfs(fd)
    finally:
        disk.close(fd)


def commits_in_order(disk, folder):
    """True where the fsync of one file commits every change before it: ext4 and xfs, as above. In doubt False."""
    try:
        place = disk.lstat(folder).st_dev
        number = "%d:%d" % (posix.major(place), posix.minor(place))
        kind = find_kind(number)
        return kind == "xfs" or kind == "ext4" and _is_plain_ext4(number)
    except (OSError, ValueError):
        return False


def find_kind(number):
    """The type of the file system on the device with `number` (MAJOR:MINOR), "" when nobody says.

    Not by the path: here a bind mount has its file system's number, and an overlay one of its own.
    """
    for line in seam.read_text(MOUNTS, 1 << 20).split("\n"):
        head, _, tail = line.partition(" - ")
        if head.split(" ")[2:3] == [number]:
            return tail.split(" ")[0]
    return ""


def _is_plain_ext4(number):
    """Its own journal, and no fast commit since it was mounted. The kernel tells nobody whether the feature is on; it counts."""
    device = posix.readlink("%s/%s" % (DEVICES, number)).rpartition("/")[2]
    posix.stat("%s/jbd2/%s-8" % (FS, device))  # the journal in inode 8: not on another device, not missing
    try:
        words = seam.read_text("%s/ext4/%s/fc_info" % (FS, device)).split()
    except FileNotFoundError:
        return True  # Linux before 5.10 has no fast commits
    return int(words[words.index("commits") - 1]) == 0
