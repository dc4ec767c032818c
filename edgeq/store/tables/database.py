"""The database file under the SQLite store: opened, begun, judged, set aside; its errors as errors of ours.

Write-ahead log. A commit is whole, and visible to others, when it returns; it is on the medium after `sync` (a *safe*
transaction ends with one). That is what synchronous=FULL does, but through the seam to the disk, so that flushes are
counted and can be made to fail; and since the log is written in order, one flush makes safe all that went before it.
The log is reused from its start, so that a commit rewrites blocks the file already has; it is copied into the database every
LOG_PAGES pages (synchronous=NORMAL: each file flushed before it is relied on), cut back to LOG_KEEP_BYTES, and `shrink`
does both after a reader kept it from happening (B81). No statement stays open: `read` fetches all and lets its snapshot go.

Where the file system gives no shared memory (B80), a rollback journal with synchronous=FULL: each commit is safe then.

A file that is no database (any more) is moved to `NAME.bad-N`, the newest BAD_KEEP of them kept, and a new one begun;
only by whoever starts or reopens the store, and only while nobody else has it open (`LOCK`, a flock in /run). A database
of a newer edgeq is told from its user_version, through a connection that cannot write, and left untouched.

Errors: Busy (somebody else kept the lock for BUSY_S), OSError (the disk's answer, guessed where SQLite does not tell),
StoreDown (malformed, or gone from under us), BadConfig (a newer one, or no database of ours).
"""

import posix
import sqlite3
from posix import O_CLOEXEC, O_CREAT, O_EXCL, O_RDONLY, O_WRONLY

from edgeq import disk as seam
from edgeq.errors import (BadConfig, Busy, StoreDown, EACCES, EIO, ENOENT, ENOMEM, ENOSPC, EROFS)

SCHEMA_VERSION = 1
BUSY_S = 5
PAGE_BYTES = 1024  # measured at one job a second: 4096 wrote 46 KiB a job; a change costs whole pages, and ours are small
LOG_PAGES = 512
LOG_KEEP_BYTES = 2 * LOG_PAGES * PAGE_BYTES  # a file over this is cut back
BAD_KEEP = 3
FULL_KB = 64  # less than this is free, and an I/O error means: no room
READ_ONLY_MOUNT = 1

