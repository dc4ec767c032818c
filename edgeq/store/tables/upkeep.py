"""What the SQLite store does now and then: bounds, the audit, its side of `edgeq move`."""

from edgeq.errors import BadJob, StoreDown
from edgeq.job import DLQ, FAILED, INCOMING, format_version, is_word, parse_name
from edgeq.store import bounds
from edgeq.store.audit import check_claims, unreadable
from edgeq.store.base import Parcel, is_above
from edgeq.store.tables.done import add_line, done_count, is_done
from edgeq.store.tables.dropbox import take_in
from edgeq.store.tables.jobs import delete, find_row, insert, read_row, set_row_aside
from edgeq.store.tables.rows import BY_ID, COLUMNS, STATES, entry_of, other_of, text_of

LINE_BYTES = 96  # what a completion counts against DONE_KEEP_KB
PRUNE_AT_ONCE = 512
FREE_PAGES, PAGES_PER_PASS = 64, 64

# --- bounds ----------------------------------------------------------------------------------------------


def prune(store, now):
    """One bounded pass: dead letters, completions, corrupt/, half-written files; the log when nothing goes on."""
    gone = prune_dead(store, now) + prune_done(store, now) + bounds.prune_leftovers(store, now)
    store.db.give_back_pages(FREE_PAGES, PAGES_PER_PASS)
    shrink_when_idle(store)
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
        if at >= config.dlq_keep or kept_bytes > config.dlq_keep_kb * 1024 or limit_s and now.wall - failed_at > limit_s:
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


# --- the audit ---------------------------------------------------------------------------------------------


def check(store, now, repair=False):
    """[sentence]; with `repair`, what each sentence names has been put right where that is possible."""
    found = [path for path, _ in store.folders() if not store.disk.exists(path)]
    found = ["%s is missing: repair makes it" % path for path in found]
    if found and not repair:
        return found
    if found:
        store.make_folders()
    if check_pages(store, found, repair):
        check_rows(store, found, repair)
        check_claims(store, now, found, repair)
    check_files(store, found, repair)
    return found


def check_pages(store, found, repair):
    """True when the database can be read, or is a new one now."""
    try:
        if not store.db.open(is_new_fine=False) or store.db.is_sound():
            return True
    except StoreDown:
        if not store.db.is_malformed:
            raise
    found.append("%s is malformed: repair sets it aside and begins a new one" % store.db.path)
    if repair:
        store.db.heal(True)
        store.is_broken = False
    return repair


def check_rows(store, found, repair):
    for row in store.db.read("SELECT %s FROM jobs WHERE queue=?" % COLUMNS, (store.queue,)):
        why = why_bad(store, row)
        if why:
            found.append("job %s in %s cannot be read (%s): repair sets it aside" % (row[8], row[0], why))
            if repair:
                set_row_aside(store, row, why)
        elif is_done(store, row[8]):
            found.append("job %s is in %s and in done: repair drops the one in %s" % (row[8], row[0], row[0]))
            if repair:
                delete(store, row[8], row[0])


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


def check_files(store, found, repair):
    for name in sorted(store._names(INCOMING)):
        if format_version(name) or not parse_name(INCOMING, name):
            continue
        why = unreadable(store, INCOMING, name)
        if why:
            found.append("incoming/%s cannot be read (%s): repair sets it aside" % (name, why))
            if repair:
                store.set_aside(INCOMING, name, why)


# --- move: see Parcel in store/base.py -----------------------------------------------------------------------


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


def let_go(store, parcels):
    """Another store has sealed these: their rows go."""
    store.flush_folder(INCOMING)  # a dropped file must not bring one back
    with store.db.write(True):
        for parcel in parcels:
            if parcel.entry:
                store.db.change("DELETE FROM jobs" + BY_ID + " AND status=?", (store.queue, parcel.id, parcel.entry.state))
