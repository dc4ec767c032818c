"""The spool store: folders are states, file names carry the state, a move is one rename.

What a power cut leaves at each step, and the line that repairs it (DESIGN 3):

    enqueue    dot-file, or a torn file nobody acknowledged: swept; set aside by `_read_waiting`
    claim      the job still waiting, or claimed by a dead boot: `stale` and `take_over`
    done       before the barrier the claim is settling: runs again (P9); after it the leftover is dropped by `rank.outranked`
    retry      still claimed, the try charged: `take_over`
    bury       settling, with or without the dead letter: `take_over`, `rank.outranked`
    kick       still dead, or waiting again: both are one file, nothing to repair
    cancel     still there: not acknowledged

Errors: OSError is the disk's answer as it came; the verb promised nothing and may be called again with the same lease.
LeaseLost: somebody else holds the claim. StoreDown: a flush failed earlier; `reopen` first.
"""

from edgeq import disk as seam
from edgeq import record as records
from edgeq.errors import BadJob, EdgeqError, LeaseLost, EACCES, EIO, ELOOP, ENXIO, EPERM, NO_ROOM
from edgeq.job import DLQ, DONE, CORRUPT, FAILED, INCOMING, PROCESSING, Entry, parse_name, format_version
from edgeq.store import keys, rank
from edgeq.store.adopt import adopt
from edgeq.store.base import Counts, Gauges
from edgeq.store.company import Company
from edgeq.store.journal import Journal, Line
from edgeq.store.local import KEY_WAIT_S, LocalStore
from edgeq.store.mark import MARK
from edgeq.store.scan import ReadyView

DIGITS, HEX = frozenset("0123456789"), frozenset("0123456789abcdef")


def open_backend(config, clock, log, disk=None):
    return Spool(config, clock, log, disk or seam.Disk())