SCHEMA = (
    """CREATE TABLE jobs(
        id TEXT NOT NULL, queue TEXT NOT NULL, payload TEXT NOT NULL DEFAULT '{}', status TEXT NOT NULL DEFAULT 'incoming',
        attempts INTEGER NOT NULL DEFAULT 0, max_attempts INTEGER, available_at INTEGER NOT NULL DEFAULT 0,
        leased_until INTEGER, worker_id TEXT NOT NULL DEFAULT '', last_error TEXT NOT NULL DEFAULT '',
        created_at INTEGER NOT NULL DEFAULT 0, updated_at INTEGER NOT NULL DEFAULT 0,
        type TEXT NOT NULL, priority INTEGER NOT NULL DEFAULT 5, seq INTEGER NOT NULL DEFAULT 0,
        is_at INTEGER NOT NULL DEFAULT 0, again INTEGER NOT NULL DEFAULT 0,
        timeout_s INTEGER, expires_s INTEGER, "key" TEXT, other TEXT,
        PRIMARY KEY(queue, id))""",  # with rowid: a row of an ordinary payload fits its page
    "CREATE INDEX jobs_by_status ON jobs(queue, status, available_at)",
    'CREATE INDEX jobs_by_key ON jobs(queue, "key") WHERE "key" IS NOT NULL',
    """CREATE TABLE processed_jobs(
        job_id TEXT NOT NULL, processed_at INTEGER NOT NULL, queue TEXT NOT NULL, n INTEGER NOT NULL,
        seq INTEGER NOT NULL, attempts INTEGER NOT NULL, type TEXT NOT NULL, ms INTEGER NOT NULL, note TEXT NOT NULL,
        PRIMARY KEY(queue, n)) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX processed_by_id ON processed_jobs(queue, job_id)",
    # what must outlive the rows: the highest SEQ and the number of completions when rows were dropped
    "CREATE TABLE queues(queue TEXT NOT NULL PRIMARY KEY, seq INTEGER NOT NULL, done_n INTEGER NOT NULL) WITHOUT ROWID",
    "PRAGMA user_version=%d" % SCHEMA_VERSION,
)


def connect(path, mode):
    """A connection to the file `path`; mode: `ro` or `rw`. Transactions are ours alone. Tests put another VFS here."""
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return sqlite3.connect("file:%s?mode=%s" % (quoted, mode), timeout=BUSY_S, isolation_level=None, uri=True)


class Transaction:
    """`with database.write(is_safe):` BEGIN IMMEDIATE ... COMMIT; an exception rolls back."""

    def __init__(self, database, is_safe):
        self.database, self.is_safe = database, is_safe

    def __enter__(self):
        self.database.begin()
        return self.database

    def __exit__(self, kind, error, _):
        if kind is not None:
            self.database.roll_back()
            return
        try:
            self.database.commit()
        except BaseException:
            self.database.roll_back()
            raise
        if self.is_safe:
            self.database.sync()


class Database:
    """The file at `path`. lock: a path in /run for the flock of all who have it open; owner: (uid, gid) a new file gets.

    on_trouble(): called when nothing may be called safe any more. written_bytes: an estimate, three pages a changed row.
    syncs_n: commits that waited for the medium by themselves; the others are counted by the seam.
    """

    def __init__(self, path, disk, log, lock, owner, on_trouble):
        self.path, self.disk, self.log, self.owner, self.on_trouble = path, disk, log, owner, on_trouble
        self.folder, _, self.name = path.rpartition("/")
        self.connection = None
        self.has_log = True
        self.keep_bytes = LOG_KEEP_BYTES
        self.is_malformed = False
        self.syncs_n = self.written_bytes = 0
        self._open = seam.Lock(lock, shared=True)
        self._making = seam.Lock(lock + ".new")
        self._changes = 0
        self._has_told = False

    # --- opening -------------------------------------------------------------------------------------

    def open(self, is_new_fine=True):
        """Have a connection; False when there is no database and none is to be made."""
        if self.connection:
            return True
        if not self._has_file() and not is_new_fine:
            return False
        _take(self._open)
        try:
            self._refuse_newer()
            _take(self._making)  # RACE: two that begin the file at once
            try:
                self._make_file()
                self._connect()
            finally:
                self._making.drop()
        except BaseException:
            self.close()
            raise
        return True

    def close(self):
        """The last one out copies the log into the database and removes it: SQLite does that."""
        if self.connection:
            try:
                self.connection.close()
            except sqlite3.Error:
                pass
            self.connection = None
        self._open.drop()

    def _has_file(self):
        return self.disk.exists(self.path)

    def _refuse_newer(self):
        """BadConfig for a newer schema, told through a connection that cannot change a byte (B93)."""
        if not self._has_file():
            return
        connection = None
        try:
            connection = connect(self.path, "ro")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.Error:
            return  # a journal to roll back, no shared memory, malformed: the writer will see
        finally:
            if connection:
                connection.close()
        if version > SCHEMA_VERSION:
            raise BadConfig("store", self.path, "made by a newer edgeq (schema %d, this one knows %d)" % (version, SCHEMA_VERSION),
                            "left untouched; update edgeq, or name another STORE")

    def _make_file(self):
        """An empty file with our mode and owner, where there is none. Never opened by hand otherwise:
        closing it would drop the locks of every connection this process has to it."""
        try:
            fd = self.disk.open(self.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, seam.FILE_MODE)
        except FileExistsError:
            return
        try:
            self.disk.fchmod(fd, seam.FILE_MODE)
            if posix.geteuid() == 0:
                posix.chown(self.path, *self.owner())
        finally:
            self.disk.close(fd)

    def _connect(self):
        try:
            self.connection = connect(self.path, "rw")
            self._begin_log()
            for pragma in ("journal_size_limit=%d" % LOG_KEEP_BYTES, "wal_autocheckpoint=%d" % LOG_PAGES, "secure_delete=0",
                           "cache_size=-512", "temp_store=2", "trusted_schema=0"):
                self.connection.execute("PRAGMA " + pragma).fetchall()
            self.connection.execute("PRAGMA synchronous=%s" % ("NORMAL" if self.has_log else "FULL"))
            if self._number("PRAGMA user_version") == 0:
                self._make_schema()
        except sqlite3.Error as error:
            raise self._translated(error) from None
        self._changes = self.connection.total_changes

    def _begin_log(self):
        """The write-ahead log; the rollback journal where there is no shared memory for it."""
        try:
            self.connection.execute("PRAGMA page_size=%d" % PAGE_BYTES).fetchall()  # before the first page is written
            self.connection.execute("PRAGMA auto_vacuum=2").fetchall()
            mode = self.connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            self.connection.execute("PRAGMA user_version").fetchall()  # a fresh file answers `wal` before it tried the memory
        except sqlite3.OperationalError as error:
            if not _lacks_memory(error):
                raise
            mode = self._leave_log()
        self.has_log = mode == "wal"
        if not self.has_log:
            self.connection.execute("PRAGMA journal_mode=PERSIST").fetchall()
            if not self._has_told:
                self.log.warning("no shared memory here", store=self.path, uses="a rollback journal")
                self._has_told = True

    def _leave_log(self):
        """A database that was left with a write-ahead log: alone, it can be read without shared memory, and converted."""
        self.connection.close()
        self.connection = connect(self.path, "rw")
        self.connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
        mode = self.connection.execute("PRAGMA journal_mode=PERSIST").fetchone()[0]
        self.connection.execute("PRAGMA locking_mode=NORMAL").fetchall()
        self.connection.execute("PRAGMA user_version").fetchall()  # the lock goes with the next look
        return mode

    def _make_schema(self):
        """CRASH: one transaction: a cut leaves an empty file, or all of it."""
        self.connection.execute("BEGIN IMMEDIATE")
        if self._number("SELECT count(*) FROM sqlite_master") and self._number("PRAGMA user_version") == 0:
            self.connection.execute("ROLLBACK")
            raise BadConfig("store", self.path, "a database of something else", "name another file in STORE")
        if self._number("PRAGMA user_version") == 0:
            for statement in SCHEMA:
                self.connection.execute(statement)
        self.connection.execute("COMMIT")
        self.disk.flush_folder(self.folder)

    def _number(self, sql):
        return self.connection.execute(sql).fetchone()[0]

    # --- a file that is no database any more --------------------------------------------------------------

    def heal(self, is_doubtful):
        """Open what can be used. is_doubtful: look at every page first. What is malformed is set aside, a new one begun."""
        if not self.is_malformed:
            try:
                self.open()
                if not is_doubtful or self.is_sound():
                    return
            except StoreDown:
                if not self.is_malformed:
                    raise
        self._set_aside()
        self.open()

    def is_sound(self):
        """True when every page says what it should."""
        try:
            found = self.connection.execute("PRAGMA quick_check(1)").fetchall()
        except sqlite3.Error as error:
            found = self._translated(error)
            if not self.is_malformed:
                raise found from None
        return found == [("ok",)]

    def _set_aside(self):
        """The file and its journals to `NAME.bad-N`, by renames; nobody else may have it open."""
        self.close()
        lock = seam.Lock(self._open.path)
        if not _take(lock, wait=False):
            raise StoreDown("store", self.path, "malformed, and other processes still use it", "stop them")
        try:
            number = max([self._number_of(name) for name in self.bad_copies()], default=0) + 1
            for tail in ("", "-wal", "-journal"):
                try:
                    self.disk.rename(self.path + tail, "%s.bad-%d%s" % (self.path, number, tail))
                except FileNotFoundError:
                    pass
            seam.forget(self.path + "-shm")
            for name in self.bad_copies()[:-BAD_KEEP]:
                self.drop_copy(name)
            self.disk.flush_folder(self.folder)
        finally:
            lock.drop()
        self.is_malformed = False
        self.log.error("malformed", store=self.path, kept="%s.bad-%d" % (self.name, number), next="a new one is begun")

    def bad_copies(self):
        """Names of the malformed databases that are kept, oldest first."""
        try:
            names = [name for name in self.disk.names(self.folder) if self._number_of(name)]
        except FileNotFoundError:
            return []
        return sorted(names, key=self._number_of)

    def drop_copy(self, name):
        for tail in ("-wal", "-journal", ""):
            try:
                self.disk.unlink("%s/%s%s" % (self.folder, name, tail))
            except FileNotFoundError:
                pass

    def _number_of(self, name):
        head, _, number = name.partition(".bad-")
        head, number = name[:len(self.name)], name[len(self.name) + 5:]
        return int(number) if head == self.name and name[len(head):].startswith(".bad-") and number.isdigit() else 0

    # --- statements -----------------------------------------------------------------------------------

    def read(self, sql, values=()):
        """All rows as a list; [] when there is no database yet."""
        if not self.open(is_new_fine=False):
            return []
        try:
            return self.connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._translated(error) from None

    def one(self, sql, values=()):
        """The first row, or None."""
        if not self.open(is_new_fine=False):
            return None
        try:
            cursor = self.connection.execute(sql, values)
            row = cursor.fetchone()
            cursor.close()  # the snapshot goes with it
            return row
        except sqlite3.Error as error:
            raise self._translated(error) from None

    def change(self, sql, values=()):
        """Run one change inside a transaction; how many rows it hit."""
        try:
            return self.connection.execute(sql, values).rowcount
        except sqlite3.Error as error:
            raise self._translated(error) from None

    def write(self, is_safe):
        """A transaction for `with`. is_safe: on the medium when it ends."""
        return Transaction(self, is_safe)

    def begin(self):
        self.open()
        try:
            self.connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self._translated(error) from None

    def commit(self):
        try:
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._translated(error) from None
        changed_n, self._changes = self.connection.total_changes - self._changes, self.connection.total_changes
        self.written_bytes += 3 * PAGE_BYTES * changed_n
        self.syncs_n += bool(changed_n and not self.has_log)

    def roll_back(self):
        try:
            if self.connection and self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()  # the next verb opens anew

    def sync(self):
        """Every commit so far is on the medium, or OSError."""
        if not self.has_log or not self.connection:
            return
        try:
            fd = self.disk.open(self.path + "-wal", O_RDONLY | O_CLOEXEC)
        except FileNotFoundError:
            return  # all of it was copied and flushed
        try:
            # SQLite keeps no lock on this file, so closing it here drops none
            self.disk.flush_data(fd)
        except OSError:
            self.on_trouble()
            raise
        finally:
            self.disk.close(fd)

    def stamp(self):
        """One line that changes when somebody changes the file."""
        try:
            found = self.disk.lstat(self.path)
        except FileNotFoundError:
            return "none\n"
        return "%d %d %d %d\n" % (found.st_ino, found.st_size, found.st_mtime_ns, self.log_bytes())

    def log_bytes(self):
        """The size of the write-ahead log."""
        try:
            return self.disk.lstat(self.path + "-wal").st_size
        except FileNotFoundError:
            return 0

    def shrink(self):
        """Copy the log into the database and cut it; True when that was possible (no reader was in the way)."""
        if not self.has_log or not self.connection:
            return True
        try:
            self.connection.execute("PRAGMA busy_timeout=0").fetchall()
            busy, pages, copied = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self.connection.execute("PRAGMA busy_timeout=%d" % (BUSY_S * 1000)).fetchall()
        except sqlite3.Error as error:
            found = self._translated(error)
            if isinstance(found, Busy):
                return False
            raise found from None
        return not busy

    def give_back_pages(self, at_least, at_most):
        """Incremental vacuum: at most so many pages, when at least so many are free."""
        if self.one("PRAGMA freelist_count")[0] >= at_least:
            try:
                # a step a page: `execute` would make only the first one
                self.connection.executescript("PRAGMA incremental_vacuum(%d)" % at_most)
            except sqlite3.Error as error:
                raise self._translated(error) from None

    # --- errors -----------------------------------------------------------------------------------------

    def _translated(self, error):
        """What a sqlite3.Error means to those who know disks. A programmer's error comes back as it is."""
        code = getattr(error, "sqlite_errorcode", 0) or 0
        kind = code & 0xff
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Busy("store", self.path, "locked by another process for more than %d s" % BUSY_S, "repeat later")
        if kind == sqlite3.SQLITE_FULL:
            return self._os_error(ENOSPC)
        if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            self.is_malformed = True
            self.on_trouble()
            return StoreDown("store", self.path, "malformed: %s" % error, "the worker sets it aside, 'edgeq check --repair' too")
        if kind in (sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return self._os_error(EACCES)
        if kind == sqlite3.SQLITE_NOMEM:
            return self._os_error(ENOMEM)
        if kind == sqlite3.SQLITE_READONLY:
            return self._read_only(code)
        if kind == sqlite3.SQLITE_CANTOPEN:
            return self._os_error(self._why_not_open())
        if kind == sqlite3.SQLITE_IOERR:
            self.on_trouble()
            return self._os_error(ENOSPC if self._is_full_disk() else EROFS if self._is_read_only() else EIO)
        return error

    def _os_error(self, errno):
        return OSError(errno, posix.strerror(errno), self.path)

    def _read_only(self, code):
        if code in (sqlite3.SQLITE_READONLY_DBMOVED, ):
            self.on_trouble()
            return StoreDown("store", self.path, "was moved away under us", "reopened at once")
        return self._os_error(EROFS if self._is_read_only() else EACCES)

    def _why_not_open(self):
        """The errno behind `unable to open database file`, which says nothing."""
        if not self._has_file():
            return ENOENT
        if self._is_read_only():
            return EROFS
        if not posix.access(self.path, posix.R_OK | posix.W_OK) or not posix.access(self.folder, posix.W_OK | posix.X_OK):
            return EACCES
        return ENOSPC if self._is_full_disk() else EIO

    def _is_full_disk(self):
        try:
            found = self.disk.statvfs(self.folder)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize < FULL_KB * 1024 or found.f_files > 0 and found.f_favail == 0

    def _is_read_only(self):
        try:
            return bool(self.disk.statvfs(self.folder).f_flag & READ_ONLY_MOUNT)
        except OSError:
            return False


def _lacks_memory(error):
    """True when the file system cannot share memory: the log's index cannot be mapped."""
    code = getattr(error, "sqlite_errorcode", 0) or 0
    return code in (sqlite3.SQLITE_IOERR_SHMMAP, sqlite3.SQLITE_IOERR_SHMOPEN, sqlite3.SQLITE_IOERR_SHMLOCK,
                    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL)


def _take(lock, wait=True):
    """Take a flock in /run; where /run cannot be written, go without it: True all the same."""
    try:
        return lock.take(wait)
    except (FileNotFoundError, PermissionError):
        return True
