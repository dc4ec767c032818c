"""Our own disk's trouble: a pause that grows, told once. Nothing is claimed while it lasts, and no job pays for it."""

import posix

from edgeq.errors import NO_ROOM
from edgeq.log import escape

FIRST_S = 1


class Outage:
    """until: boot-clock instant at which the store is tried again. n: how often it failed since it was last well.

    why: what the status line says of it, "" when all is well.
    """

    def __init__(self, store, guard, reporter, log):
        self.store, self.guard, self.reporter, self.log = store, guard, reporter, log
        self.until = self.wait_s = 0.0
        self.n, self.why = 0, ""

    def is_on(self, now):
        return now.boot < self.until

    def begin(self, now, error):
        """Pause, longer each time; said once, then once a minute (the log counts repeats). A full disk gets the ballast."""
        self.n += 1
        self.wait_s = min(max(self.wait_s * 2, FIRST_S), self.store.down_max_s)
        self.until = now.boot + self.wait_s * (1 - self.store.down_jitter * posix.urandom(1)[0] / 256)
        self.why = str(error)
        self.reporter.is_changed = True
        self.reporter.tally.note_error(escape(self.why), now.boot)
        self.log.error("store", error=error)
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            self.guard.drop_ballast()

    def end(self):
        """A claim or a look succeeded (B17)."""
        if self.n or self.why:
            self.n, self.wait_s, self.why = 0, 0.0, ""
            self.reporter.is_changed = True
