"""The database file under the SQLite store: opened and begun, its statements, its transactions, its log.

Write-ahead log. A commit is whole, and visible to others, when it returns; it is on the medium after `sync` (a *safe*
transaction ends with one). That is what synchronous=FULL does, but through the seam to the disk, so that flushes are
counted and can be made to fail; and since the log is written in order, one flush makes safe all that went before it.
The log is reused from its start, so that a commit rewrites blocks the file already has; it is copied into the database every
LOG_PAGES pages (synchronous=NORMAL: each file flushed before it is relied on), cut back to LOG_KEEP_BYTES, and `shrink`
does both after a reader kept it from happening (B81). No statement stays open: `read` fetches all and lets its snapshot go.

Where the file system gives no shared memory (B80), a rollback journal with synchronous=FULL: each commit is safe then.

A file that is no database (any more) is set aside, and a new one begun: malformed.py. A database of a newer edgeq is told from
its user_version, through a connection that cannot write, and left untouched.

Errors (trouble.py): Busy (somebody else kept the lock for BUSY_S), OSError (the disk's answer, guessed where SQLite does not
tell), StoreDown (malformed, or gone from under us), BadConfig (a newer one, or no database of ours).
"""

import posix
import sqlite3
from posix import O_CLOEXEC, O_CREAT, O_EXCL, O_RDONLY, O_WRONLY

from edgeq import disk as seam
from edgeq.errors import BadConfig, Busy
from edgeq.store.tables import malformed, schema
from edgeq.store.tables.trouble import BUSY_S, lacks_memory, translated

PAGE_BYTES = 1024  # measured at one job a second: 4096 wrote 46 KiB a job; a change costs whole pages, and ours are small
LOG_PAGES = 512
LOG_KEEP_BYTES = 2 * LOG_PAGES * PAGE_BYTES  # a file over this is cut back


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
        self.take(self._open)
        try:
            self._refuse_newer()
            self.take(self._making)  # RACE: two that begin the file at once
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

    @staticmethod
    def take(lock, wait=True):
        """Take a flock in /run; where /run cannot be written, go without it: True all the same."""
        try:
            return lock.take(wait)
        except (FileNotFoundError, PermissionError):
            return True

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
        if version > schema.VERSION:
            raise BadConfig("store", self.path, "made by a newer edgeq (schema %d, this one knows %d)" % (version, schema.VERSION),
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
            if self.number("PRAGMA user_version") == 0:
                schema.make(self)
        except sqlite3.Error as error:
            raise translated(self, error) from None
        self._changes = self.connection.total_changes

    def _begin_log(self):
        """The write-ahead log; the rollback journal where there is no shared memory for it."""
        try:
            self.connection.execute("PRAGMA page_size=%d" % PAGE_BYTES).fetchall()  # before the first page is written
            self.connection.execute("PRAGMA auto_vacuum=2").fetchall()
            mode = self.connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            self.connection.execute("PRAGMA user_version").fetchall()  # a fresh file answers `wal` before it tried the memory
        except sqlite3.OperationalError as error:
            if not lacks_memory(error):
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

    def number(self, sql):
        """The one number that `sql` asks for."""
        return self.connection.execute(sql).fetchone()[0]

    heal, is_sound, bad_copies, drop_copy = malformed.heal, malformed.is_sound, malformed.bad_copies, malformed.drop_copy

    # --- statements -----------------------------------------------------------------------------------

    def read(self, sql, values=()):
        """All rows as a list; [] when there is no database yet."""
        if not self.open(is_new_fine=False):
            return []
        try:
            return self.connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise translated(self, error) from None

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
            raise translated(self, error) from None

    def change(self, sql, values=()):
        """Run one change inside a transaction; how many rows it hit."""
        try:
            return self.connection.execute(sql, values).rowcount
        except sqlite3.Error as error:
            raise translated(self, error) from None

    def write(self, is_safe):
        """A transaction for `with`. is_safe: on the medium when it ends."""
        return Transaction(self, is_safe)

    def begin(self):
        self.open()
        try:
            self.connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise translated(self, error) from None

    def commit(self):
        try:
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise translated(self, error) from None
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
            found = translated(self, error)
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
                raise translated(self, error) from None
