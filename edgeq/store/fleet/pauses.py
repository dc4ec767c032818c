"""Pauses of the whole fleet, and of this node alone."""

from edgeq.errors import EdgeqError, NotFound
from edgeq.store.fleet.element import text_of
from edgeq.store.pauses import Pauses

PAUSES_S = 1  # a pause seen so long ago is looked up again


class FleetPauses(Pauses):
    """Pauses of the fleet, on the server; this node's own `drain` stays a mark beside its store, and ends with its boot."""

    def __init__(self, store, own):
        Pauses.__init__(self, own.disk, own.root, own.boot_id, own.is_trusted)
        self.store, self.own = store, own
        self._known, self._known_at = {}, None

    def set(self, type, for_s, now, this_boot=False):
        if this_boot:
            self.own.set(type, for_s, now, True)
            return
        until = int(self._server_s() + for_s) if for_s else 0
        self.store.link.call("HSET", self._key(), type, until)
        self._known_at = None

    def clear(self, type):
        is_fleet = self.store.run_script("RESUME", type)
        self._known_at = None
        try:
            self.own.clear(type)
        except NotFound:
            if not is_fleet:
                raise

    def heard(self, pairs, now):
        """What a claim's script told: it saw these before it took a job."""
        self._known = {text_of(pairs[n]): int(pairs[n + 1]) for n in range(0, len(pairs), 2)}
        self._known_at = now.boot

    def ends_in(self, type, now):
        own = self.own.ends_in(type, now)
        if self.store.link.trouble:
            return own  # nothing can be claimed either, and the next claim hears them
        if self._known_at is None or not 0 <= now.boot - self._known_at < PAUSES_S:
            try:
                self.heard(self.store.link.call("HGETALL", self._key()), now)
            except EdgeqError as error:  # the line is down: nothing can be claimed either
                self.store.log.debug("pauses", error=error)
                return own
        if type not in self._known:
            return own
        until = self._known[type]
        left = until - self._server_s() if until else 0
        return 0 if not until else left if left > 0 else own

    def all(self, now):
        found = self.own.all(now)
        self.ends_in("", now)
        for type in self._known:
            left = self.ends_in(type, now)
            if left is not None:
                found[type] = left
        return found

    def _key(self):
        return self.store.key + ":pauses"

    def _server_s(self):
        seconds, _ = self.store.link.call("TIME")
        return int(seconds)