class Spool(LocalStore):
    """The spool of one queue."""

    def __init__(self, config, clock, log, disk):
        LocalStore.__init__(self, config, clock, log, disk, config.spool_path, config.spool_path)
        self.journal = Journal(disk, self.path(DONE), config.done_keep_kb)
        self.view = ReadyView(disk, self.root, config.scan_cache, self.wait_s)
        self.company = Company(self.run, self.id_lock, self.leases)

    # --- opening and closing -----------------------------------------------------------------------

    def make_folders(self):
        LocalStore.make_folders(self)
        self.company.restore()

    def _mark_running(self):
        self.company.enter()  # first: where it fails the next claim tries again
        LocalStore._mark_running(self)

    def start(self, now):
        """A worker begins: folders, the suspects of an unclean end (P4), the memory of processed ids."""
        from edgeq.store import bounds  # noqa: F401  before the first claim: our file may be replaced under us
        self._begin()
        self.journal.remember()

    def close(self, now, clean=True):
        """Flush what is settled; with `clean`, the last worker out removes the running mark."""
        try:
            self.flush(now)
            if clean and self._alive.fd >= 0 and self._alive.try_exclusive() and self._mark() is not None:
                for folder in (INCOMING, FAILED, PROCESSING):
                    self.disk.flush_folder(self.path(folder))
                if not any(self.entries(PROCESSING)):
                    self.disk.unlink(self.path(MARK))
                    self.disk.flush_folder(self.root)
        finally:
            self._alive.drop()
            self.journal.close()

    def reopen(self, now):
        """After a failed flush: what is not known to be safe is written again, elsewhere. OSError: still down."""
        self.make_folders()
        try:
            self.journal.renew(self.seq.newest())
            for folder in (FAILED, PROCESSING, INCOMING, DLQ, ""):
                self.disk.flush_folder(self.path(folder))
        except OSError:
            self.is_broken = True
            raise
        self.is_broken = False
        self.is_marked = False
        self.flush(now)

    def highest_seq(self):
        """The seed of SEQ: the highest that any name or the newest journal segment knows."""
        highest = 0
        for folder in (INCOMING, FAILED, PROCESSING):
            for name in self._names(folder):
                entry = parse_name(folder, name)
                if entry:
                    highest = max(highest, entry.seq)
        for name in sorted(filter(is_generated, self._names(DLQ)), reverse=True):
            if int(name[:16]) <= highest or self._is_born_then(name, int(name[:16])):
                highest = max(highest, int(name[:16]))
                break
        try:
            return max(highest, self.journal.highest_seq())
        except FileNotFoundError:
            return highest

    def _is_born_then(self, name, seq):
        """False for a letter whose id only looks generated: a person's `20260720...` would put SEQ years ahead."""
        record = keys.read(self, Entry(DLQ, 0, 0, 0, False, 0, False, "", name[:-5]), name)
        return record is None or record.created_at in (None, seq // 1_000_000)

    # --- the front door and the operator's verbs: intake.py ---------------------------------------------

    def enqueue(self, job, now, fast=False):
        self._usable()
        from edgeq.store import intake
        return intake.enqueue(self, job, now, fast)

    def enqueue_many(self, jobs, now):
        self._usable()
        from edgeq.store import intake
        return intake.enqueue_many(self, jobs, now)

    def kick(self, id, now):
        self._usable()
        from edgeq.store import intake
        return intake.kick(self, id, now)

    def cancel(self, id, now):
        self._usable()
        from edgeq.store import intake
        return intake.cancel(self, id, now)

    def adopt(self, now):
        """Take in what people dropped into incoming/ under other names; how many became jobs."""
        if not self.view.strangers:
            return 0
        adopted = sum(adopt(self, folder, name, now) for folder, name in self.view.strangers)
        if adopted:
            self.view.filled_at = -1e9  # the next claim lists again
        return adopted

    def gauges(self):
        disk, view = self.disk, self.view
        return Gauges(disk.flushes_n, disk.written_bytes // 1024, view.hits, view.misses, view.evictions, view.names_n,
                      disk.is_reduced)

    def purge(self, states, now):
        self._usable()
        from edgeq.store import bounds
        return bounds.purge(self, states, now)

    def _carrier(self):
        from edgeq.store import carry
        return carry

    def prune(self, now):
        from edgeq.store import bounds
        return bounds.prune(self, now)

    def check(self, now, repair=False):
        from edgeq.store import audit
        return audit.check(self, now, repair)

    # --- claim --------------------------------------------------------------------------------------

    def claim(self, now, may_run=None, lease_s=60, fresh=False):
        """The next ready job, its try charged and its lease written; None when nothing ready may run.

        may_run: type -> bool. fresh: list the folders first (before a worker sleeps, nothing may be missed).
        """
        self._usable()
        is_filled = fresh or self._is_overtaken() or self.view.is_due(now)
        if is_filled:
            self.view.fill(now, may_run, exact=False)
        return self._claim_first(now, may_run, lease_s, is_filled, exact=False)

    def _claim_name(self, now, folder, name, lease_s):
        entry = parse_name(folder, name)
        if entry is None:
            if not format_version(name):
                self.view.strangers.append((folder, name))
            return None
        read = self._read_waiting(now, entry, name)
        if read is None:
            return None
        record, fd = read
        try:
            if self._is_expired(entry, record, now):
                self._expire(entry)
                return None
            if record.key and self._steps_aside(entry, record.key, now):
                return None
            lease = self._take(entry, record, fd, now, lease_s)
        finally:
            self.disk.close(fd)
        if lease is None:
            return None
        try:
            return None if rank.gives_way(self, lease, now) else lease
        except OSError:
            self._unclaim(lease)
            raise

    def _take(self, entry, record, fd, now, lease_s):
        """One claim: lease, then rename. None when another worker was faster."""
        lease = self._begin_claim(entry, record, now, lease_s)
        try:
            # CRASH: unflushed, so a cut may undo it: the job waits again, uncharged, which P4 allows once (+ suspects).
            self.disk.rename(self.path(entry.path), self.path(lease.entry.path))
        except OSError as error:
            self.leases.remove(lease.token)
            if error.errno == 2:
                return None  # RACE: claimed or cancelled by somebody else
            raise
        self._mine[lease.token] = entry.id
        if lease.is_suspect:
            try:
                self._flush(fd)  # it may have taken the board down: the charge is durable before it runs again (P4)
            except OSError:
                self._unclaim(lease)
                raise
        return lease

    def _unclaim(self, lease):
        """The claim met trouble of our own disk before anything ran: back uncharged, or stale once its lease is over."""
        try:
            self._put_back(lease, lease.origin, self.clock.read())
        except (OSError, EdgeqError):
            self._abandon(lease)

    def _abandon(self, lease):
        """A claim that we cannot settle, stale at once: the next scan takes it. Its lease stays, for the handler it names."""
        self.leases.write(lease.token, 0, lease.started_at, lease.handler)
        self._mine.pop(lease.token, None)
        self.company.look_again()

    def _read_waiting(self, now, entry, name):
        """(Record, open descriptor) of a waiting file, or None: gone, or cannot be read (yet)."""
        path = self.path(entry.state, name)
        try:
            fd = self.disk.open_read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (ELOOP, EACCES, EPERM, EIO, ENXIO):
                raise  # no descriptors, no memory: ours, not the file's
            self.doubt(entry.state, name, error.strerror, (0, 0), now)
            return None
        stamp = (0, 0)
        try:
            status = self.disk.fstat(fd)
            stamp = (status.st_size, status.st_mtime_ns)
            record = self._record_of(fd, status)
            if record.id not in (None, entry.id) or record.type != entry.type:
                raise BadJob("read", "record", "its name and its content disagree")
            return record, fd
        except BadJob as error:
            self.disk.close(fd)
            self.doubt(entry.state, name, error.why, stamp, now)
            return None
        except OSError as error:
            self.disk.close(fd)
            if error.errno != EIO:
                raise
            self.doubt(entry.state, name, error.strerror, stamp, now)
            return None

    def _expire(self, entry):
        try:
            self.disk.unlink(self.path(entry.path))
        except FileNotFoundError:
            return
        self.tell_expired(entry)

    # --- one key, one job that runs: keys.py -----------------------------------------------------------

    def _steps_aside(self, entry, key, now):
        """True when this job with a key is not to run: a newer one took its place, and it goes; or one runs, and it waits."""
        newer = keys.successor(self, entry, key)
        if newer:
            keys.replace(self, [entry], newer.id)
            return True
        if keys.is_running(self, key, ""):
            self._hold_back(entry, now.boot + KEY_WAIT_S)
            return True
        return False

    # --- settle ---------------------------------------------------------------------------------------

    def ack(self, lease, now, note="", ms=0):
        """Done: the claim is settling, its line written; safe at the next flush. A full disk is no reason to fail (P7)."""
        self._usable()
        entry = self._settle(lease)
        self.batch.add_done(entry, Line(entry.id, 0, entry.seq, int(self.seq.seconds(now, entry.seq)), entry.attempts,
                                        entry.type, ms, note), now)
        try:
            self._write_lines()
        except OSError as error:
            # the claim is settling and the line is in the batch: the flush will write it, or say why not
            self.log.warning("journal", error=error.strerror, retry="at the next flush")

    def retry(self, lease, wait_s, why, now):
        """Another try after `wait_s`. The rename is the settling step itself. Not for one whose place a newer job took."""
        self._usable()
        newer = lease.record.key and keys.successor(self, lease.entry, lease.record.key)
        if newer:
            self.drop(lease, "superseded", now)
            self.tell_superseded(lease.entry.id, lease.entry.type, newer.id)
            return
        waiting = self._retried(lease.entry, wait_s, now)
        self._save_error(lease.entry.id, why)
        self._move_claim(lease, waiting)
        self.view.add_wait(waiting.name, now.boot + wait_s)
        self.batch.add_move(FAILED, now)

    def bury(self, lease, why, now, attempts=None):
        """Dead letter, after `attempts` tries (default: those charged).

        Effect first (the letter flushed, its name flushed), then the claim is removed [M].
        """
        self._usable()
        entry = self._settle(lease)
        if not rank.has_whole_dead(self, entry.id):
            self._write_letter(lease, entry, why, now, entry.attempts if attempts is None else attempts)
        else:
            self.flush_folder(DLQ)
        if not lease.is_moved:
            # CRASH: a leftover claim beside a whole letter is dropped by rank.outranked.
            self._remove(self.path(entry.path))
        self._forget(lease)

    def _write_letter(self, lease, entry, why, now, attempts):
        data = records.encode_dead(lease.record, entry, attempts, why, self.seq.seconds(now))
        for _ in range(2):
            try:
                self.disk.replace(self.path(DLQ), entry.id + ".json", data)
                return
            except OSError as error:
                if error.errno not in NO_ROOM:
                    self.is_broken = True
                    raise
                if not (self.on_full and self.on_full()):
                    break
        # no byte left: the record as it is, by a rename that needs none; the reason only in the log
        self.disk.rename(self.path(entry.path), self.path(DLQ, entry.id + ".json"))
        lease.is_moved = True
        self.log.error("buried without its reason", id=entry.id, why=why)
        self.flush_folder(DLQ)

    def hold(self, lease, why, ran, now):
        """Back as it was, nothing charged. ran: the handler had started (exit 69)."""
        self._usable()
        if why:
            self._save_error(lease.entry.id, why)
        # not flushed: a type that is offline for a week costs no flash; a cut here costs at most the try
        self._put_back(lease, self._held(lease, ran), now)

    def give_back(self, lease, why, now):
        """Back because the worker stops."""
        self._usable()
        self._save_error(lease.entry.id, why)
        self._put_back(lease, self._given_back(lease.entry), now)
        self.batch.add_move(INCOMING, now)

    def drop(self, lease, why, now):
        """Gone by a person's wish; durable when it returns."""
        self._usable()
        entry = self._settle(lease)
        self._remove(self.path(entry.path))
        self.flush_folder(PROCESSING)
        self._forget(lease)

    def flush(self, now):
        """The barrier: lines, one fdatasync, folders, then the settled claims go."""
        self._usable()
        if self.batch.since is None:
            return
        self._write_lines()
        try:
            self.journal.flush()
            for folder in self.batch.folders:
                self.disk.flush_folder(self.path(folder))
        except OSError:
            self.is_broken = True
            raise
        for entry in self.batch.settled:
            # CRASH: unflushed; a leftover is dropped because its id is in the journal.
            self._remove(self.path(entry.path))
            self._mine.pop(entry.token, None)
            self.leases.remove(entry.token)
            self._forget_errors_of(entry)
        self.batch.clear()

    def _write_lines(self):
        if not self.batch.lines:
            return
        try:
            self.journal.append(self.batch.lines, self.seq.newest)
        except OSError as error:
            self.is_broken = self.is_broken or self.journal.is_unsafe
            if self.is_broken or error.errno not in NO_ROOM or not (self.on_full and self.on_full()):
                raise
            self.journal.append(self.batch.lines, self.seq.newest)
        self.batch.lines = []

    def _flush_journal(self):
        try:
            self.journal.flush_all()
        except OSError:
            self.is_broken = True
            raise

    def _settle(self, lease):
        """Rename the claim to its settling name; LeaseLost when it is no longer ours (P5). Again: as before."""
        if not lease.entry.settling:
            entry = lease.entry
            lease.entry = self._move_claim(lease, entry.moved(PROCESSING, token=entry.token, settling=True), keep=True)
        return lease.entry

    def _move_claim(self, lease, target, keep=False):
        try:
            self.disk.rename(self.path(lease.entry.path), self.path(target.path))
        except FileNotFoundError:
            self._forget(lease)
            raise LeaseLost("settle", lease.entry.id, "the claim is somebody else's now") from None
        if not keep:
            self._forget(lease)
        return target

    def _put_back(self, lease, target, now):
        """To a waiting name, never over another file."""
        with self.id_lock:
            if self.disk.exists(self.path(target.path)):
                target = target.moved(target.state, seq=self.seq.issue(now))
            return self._move_claim(lease, target)

    # --- reap -----------------------------------------------------------------------------------------

    def take_over(self, entry, holder, now, lease_s):
        """Own lease, one rename to our token, then we are its holder. None: lost the race, dropped, or set aside."""
        lease = self._begin_take_over(entry, holder, now, lease_s)
        ours = lease.entry
        try:
            self.disk.rename(self.path(entry.path), self.path(ours.path))
        except FileNotFoundError:
            self.leases.remove(lease.token)
            return None
        self._mine[lease.token] = ours.id
        self.leases.remove(entry.token)
        try:
            lease.record = self.read_record(self.path(ours.path))
            higher = rank.outranked(self, ours)
        except BadJob as error:
            self.set_aside(PROCESSING, ours.name, error.why)
            self._forget(lease)
            return None
        except OSError:
            self._abandon(lease)
            raise
        if higher in (DONE, DLQ, FAILED):
            rank.drop_claim(self, lease, higher)
            return None
        return lease

    def sweep_dead(self, now):
        """At start: a dead letter whose id has a journal line was kicked and done; the letter came back by a cut [M]."""
        for name in self.disk.names(self.path(DLQ)):
            if name.endswith(".json") and self.journal.find(name[:-5]):
                self._flush_journal()
                self._remove(self.path(DLQ, name))
                self.log.info("dropped", id=name[:-5], because="the same id is in " + DONE)

    # --- what cannot be read ---------------------------------------------------------------------------

    def _has_claim(self, entry):
        return self.disk.exists(self.path(entry.path))

    # --- views ------------------------------------------------------------------------------------------

    def entries(self, state):
        """Entries of one folder, in name order. A dead letter's Entry knows only its id (read the record for the rest)."""
        for name in sorted(self._names(state)):
            if state == DLQ:
                if name.endswith(".json") and not format_version(name):
                    yield Entry(DLQ, 0, 0, 0, False, 0, False, "", name[:-5])
            else:
                entry = parse_name(state, name)
                if entry:
                    yield entry

    def done_lines(self):
        """The journal's lines, oldest first, each once: what `renew` copied stands in two segments."""
        last = 0
        for name in self.journal.segments():
            for line in self.journal.lines(name):
                if line.n > last:
                    last = line.n
                    yield line

    def find(self, id):
        from edgeq.store import intake
        return intake.find(self, id)

    def counts(self, now, may_run=None):
        """Counts of all states, from a fresh listing."""
        view = self.view
        view.fill(now, may_run)
        counts = Counts()
        counts.ready, counts.delayed, counts.failed = view.ready_n, view.delayed_n, view.failed_n
        counts.ready += sum(folder == INCOMING for folder, _ in view.strangers)  # dropped by hand: jobs as soon as a worker looks
        counts.newer = view.newer_n
        counts.processing = sum(1 for name in self._names(PROCESSING) if not name.endswith(".settling"))
        counts.dead = sum(1 for _ in self._names(DLQ))
        counts.corrupt = sum(1 for name in self._names(CORRUPT) if not name.endswith(".why"))
        counts.done = self.journal.done_count()
        counts.oldest_at = self.oldest_at(now)
        return counts


def is_generated(name):
    """True for a letter's name whose id holds its SEQ, as generated ids do."""
    return (len(name) == 30 and name[16] == "-" and name[25:] == ".json" and DIGITS.issuperset(name[:16])
            and HEX.issuperset(name[17:25]))
