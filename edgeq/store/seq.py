"""SEQ: the order of jobs, across clock steps, reboots and boards without a clock (DESIGN 2).

`max(wall clock, last + 1)` in microseconds. The last number lives in `R/seq` (RAM) and is seeded once per boot with the
highest that the spool knows, so it never goes back whatever the clock does. The same numbers say whether the clock can be
trusted: a clock behind the newest SEQ (or behind the program's own build date) is wrong (P8).
"""

import posix
from posix import O_RDONLY, O_RDWR, O_CREAT, O_NOFOLLOW, O_CLOEXEC

from edgeq import BUILD_DATE
from edgeq.errors import EACCES, ENOENT, EPERM, EROFS, NO_ROOM
from edgeq.job import SEQ_LIMIT

NO_RUN = (ENOENT, EACCES, EPERM, EROFS) + NO_ROOM  # /run is not there yet, not ours, or full
SLACK_S = 5  # a burst may run a little ahead of the clock, and a time daemon may pull it back a little


class Sequence:
    """`R/seq` at `path`; `seed()` gives the highest SEQ of the spool, asked once per boot under `lock`, R/id.lock.

    keeps_time: False for CLOCK=none: nothing goes by wall time, and that is healthy.
    """

    def __init__(self, path, lock, seed, keeps_time=True):
        self.path, self.lock, self.seed, self.keeps_time = path, lock, seed, keeps_time

    def newest(self):
        """The last SEQ issued."""
        known = self._get()
        return self._seeded() if known is None else known

    def issue(self, now):
        """A SEQ later than all before. Two that overlap in time may tie."""
        last = self.newest()
        wall = int(now.wall * 1e6)
        seq = wall if last < wall < SEQ_LIMIT else last + 1
        self._put(seq)
        return seq

    def raise_to(self, seq):
        """Issue nothing up to `seq` any more."""
        if self.newest() < seq:
            self._put(seq)

    def seconds(self, now, seq=None):
        """Unix seconds on SEQ's clock: never before `seq`, the newest job's by default."""
        seq = self.newest() if seq is None else seq
        return max(now.wall, seq / 1e6) if now.wall * 1e6 < SEQ_LIMIT else seq / 1e6

    def is_trusted(self, now):
        """True when the wall clock may be believed."""
        return self.keeps_time and now.wall >= BUILD_DATE and now.wall + SLACK_S >= self.newest() / 1e6

    def _seeded(self):
        """The spool's highest SEQ, kept in R/seq from now on; where /run cannot be written, asked again each time."""
        try:
            with self.lock:
                known = self._get()  # RACE: somebody else may have seeded while we waited for the lock
                if known is None:
                    known = self.seed()
                    self._put(known)
                return known
        except OSError as error:
            if error.errno not in NO_RUN:
                raise
            return self.seed()

    def _get(self):
        """The number in R/seq, None when there is none."""
        try:
            fd = posix.open(self.path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            text = posix.pread(fd, 17, 0)
        finally:
            posix.close(fd)
        known = int(text) if len(text) == 17 and text[:16].isdigit() and text[16:] == b"\n" else None
        return known if known is None or known < SEQ_LIMIT else None  # group members may write here: nonsense is no number

    def _put(self, seq):
        try:
            fd = posix.open(self.path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o660)
            try:
                posix.pwrite(fd, b"%016d\n" % seq, 0)  # in place: a reader never sees it empty
            finally:
                posix.close(fd)
        except OSError as error:
            if error.errno not in NO_RUN:
                raise
            # the next one counts on from the names
