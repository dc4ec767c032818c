"""The ready view: a tiny, bounded, ordered cache of the head of the queue (SCAN_CACHE names).

A listing costs by the number of waiting jobs, a claim must not: the view lists rarely and keeps only the first
names of the ready order (PRIO, then the moment of becoming ready). The name says all; no file is opened.

When it may be stale, and what then:
* a more urgent job arrived: producers append its PRIO digit to `R/arrivals` after publishing; `is_overtaken` sees it.
* a delayed or failed job became due: `next_due` passed; listed again.
* anything else (a hand-dropped file, another worker's retry): listed again after `max(1 s, names / 5000 s)` at the
  latest while busy, and always (`fresh`) before the worker sleeps.
Folder times are not used: two changes within one tick look like one.

Waits (P8): when a delayed name is first seen, its wait becomes an instant of the boot clock, never longer than the job's
own delay; a clock step moves nothing. At most MAX_WAITS are remembered; beyond that the clamped wall clock decides.
"""

from edgeq.job import INCOMING, FAILED, parse_name, format_version

MAX_WAITS = 4096
MAX_STRANGERS = 256
LAST = "~"  # after every name


class ReadyView:
    """See above. `root`: the spool; `size`: SCAN_CACHE; `wait_s(entry, now)`: own wait of a delayed entry in seconds."""

    def __init__(self, disk, root, size, wait_s):
        self.disk, self.root, self.size, self.wait_s = disk, root, size, wait_s
        self.head = []  # (key, folder, name), the next one last
        self.waits = {}  # name -> boot-clock instant
        self.doubtful = {}  # name -> instant before which it is not looked at again (torn, maybe still being written)
        self.held_back = {}  # name -> instant before which it does not run: one with its key does
        self.strangers = []  # names in incoming/ that are not ours yet: to be adopted
        self.hits = self.misses = self.evictions = 0
        self.filled_at = -1e9
        self.names_n = self.ready_n = self.delayed_n = self.failed_n = self.newer_n = 0
        self.blocked = {}  # type that may not run -> {folder: ready jobs of it}
        self.next_due = None
        self.first_ready = ""  # name of the job in incoming/ that has been ready longest
        self.is_whole = False  # the head holds every ready name of the last listing

    def next(self, may_run):
        """The first name of the head whose type may run, taken out of it, or None. may_run: type -> bool, or None."""
        for at in range(len(self.head) - 1, -1, -1):
            key, folder, name = self.head[at]
            if may_run is None or may_run(_type(name)):
                del self.head[at]
                self.hits += 1
                return folder, name
        return None

    def is_due(self, now):
        """True when a listing is worth its price before the head is used."""
        if self.next_due is not None and now.boot >= self.next_due:
            return now.boot - self.filled_at > self.names_n / 50_000
        return now.boot - self.filled_at > max(1.0, self.names_n / 5000)

    def is_overtaken(self, digits):
        """True when one of the PRIO digits that just arrived goes before the head's first."""
        return not self.head or min(digits) < self.head[-1][0][:1]

    def add_wait(self, name, instant):
        """A wait that this process began itself: exact."""
        if len(self.waits) < MAX_WAITS:
            self.waits[name] = instant
        if self.next_due is None or instant < self.next_due:
            self.next_due = instant

    def fill(self, now, may_run, exact=True):
        """List both folders. Raises OSError when one cannot be read: unreadable is not empty.

        exact: count by type and look for the oldest as well; a claim needs neither, and can pass most names by.
        """
        self.misses += 1
        self._reset(now)
        best, cutoff, waits, oldest = [], LAST, {}, LAST
        allowed, doubtful, held_back, passed_n = {}, self.doubtful, self.held_back, 0
        for folder in (INCOMING, FAILED):
            for name in self.disk.names(self.root + "/" + folder):
                self.names_n += 1
                if doubtful and now.boot < doubtful.get(name, 0):
                    self._sooner(doubtful[name])
                    continue
                if held_back and now.boot < held_back.get(name, 0):
                    self._sooner(held_back[name])
                    self.ready_n += folder == INCOMING
                    self.failed_n += folder == FAILED
                    continue
                at_once = name[18:21] == ".0." and folder is INCOMING and name.count(".") == 6
                if at_once and name >= cutoff and not exact:
                    passed_n += 1
                    continue
                key = name if at_once else self._key(now, folder, name, waits)
                if not key:
                    continue
                self.ready_n += folder == INCOMING
                self.failed_n += folder == FAILED
                if may_run is not None:
                    type = _type(name)
                    if type not in allowed:
                        allowed[type] = may_run(type)
                    if not allowed[type]:
                        self.blocked.setdefault(type, {INCOMING: 0, FAILED: 0})[folder] += 1
                        continue
                if folder is INCOMING and key[2:18] < oldest:
                    oldest, self.first_ready = key[2:18], name
                if key < cutoff:
                    best.append((key, folder, name))
                    if len(best) >= 2 * self.size:
                        best.sort()
                        self.evictions += len(best) - self.size
                        del best[self.size:]
                        cutoff, self.is_whole = best[-1][0], False
                else:
                    self.evictions += 1
                    self.is_whole = False
        self.ready_n += passed_n
        self.evictions += passed_n
        best.sort()
        if len(best) > self.size:
            self.evictions += len(best) - self.size
            self.is_whole = False
            del best[self.size:]
        best.reverse()
        self.head, self.waits = best, waits

    def _reset(self, now):
        self.filled_at = now.boot
        self.names_n = self.ready_n = self.delayed_n = self.failed_n = self.newer_n = 0
        self.blocked = {}
        self.next_due, self.first_ready, self.is_whole = None, "", True
        self.strangers = []
        if self.held_back:
            self.held_back = {name: instant for name, instant in self.held_back.items() if now.boot < instant}
        if self.doubtful:
            self.doubtful = {name: instant for name, instant in self.doubtful.items() if now.boot < instant + 60}

    def _sooner(self, instant):
        if self.next_due is None or instant < self.next_due:
            self.next_due = instant

    def _key(self, now, folder, name, waits):
        """The order key of a delayed, failed or strange name when it is ready, else "" (and its wait is noted)."""
        entry = parse_name(folder, name)
        if entry is None:
            if format_version(name):
                self.newer_n += 1
            elif len(self.strangers) < MAX_STRANGERS:
                self.strangers.append((folder, name))
            return ""
        if entry.due:
            instant = self.waits.get(name)
            if instant is None:
                wait_s = self.wait_s(entry, now)
                if wait_s is None:  # waits for a trusted clock
                    self.delayed_n += 1
                    return ""
                instant = now.boot + wait_s
            if instant > now.boot:
                if len(waits) < MAX_WAITS and not entry.is_at:
                    waits[name] = instant
                self._sooner(instant)
                self.delayed_n += folder == INCOMING
                self.failed_n += folder == FAILED
                return ""
            if len(waits) < MAX_WAITS and not entry.is_at:
                waits[name] = instant  # it stays ready although the clock may step back
        return "%d.%016d.%s" % (entry.priority, max(entry.seq, entry.due * 1_000_000), name)


def _type(name):
    return name.split(".", 5)[4]
