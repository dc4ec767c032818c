"""A file that is no database (any more): judged, moved to `NAME.bad-N`, the newest BAD_KEEP of them kept, a new one begun.

Only by whoever starts or reopens the store, and only while nobody else has it open (the flock in /run).
"""

import sqlite3

from edgeq import disk as seam
from edgeq.errors import StoreDown
from edgeq.store.tables.trouble import translated

BAD_KEEP = 3


def heal(database, is_doubtful):
    """Open what can be used. is_doubtful: look at every page first. What is malformed is set aside, a new one begun."""
    if not database.is_malformed:
        try:
            database.open()
            if not is_doubtful or database.is_sound():
                return
        except StoreDown:
            if not database.is_malformed:
                raise
    _set_aside(database)
    database.open()


def is_sound(database):
    """True when every page says what it should."""
    try:
        found = database.connection.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.Error as error:
        found = translated(database, error)
        if not database.is_malformed:
            raise found from None
    return found == [("ok",)]


def _set_aside(database):
    """The file and its journals to `NAME.bad-N`, by renames; nobody else may have it open."""
    database.close()
    lock = seam.Lock(database._open.path)
    if not database.take(lock, wait=False):
        raise StoreDown("store", database.path, "malformed, and other processes still use it", "stop them")
    try:
        number = max([_number_of(database, name) for name in database.bad_copies()], default=0) + 1
        for tail in ("", "-wal", "-journal"):
            try:
                database.disk.rename(database.path + tail, "%s.bad-%d%s" % (database.path, number, tail))
            except FileNotFoundError:
                pass
        seam.forget(database.path + "-shm")
        for name in database.bad_copies()[:-BAD_KEEP]:
            database.drop_copy(name)
        database.disk.flush_folder(database.folder)
    finally:
        lock.drop()
    database.is_malformed = False
    database.log.error("malformed", store=database.path, kept="%s.bad-%d" % (database.name, number), next="a new one is begun")


def bad_copies(database):
    """Names of the malformed databases that are kept, oldest first."""
    try:
        names = [name for name in database.disk.names(database.folder) if _number_of(database, name)]
    except FileNotFoundError:
        return []
    return sorted(names, key=lambda name: _number_of(database, name))


def drop_copy(database, name):
    for tail in ("-wal", "-journal", ""):
        try:
            database.disk.unlink("%s/%s%s" % (database.folder, name, tail))
        except FileNotFoundError:
            pass


def _number_of(database, name):
    head, _, number = name.partition(".bad-")
    head, number = name[:len(database.name)], name[len(database.name) + 5:]
    return int(number) if head == database.name and name[len(head):].startswith(".bad-") and number.isdigit() else 0
