"""What those see who only look, and the names that the ready view lists."""

from edgeq.errors import BadJob
from edgeq.job import DLQ, DONE, INCOMING, PROCESSING, parse_name
from edgeq.store.base import Counts
from edgeq.store.tables.done import done_count, find_line
from edgeq.store.tables.dropbox import find_file
from edgeq.store.tables.jobs import find_row, read_row
from edgeq.store.tables.rows import ENTRY_COLUMNS, NAME, STATES, entry_of


class Listing:
    """For ReadyView, in place of a disk: rows, spelled as files, and the files that nobody has taken in yet."""

    def __init__(self, store):
        self.store = store

    def names(self, path):
        store, state = self.store, path.rpartition("/")[2]
        for name, in store.db.read("SELECT %s FROM jobs WHERE queue=? AND status=?" % NAME, (store.queue, state)):
            yield name
        if state == INCOMING:
            yield from store._names(INCOMING)


def entries(store, state):
    """Entries of one state, in the order of file names."""
    if state not in STATES:
        return
    for row in store.db.read("SELECT %s FROM jobs WHERE queue=? AND status=? ORDER BY priority, seq" % ENTRY_COLUMNS,
                             (store.queue, state)):
        yield entry_of(row)
    if state == INCOMING:
        yield from filter(None, (parse_name(INCOMING, name) for name in sorted(store._names(INCOMING))))


def find(store, id):
    """(state, Entry or None, Record or None, Line or None) of an id; state None when nobody knows it."""
    row = find_row(store, id)
    if row is None:
        line = find_line(store, id)
        return (DONE, None, None, line) if line else find_file(store, id)
    entry = entry_of(row)
    try:
        return entry.state, entry, read_row(store, row), None
    except BadJob:
        return entry.state, entry, None, None


def counts(store, now, may_run=None):
    """Counts of all states, from a fresh look."""
    view, counts = store.view, Counts()
    view.fill(now, may_run)
    counts.ready, counts.delayed, counts.failed, counts.newer = view.ready_n, view.delayed_n, view.failed_n, view.newer_n
    rows = dict(store.db.read("SELECT status, count(*) FROM jobs WHERE queue=? GROUP BY status", (store.queue,)))
    counts.processing, counts.dead, counts.done = rows.get(PROCESSING, 0), rows.get(DLQ, 0), done_count(store)
    counts.corrupt = sum(1 for _ in store.corrupt()) + len(store.db.bad_copies())
    counts.oldest_at = store.oldest_at(now)
    return counts
