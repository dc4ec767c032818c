"""`edgeq check` of a database: its pages, its rows, its claims, and the files beside it; as audit.py does it for the spool."""

from edgeq.errors import StoreDown
from edgeq.job import INCOMING, format_version, parse_name
from edgeq.store.audit import check_claims, unreadable
from edgeq.store.tables.done import is_done
from edgeq.store.tables.jobs import delete, set_row_aside, why_bad
from edgeq.store.tables.rows import COLUMNS


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


def check_files(store, found, repair):
    for name in sorted(store._names(INCOMING)):
        if format_version(name) or not parse_name(INCOMING, name):
            continue
        why = unreadable(store, INCOMING, name)
        if why:
            found.append("incoming/%s cannot be read (%s): repair sets it aside" % (name, why))
            if repair:
                store.set_aside(INCOMING, name, why)
