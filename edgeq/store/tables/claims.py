"""Claims: a ready row becomes ours, a stale one is taken over (reap). The change counts only when the row is as we saw it (P5)."""

from edgeq.errors import BadJob, EdgeqError
from edgeq.job import DLQ, DONE, format_version, parse_name
from edgeq.store.local import KEY_WAIT_S
from edgeq.store.tables import keys
from edgeq.store.tables.done import is_done
from edgeq.store.tables.dropbox import take_in
from edgeq.store.tables.jobs import delete, drop_done, find_row, read_row, set_row_aside
from edgeq.store.tables.rows import BY_ID, COLUMNS, HELD


def claim(store, now, may_run=None, lease_s=60, fresh=False):
    """The next ready job, its try charged and its lease written; None when nothing ready may run.

    may_run: type -> bool. fresh: look at everything first (before a worker sleeps, nothing may be missed).
    """
    store._usable()
    digits = store._hear()
    is_filled = fresh or store.view.is_due(now) or bool(digits) and store.view.is_overtaken(digits)
    if is_filled or digits:
        take_in(store, now)
    if is_filled:
        store.view.fill(now, may_run)
    return store._claim_first(now, may_run, lease_s, is_filled)


def claim_name(store, now, state, name, lease_s):
    """The Lease of one name of the view; None when it is not to be had."""
    entry = parse_name(state, name)
    if entry is None and not format_version(name):
        store.view.strangers.append((state, name))
    row = entry and store.db.one("SELECT %s FROM jobs%s AND status=? AND seq=? AND attempts=?" % (COLUMNS, BY_ID),
                                 (store.queue, entry.id, state, entry.seq, entry.attempts))
    if not row:
        return None  # claimed or cancelled by somebody else, or still a file
    try:
        record = read_row(store, row)
    except BadJob as error:
        set_row_aside(store, row, error.why)
        return None
    if store._is_expired(entry, record, now):
        if delete(store, entry.id, entry.state, is_safe=False):
            store.tell_expired(entry)
        return None
    newer = record.key and keys.successor(store, entry, record.key)
    if newer:
        delete(store, entry.id, entry.state, is_safe=False)
        store.tell_superseded(entry.id, entry.type, newer)
        return None
    return _take(store, entry, record, now, lease_s)


def _take(store, entry, record, now, lease_s):
    """One claim: lease, then the row, if it is still as we saw it. None when another worker was faster."""
    lease, is_ours = store._begin_claim(entry, record, now, lease_s), False
    try:
        with store.db.write(False):
            is_free = not is_done(store, entry.id) and not (record.key and keys.is_running(store, record.key))
            is_ours = is_free and store.db.change(
                "UPDATE jobs SET status='processing', attempts=attempts+1, worker_id=?, leased_until=?, updated_at=?"
                + BY_ID + " AND status=? AND seq=? AND attempts=?",
                (lease.token, int(now.wall + lease_s), int(now.wall), store.queue, entry.id, entry.state, entry.seq,
                 entry.attempts))
        if is_ours and lease.is_suspect:
            # CRASH: others' claims are not flushed; a job that may have taken the board down is charged before it runs (P4)
            store._sync()
    except (OSError, EdgeqError):
        store.leases.remove(lease.token)  # claimed by nobody: the next scan puts it back
        raise
    if is_ours:
        store._mine[lease.token] = entry.id
        return lease
    store.leases.remove(lease.token)
    if not is_free and not drop_done(store, entry):
        store._hold_back(entry, now.boot + KEY_WAIT_S)
    return None


def take_over(store, entry, holder, now, lease_s):
    """Own lease, one change of the row to our token, then we are its holder. None: lost the race, dropped, or set aside."""
    lease = store._begin_take_over(entry, holder, now, lease_s)
    try:
        with store.db.write(False):
            is_ours = store.db.change("UPDATE jobs SET worker_id=?, again=1" + HELD,
                                      (lease.token, store.queue, entry.id, entry.token))
    except (OSError, EdgeqError):
        store.leases.remove(lease.token)
        raise
    if not is_ours:
        store.leases.remove(lease.token)
        return None
    store._mine[lease.token] = entry.id
    store.leases.remove(entry.token)
    return _read_taken(store, lease)


def _read_taken(store, lease):
    row = find_row(store, lease.entry.id)
    try:
        lease.record = read_row(store, row)
    except BadJob as error:
        set_row_aside(store, row, error.why)
        store._forget(lease)
        return None
    if drop_done(store, lease.entry):
        store._forget(lease)
        return None
    return lease


def has_claim(store, entry):
    """True when the row is still claimed as `entry` says."""
    return store.db.one("SELECT 1 FROM jobs" + HELD, (store.queue, entry.id, entry.token)) is not None


def sweep_dead(store, now):
    """Dead letters whose id is done: put there by hand, or carried from a spool that was cut."""
    for id, in store.db.read("SELECT id FROM jobs WHERE queue=? AND status='dlq' AND EXISTS(SELECT 1 FROM processed_jobs"
                             " WHERE processed_jobs.queue=jobs.queue AND job_id=jobs.id)", (store.queue,)):
        delete(store, id, DLQ)
        store.log.info("dropped", id=id, because="the same id is in " + DONE)
