"""What every store on the board's own disk stands on: a flush that may fail, records in files, the walk as far as it is the same.

Beside a database as in a spool there lie `incoming/` (shell producers drop jobs there, people drop files), `corrupt/`, the
running mark (P4) and the pause marks; leases, last errors and wake-ups lie in RAM. docs/files.md has them to the byte.
Its rooms: folders, mark, arrivals, unreadable; a method that is a function of one of them stands in a list below `__init__`.

A store made of this class has the attribute `view` (a ReadyView), the verb `entries`, and says in `_has_claim` whether
a claim is still where its lease says.
"""

import posix
from posix import O_APPEND, O_CLOEXEC, O_CREAT, O_NOFOLLOW, O_WRONLY

from edgeq import disk as seam
from edgeq import record as records
from edgeq.errors import BadJob, Busy, StoreDown
from edgeq.job import DLQ, FAILED, FOLDERS, INCOMING, PROCESSING, Entry, Lease, is_word, parse_name
from edgeq.lease import Leases, is_alive
from edgeq.store import arrivals, folders, mark, unreadable
from edgeq.store.ages import Ages
from edgeq.store.pauses import Pauses
from edgeq.store.seq import Sequence
from edgeq.store.sync import Batch

READABLE_BYTES = 1 << 20  # a payload up to this size can always be read back
KEY_WAIT_S = 0.5  # how often a job looks whether the one with its key still runs


