"""The Store: its verbs and what they promise (P1 to P9). A backend is one file that has them all.

Every verb takes `now` (clock.Now) from the caller. Payloads are opaque bytes. Settling goes by token, never by id:
a verb on a Lease whose claim is somebody else's raises LeaseLost and changes nothing (P5). After a failed flush each verb
that would promise something raises StoreDown until `reopen` succeeds.

    enqueue(job, now, fast)          -> Receipt     durable when it returns (P3); one id, one job
    enqueue_many(jobs, now)          -> [Receipt]   all or nothing, one flush
    claim(now, may_run, lease_s, fresh) -> Lease or None   the try is charged by the claim itself (P4)
    note_handler(lease)              the lease now names the running handler
    heartbeat(leases, now, lease_s)  -> [Lease]     those that were lost
    ack(lease, now, note, ms)        done; durable at the next flush
    retry(lease, wait_s, why, now)   another try later
    bury(lease, why, now)            dead letter; durable when it returns
    hold(lease, why, ran, now)       back, nothing charged
    give_back(lease, why, now)       back because the worker stops (P4)
    drop(lease, why, now)            gone, by a person's wish
    stale(now)                       -> [(Entry, Holder or None)]   claims nobody rightly holds
    take_over(entry, now, lease_s)   -> Lease or None   reap: the claim is ours now
    kick(id, now), cancel(id, now), purge(states, now)
    entries(state)                   iterator of Entry; state: a folder's name
    find(id)                         -> (Entry or None, Record or None, where)
    counts(now)                      -> Counts
    prune(now)                       bounds on what is kept; bounded work
    check(now, repair)               -> [sentence]   every broken promise; [] is health
    next_due(now)                    -> boot-clock instant at which something becomes ready, or None
    flush_due_at()                   -> boot-clock instant at which `flush` must be called, or None
    adopt(now)                       -> how many jobs came in by another door (dropped files)
    sweep_dead(now)                  dead letters whose id is done: gone
    is_unsure(now)                   True while a file that cannot be read may still be being written
    is_trusted(now)                  whether the wall clock may be believed (P8)
    gauges()                         -> Gauges
    start(now), flush(now), close(now, clean), reopen(now)
    hang_up()                        a verb that never called `start` is over: connections are closed, nothing is written

For those who only look:

    wait_s(entry, now)               seconds a delayed entry still waits; None: for a trusted clock
    holder(entry)                    Holder of a claim, or None
    corrupt(), done_lines()          iterators of (name, why) and of journal lines
    notes()                          -> [sentence] about the store itself
    folders(), owner()               its folders with their modes, who owns them

For `edgeq move`, between two stores and without a worker, in this order: source.export, target.take_parcel, target.seal,
source.let_go; at the end source.let_go_done. Killed anywhere, it is done again from the start: the target knows ids.

    export()                         iterator of Parcel: completions, then jobs; claims are reaped before
    take_parcel(parcel, now)         -> True when it changed anything; what ranks higher wins
    seal(now)                        what was taken in is safe
    let_go(parcels, now), let_go_done(now)
    can_hold(id)                     -> False: the target has no name for it (NODE:ID of a fleet); it stays behind
    carry_marks(source, now)         an unclean end and the pauses are the target's now

Attributes: root (a folder: where it lies, for the guard and for messages), run (its folder in RAM), disk (the seam), pauses,
is_broken, blocked (type that might not run at the last listing -> {folder: how many ready jobs}), on_full (set by the
worker: called when a settle meets a full disk; True when it made room).
"""

VERBS = ("enqueue", "enqueue_many", "claim", "note_handler", "heartbeat", "ack", "retry", "bury", "hold", "give_back", "drop",
         "stale", "take_over", "adopt", "sweep_dead", "is_unsure", "is_trusted", "flush_due_at", "gauges", "kick",
         "cancel", "purge", "entries", "find", "counts", "prune", "check", "next_due",
         "start", "flush", "close", "hang_up", "reopen", "wait_s", "holder", "corrupt", "done_lines", "notes", "folders", "owner",
         "export", "take_parcel", "can_hold", "seal", "let_go", "let_go_done", "carry_marks")

PER_PASS = 64  # `prune` removes at most so many of a kind; a caller that got so many calls again soon

QUEUED, ALREADY_QUEUED, ALREADY_DONE, ALREADY_DEAD = "queued", "already queued", "already done", "already dead"


class Receipt:
    """What became of an enqueue: the id and one of the four words above."""

    __slots__ = ("id", "status")

    def __init__(self, id, status):
        self.id, self.status = id, status


RANK = {"incoming": 1, "failed": 2, "processing": 3, "dlq": 4}


class Parcel:
    """What `edgeq move` carries: a job (entry, record, its last error) or a completion (line)."""

    __slots__ = ("entry", "record", "line", "last_error")

    def __init__(self, entry=None, record=None, line=None, last_error=""):
        self.entry, self.record, self.line, self.last_error = entry, record, line, last_error

    @property
    def id(self):
        return self.line.id if self.line else self.entry.id


def is_above(parcel, old):
    """True when the parcel is to take the place of the Entry `old` of the same id: it is further on its way."""
    if parcel.line:
        return True
    new = parcel.entry
    return (RANK[new.state], new.attempts) > (RANK[old.state], old.attempts)


class Counts:
    """How many jobs are in which state. ready and delayed are waiting and have never failed; failed waits for its
    retry (ready again or not); held is the part of the waiting whose type may not run. oldest_at: the boot-clock instant at
    which the oldest ready job became ready, 0 when none is.
    """

    __slots__ = ("ready", "processing", "done", "dead", "delayed", "failed", "corrupt", "held", "newer", "oldest_at")

    def __init__(self):
        self.ready = self.processing = self.done = self.dead = self.delayed = self.failed = 0
        self.corrupt = self.held = self.newer = 0
        self.oldest_at = 0.0


class Gauges:
    """What a store did since it was opened. names_n: names in the last listing; is_reduced: cannot flush folders here."""

    __slots__ = ("flushes_n", "written_kb", "hits", "misses", "evictions", "names_n", "is_reduced")

    def __init__(self, flushes_n=0, written_kb=0, hits=0, misses=0, evictions=0, names_n=0, is_reduced=False):
        self.flushes_n, self.written_kb = flushes_n, written_kb
        self.hits, self.misses, self.evictions, self.names_n = hits, misses, evictions, names_n
        self.is_reduced = is_reduced
