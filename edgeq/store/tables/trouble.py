"""What an error of SQLite means to those who know disks: an errno, somebody else's lock, a file that is no database any more.

SQLite says less than the disk did: of `unable to open` and `disk I/O error` the errno is found by a look at the file system.
What makes that nothing may be called safe any more is told by `on_trouble` before it is raised.
"""

import posix
import sqlite3

from edgeq.errors import Busy, StoreDown, EACCES, EIO, ENOENT, ENOMEM, ENOSPC, EROFS

BUSY_S = 5
FULL_KB = 64  # less than this is free, and an I/O error means: no room
READ_ONLY_MOUNT = 1


def translated(database, error):
    """What a sqlite3.Error means to those who know disks. A programmer's error comes back as it is."""
    code = getattr(error, "sqlite_errorcode", 0) or 0
    kind = code & 0xff
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy("store", database.path, "locked by another process for more than %d s" % BUSY_S, "repeat later")
    if kind == sqlite3.SQLITE_FULL:
        return _os_error(database, ENOSPC)
    if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        database.is_malformed = True
        database.on_trouble()
        return StoreDown("store", database.path, "malformed: %s" % error, "the worker sets it aside, 'edgeq check --repair' too")
    if kind in (sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return _os_error(database, EACCES)
    if kind == sqlite3.SQLITE_NOMEM:
        return _os_error(database, ENOMEM)
    if kind == sqlite3.SQLITE_READONLY:
        return _read_only(database, code)
    if kind == sqlite3.SQLITE_CANTOPEN:
        return _os_error(database, _why_not_open(database))
    if kind == sqlite3.SQLITE_IOERR:
        database.on_trouble()
        return _os_error(database, ENOSPC if _is_full_disk(database) else EROFS if _is_read_only(database) else EIO)
    return error


def _os_error(database, errno):
    return OSError(errno, posix.strerror(errno), database.path)


def _read_only(database, code):
    if code in (sqlite3.SQLITE_READONLY_DBMOVED, ):
        database.on_trouble()
        return StoreDown("store", database.path, "was moved away under us", "reopened at once")
    return _os_error(database, EROFS if _is_read_only(database) else EACCES)


def _why_not_open(database):
    """The errno behind `unable to open database file`, which says nothing."""
    if not database.disk.exists(database.path):
        return ENOENT
    if _is_read_only(database):
        return EROFS
    if not posix.access(database.path, posix.R_OK | posix.W_OK) or not posix.access(database.folder, posix.W_OK | posix.X_OK):
        return EACCES
    return ENOSPC if _is_full_disk(database) else EIO


def _is_full_disk(database):
    try:
        found = database.disk.statvfs(database.folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < FULL_KB * 1024 or found.f_files > 0 and found.f_favail == 0


def _is_read_only(database):
    try:
        return bool(database.disk.statvfs(database.folder).f_flag & READ_ONLY_MOUNT)
    except OSError:
        return False


def lacks_memory(error):
    """True when the file system cannot share memory: the log's index cannot be mapped."""
    code = getattr(error, "sqlite_errorcode", 0) or 0
    return code in (sqlite3.SQLITE_IOERR_SHMMAP, sqlite3.SQLITE_IOERR_SHMOPEN, sqlite3.SQLITE_IOERR_SHMLOCK,
                    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL)