class LocalStore:
    """See above. root: where the store lies; home: the queue's own folder (docs/files.md: Q); states: the folders in it.

    on_full: called when a settle meets a full disk; True when it made room (the ballast).
    """

    states = FOLDERS
    run_folders = folders.RUN_FOLDERS
    look_every_s = None  # a store that cannot wake a sleeping worker now: how often that looks
    is_resident = is_dozing = False  # a worker that stays uses it; it waits outside this board, see `doze`
    reaps_everywhere = is_reap_due = False  # each worker reaps, not only the elected one; a lease just ran out
    down_max_s, down_jitter = 30, 0  # the longest pause while it is down, and which part of it is left to chance

    def __init__(self, config, clock, log, disk, root, home):
        self.config, self.clock, self.log, self.disk = config, clock, log, disk
        self.root, self.home, self.run = root, home, config.run_path
        self.id_lock = seam.Lock(self.run + "/id.lock", is_needed=False)
        self.seq = Sequence(self.run + "/seq", self.id_lock, self._seed, config.clock != "none")
        self.ages = Ages(self.run + "/clock", self.seq)
        self.pauses = Pauses(disk, home, clock.boot_id, self.seq.is_trusted)
        self.leases = Leases(self.run + "/leases", clock.boot_id)
        self.batch = Batch()
        self.on_full = None
        self.is_broken = False
        self.is_marked = False
        self.suspect_seq = 0
        self._place = None  # device and inode of the queue's own folder
        self.dots = {}  # dot-file -> boot-clock instant at which it was first seen
        self.set_aside_n = self.dropped_n = self.expired_n = 0
        self._mine = {}  # token -> id of our claims, settled but unflushed ones included
        self._stamps = {}  # name of a file that could not be read -> (size and time, first seen)
        self._ids = None
        self._alive = seam.Lock(self.run + "/alive", shared=True)
        self._heard = 0  # bytes of R/arrivals already read

    _mark, _mark_running, carry_marks = mark.read_mark, mark.mark_running, mark.carry_marks
    _known_suspects, _note_suspects = mark.known_suspects, mark.note_suspects
    _hear, _is_overtaken = arrivals.hear, arrivals.is_overtaken
    doubt, set_aside, is_unsure, corrupt = unreadable.doubt, unreadable.set_aside, unreadable.is_unsure, unreadable.corrupt
    make_folders, folders, owner = folders.make_folders, folders.folders, folders.owner

    def _seed(self):
        """The highest SEQ that the store knows. The clocks are noted with it: they may step before a worker looks (P8)."""
        highest = self.highest_seq()
        self.ages.begin(highest, self.clock.read())
        return highest

    def can_hold(self, id):
        """For a move: whether a job may have this id here."""
        return is_word(id)

    def doze(self, now, until, is_idle):
        """A store beyond this board: wait there for a job, too. (descriptor, instant) or None. Then `hear`; `wake` ends it."""

    def wake(self):
        """Nothing may come now; what a `doze` brought goes back."""

    def path(self, *parts):
        return "/".join((self.home,) + parts)

    def _begin(self):
        """A worker begins: folders, the claim on the store, the suspects of an unclean end (P4)."""
        self.make_folders()
        self._alive.take()
        self.ages.look(self.clock.read())
        mark.find_suspects(self)

    def hang_up(self):
        """A verb is over: nothing that another process would miss stays open. Files, the kernel closes."""

    def _usable(self):
        if self.is_broken:
            raise StoreDown("store", self.root, "a flush failed earlier", "waits until it can be reopened")

    def _names(self, folder):
        try:
            yield from self.disk.names(self.path(folder))
        except FileNotFoundError:
            return

    def is_trusted(self, now):
        return self.seq.is_trusted(now)

    @property
    def blocked(self):
        return self.view.blocked

    # --- flushed, or not to be believed -------------------------------------------------------------------

    def _flush(self, fd):
        try:
            self.disk.flush(fd)
        except OSError:
            self.lose_faith()
            raise

    def lose_faith(self):
        """A flush of a job file failed: nothing is called safe until `reopen`, and no clean page is believed in this boot."""
        self.is_broken = True
        try:
            fd = posix.open(self.run + "/doubt", O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o660)
        except OSError:
            return  # no folder in RAM yet, and not ours to make
        try:
            posix.write(fd, b"1")
        except OSError:
            pass
        finally:
            posix.close(fd)

    def make_safe(self, fd, folder, name):
        """What the open job file folder/name holds is on the medium, also when an earlier flush of it failed.

        The kernel tells of a page that it could not write once, and calls it clean from then on: the next flush succeeds and
        writes nothing, and on ext4 not even the same bytes written over themselves are there after a cut (tests/crash/doubt.py).
        So after a failed flush a new file takes its place. Busy: a claim is not touched. PermissionError: somebody else's.
        """
        if folder == DLQ or not self._is_in_doubt():
            return self._flush(fd)  # a letter was flushed before it had its name
        if folder == PROCESSING:
            raise Busy("enqueue", name, "it runs, and an earlier flush failed", "repeat when it has ended")
        try:
            # CRASH: flushed before the rename: the file in its place may have been safe all the time. RACE: claimed meanwhile: one
            # id in two places, and the claim ranks higher.
            self.disk.replace(self.path(folder), name, self.disk.read_fd(fd, self.disk.fstat(fd).st_size))
        except PermissionError:
            raise
        except OSError:
            self.lose_faith()
            raise

    def _is_in_doubt(self):
        try:
            return posix.stat(self.run + "/doubt").st_size > 0
        except FileNotFoundError:
            return False

    def flush_folder(self, folder):
        """The folder's names are on the medium; a failure means that nothing may be called safe until `reopen`."""
        try:
            self.disk.flush_folder(self.path(folder))
        except OSError:
            self.is_broken = True
            raise

    # --- records in files ---------------------------------------------------------------------------------

    def readable_bytes(self):
        """The largest payload that is read back: what was accepted stays readable when MAX_PAYLOAD_KB is lowered later."""
        return max(4 * self.config.max_payload_bytes, READABLE_BYTES)

    def _record_of(self, fd, status, payload_limit=0):
        """The Record in an open file, or BadJob."""
        payload_limit = payload_limit or self.readable_bytes()
        limit = payload_limit + records.RECORD_OVERHEAD
        if not seam.is_file(status):
            raise BadJob("read", "file", "not a regular file with one name")
        if status.st_size > limit:
            raise BadJob("read", "file", "%d bytes, more than MAX_PAYLOAD_KB=%d allows" % (
                status.st_size, self.config.max_payload_kb))
        # a buffer of the file's size: one of 64 KiB for each job would cost time and tear the heap
        return records.decode(self.disk.read_fd(fd, min(limit, status.st_size) + 1), payload_limit)

    def read_record(self, path):
        """The Record in a file. FileNotFoundError; BadJob; OSError is the disk's, or says that it is no plain file."""
        fd = self.disk.open_read(path)
        try:
            return self._record_of(fd, self.disk.fstat(fd))
        finally:
            self.disk.close(fd)

    def _is_expired(self, entry, record, now):
        return bool(record.expires_s and self.seq.is_trusted(now) and self.ages.age_s(entry.seq, now) > record.expires_s)

    def wait_s(self, entry, now):
        """A delayed entry's wait from now, never longer than its own delay; None: it waits for a trusted clock (P8)."""
        is_trusted = self.seq.is_trusted(now)
        if entry.state == FAILED:
            clock = now.wall if is_trusted else self.seq.newest() / 1e6
            return min(max(entry.due - clock, 0), self.config.max_delay_s)
        if entry.is_at:
            return max(entry.due - now.wall, 0) if is_trusted else None
        own_s = max(entry.due - entry.seq / 1e6, 0)
        return min(max(entry.due - now.wall, 0), own_s) if is_trusted else own_s

    # --- the walk, as far as it is the same in rows and in files ------------------------------------------

    def new_entry(self, job, now):
        """The Entry of a new job. Where no id was given it is made of the job's SEQ and a piece of the kernel's uuid."""
        seq = self.seq.issue(now)
        if job.id is None:
            job.id = "%016d-%s" % (seq, seam.make_uuid()[:8])
        due = 0
        if job.at is not None:
            due = int(job.at)
        elif job.delay_s:
            due = min(-(-seq // 1_000_000) + int(job.delay_s), records.LAST_INSTANT)  # rounded up: never early
        return Entry(INCOMING, job.priority, seq, due, job.at is not None and due > 0, 0, False, job.type, job.id)

    def next_due(self, now):
        """The boot-clock instant at which the last look said something becomes ready, or None."""
        return self.view.next_due

    def _claim_first(self, now, may_run, lease_s, is_filled, exact=True):
        """The first of the view that can be claimed; None when nothing ready may run. is_filled: the view was just filled."""
        while True:
            found = self.view.next(may_run)
            if found is None:
                if is_filled:
                    return None
                self.view.fill(now, may_run, exact)
                is_filled = True
                continue
            lease = self._claim_name(now, found[0], found[1], lease_s)
            if lease:
                return lease

    def _begin_claim(self, entry, record, now, lease_s):
        """The Lease of a claim, its try charged. It is in RAM before anybody sees the claim: no claim without a lease."""
        if not self.is_marked:
            self._mark_running()
        token = self.leases.make_token()
        has_run, is_suspect = entry.again or entry.attempts > 0, entry.seq <= self.suspect_seq
        lease = Lease(entry.moved(PROCESSING, attempts=entry.attempts + 1, token=token), record, now.boot, now.boot + lease_s,
                      has_run or is_suspect, is_suspect, self.last_error(entry.id) if has_run else "")
        lease.origin = entry
        self.leases.create(token, lease.leased_until, now.boot)
        return lease

    def _begin_take_over(self, entry, holder, now, lease_s):
        """The Lease of somebody else's stale claim; its record is not read yet. In RAM first, as above."""
        lease = Lease(entry.moved(PROCESSING, token=self.leases.make_token(), again=True), None, now.boot, now.boot + lease_s,
                      True, False, self.last_error(entry.id))
        lease.handler = (holder.group, holder.group_start) if holder else (0, 0)
        self.leases.create(lease.token, lease.leased_until, now.boot, lease.handler)
        return lease

    def _hold_back(self, entry, instant):
        """A job with its key runs: not looked at before `instant`."""
        self.view.held_back[entry.name] = instant
        self.view.add_wait(entry.name, instant)

    def _retried(self, entry, wait_s, now):
        """Where a claim goes that gets another try after `wait_s`."""
        return entry.moved(FAILED, due=-int(-(self.seq.seconds(now) + wait_s) // 1), is_at=False)  # rounded up

    def _held(self, lease, ran):
        """Where a claim goes that nothing is charged for. ran: the handler had started, so the next run is a repetition (P9)."""
        origin = lease.origin or self._origin(lease.entry)
        return origin.moved(origin.state, again=origin.again or ran)

    @staticmethod
    def _given_back(entry):
        """Where a claim goes whose worker stops. Refunded only to a job that never ran: one that calls reboot runs out (P4)."""
        attempts = entry.attempts if entry.again else entry.attempts - 1
        return entry.moved(INCOMING, due=0, is_at=False, attempts=attempts, again=True)

    @staticmethod
    def _origin(entry):
        """Where a claim that was taken over would have come from."""
        return entry.moved(FAILED if entry.attempts > 1 else INCOMING, due=0, attempts=entry.attempts - 1, again=True)

    def _forget(self, lease):
        """The claim is settled, or not ours any more."""
        self._mine.pop(lease.token, None)
        self.leases.remove(lease.token)
        if lease.entry.settling:
            self._forget_errors_of(lease.entry)

    def flush_due_at(self):
        """At once after SYNC_JOBS settled claims, else SYNC_WINDOW_MS after the first; None when nothing waits for it."""
        return self.batch.due_at(self.config.sync_window_ms, self.config.sync_jobs)

    def note_handler(self, lease):
        """The lease now says which process group runs the job, so that a reaper can end it."""
        self.leases.write(lease.token, lease.leased_until, lease.started_at, lease.handler)

    def heartbeat(self, leases, now, lease_s):
        """Extend our leases, in RAM only; returns those somebody took over."""
        lost = []
        for lease in leases:
            if not self.leases.exists(lease.token) and not self._has_claim(lease.entry):
                lost.append(lease)
                continue
            lease.leased_until = now.boot + lease_s
            self.leases.write(lease.token, lease.leased_until, lease.started_at, lease.handler)
        return lost

    def _remove(self, path):
        try:
            self.disk.unlink(path)
        except FileNotFoundError:
            pass

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

    # --- what went although it was accepted (P1) --------------------------------------------------------

    def tell_expired(self, entry):
        """The waiting job is removed: its time is over."""
        self.forget_error(entry.id)
        self.expired_n += 1
        self.count_gone(1, 0)
        self.log.warning("expired", id=entry.id, type=entry.type)

    def tell_superseded(self, id, type, by):
        """The job `id` gave way to the job `by`."""
        self.forget_error(id)
        self.count_gone(0, 1)
        self.log.warning("superseded", id=id, type=type, by=by)

    def count_gone(self, expired_n, superseded_n):
        """Add to `R/gone`. In place, under the lock on ids; RAM may be full: not worth a job."""
        try:
            with self.id_lock:
                expired, superseded = self.gone()
                fd = posix.open(self.run + "/gone", O_WRONLY | O_CLOEXEC)
                try:
                    posix.pwrite(fd, b"%010d %010d\n" % (expired + expired_n, superseded + superseded_n), 0)
                finally:
                    posix.close(fd)
        except OSError:
            pass

    def gone(self):
        """(expired, superseded by --latest) since the boot."""
        try:
            expired, superseded = seam.read_text(self.run + "/gone").split()
            return int(expired), int(superseded)
        except (OSError, ValueError):
            return 0, 0

    # --- for those who only look ----------------------------------------------------------------------

    def holder(self, entry):
        """Who holds the claim `entry`: a Holder, or None."""
        return self.leases.read(entry.token)

    # --- `edgeq move`: see Parcel in store/base.py; the store's carry.py does it, imported on demand ------

    def export(self):
        return self._carrier().export(self)

    def take_parcel(self, parcel, now):
        self._usable()
        return self._carrier().take_parcel(self, parcel, now)

    def seal(self, now):
        self._usable()
        self._carrier().seal(self)

    def let_go(self, parcels, now):
        self._usable()
        self._carrier().let_go(self, parcels)

    def let_go_done(self, now):
        self._usable()
        self._carrier().let_go_done(self, now)

    def notice(self):
        """What the status line says when nothing worse is known; "" mostly."""
        return ""

    def notes(self):
        """Sentences about the store itself that a person should know; [] when there is nothing to say."""
        return []
