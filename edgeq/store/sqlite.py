"""The SQLite store: rows are jobs, a column is their state, a move is one short transaction that checks that the row changed.

`sqlite:/path/queue.db`; several queues may share the file. Beside it lies the queue's folder: shell producers drop files into
its `incoming/` without Python, as they do for the spool, and `adopt` takes them in; `corrupt/`, the running mark and the
pauses lie there too (store/local.py). Leases and heartbeats are in RAM.

Here it is opened, flushed and closed; each verb is a function of a room in tables/: claims, settle, views; dropbox, intake;
bounds, audit, operate, carry. Below them lie the tables (jobs, done), what a row says (rows, keys), the file (database).

What a power cut leaves at each step, and the line that repairs it:

    enqueue    one safe transaction: the row, or nothing
    adopt      safe rows, then the files go: one that came back is dropped by its id (tables/dropbox.py)
    claim      not flushed, so it may be undone: the job waits, uncharged, which P4 allows; a suspect's claim is safe
    done       one transaction, row to completion, safe with the batch: before that claimed by a dead boot, runs again (P9).
               A process that dies in between loses nothing
    retry      one transaction, safe with the batch; before that still claimed, the try charged: reaped
    bury, kick, cancel, drop    one safe transaction: before or after, never between

Errors: as of tables/database.py. LeaseLost: somebody else holds the claim. StoreDown: a flush failed; `reopen` first.
Does not promise to save jobs out of a malformed file: it is set aside whole, for a person.
"""

from edgeq import disk as seam
from edgeq.errors import BadConfig, EdgeqError, StoreDown
from edgeq.job import CORRUPT, INCOMING, PROCESSING, parse_name
from edgeq.store.base import Gauges
from edgeq.store.local import LocalStore
from edgeq.store.mark import MARK
from edgeq.store.scan import ReadyView
from edgeq.store.tables import claims, done, dropbox, settle, views
from edgeq.store.tables.rows import BY_ID

SHRINK_EVERY_S = 10


def open_backend(config, clock, log, disk=None):
    try:
        from edgeq.store.tables.database import Database
    except ImportError as error:
        raise BadConfig("store", config.store, "this Python has no sqlite3 (%s)" % error,
                        "use a Python with it, or STORE=spool:%s" % config.spool) from None
    path = config.store.partition(":")[2]
    if path[:1] != "/" or path[-1:] == "/":
        raise BadConfig("configuration", "STORE=%s" % config.store[:60], "not sqlite: and the absolute path of a file",
                        "correct the line")
    return Sqlite(config, clock, log, disk or seam.Disk(), path, Database)


