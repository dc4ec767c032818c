"""Carry verdicts out: what the store cannot take now keeps its lease and is settled when the store is back."""

from edgeq.disk import forget
from edgeq.errors import EdgeqError, LeaseLost
from edgeq.job import Ack, Bury, Drop, GiveBack, Hold, Retry
from edgeq.log import escape


class Settler:
    """unsettled: [(lease, verdict, outcome)] the store could not take, oldest first.

    outage: where trouble with the store is noted; on_trouble(now, error): called with it.
    """

    def __init__(self, store, config, gate, reporter, outage, log, on_trouble):
        self.store, self.config, self.gate, self.log = store, config, gate, log
        self.reporter, self.outage, self.on_trouble = reporter, outage, on_trouble
        self.tally = reporter.tally
        self.unsettled = []

    def settle(self, lease, verdict, outcome, now):
        """Carry a verdict out, or keep it for `settle_again`. outcome: the handler's, None where none ran."""
        try:
            self._carry_out(lease, verdict, outcome, now)
        except LeaseLost:
            self.log.warning("late", id=lease.entry.id, because="the claim is somebody else's now")
        except (OSError, EdgeqError) as error:
            self.unsettled.append((lease, verdict, outcome))
            self.on_trouble(now, error)

    def settle_again(self, now):
        """What could not be settled, once the store may be back."""
        if self.outage.is_on(now):
            return
        try:
            if self.store.is_broken:
                self.store.reopen(now)
                self.log.info("reopened", store=self.store.root)  # well again only when a claim or a look succeeds (B17)
        except (OSError, EdgeqError) as error:
            self.on_trouble(now, error)
            return
        waiting, self.unsettled = self.unsettled, []
        for at, (lease, verdict, outcome) in enumerate(waiting):
            self.settle(lease, verdict, outcome, now)
            if self.outage.is_on(now):
                self.unsettled += waiting[at + 1:]
                return

    def leases(self):
        return [lease for lease, _, _ in self.unsettled]

    def give_up(self, lease):
        """Somebody else took its claim over: what was to become of it is forgotten (P5)."""
        self.unsettled = [left for left in self.unsettled if left[0] is not lease]

    def _carry_out(self, lease, verdict, outcome, now):
        entry, type = lease.entry, lease.entry.type
        ms = int(outcome.duration_s * 1000) if outcome else 0
        if isinstance(verdict, Ack):
            self.store.ack(lease, now, verdict.note, ms)
            self.tally.done_n += 1
            self.gate.succeeded(type)
            self.log.debug("done", id=entry.id, type=type, attempt=entry.attempts, ms=ms)
        elif isinstance(verdict, Retry):
            self.store.retry(lease, verdict.wait_s, verdict.why, now)
            self.tally.count_retry(now.boot)
            self._note_error(entry, verdict.why, now)
            self.log.info("retry", id=entry.id, type=type, attempt=entry.attempts, why=verdict.why, wait_s=round(verdict.wait_s, 1))
        elif isinstance(verdict, Bury):
            limit = lease.record.max_attempts or self.gate.settings(type).max_attempts
            self.store.bury(lease, verdict.why, now, min(entry.attempts, limit))
            self.tally.buried_n += 1
            self._note_error(entry, verdict.why, now)
            self.log.warning("dead", id=entry.id, type=type, attempt=entry.attempts, why=verdict.why,
                             output=outcome.tail[-400:] if outcome else "")
        elif isinstance(verdict, Hold):
            self.store.hold(lease, verdict.why, outcome is not None, now)
            if verdict.kind:
                self._note_error(entry, verdict.why, now)
                self.gate.close(type, verdict.kind, verdict.why, now)
        elif isinstance(verdict, GiveBack):
            self.store.give_back(lease, verdict.why, now)
            self.log.info("given back", id=entry.id, type=type, why=verdict.why)
        elif isinstance(verdict, Drop):
            self.store.drop(lease, verdict.why, now)
            forget("%s/cancel/%s" % (self.config.run_path, lease.token))  # says so: it is gone for good
            self.log.info("cancelled", id=entry.id, type=type)
        if isinstance(verdict, (Ack, Retry)) and self.gate.settings(type).sync_jobs == 1:
            self.store.flush(now)

    def _note_error(self, entry, why, now):
        self.tally.note_error(escape("%s %s: %s" % (entry.type, entry.id, why)), now.boot)
