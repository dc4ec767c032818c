"""How old a job is, steps of the wall clock taken out (P8): a board without a battery boots in the past, works, and is told the
time by the network; a job of a minute ago is a minute old then, not the month that the clock was behind.

`R/clock` (RAM) remembers wall less boot clock and the newest SEQ of the last look; a look that finds the clock more than NOTICE_S
further on than both allow notes a step: jobs up to a SEQ are so many seconds younger than they look. The elected worker looks
with each safety scan, any worker before a job expires, and who seeds SEQ looks first of all: scripts queue jobs before the
worker is up. Steps of less than NOTICE_S, and backward ones, are not noted: the first make a job two minutes older at the
most, the others only younger. What is dated before the program was built comes from a clock that nobody could believe, maybe
in another boot: it is as old as this boot at the most.
"""

from edgeq import BUILD_DATE
from edgeq import disk as seam

NOTICE_S = 120
KEPT = 8


class Ages:
    """`path`: R/clock. seq: the queue's Sequence."""

    def __init__(self, path, seq):
        self.path, self.seq = path, seq

    def age_s(self, seq, now):
        """Seconds since the job with this SEQ was queued."""
        age_s = now.wall - seq / 1e6 - sum(jump for up_to, jump in self.look(now) if seq < up_to)
        return min(age_s, now.boot) if seq < BUILD_DATE * 1_000_000 else age_s

    def begin(self, newest, now):
        """The first look of a boot, by who seeds SEQ with `newest`."""
        if self._read()[0] is None:
            self._write("%.3f %d\n" % (now.wall - now.boot, newest))

    def look(self, now):
        """[(SEQ, seconds)]: the steps of this boot, as far as they were noted; a new one is noted now."""
        newest, offset = self.seq.newest(), now.wall - now.boot
        before, newest_before, steps = self._read()
        if before is not None:
            expected = max(before + now.boot, newest_before / 1e6)  # what the clock would say without a step, and SEQ with it
            jump = now.wall - expected
            if jump > NOTICE_S and offset - before > NOTICE_S:
                # jobs queued since the step have later numbers, unless it was small and long ago: these are taken for younger
                steps = (steps + [(int((expected + 1) * 1e6), int(jump))])[-KEPT:]
            elif newest == newest_before and abs(offset - before) < 1:
                return steps
        self._write("%.3f %d\n" % (offset, newest) + "".join("%d %d\n" % step for step in steps))
        return steps

    def _read(self):
        """(wall less boot clock, newest SEQ, steps) of the last look; None for the first when there was none in this boot."""
        try:
            head, *lines = seam.read_text(self.path, seam.READ_CHUNK).split("\n")
            offset, newest = head.split()
            return float(offset), int(newest), [tuple(int(word) for word in line.split()) for line in lines if line]
        except (OSError, ValueError):
            return None, 0, []

    def _write(self, text):
        try:
            seam.write_run(self.path, text.encode(), 0o644)  # by whoever was first, for a worker that may be another user
        except OSError:
            pass  # RAM is full, or not ours to write: this look is not remembered