class Sqlite(LocalStore):
    """One queue's jobs in the database file `path`."""

    states = (INCOMING, CORRUPT)

    def __init__(self, config, clock, log, disk, path, database):
        folder = path.rpartition("/")[0] or "/"
        self.queue = config.queue
        LocalStore.__init__(self, config, clock, log, disk, folder, "%s/%s" % (folder.rstrip("/"), config.queue))
        lock = "%s/%s.lock" % (config.run_dir, path.rpartition("/")[2])
        self.db = database(path, disk, log, lock, self.owner, self._break)
        self.view = ReadyView(views.Listing(self), self.home, config.scan_cache, self.wait_s)
        self._reissue_to = 0  # dropped files with a SEQ up to this got it from a clock that had gone back
        self._shrink_at = None
        self._idle_mark = None

    def _break(self):
        self.is_broken = True

    # --- opening and closing ---------------------------------------------------------------------------

    def start(self, now):
        """A worker begins. After an unclean end every page is looked at; what is malformed is set aside (B82)."""
        from edgeq.store.tables import audit, bounds  # noqa: F401: its program may be replaced while it runs
        self.make_folders()
        self.db.heal(self._is_doubtful())
        self.is_broken = False
        self._begin()
        self._note_sound()
        highest = self.highest_seq()
        if self.seq.newest() < highest:  # a shell producer began R/seq without a look into the database
            self._reissue_to = highest
            self.seq.raise_to(highest)

    def _is_doubtful(self):
        """True when every page is to be looked at: an unclean end, or the file is not as this boot's last worker left it."""
        try:
            return seam.read_text(self.run + "/checked") != self.db.stamp()
        except FileNotFoundError:
            return self._mark() is not None

    def _note_sound(self):
        try:
            seam.write_run(self.run + "/checked", self.db.stamp().encode())
        except OSError:
            pass  # looked at once more, then

    def hang_up(self):
        """The last one out copies the log into the database."""
        self.db.close()

    def close(self, now, clean=True):
        """Flush what is settled; with `clean`, the last worker out removes the running mark."""
        try:
            self.flush(now)
            if clean and self._alive.fd >= 0 and self._alive.try_exclusive() and self._mark() is not None:
                self.db.sync()
                if not any(self.entries(PROCESSING)):
                    self.disk.unlink(self.path(MARK))
                    self.flush_folder("")
        finally:
            is_worker, is_good = self._alive.fd >= 0, not self.is_broken
            self._alive.drop()
            self.db.close()
            if is_worker and is_good:
                self._note_sound()

    def reopen(self, now):
        """After a failed flush: the log is copied into the database and both are flushed. OSError, EdgeqError: still down."""
        self.make_folders()
        self.db.close()
        self.db.heal(True)
        self.db.shrink()
        for path in (self.root, self.home, self.path(INCOMING)):
            self.disk.flush_folder(path)
        self.is_broken = self.is_marked = False
        try:
            self.flush(now)
        except (OSError, EdgeqError):
            self.is_broken = True
            raise

    def highest_seq(self):
        """The seed of SEQ: the highest that a row, a completion or a dropped file knows."""
        highest = 0
        for name in self._names(INCOMING):
            entry = parse_name(INCOMING, name)
            highest = max(highest, entry.seq if entry else 0)
        try:
            for table in ("jobs", "processed_jobs", "queues"):
                row = self.db.one("SELECT max(seq) FROM %s WHERE queue=?" % table, (self.queue,))
                highest = max(highest, row[0] or 0 if row else 0)
        except StoreDown:
            pass  # malformed: nothing in it counts any more, `start` sets it aside
        return highest

    def gauges(self):
        disk, view, db = self.disk, self.view, self.db
        return Gauges(disk.flushes_n + db.syncs_n, (disk.written_bytes + db.written_bytes) // 1024, view.hits, view.misses,
                      view.evictions, view.names_n, disk.is_reduced)

    def notes(self):
        try:
            self.db.open(is_new_fine=False)
        except (OSError, EdgeqError):
            pass  # whoever uses it says why
        found = ["%s/%s is a database that was malformed: look into it, then 'edgeq purge corrupt'" % (self.root, name)
                 for name in self.db.bad_copies()]
        if not self.db.has_log:
            found.append("%s: no shared memory on this file system: a rollback journal is used, more flushes a job" % self.db.path)
        return found

    # --- the front doors -----------------------------------------------------------------------------------

    def enqueue(self, job, now, fast=False):
        self._usable()
        from edgeq.store.tables import intake
        return intake.enqueue_many(self, [job], now, not fast)[0]

    def enqueue_many(self, jobs, now):
        self._usable()
        from edgeq.store.tables import intake
        return intake.enqueue_many(self, jobs, now)

    adopt = dropbox.adopt

    # --- claim and reap: tables/claims.py ------------------------------------------------------------------

    claim, _claim_name, take_over = claims.claim, claims.claim_name, claims.take_over
    _has_claim, sweep_dead = claims.has_claim, claims.sweep_dead

    # --- settle: tables/settle.py ----------------------------------------------------------------------------

    ack, retry, bury = settle.ack, settle.retry, settle.bury
    hold, give_back, drop = settle.hold, settle.give_back, settle.drop

    # --- the barrier -----------------------------------------------------------------------------------------

    def flush_due_at(self):
        """When the batch or an overgrown log is to be seen to; None when nothing waits."""
        instants = [LocalStore.flush_due_at(self), self._shrink_at]
        return min((instant for instant in instants if instant is not None), default=None)

    def flush(self, now):
        """The barrier: whatever was settled is on the medium."""
        self._usable()
        if self.batch.since is not None:
            self._sync()
            self.batch.clear()
        self._see_to_log(now)

    def _sync(self):
        try:
            self.db.sync()
        except OSError:
            self.is_broken = True
            raise

    def _copy_log(self):
        """Room without giving anything up: the log is begun anew."""
        try:
            self.db.shrink()
        except OSError:
            pass  # there is the ballast yet

    def _see_to_log(self, now):
        """A log that a reader let grow is cut as soon as that is possible, even when nothing is written any more (B81)."""
        if self._shrink_at is not None and now.boot >= self._shrink_at:
            self.db.shrink()
            self._shrink_at = None
        if self._shrink_at is None and self.db.log_bytes() > self.db.keep_bytes:
            self._shrink_at = now.boot + SHRINK_EVERY_S

    # --- the operator's verbs: tables/operate.py ----------------------------------------------------------

    def kick(self, id, now):
        self._usable()
        from edgeq.store.tables import operate
        operate.kick(self, id, now)

    def cancel(self, id, now):
        self._usable()
        from edgeq.store.tables import operate
        return operate.cancel(self, id, now)

    def purge(self, states, now):
        self._usable()
        from edgeq.store.tables import operate
        return operate.purge(self, states, now)

    # --- now and then: tables/bounds.py, tables/audit.py, tables/carry.py ---------------------------------------

    def prune(self, now):
        self._usable()
        from edgeq.store.tables import bounds
        return bounds.prune(self, now)

    def check(self, now, repair=False):
        from edgeq.store.tables import audit
        return audit.check(self, now, repair)

    def _carrier(self):
        from edgeq.store.tables import carry
        return carry

    # --- views: tables/views.py ------------------------------------------------------------------------------

    entries, find, counts, done_lines = views.entries, views.find, views.counts, done.done_lines

    def last_error(self, id):
        """Of this boot from RAM, of an earlier one from the row."""
        found = LocalStore.last_error(self, id)
        if not found:
            row = self.db.one("SELECT last_error FROM jobs" + BY_ID, (self.queue, id))
            found = row[0] if row else ""
        return found
