"""Bounds on the rows, as bounds.py sets them for files: dead letters, completions, and the log when nothing goes on."""

from edgeq.job import INCOMING
from edgeq.store import bounds
from edgeq.store.tables.dropbox import take_in
from edgeq.store.tables.rows import BY_ID

LINE_BYTES = 96  # what a completion counts against DONE_KEEP_KB
PRUNE_AT_ONCE = 512
FREE_PAGES, PAGES_PER_PASS = 64, 64


def prune(store, now):
    """One bounded pass: dead letters, completions, corrupt/, half-written files; the log when nothing goes on."""
    gone = prune_dead(store, now) + prune_done(store, now) + bounds.prune_leftovers(store, now)
    store.db.give_back_pages(FREE_PAGES, PAGES_PER_PASS)
    shrink_when_idle(store)
    store.ages.look(now)
    return gone


def prune_dead(store, now):
    """Dead letters beyond DLQ_KEEP, DLQ_KEEP_KB or KEEP_DAYS, the oldest first."""
    config = store.config
    limit_s = config.keep_days * bounds.DAY_S if store.seq.is_trusted(now) else 0
    kept_bytes, surplus = 0, []
    rows = store.db.read("SELECT id, length(payload) + length(last_error) + 200, updated_at FROM jobs WHERE queue=? AND"
                         " status='dlq' ORDER BY updated_at DESC, seq DESC", (store.queue,))
    for at, (id, size, failed_at) in enumerate(rows):
        kept_bytes += size
        is_old = limit_s and store.ages.age_s(failed_at * 1_000_000, now) > limit_s
        if at >= config.dlq_keep or kept_bytes > config.dlq_keep_kb * 1024 or is_old:
            surplus.append(id)
    surplus = surplus[-bounds.PER_PASS:]
    if surplus:
        store.flush_folder(INCOMING)
        with store.db.write(True):
            for id in surplus:
                store.db.change("DELETE FROM jobs" + BY_ID + " AND status='dlq'", (store.queue, id))
        for id in surplus:
            store.log.warning("dead letter dropped", id=id, because="DLQ_KEEP, DLQ_KEEP_KB or KEEP_DAYS")
    return len(surplus)


def prune_done(store, now):
    """Completions beyond DONE_KEEP_KB, many at a time; only while no dropped file could name one of them."""
    row = store.db.one("SELECT min(n), max(n) FROM processed_jobs WHERE queue=?", (store.queue,))
    keep = store.config.done_keep_kb * 1024 // LINE_BYTES
    if not row or row[0] is None or row[1] - row[0] + 1 <= keep + keep // 8:
        return 0
    take_in(store, now)
    if any(True for _ in store._names(INCOMING)):
        return 0
    store.flush_folder(INCOMING)
    with store.db.write(True):
        return store.db.change(
            "DELETE FROM processed_jobs WHERE queue=? AND n<=? AND NOT EXISTS(SELECT 1 FROM jobs WHERE"
            " jobs.queue=processed_jobs.queue AND id=job_id)",
            (store.queue, min(row[1] - keep, row[0] + PRUNE_AT_ONCE - 1)))


def shrink_when_idle(store):
    """Nothing happened since the last pass, and the log is not empty: copied once, so that a start reads no log."""
    mark = (store.db.written_bytes, store.db.one("PRAGMA data_version"))
    if mark == store._idle_mark and store.db.log_bytes():
        store.db.shrink()
    store._idle_mark = mark
