"""The table `jobs`: what more than one verb asks of it or does to a row of it."""

from edgeq.errors import BadJob
from edgeq.job import CORRUPT, DLQ, DONE, INCOMING, is_word, parse_name, safe_name
from edgeq.store.base import ALREADY_DEAD, ALREADY_DONE, ALREADY_QUEUED
from edgeq.store.tables.done import is_done
from edgeq.store.tables.rows import BY_ID, COLUMNS, STATES, entry_of, record_of


def find_row(store, id):
    """The row of an id, as rows.COLUMNS; None when there is none."""
    return store.db.one("SELECT %s FROM jobs%s" % (COLUMNS, BY_ID), (store.queue, id))


def read_row(store, row):
    """The Record of a row; BadJob when it says no job."""
    return record_of(row, store.readable_bytes())


def why_bad(store, row):
    """Why a row is no job; "" when it is one."""
    try:
        entry = entry_of(row)
        if entry.state not in STATES:
            return "no such status"
        read_row(store, row)
        name = entry.moved(INCOMING).name
        return "" if is_word(entry.id) and parse_name(INCOMING, name) else "its columns make no name"
    except (BadJob, TypeError, ValueError) as error:
        return getattr(error, "why", "a column holds what it should not")


def standing(store, id):
    """What a second enqueue of `id` is told; None when the id is free, or there is none yet. Inside a transaction."""
    if id is None:
        return None
    row = store.db.one("SELECT status FROM jobs" + BY_ID, (store.queue, id))
    if row is None:
        return ALREADY_DONE if is_done(store, id) else None
    return ALREADY_DEAD if row[0] == DLQ else ALREADY_QUEUED


def insert(store, entry, wishes, payload, created_at, other, last_error, changed_at):
    """A new row. wishes: a Job or Record with what was asked for. Inside a transaction."""
    store.db.change(
        "INSERT INTO jobs(queue, id, status, priority, seq, available_at, is_at, attempts, again, type, payload, max_attempts,"
        ' timeout_s, expires_s, "key", other, created_at, updated_at, last_error)'
        " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (store.queue, entry.id, entry.state, entry.priority, entry.seq, entry.due, entry.is_at, entry.attempts, entry.again,
         entry.type, payload.decode(), wishes.max_attempts, wishes.timeout_s, wishes.expires_s, wishes.key, other,
         created_at, changed_at, last_error))


def delete(store, id, state, is_safe=True):
    """A row that is still in `state` goes; whether it did."""
    with store.db.write(is_safe):
        return store.db.change("DELETE FROM jobs" + BY_ID + " AND status=?", (store.queue, id, state))


def drop_done(store, entry):
    """True when the id is done already; a row that somebody put there all the same goes. The log's order makes it safe."""
    if not is_done(store, entry.id):
        return False
    if delete(store, entry.id, entry.state, is_safe=False):
        store.dropped_n += 1
        store.log.info("dropped", id=entry.id, because="the same id is in " + DONE)
    return True


def set_row_aside(store, row, why):
    """A row that says no job: into corrupt/ as a file, then it goes (P6)."""
    entry, name = entry_of(row), safe_name(str(row[8]) + ".row")
    store.disk.publish(store.path(CORRUPT), name, repr(row).encode("utf-8", "backslashreplace") + b"\n")
    store.disk.publish(store.path(CORRUPT), name + ".why", ("%s: %s\n" % (entry.state, why)).encode("ascii", "backslashreplace"),
                       flush=False)
    delete(store, entry.id, entry.state)
    store.set_aside_n += 1
    store.log.warning("set aside", file=name, why=why)
