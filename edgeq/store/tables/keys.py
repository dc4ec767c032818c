"""Coalescing by key, as keys.py does it for the spool: what waits with a key, what runs, what took whose place.

A job whose row says `"latest":true` takes the place of those with its key that waited before it; a kicked one takes nobody's.
"""

from edgeq.store.tables.rows import ENTRY_COLUMNS, LATEST, entry_of

WAITS = "queue=? AND \"key\"=? AND status IN ('incoming', 'failed')"


def waiting(store, key):
    """[Entry] of the waiting jobs that have `key`, the oldest first."""
    rows = store.db.read("SELECT %s FROM jobs WHERE %s ORDER BY seq" % (ENTRY_COLUMNS, WAITS), (store.queue, key))
    return [entry_of(row) for row in rows]


def is_running(store, key):
    """True when a job with `key` is claimed."""
    return store.db.one("SELECT 1 FROM jobs WHERE queue=? AND \"key\"=? AND status='processing'", (store.queue, key)) is not None


def successor(store, entry, key):
    """The id of a waiting job that took entry's place by `--latest`; None when there is none."""
    row = store.db.one("SELECT id FROM jobs WHERE " + WAITS + " AND seq>? AND instr(other, ?)"
                       " AND NOT (again AND created_at < seq / 1000000) ORDER BY seq DESC LIMIT 1",
                       (store.queue, key, entry.seq, LATEST))
    return row[0] if row else None
