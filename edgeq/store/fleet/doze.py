"""Asleep on the server: a worker with nothing to do waits in BLMOVE from the ready list to processing.

    claim: none -> doze -> (poll) -> hear -> claim: with what BLMOVE moved

What BLMOVE moved has no lease yet. The next claim's script puts it back and claims properly, in one step, so priorities, pauses
and limits are asked as always. When that claim never comes (the answer was lost, the worker was killed), it stands in
processing without a claim, is seen there by every worker's look, and goes back after GRACE_S.

A sleeper is known to the scripts (Q:asleep, until when): what becomes ready in another list than Q, or soon, wakes one by
a mark in Q. While what stands in Q may not run here (paused, held, at its limit) a BLMOVE from Q would not sleep: the worker then
waits for such marks alone (Q:aside, Q:knock) and looks each LOOK_EVERY_S for what a hand pushed.
"""

from edgeq.errors import EdgeqError, StoreDown

BLOCK_S = 5  # one BLMOVE; lua.py's SOON is a second more
LOOK_EVERY_S = 0.5
EARLY_S = 0.01  # it ends before what the worker wants to do next
ANSWER_S = 5  # no answer so long after its end: the line is dead
SHORTEST_S = 0.02


class Doze:
    """Part of store/redis.py's Redis."""

    is_resident = False  # a worker that stays, and listens
    _sleeps_at = None  # the list a BLMOVE may wait for, as the last claim found it
    _source = ""  # the list where the scripts believe us asleep
    _moved = b""
    _answer_by = 0.0

    @property
    def look_every_s(self):
        return None if self._sleeps_at or self.link.is_asleep else LOOK_EVERY_S

    @property
    def is_dozing(self):
        return self.link.is_asleep

    def doze(self, now, until, is_idle):
        """Asleep from now on, at most until the boot-clock instant `until`: (descriptor that tells, when at the latest it does)."""
        if not self.link.is_asleep:
            is_enough = self._sleeps_at == self.key or self.pauses.is_paused("", now)
            longest_s = BLOCK_S if is_enough else LOOK_EVERY_S
            seconds = min(until - now.boot - EARLY_S, longest_s)
            if not self._sleeps_at or seconds < SHORTEST_S:
                return None
            self.link.listen(self._sleeps_at, self.key + "_processing", seconds, is_idle)
            self._answer_by = now.boot + seconds + ANSWER_S
        return self.link.asleep_fd, self._answer_by

    def hear(self, now):
        """After the worker's poll: was there something?"""
        if self.link.is_asleep and self.link.has_answer():
            self._moved = self.link.hear() or b""
        elif self.link.is_asleep and now.boot >= self._answer_by:
            self.link.close()
            raise StoreDown("store", self.place.shown, "no answer for %d s" % ANSWER_S, "tried again")

    def wake(self):
        """No more jobs for now: what comes or came goes back. Down already: the scripts forget us by themselves."""
        was_asleep = self.link.is_asleep
        _, moved = self._woken()
        if was_asleep or moved:
            self.run_script("UNMOVE", self.owner_text, moved)

    def _woken(self):
        """(where we slept, what was moved), for the script of the claim; then forgotten."""
        if self.link.is_asleep:
            self._moved = self.link.hush() or b""
        found = self._source, self._moved
        self._source, self._moved, self._sleeps_at = "", b"", None
        return found

    def _wake_quietly(self):
        try:
            self.wake()
        except (OSError, EdgeqError):
            pass  # found in processing, without a claim
