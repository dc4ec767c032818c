"""A claim's end: by token, in one script each (P5)."""

from edgeq import record as records
from edgeq.errors import EdgeqError, LeaseLost
from edgeq.job import DLQ, DONE, FAILED, INCOMING
from edgeq.store.fleet.element import text_of
from edgeq.store.journal import escape_note


class Settle:
    """Part of store/redis.py's Redis."""

    def heartbeat(self, leases, now, lease_s):
        """[Lease] that are lost; the others' deadlines move."""
        if not leases:
            return []
        pairs = [part for lease in leases for part in (lease.entry.id, lease.token)]
        try:
            kept = self.run_script("HEARTBEAT", int(lease_s * 1e6), *pairs)
        except EdgeqError as error:
            raise OSError(5, str(error)) from None  # not knowing is not lost
        lost = []
        for lease, is_ours in zip(leases, kept):
            if not is_ours:
                lost.append(lease)
                continue
            lease.leased_until = now.boot + lease_s
            try:
                self.leases.write(lease.token, lease.leased_until, lease.started_at, lease.handler)
            except OSError:
                pass  # /run was emptied: the server has the lease
        return lost

    def ack(self, lease, now, note="", ms=0):
        self._usable()
        entry = lease.entry
        line = "%d %d %d %s %d %s" % (entry.seq, int(now.wall), entry.attempts, entry.type, ms, escape_note(note))
        self._holding(lease, self.run_script("ACK", entry.id, entry.token, line))
        self.batch.add_move(DONE, now)
        self._forget(lease)
        self._forget_errors_of(entry)

    def retry(self, lease, wait_s, why, now):
        self._put(lease, lease.entry.moved(FAILED), now, why, wait_s)
        self.batch.add_move(FAILED, now)

    def bury(self, lease, why, now, attempts=None):
        self._usable()
        attempts = lease.entry.attempts if attempts is None else attempts
        if not lease.is_moved:
            self._put(lease, lease.entry.moved(DLQ, attempts=attempts), now, why)
            lease.is_moved = True
        self._sync()
        self.forget_error(lease.entry.id)

    def hold(self, lease, why, ran, now):
        self._put(lease, self._held(lease, ran), now, why)

    def give_back(self, lease, why, now):
        self._put(lease, self._given_back(lease.entry), now, why)
        self.batch.add_move(INCOMING, now)

    def drop(self, lease, why, now):
        self._usable()
        self._holding(lease, self.run_script("DROP", lease.entry.id, lease.token))
        self._sync()
        self._forget(lease)
        self.forget_error(lease.entry.id)

    def _put(self, lease, target, now, why, wait_s=None):
        self._usable()
        dead = b""
        if target.state == DLQ:
            dead = records.encode_dead(lease.record, target, target.attempts, why, now.wall).rstrip(b"\n")
        wait_us = "" if wait_s is None else int(wait_s * 1e6)
        answer = self.run_script("PUT", target.id, lease.token, target.state, target.due, wait_us, target.attempts,
                                 int(target.again), why.encode("utf-8", "backslashreplace"), dead, int(target.is_at))
        self._holding(lease, answer[0])
        self._forget(lease)
        if answer[0] == 2:
            self.tell_superseded(target.id, target.type, text_of(answer[1]))
        elif why:
            self._save_error(target.id, why)

    def _holding(self, lease, is_ours):
        if not is_ours:
            self._forget(lease)
            raise LeaseLost("settle", lease.entry.id, "its claim is somebody else's")

    def flush(self, now):
        self._usable()
        if self.batch.since is not None:
            self._sync()
            self.batch.clear()
