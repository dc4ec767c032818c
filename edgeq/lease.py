"""Leases: who runs which claim, in RAM (`R/leases/TOKEN`), never on flash (P8, P10).

A lease is written before the claim's rename and removed after the claim is settled, so a claim without a lease of this
boot is nobody's. It names its owner and the handler by pid *and* start time: a pid alone may be somebody else's by now.
"""

import posix

from edgeq import disk

_ours = {}  # our own pid -> start time, which does not change: asked for with each status
STOCK_S = 0.25  # how much sooner than asked a lease may end


def start_time(pid):
    """The start time of a live process, in clock ticks since boot; 0 when there is none (a zombie counts as none)."""
    if pid in _ours and pid == posix.getpid():
        return _ours[pid]
    try:
        text = disk.read_text("/proc/%d/stat" % pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = text.rpartition(") ")[2].split()
    if fields[0] in ("Z", "X"):
        return 0
    if pid == posix.getpid():
        _ours[pid] = int(fields[19])
    return int(fields[19])


def is_alive(pid, started):
    """True while exactly that process lives."""
    return pid > 0 and started > 0 and start_time(pid) == started


class Holder:
    """What a lease file says: the owner (pid, start), the handler (group, start), until when, since when, what."""

    __slots__ = ("token", "pid", "start", "boot_id", "group", "group_start", "started_at", "leased_until")

    def __init__(self, token, pid, start, boot_id, group, group_start, started_at, leased_until):
        self.token, self.pid, self.start, self.boot_id = token, pid, start, boot_id
        self.group, self.group_start = group, group_start
        self.started_at, self.leased_until = started_at, leased_until


class Leases:
    """The lease folder of one queue. `boot_id` is this boot's."""

    def __init__(self, folder, boot_id):
        self.folder, self.boot_id = folder, boot_id
        self.pid = posix.getpid()
        self.start = start_time(self.pid)
        self._count = 0
        self._stock_until = 0.0  # what the stock lease says, see `create`

    def make_token(self):
        """A token never used before and never again: boot, process, counter."""
        self._count += 1
        return "%s-%d-%d-%d" % (self.boot_id[:8], self.pid, self.start, self._count)

    def create(self, token, lease_until, started_at, handler=(0, 0)):
        """Put the first lease of a token, before the claim's rename: nobody looks for it earlier.

        In a burst it is one more name of a stock file that says the same within STOCK_S: half the price of a file. A
        heartbeat replaces the name, never the file, so no lease changes another.
        """
        path = "%s/%s" % (self.folder, token)
        if handler != (0, 0):
            disk.create_run(path, self._line(lease_until, started_at, handler))
            return
        stock = "%s/%s-%d-%d-0~" % (self.folder, self.boot_id[:8], self.pid, self.start)
        try:
            if 0 <= lease_until - self._stock_until < STOCK_S:
                posix.link(stock, path)
                return
        except OSError:
            pass  # /run was emptied, or knows no links
        disk.create_run(path, self._line(lease_until, started_at, handler))
        disk.forget(stock)
        self._stock_until = lease_until
        try:
            posix.link(path, stock)
        except OSError:
            self._stock_until = 0.0

    def write(self, token, lease_until, started_at, handler=(0, 0)):
        """Replace the lease at a heartbeat. Instants in seconds of the boot clock."""
        disk.write_run("%s/%s" % (self.folder, token), self._line(lease_until, started_at, handler))

    def _line(self, lease_until, started_at, handler):
        return ("%d %d %s %d %d %.3f %.3f\n" % (
            self.pid, self.start, self.boot_id, handler[0], handler[1], started_at, lease_until)).encode()

    def remove(self, token):
        disk.forget("%s/%s" % (self.folder, token))

    def read(self, token):
        """The Holder of `token`, or None when there is no lease of this boot."""
        try:
            fields = disk.read_text("%s/%s" % (self.folder, token)).split()
            holder = Holder(token, int(fields[0]), int(fields[1]), fields[2], int(fields[3]), int(fields[4]),
                            float(fields[5]), float(fields[6]))
        except FileNotFoundError:
            return None
        except (ValueError, IndexError, OSError):
            return None  # unreadable: as good as none, the claim is stale
        return holder if holder.boot_id == self.boot_id else None

    def exists(self, token):
        """True while nobody has taken the claim over."""
        try:
            posix.lstat("%s/%s" % (self.folder, token))
        except FileNotFoundError:
            return False
        return True

    def tokens(self):
        """Tokens that have a lease file, half-written ones left out."""
        return [name for name in posix.listdir(self.folder) if name[-1:] != "~"]

    def is_stale(self, token, settling, boot):
        """(True when nobody rightly holds the claim, its Holder or None).

        A settling claim is stale only when its owner is gone: a slow disk is no reason to run a job again (P5).
        """
        holder = self.read(token)
        if holder is None or not is_alive(holder.pid, holder.start):
            return True, holder
        return (not settling and boot >= holder.leased_until), holder
