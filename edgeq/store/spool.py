"""The spool store: folders are states, file names carry the state, a move is one rename.

What a power cut leaves at each step, and the line that repairs it (DESIGN 3):

    enqueue    dot-file, or a torn file nobody acknowledged: swept; set aside by `_read_waiting`
    claim      the job still waiting, or claimed by a dead boot: `stale` and `take_over`
    done       before the barrier the claim is settling: runs again (P9); after it the leftover is dropped by `_outranked`
    retry      still claimed, the try charged: `take_over`
    bury       settling, with or without the dead letter: `take_over`, `_outranked`
    kick       still dead, or waiting again: both are one file, nothing to repair
    cancel     still there: not acknowledged

Errors: OSError is the disk's answer as it came; the verb promised nothing and may be called again with the same lease.
LeaseLost: somebody else holds the claim. StoreDown: a flush failed earlier; `reopen` first.
"""

import posix

from edgeq import disk as seam
from edgeq import record as records
from edgeq.errors import BadConfig, BadJob, LeaseLost, StoreDown, EACCES, EIO, ELOOP, ENXIO, EPERM, NO_ROOM
from edgeq.job import (DLQ, DONE, CORRUPT, FAILED, FOLDERS, INCOMING, PROCESSING, Entry, Lease, parse_name, safe_name,
                       format_version)
from edgeq.lease import Leases, is_alive
from edgeq.store import intake
from edgeq.store.base import Counts, Gauges
from edgeq.store.journal import Journal, Line
from edgeq.store.pauses import Pauses
from edgeq.store.scan import ReadyView
from edgeq.store.seq import Sequence
from edgeq.store.sync import Batch

INCOMING_MODE, FOLDER_MODE, RUN_MODE = 0o3770, 0o2750, 0o755
RUN_FOLDERS = ("leases", "wake", "keys", "ctl", "errors", "types", "workers")
MARK = "running"
READABLE_BYTES = 1 << 20  # a payload up to this size can always be read back
UNCHANGED_S = 2  # a file that cannot be read is set aside only when nobody has touched it for so long


def open_backend(config, clock, log, disk=None):
    return Spool(config, clock, log, disk or seam.Disk())


