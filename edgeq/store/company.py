"""Is anybody else at work here? Asked at each claim, so as long as the answer is no it costs one stat.

`R/began` has a line for each living process that ever claimed: `PID START`, put there before its first claim. Whoever saw, in this
order, that file, nobody else alive in it, and no claim but its own in processing/, is alone until the file changes. So the rule
"who claims and then sees another claim of that id gives back" [M] keeps its force: the other one enters its line, claims, and looks
at all claims; if we saw its line we look at them, too, and if we did not, our claim was there before its look.
"""

import posix

from edgeq import disk
from edgeq.lease import is_alive


class Company:
    """Of one store. run: R; lock: that on ids, under which the file is replaced; leases: they know who we are."""

    def __init__(self, run, lock, leases):
        self.path, self.lock, self.leases = run + "/began", lock, leases
        self.has_entered, self.is_sure = False, True
        self._alone_at = self._seen_at = None  # stamps of the file: when we were alone; when we last looked closely

    @property
    def line(self):
        return self.leases.pid, self.leases.start

    def enter(self):
        """Our line, before the first claim, or OSError: who cannot enter may not claim, for others may be alone in the file."""
        with self.lock:
            lines = [line for line in self._lines() if line != self.line and is_alive(*line)] + [self.line]
            try:
                disk.write_run(self.path, b"".join(b"%d %d\n" % line for line in lines))
            except IsADirectoryError:
                pass  # nobody is ever alone in that
        self.has_entered = True

    def is_alone(self):
        return self._alone_at is not None and self._stamp() == self._alone_at

    def look(self):
        """A stamp for `settle_in` when nobody else is alive; None when somebody is, or was at the last look (see `look_again`)."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen_at or not self.is_sure:
            return None
        self._seen_at, lines = stamp, self._lines()
        return stamp if self.line in lines and not any(is_alive(*line) for line in lines if line != self.line) else None

    def settle_in(self, stamp):
        """After `look`, no claim but ours was found."""
        self._alone_at = stamp

    def look_again(self):
        """Now and then: somebody may have died. And when a claim of ours becomes nobody's, which every claim must see."""
        self._alone_at = self._seen_at = None

    def restore(self):
        """As `look_again`; where somebody emptied /run, our line anew. Who else is there may not have done so: never sure again."""
        self.look_again()
        if self.has_entered and self.line not in self._lines():
            self.is_sure = False
            self.enter()

    def _stamp(self):
        try:
            status = posix.stat(self.path)
            return status.st_ino, status.st_ctime_ns
        except OSError:
            return None

    def _lines(self):
        """[(pid, start)], those that are none left out."""
        try:
            words = [line.split() for line in disk.read_text(self.path).splitlines()]
            return [tuple(map(int, line)) for line in words if len(line) == 2]
        except (OSError, ValueError):
            return []
