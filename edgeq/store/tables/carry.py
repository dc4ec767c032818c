"""The database's side of `edgeq move`, as carry.py is the spool's. See Parcel in store/base.py for the order of steps."""

from edgeq.job import DLQ, FAILED, INCOMING
from edgeq.store.base import Parcel, is_above
from edgeq.store.tables.done import add_line, done_count, drop_lines, is_done, keep_count
from edgeq.store.tables.jobs import find_row, insert, read_row, why_bad
from edgeq.store.tables.rows import BY_ID, entry_of, other_of, text_of


def export(store):
    """Completions, oldest first, then jobs: what ranks highest first. Unreadable rows and files stay."""
    for line in store.done_lines():
        yield Parcel(line=line)
    for state in (DLQ, FAILED, INCOMING):
        for id, in store.db.read("SELECT id FROM jobs WHERE queue=? AND status=? ORDER BY seq", (store.queue, state)):
            row = find_row(store, id)
            if row and not why_bad(store, row):
                yield Parcel(entry_of(row), read_row(store, row), None, row[17])


def take_parcel(store, parcel, now):
    """Take one in; True when that changed anything. What ranks higher wins. Not safe before `seal`."""
    with store.db.write(False):
        if is_done(store, parcel.id):
            return False
        row = find_row(store, parcel.id)
        if row and not is_above(parcel, entry_of(row)):
            return False
        store.db.change("DELETE FROM jobs" + BY_ID, (store.queue, parcel.id))
        if parcel.line:
            add_line(store, parcel.line, max(parcel.line.n, done_count(store) + 1))
        else:
            insert_parcel(store, parcel, now)
    return True


def insert_parcel(store, parcel, now):
    entry, record = parcel.entry, parcel.record
    last_error, changed_at = parcel.last_error, int(now.wall)
    if entry.state == DLQ:
        last_error = text_of(record.raw.get("last_error", '""'))
        changed_at = int(record.raw.get("failed_at", "0"))
    insert(store, entry, record, record.payload, record.created_at or entry.seq // 1_000_000, other_of(record), last_error,
           changed_at)


def seal(store):
    """What was taken in is safe, the highest SEQ too."""
    with store.db.write(True):
        keep_count(store)


def let_go(store, parcels):
    """Another store has sealed these: their rows go."""
    store.flush_folder(INCOMING)  # a dropped file must not bring one back
    with store.db.write(True):
        for parcel in parcels:
            if parcel.entry:
                store.db.change("DELETE FROM jobs" + BY_ID + " AND status=?", (store.queue, parcel.id, parcel.entry.state))


def let_go_done(store, now):
    """Another store has all completions: the count and the highest SEQ stay."""
    with store.db.write(True):
        drop_lines(store)