class Spool:
    """The spool of one queue. on_full: called when a settle meets a full disk; True when it made room (the ballast)."""

    def __init__(self, config, clock, log, disk):
        self.config, self.clock, self.log, self.disk = config, clock, log, disk
        self.root, self.run = config.spool_path, config.run_path
        self.journal = Journal(disk, self.path(DONE), config.done_keep_kb)
        self.seq = Sequence(self.run + "/seq", self.run + "/id.lock", self.highest_seq, config.clock != "none")
        self.pauses = Pauses(disk, self.root, clock.boot_id, self.seq.is_trusted)
        self.leases = Leases(self.run + "/leases", clock.boot_id)
        self.view = ReadyView(disk, self.root, config.scan_cache, self._wait_s)
        self.batch = Batch()
        self.on_full = None
        self.is_broken = False
        self.is_marked = False
        self.suspect_seq = 0
        self.dots = {}  # dot-file -> boot-clock instant at which it was first seen
        self.set_aside_n = self.dropped_n = self.expired_n = 0
        self._mine = set()  # tokens of our claims, settled but unflushed ones included
        self._stamps = {}  # name of a file that could not be read -> (size and time, first seen)
        self._alive = seam.Lock(self.run + "/alive", shared=True)
        self._heard = 0  # bytes of R/arrivals already read

    def path(self, *parts):
        return "/".join((self.root,) + parts)

    # --- opening and closing -----------------------------------------------------------------------

    def make_folders(self):
        """Make what is missing of the spool and of /run (B45); one file system, or BadConfig (B74)."""
        owner, group = _owner(self.config)
        made = []
        for path, mode in [(self.config.spool, 0o755), (self.root, FOLDER_MODE)] + [
                (self.path(folder), INCOMING_MODE if folder == INCOMING else FOLDER_MODE) for folder in FOLDERS]:
            if _make_with_parents(self.disk, path, mode):
                made.append((path, mode))
        for path, mode in made:
            if posix.geteuid() == 0:
                posix.chown(path, owner, group)
                posix.chmod(path, mode)  # chown clears the setgid bit
        if made:
            self.disk.flush_folder(self.root)
        devices = {self.disk.lstat(self.path(folder)).st_dev for folder in FOLDERS}
        if len(devices) != 1:
            raise BadConfig("start", self.root, "its folders lie on different file systems", "mount one file system for all")
        self._make_run(owner, group)

    def _make_run(self, owner, group):
        is_root = posix.geteuid() == 0
        for path in (self.config.run_dir, self.run) + tuple("%s/%s" % (self.run, folder) for folder in RUN_FOLDERS):
            if _make_with_parents(self.disk, path, RUN_MODE) and is_root:
                posix.chown(path, owner, group)
        for name in ("id.lock", "seq", "arrivals"):
            path = "%s/%s" % (self.run, name)
            if name != "seq" and not self.disk.exists(path):
                posix.close(posix.open(path, posix.O_CREAT | posix.O_WRONLY | posix.O_CLOEXEC, 0o660))
            if name == "seq":
                self.seq.newest()
            if posix.stat(path).st_uid == posix.geteuid():
                posix.chmod(path, 0o660)
            if is_root:
                posix.chown(path, owner, group)

    def start(self, now):
        """A worker begins: folders, the suspects of an unclean end (P4), the memory of processed ids."""
        self.make_folders()
        self._alive.take()
        self.suspect_seq = self._find_suspects()
        seam.write_run(self.run + "/suspect", b"%d %s\n" % (self.suspect_seq, self.clock.boot_id.encode()))
        self.journal.remember()

    def _find_suspects(self):
        """The SEQ up to which jobs are suspect in this boot; 0 after a clean stop."""
        mark = self._mark()
        try:
            seq, boot_id = seam.read_text(self.run + "/suspect").split()
            if boot_id == self.clock.boot_id:
                return int(seq)
        except (FileNotFoundError, ValueError):
            pass
        if mark is None:
            return 0
        return self.seq.newest()  # of another boot; or of this one, but /run was emptied and nobody knows any more

    def _mark(self):
        """The boot id in the running mark, None without a mark."""
        try:
            return self.disk.read_file(self.path(MARK), 100).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None

    def _mark_running(self):
        """Before the first claim of a boot: the mark is on flash (P4)."""
        if self._mark() != self.clock.boot_id:
            # CRASH: without the mark nothing was claimed yet; with it the next boot suspects every job.
            self.disk.replace(self.root, MARK, self.clock.boot_id.encode() + b"\n")
        self.is_marked = True

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
            for folder in (FAILED, PROCESSING, INCOMING, DLQ):
                self.disk.flush_folder(self.path(folder))
        except OSError:
            self.is_broken = True
            raise
        self.is_broken = False
        self.is_marked = False
        self.flush(now)

    def _usable(self):
        if self.is_broken:
            raise StoreDown("store", self.root, "a flush failed earlier", "waits until it can be reopened")

    def highest_seq(self):
        """The seed of SEQ: the highest that any name or the newest journal segment knows."""
        highest = 0
        for folder in (INCOMING, FAILED, PROCESSING):
            for name in self._names(folder):
                entry = parse_name(folder, name)
                if entry:
                    highest = max(highest, entry.seq)
        for name in self._names(DLQ):
            if name[16:17] == "-" and name[:16].isdigit():  # a generated id holds its SEQ
                highest = max(highest, int(name[:16]))
        try:
            return max(highest, self.journal.highest_seq())
        except FileNotFoundError:
            return highest

    def _names(self, folder):
        try:
            yield from self.disk.names(self.path(folder))
        except FileNotFoundError:
            return

    # --- the front door and the operator's verbs: intake.py ---------------------------------------------

    def enqueue(self, job, now, fast=False):
        self._usable()
        return intake.enqueue(self, job, now, fast)

    def enqueue_many(self, jobs, now):
        self._usable()
        return intake.enqueue_many(self, jobs, now)

    def kick(self, id, now):
        self._usable()
        return intake.kick(self, id, now)

    def cancel(self, id, now):
        self._usable()
        return intake.cancel(self, id, now)

    def adopt(self, now):
        """Take in what people dropped into incoming/ under other names; how many became jobs."""
        adopted = sum(intake.adopt(self, folder, name, now) for folder, name in self.view.strangers)
        if adopted:
            self.view.filled_at = -1e9  # the next claim lists again
        return adopted

    def is_unsure(self, now):
        return any(instant - now.boot <= UNCHANGED_S + 1 for instant in self.view.doubtful.values())

    def is_trusted(self, now):
        return self.seq.is_trusted(now)

    @property
    def blocked(self):
        return self.view.blocked

    def gauges(self):
        disk, view = self.disk, self.view
        return Gauges(disk.flushes_n, disk.written_bytes // 1024, view.hits, view.misses, view.evictions, view.names_n,
                      disk.is_reduced)

    def purge(self, states, now):
        from edgeq.store import bounds
        return bounds.purge(self, states, now)

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
            self.view.fill(now, may_run)
        while True:
            found = self.view.next(may_run)
            if found is None:
                if is_filled:
                    return None
                self.view.fill(now, may_run)
                is_filled = True
                continue
            lease = self._claim_name(now, found[0], found[1], lease_s)
            if lease:
                return lease

    def next_due(self, now):
        """The boot-clock instant at which the last listing said something becomes ready, or None."""
        return self.view.next_due

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
            lease = self._take(entry, record, fd, now, lease_s)
        finally:
            self.disk.close(fd)
        if lease is None:
            return None
        try:
            return None if self._gives_way(lease, now) else lease
        except OSError:
            self._unclaim(lease)
            raise

    def _take(self, entry, record, fd, now, lease_s):
        """One claim: lease, then rename. None when another worker was faster."""
        if not self.is_marked:
            self._mark_running()
        token = self.leases.make_token()
        claimed = entry.moved(PROCESSING, attempts=entry.attempts + 1, token=token)
        is_suspect = entry.seq <= self.suspect_seq
        lease = Lease(claimed, record, now.boot, now.boot + lease_s,
                      entry.again or entry.attempts > 0 or is_suspect, is_suspect,
                      self.last_error(entry.id) if entry.attempts or entry.again else "")
        lease.origin = entry
        self.leases.create(token, lease.leased_until, now.boot)  # before the rename: no claim without a lease
        try:
            # CRASH: unflushed, so a cut may undo it: the job waits again, uncharged, which P4 allows once (+ suspects).
            self.disk.rename(self.path(entry.path), self.path(claimed.path))
        except OSError as error:
            self.leases.remove(token)
            if error.errno == 2:
                return None  # RACE: claimed or cancelled by somebody else
            raise
        self._mine.add(token)
        if is_suspect:
            try:
                self._flush(fd)  # it may have taken the board down: the charge is durable before it runs again (P4)
            except OSError:
                self._unclaim(lease)
                raise
        return lease

    def _unclaim(self, lease):
        """The claim met trouble of our own disk before anything ran: back uncharged, or left for the reaper."""
        try:
            self.disk.rename(self.path(lease.entry.path), self.path(lease.origin.path))
        except OSError:
            pass
        self._forget(lease)

    def _flush(self, fd):
        try:
            self.disk.flush(fd)
        except OSError:
            self.is_broken = True
            raise

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

    def _record_of(self, fd, status, payload_limit=0):
        """The Record in an open file, or BadJob. What was accepted stays readable when MAX_PAYLOAD_KB is lowered later."""
        payload_limit = payload_limit or max(4 * self.config.max_payload_bytes, READABLE_BYTES)
        limit = payload_limit + records.RECORD_OVERHEAD
        if not seam.is_file(status):
            raise BadJob("read", "file", "not a regular file with one name")
        if status.st_size > limit:
            raise BadJob("read", "file", "%d bytes, more than MAX_PAYLOAD_KB=%d allows" % (
                status.st_size, self.config.max_payload_kb))
        return records.decode(self.disk.read_fd(fd, limit + 1), payload_limit)

    def _is_expired(self, entry, record, now):
        return bool(record.expires_s and self.seq.is_trusted(now) and now.wall > entry.seq / 1e6 + record.expires_s)

    def _expire(self, entry):
        try:
            self.disk.unlink(self.path(entry.path))
        except FileNotFoundError:
            return
        self.forget_error(entry.id)
        self.expired_n += 1
        self.log.warning("expired", id=entry.id, type=entry.type)

    def _is_overtaken(self):
        """A producer published something more urgent than the head (it appends its PRIO digit to R/arrivals)."""
        path = self.run + "/arrivals"
        try:
            size = posix.stat(path).st_size
            if size == self._heard:
                return False
            digits = seam.read_text(path)[self._heard:] if size > self._heard else "0"
            self._heard = size
            if size > 4096:
                posix.truncate(path, 0)
                self._heard = 0
        except OSError:
            return False
        digits = [c for c in digits if c.isdigit()]
        return bool(digits) and self.view.is_overtaken(digits)

    def _wait_s(self, entry, now):
        """A delayed entry's wait from now, never longer than its own delay; None: it waits for a trusted clock (P8)."""
        is_trusted = self.seq.is_trusted(now)
        if entry.state == FAILED:
            clock = now.wall if is_trusted else self.seq.newest() / 1e6
            return min(max(entry.due - clock, 0), self.config.max_delay_s)
        if entry.is_at:
            return max(entry.due - now.wall, 0) if is_trusted else None
        own_s = max(entry.due - entry.seq / 1e6, 0)
        return min(max(entry.due - now.wall, 0), own_s) if is_trusted else own_s

    # --- one id, one job ------------------------------------------------------------------------------

    def _gives_way(self, lease, now):
        """True when the claimed id has a file or line of higher rank: ours is dropped or given back, uncharged [M]."""
        entry = lease.entry
        higher = self._outranked(entry)
        if higher is None:
            return False
        if higher == PROCESSING:
            back = self._put_back(lease, lease.origin, now)
            # both may have seen each other: come back at different moments
            self.view.doubtful[back.name] = now.boot + 0.05 + posix.urandom(1)[0] / 500
        else:
            self._drop_claim(lease)
            self.log.info("dropped", id=entry.id, because="the same id is in " + higher)
            self.dropped_n += 1
        return True

    def _outranked(self, entry):
        """The folder that holds entry's id with a higher rank, its content flushed first; None when ours is the highest."""
        if self.journal.find(entry.id):
            self._flush_journal()  # whoever drops a file because of a line flushes the line first [M]
            return DONE
        if self._has_whole_dead(entry.id):
            self.disk.flush_folder(self.path(DLQ))
            return DLQ
        needle = ".%s." % entry.id
        for name in self.disk.names(self.path(PROCESSING)):
            if needle in name and name != entry.name:
                other = parse_name(PROCESSING, name)
                if other and other.id == entry.id:
                    return PROCESSING
        if lease_came_from_failed(entry) or entry.id.startswith("%016d-" % entry.seq):
            return None  # a generated id stands in no second file; a failed job outranks waiting ones
        for name in self.disk.names(self.path(FAILED)):
            if needle in name:
                other = parse_name(FAILED, name)
                if other and other.id == entry.id:
                    self.disk.flush_folder(self.path(FAILED))
                    return FAILED
        return None

    def _flush_journal(self):
        try:
            self.journal.flush_all()
        except OSError:
            self.is_broken = True
            raise

    def _has_whole_dead(self, id):
        """True when dlq/ holds the id's letter, whole. A torn one is set aside."""
        try:
            fd = self.disk.open_read(self.path(DLQ, id + ".json"))
        except FileNotFoundError:
            return False
        try:
            self._record_of(fd, self.disk.fstat(fd))
            return True
        except BadJob as error:
            self.set_aside(DLQ, id + ".json", error.why)
            return False
        finally:
            self.disk.close(fd)

    # --- settle ---------------------------------------------------------------------------------------

    def note_handler(self, lease):
        """The lease now says which process group runs the job, so that a reaper can end it."""
        self.leases.write(lease.token, lease.leased_until, lease.started_at, lease.handler)

    def heartbeat(self, leases, now, lease_s):
        """Extend our leases, in RAM only; returns those somebody took over."""
        lost = []
        for lease in leases:
            if not self.leases.exists(lease.token) and not self.disk.exists(self.path(lease.entry.path)):
                lost.append(lease)
                continue
            lease.leased_until = now.boot + lease_s
            self.leases.write(lease.token, lease.leased_until, lease.started_at, lease.handler)
        return lost

    def ack(self, lease, now, note="", ms=0):
        """Done: the claim is settling, its line written; safe at the next flush. A full disk is no reason to fail (P7)."""
        self._usable()
        entry = self._settle(lease)
        self.batch.add_done(entry, Line(entry.id, 0, entry.seq, int(self.seq.seconds(now)), entry.attempts, entry.type,
                                        ms, note), now)
        try:
            self._write_lines()
        except OSError as error:
            # the claim is settling and the line is in the batch: the flush will write it, or say why not
            self.log.warning("journal", error=error.strerror, retry="at the next flush")

    def retry(self, lease, wait_s, why, now):
        """Another try after `wait_s`. The rename is the settling step itself."""
        self._usable()
        due = -int(-(self.seq.seconds(now) + wait_s) // 1)  # rounded up
        self._save_error(lease.entry.id, why)
        waiting = self._move_claim(lease, lease.entry.moved(FAILED, due=due, is_at=False))
        self.view.add_wait(waiting.name, now.boot + wait_s)
        self.batch.add_move(FAILED, now)

    def bury(self, lease, why, now, attempts=None):
        """Dead letter, after `attempts` tries (default: those charged). Effect first (the letter flushed, its name flushed), then the claim is removed [M]."""
        self._usable()
        entry = self._settle(lease)
        if not self._has_whole_dead(entry.id):
            self._write_letter(lease, entry, why, now, entry.attempts if attempts is None else attempts)
        else:
            self.disk.flush_folder(self.path(DLQ))
        if not lease.is_moved:
            # CRASH: a leftover claim beside a whole letter is dropped by _outranked.
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
        self.disk.flush_folder(self.path(DLQ))

    def hold(self, lease, why, ran, now):
        """Back as it was, nothing charged. ran: the handler had started (exit 69), so the next run is a repetition (P9)."""
        self._usable()
        if why:
            self._save_error(lease.entry.id, why)
        origin = lease.origin or self._origin(lease.entry)
        # not flushed: a type that is offline for a week costs no flash; a cut here costs at most the try
        self._put_back(lease, origin.moved(origin.state, again=origin.again or ran), now)

    def give_back(self, lease, why, now):
        """Back because the worker stops. Refunded only to a name without `r`: a job that calls reboot runs out of tries (P4)."""
        self._usable()
        entry = lease.entry
        self._save_error(entry.id, why)
        attempts = entry.attempts if entry.again else entry.attempts - 1
        self._put_back(lease, entry.moved(INCOMING, due=0, is_at=False, attempts=attempts, again=True), now)
        self.batch.add_move(INCOMING, now)

    def drop(self, lease, why, now):
        """Gone by a person's wish; durable when it returns."""
        self._usable()
        entry = self._settle(lease)
        self._remove(self.path(entry.path))
        self.disk.flush_folder(self.path(PROCESSING))
        self._forget(lease)

    def flush_due_at(self):
        """At once after SYNC_JOBS settled claims, else SYNC_WINDOW_MS after the first; None when nothing waits for it."""
        return self.batch.due_at(self.config.sync_window_ms, self.config.sync_jobs)

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
            self._mine.discard(entry.token)
            self.leases.remove(entry.token)
            self._forget_errors_of(entry)
        self.batch.clear()

    def _write_lines(self):
        if not self.batch.lines:
            return
        try:
            self.journal.append(self.batch.lines, self.seq.newest())
        except OSError as error:
            if error.errno not in NO_ROOM or not (self.on_full and self.on_full()):
                raise
            self.journal.append(self.batch.lines, self.seq.newest())
        self.batch.lines = []

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
        with seam.Lock(self.run + "/id.lock"):
            if self.disk.exists(self.path(target.path)):
                target.seq = self.seq.issue(now)
            return self._move_claim(lease, target)

    def _drop_claim(self, lease):
        self._remove(self.path(lease.entry.path))
        self._forget(lease)
        self.forget_error(lease.entry.id)

    def _forget(self, lease):
        self._mine.discard(lease.token)
        self.leases.remove(lease.token)
        if lease.entry.settling:
            self._forget_errors_of(lease.entry)

    def _remove(self, path):
        try:
            self.disk.unlink(path)
        except FileNotFoundError:
            pass

    @staticmethod
    def _origin(entry):
        """Where a claim that was taken over would have come from."""
        return entry.moved(FAILED if entry.attempts > 1 else INCOMING, due=0, attempts=entry.attempts - 1, again=True)

    # --- reap -----------------------------------------------------------------------------------------

    def stale(self, now):
        """[(Entry, Holder or None)] of claims that nobody rightly holds: another boot's, a dead owner's, a late one's."""
        found = []
        for entry in self.entries(PROCESSING):
            if entry.token not in self._mine:
                is_stale, holder = self.leases.is_stale(entry.token, entry.settling, now.boot)
                if is_stale and not (holder is None and self._lives(entry.token)):
                    found.append((entry, holder))
        return found

    def _lives(self, token):
        """True when the token's own process lives although its lease file is gone (somebody emptied /run)."""
        parts = token.split("-")
        if len(parts) != 4 or parts[0] != self.clock.boot_id[:8] or not (parts[1].isdigit() and parts[2].isdigit()):
            return False
        if (int(parts[1]), int(parts[2])) == (self.leases.pid, self.leases.start):
            return False  # ours, but we do not know it any more: a settle that failed half way
        return is_alive(int(parts[1]), int(parts[2]))

    def take_over(self, entry, holder, now, lease_s):
        """Own lease, one rename to our token, then we are its holder. None: lost the race, dropped, or set aside."""
        token = self.leases.make_token()
        group = (holder.group, holder.group_start) if holder else (0, 0)
        self.leases.create(token, now.boot + lease_s, now.boot, group)
        ours = entry.moved(PROCESSING, token=token, again=True)
        try:
            self.disk.rename(self.path(entry.path), self.path(ours.path))
        except FileNotFoundError:
            self.leases.remove(token)
            return None
        self._mine.add(token)
        self.leases.remove(entry.token)
        lease = Lease(ours, None, now.boot, now.boot + lease_s, True, False, self.last_error(entry.id))
        lease.handler = group
        try:
            fd = self.disk.open_read(self.path(ours.path))
            try:
                lease.record = self._record_of(fd, self.disk.fstat(fd))
            finally:
                self.disk.close(fd)
            higher = self._outranked(ours)
        except BadJob as error:
            self.set_aside(PROCESSING, ours.name, error.why)
            self._forget(lease)
            return None
        except OSError:
            self._forget(lease)  # without a lease it is stale again: the next scan takes it
            raise
        if higher in (DONE, DLQ, FAILED):
            self._drop_claim(lease)
            self.log.info("dropped", id=ours.id, because="the same id is in " + higher)
            return None
        return lease

    def sweep_dead(self, now):
        """At start: a dead letter whose id has a journal line was kicked and done; the letter came back by a cut [M]."""
        for name in list(self.disk.names(self.path(DLQ))):
            if name.endswith(".json") and self.journal.find(name[:-5]):
                self._flush_journal()
                self._remove(self.path(DLQ, name))
                self.log.info("dropped", id=name[:-5], because="the same id is in " + DONE)

    # --- what cannot be read ---------------------------------------------------------------------------

    def doubt(self, folder, name, why, stamp, now):
        """It cannot be read. Maybe somebody is still writing: set aside once it has not changed for 2 seconds."""
        known = self._stamps.get(name)
        if known and known[0] == stamp and now.boot - known[1] >= UNCHANGED_S:
            del self._stamps[name]
            self.set_aside(folder, name, why)
            return
        if known is None or known[0] != stamp:
            if len(self._stamps) >= 4096:
                self._stamps.clear()
            self._stamps[name] = (stamp, now.boot)
        self.view.doubtful[name] = self._stamps[name][1] + UNCHANGED_S
        self.view.add_wait(name, self.view.doubtful[name])

    def set_aside(self, folder, name, why):
        """Whole into corrupt/, by one rename, with a one-line reason beside it (P6)."""
        target = safe_name(name)
        if self.disk.exists(self.path(CORRUPT, target)):
            target = "%s.%s" % (target, seam.make_uuid()[:8])
        try:
            self.disk.rename(self.path(folder, name), self.path(CORRUPT, target))
        except FileNotFoundError:
            return
        except OSError as error:
            self.log.error("cannot set aside", file="%s/%s" % (folder, name), error=error.strerror)
            self.view.doubtful[name] = self.clock.read().boot + 60
            return
        self.set_aside_n += 1
        self.view.doubtful.pop(name, None)
        self.log.warning("set aside", file=target, why=why)
        try:
            self.disk.publish(self.path(CORRUPT), target + ".why", ("%s/%s: %s\n" % (
                folder, safe_name(name), why)).encode("ascii", "backslashreplace"), flush=False)
        except OSError as error:
            self.log.warning("no reason beside it", file=target, error=error.strerror)

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

    def find(self, id):
        return intake.find(self, id)

    def counts(self, now, may_run=None):
        """Counts of all states, from a fresh listing."""
        view = self.view
        view.fill(now, may_run)
        counts = Counts()
        counts.ready, counts.delayed, counts.failed = view.ready_n, view.delayed_n, view.failed_n
        counts.newer = view.newer_n
        counts.processing = sum(1 for name in self._names(PROCESSING) if not name.endswith(".settling"))
        counts.dead = sum(1 for _ in self._names(DLQ))
        counts.corrupt = sum(1 for name in self._names(CORRUPT) if not name.endswith(".why"))
        counts.done = self.journal.done_count()
        counts.oldest_at = self.oldest_at(now)
        return counts

    def oldest_at(self, now):
        """The boot-clock instant at which the oldest ready job became ready; 0 when none is. Steps of the clock do not move it."""
        name = self.view.first_ready
        if not name:
            self._oldest = ("", 0.0)
            return 0.0
        if getattr(self, "_oldest", ("", 0))[0] != name:
            entry = parse_name(INCOMING, name) or parse_name(FAILED, name)
            ready_at = max(entry.seq / 1e6, entry.due) if entry else now.wall
            age_s = max(now.wall - ready_at, 0) if self.seq.is_trusted(now) else 0
            self._oldest = (name, max(now.boot - age_s, 0.001))
        return self._oldest[1]

    # --- last errors, in RAM --------------------------------------------------------------------------

    def _save_error(self, id, why):
        """Remember why, for `why` and for the dead letter. RAM may be full: not worth a job."""
        try:
            seam.write_run("%s/errors/%s" % (self.run, id), why.encode("ascii", "backslashreplace")[:200] + b"\n")
        except OSError:
            pass

    def last_error(self, id):
        try:
            return seam.read_text("%s/errors/%s" % (self.run, id)).rstrip("\n")
        except OSError:
            return ""

    def _forget_errors_of(self, entry):
        if entry.attempts > 1 or entry.again:  # else it never failed
            self.forget_error(entry.id)

    def forget_error(self, id):
        try:
            seam.forget("%s/errors/%s" % (self.run, id))
        except OSError:
            pass


def lease_came_from_failed(entry):
    """A claim that has failed before came from failed/."""
    return entry.attempts > 1


def _owner(config):
    """(uid, gid) of the spool's folders: the worker's user, group edgeq where there is one."""
    import grp
    import pwd
    uid, gid = posix.geteuid(), posix.getegid()
    if config.user:
        try:
            uid, gid = pwd.getpwnam(config.user)[2:4]
        except KeyError:
            raise BadConfig("configuration", "USER=%s" % config.user, "no such user", "add it or correct the line") from None
    try:
        gid = grp.getgrnam("edgeq")[2]
    except KeyError:
        pass
    return uid, gid


def _make_with_parents(disk, path, mode):
    """Make `path`, with parents of mode 0755; True when it was made."""
    try:
        return disk.make_folder(path, mode)
    except FileNotFoundError:
        _make_with_parents(disk, path.rpartition("/")[0], 0o755)
        return disk.make_folder(path, mode)
