"""Why a type of job may not run now: paused, held, offline, its condition not met, its limit reached.

* held: this image cannot run it (no handler, 126, 127, a bad TYPE.conf). Freed when the handler's file changes, by `resume`, or
  tried again each MAX_DELAY_S. Nothing is charged.
* offline: its destination is down (exit 69). The whole type waits with a growing backoff of its own; when it is over, one
  job goes first to see. Nothing is charged: a board that is offline for a week loses nothing.

`R/types/TYPE` says so to people and to the other workers; removing that file (`resume`) ends the wait.
"""

import posix

from edgeq import disk
from edgeq.config import load_type
from edgeq.policy import backoff


PAUSE_LOOK_S = 0.05  # how long "not paused" is believed before a claim; after it `is_paused` looks
TEXT_BUSY, BUSY_S = "Text file busy", 5  # being installed just now: the last close changes no time stamp


class _Type:
    __slots__ = ("settings", "running_n", "until", "kind", "offline_n", "stamp", "unpaused_until")

    def __init__(self, settings):
        self.settings = settings
        self.running_n = self.offline_n = 0
        self.until = self.unpaused_until = 0.0  # boot clock
        self.kind = ""
        self.stamp = None  # the handler's file when it was found wanting


class Gate:
    """The gates of all types, of one worker. pauses: the store's; conditions: folder of NEEDS flags."""

    def __init__(self, config, pauses, draw, log):
        self.config, self.pauses, self.draw, self.log = config, pauses, draw, log
        self._types = {}

    def settings(self, type):
        """The TypeConfig of `type`."""
        return self._of(type).settings

    def may_run(self, type, now):
        """True when a job of `type` may start now."""
        state = self._of(type)
        if state.settings.concurrency and state.running_n >= state.settings.concurrency:
            return False
        if state.kind and now.boot >= state.until and state.running_n:
            return False  # one goes first to see whether it is over
        return not self.why_not(type, now)

    def is_held(self, type, now):
        """True when its waiting jobs count as held (not merely at their limit or paused)."""
        return self._waits(self._of(type), type, now) or bool(self._of(type).settings.bad) or not self._has_need(type)

    def why_not(self, type, now):
        """One line for a person why `type` does not run, its limit left aside; "" when it may."""
        state = self._of(type)
        if now.boot >= state.unpaused_until and self.is_paused(type, now):
            return "paused"
        if state.settings.bad:
            return "held: " + state.settings.bad
        if not self._has_need(type):
            return "waits for " + state.settings.needs
        if self._waits(state, type, now):
            return state.kind
        return ""

    def is_paused(self, type, now):
        """A look at the marks themselves."""
        is_paused = self.pauses.is_paused(type, now)
        self._of(type).unpaused_until = 0.0 if is_paused else now.boot + PAUSE_LOOK_S
        return is_paused

    def started(self, type):
        self._of(type).running_n += 1

    def ended(self, type):
        self._of(type).running_n -= 1

    def succeeded(self, type):
        """A job of `type` ran: whatever it waited for is over."""
        state = self._of(type)
        if state.kind:
            self._free(state, type)

    def close(self, type, kind, why, now):
        """Close the gate: kind `held` or `offline`."""
        state = self._of(type)
        if kind == "offline":
            if state.until <= now.boot:  # one failure a round, however many ran at once
                state.offline_n += 1
            wait_s = backoff(state.offline_n, max(state.settings.base_delay_s, 1), state.settings.max_delay_s,
                             self.config.jitter, self.draw)
        else:
            wait_s = min(state.settings.max_delay_s, BUSY_S) if why == TEXT_BUSY else state.settings.max_delay_s
            state.stamp = self._stamp(type)
        state.kind, state.until = kind, now.boot + wait_s
        self.log.warning(kind, type=type, why=why, wait_s=int(wait_s))
        try:
            disk.write_run("%s/types/%s" % (self.config.run_path, type),
                           ("%s %d %s\n" % (kind, state.until, why)).encode("ascii", "backslashreplace")[:300])
        except OSError:
            pass  # /run is full: the gate is closed all the same

    def next_change(self, now):
        """The boot-clock instant at which a gate opens by itself, or None."""
        return min((state.until for state in self._types.values() if state.until > now.boot), default=None)

    def reload(self):
        """Read the types' files again."""
        for type, state in self._types.items():
            state.settings = load_type(self.config, type)

    def _of(self, type):
        state = self._types.get(type)
        if state is None:
            state = self._types[type] = _Type(load_type(self.config, type))
            if state.settings.bad:
                self.log.error("held", type=type, why=state.settings.bad)
        return state

    def _waits(self, state, type, now):
        if not state.kind:
            return False
        if not self._is_said(type) or (state.kind == "held" and self._stamp(type) != state.stamp):
            self._free(state, type)
            return False
        return now.boot < state.until

    def _is_said(self, type):
        try:
            posix.lstat("%s/types/%s" % (self.config.run_path, type))
        except FileNotFoundError:
            return False
        return True

    def _free(self, state, type):
        state.kind, state.until, state.offline_n = "", 0.0, 0
        try:
            disk.forget("%s/types/%s" % (self.config.run_path, type))
        except OSError:
            pass

    def _has_need(self, type):
        needs = self._of(type).settings.needs
        if not needs:
            return True
        try:
            posix.stat("%s/cond/%s" % (self.config.run_dir, needs))
        except OSError:
            return False
        return True

    def _stamp(self, type):
        """What identifies the handler's file: changed means worth another try."""
        try:
            found = posix.stat("%s/%s" % (self.config.handlers, type))
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mode, found.st_mtime_ns
