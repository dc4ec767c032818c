"""The walk of a job: claim, execute, settle. One process, one poll, no polling.

The loop sleeps in one `poll` on the wake-up FIFO, the signal pipe and the handlers' outputs until the nearest deadline:
a handler's timeout, a heartbeat, the batch's flush, a retry that becomes due, a gate that opens, the safety scan. Idle means
asleep until the safety scan (P10). Before it sleeps it says so (`NAME.asleep`), then looks once more: an
enqueue either sees the sign and pokes, or comes before the look.

Our own disk's trouble never costs a job a try: a claim that cannot be settled now keeps its lease and is settled when the
store is back (settle.py), with growing pauses (outage.py); nothing new is claimed meanwhile.

Signals: TERM and INT let running handlers finish within GRACE_S, then end them, put the rest back and leave (a second one
does not wait); HUP reads the configuration again; CHLD wakes the loop.
"""

import posix
from select import POLLIN, poll as make_poll

from edgeq import config as configuration
from edgeq import disk as seam
from edgeq.errors import BadConfig, BadPassword, EdgeqError, OK, TRY_LATER, IO_ERROR
from edgeq.execute import Executor
from edgeq.gate import Gate
from edgeq.job import Bury, Hold, PROCESSING
from edgeq.lease import start_time
from edgeq.outage import Outage
from edgeq.policy import after_death, decide
from edgeq.reap import end_survivors, reap
from edgeq.report import Reporter, read_tallies
from edgeq.retain import retain, sweep_run
from edgeq.settle import Settler
from edgeq.space import Guard, find_mount, is_mounted
from edgeq.spawn import CannotStart, Shortage
from edgeq.store.base import PER_PASS
from edgeq.wake import Wakeups

KILL_AFTER_S = 2  # between TERM and KILL of handlers that outlived the grace of a stop
SURPLUS_GAP_S = 0.5  # between two passes of prune while there is more to remove
SETTLED_A_SCAN = 1000  # so many ends bring a safety scan forward: what a busy minute leaves is bounded, too
FROZEN_SCANS = 3  # as in the guard (overlay/usr/bin/edgeq, check_life)
LINGER_MIN_S = 1.1  # the guard compares times of change in whole seconds, see _write_next_due
ONCE_TRIES = 3  # how often `work --once` meets a store that is down before it says so


class Worker:
    """One worker process. clock, log, store: opened by the caller; once: leave when nothing is ready."""

    def __init__(self, store, config, clock, log, once=False):
        self.store, self.config, self.clock, self.log, self.once = store, config, clock, log, once
        self.run_path = config.run_path
        self.poll = make_poll()
        self.guard = Guard(store.disk, store.root, self.run_path, config)
        store.on_full = self.guard.drop_ballast
        store.is_resident = not once
        self.gate = Gate(config, store.pauses, _draw, log)
        self.executor = Executor(config.handlers, self.run_path + "/ctl", config.queue, self.poll, config.grace_s, log)
        self.elected = seam.Lock(self.run_path + "/lock")
        self.name = "%d-%d" % (posix.getpid(), start_time(posix.getpid()))
        self._take_name()
        self.wakeups = Wakeups(self.run_path, self.name, self.poll)
        self.reporter = Reporter(config, clock.boot_id, self.name, store, self.gate, self.guard, _in_ram)
        self.tally = self.reporter.tally
        self.outage = Outage(store, self.guard, self.reporter, log)
        self.settler = Settler(store, config, self.gate, self.reporter, self.outage, log, self._go_down)
        self._is_stopping = False
        self._kill_at, self._leave_by = None, 0.0
        self._safety_at = self._beat_at = 0.0
        self._scanned_n = 0  # jobs that had ended at the last safety scan
        self._idle_since = None
        self._looked_ns = 0  # incoming/'s time of change, as of the last look
        self._was_blocked = self._was_poked = self._is_freed = self._is_only_output = False

    # --- life ------------------------------------------------------------------------------------------

    def run(self):
        """Work until told to stop (or, with `once`, until nothing is ready); the exit code."""
        self.wakeups.open()
        now = self.clock.read()
        try:
            self._safety_scan(now, is_first=True)
            while not self._round():
                pass
            return self._leave()
        finally:
            self.wakeups.close()
            self.reporter.close()
            self.elected.drop()

    def _round(self):
        """Once around the loop; True when it is time to leave."""
        now = self.clock.read()
        self._heed_signals(now)
        self._collect(now)
        self._heed_cancels(now)
        self.executor.tick(now)
        self._keep_alive(now)
        self.settler.settle_again(now)
        self._flush_if_due(now)
        if now.boot >= self._safety_at or self._ended_n() - self._scanned_n >= SETTLED_A_SCAN:
            self._safety_scan(now)
        is_asleep = self._fill_slots(now)
        if is_asleep:
            self._flush_if_due(now, is_asleep)
            self._reap_if_due(now)
        if self._is_finished(now, is_asleep):
            return True
        if self.reporter.is_changed and now.boot >= self.reporter.due_at:
            self._write_status(now)
        self._sleep(now)
        return False

    def _is_finished(self, now, is_asleep):
        if self._is_stopping:
            is_patient = self.wakeups.terms_n < 2 and now.boot < self._leave_by
            return not self.executor.running and not (self.settler.unsettled and is_patient)
        if self.executor.running or self.settler.unsettled:
            return False
        if not is_asleep or self.outage.is_on(now):
            return False
        if self.once:
            return not self.store.is_unsure(now)
        if self._idle_since is None:
            self._idle_since = now.boot
        return bool(self.config.linger_s) and now.boot - self._idle_since >= self._linger_s()

    def _leave(self):
        """The exit code. A stop is clean when everything was put back and flushed; lingering out leaves the mark (P4)."""
        now = self.clock.read()
        is_lingering = not self._is_stopping and not self.once
        try:
            self.store.close(now, clean=not is_lingering and not self.settler.unsettled)
        except (OSError, EdgeqError) as error:
            self.log.error("stop", error=error)
            return IO_ERROR
        self._write_status(now, "idle" if is_lingering else "down")
        self._write_next_due(now)
        if self.once and not self._is_stopping:
            return TRY_LATER if self._was_blocked else OK
        return OK

    def _linger_s(self):
        return max(self.config.linger_s, LINGER_MIN_S)

    def _write_next_due(self, now):
        """What the guard needs to start us again in time: `R/due`, a boot-clock second, 0 for never.

        RACE: a producer that comes after our FIFO went and before the guard's is there pokes nobody. So `due` carries
        the time of change that incoming/ had at our last look: the guard looks whether it is still the same.
        """
        dues = [at for at in (self.store.next_due(now), self.gate.next_change(now)) if at is not None]
        path = self.run_path + "/due"
        seam.write_run(path, b"%d\n" % (min(dues) + 1 if dues else 0), 0o644)
        posix.utime(path, ns=(self._looked_ns, self._looked_ns))

    def _take_name(self):
        """Our process is called `edgeqSTART`: what the shell reads to see that we live (docs/files.md, R/space)."""
        try:
            fd = posix.open("/proc/self/comm", posix.O_WRONLY | posix.O_CLOEXEC)
            try:
                posix.write(fd, b"edgeq%s" % self.name.partition("-")[2].encode())
            finally:
                posix.close(fd)
        except OSError:
            pass  # it reads our stat, then

    # --- waking and sleeping -----------------------------------------------------------------------------

    def _sleep(self, now):
        until = self._next_instant(now)
        if self.wakeups.terms_n and not self._is_stopping or self.wakeups.is_reload_wanted:
            return
        ear, until = self._doze(now, until)
        is_poked, is_signalled, fds = self.wakeups.wait(max(int((until - now.boot) * 1000) + 1, 0))
        outputs = [fd for fd in fds if self.executor.owns(fd)]
        self._is_only_output = bool(outputs) and len(outputs) == len(fds) and not (is_poked or is_signalled)
        for fd in outputs:
            self.executor.pump(fd)
        if ear is not None:
            self.poll.unregister(ear)
            self._hear()
        if is_poked:
            self.reporter.is_changed = self._was_poked = True
            self._idle_since = None

    def _doze(self, now, until):
        """(descriptor, instant): what a store beyond this board tells by, and until when to wait for it; None where it has none."""
        is_wanted = self._has_slot() and not self._is_stopping and not self.settler.unsettled and not self.outage.is_on(now)
        try:
            if not is_wanted:
                self.store.wake()
                return None, until
            found = self.store.doze(now, until, not self.executor.running)
            if found is None:
                return None, until
        except (OSError, EdgeqError) as error:
            self._go_down(now, error)
            return None, self._next_instant(now)
        self.poll.register(found[0], POLLIN)
        return found[0], min(until, found[1])

    def _hear(self):
        now = self.clock.read()
        try:
            self.store.hear(now)
        except (OSError, EdgeqError) as error:
            self._go_down(now, error)

    def _next_instant(self, now):
        """The boot-clock instant at which something is to be done whatever happens."""
        instants = [self._safety_at, self.executor.next_deadline(), self._kill_at]
        if self.executor.running or self.settler.unsettled:
            instants.append(self._beat_at)
        instants.append(self.store.flush_due_at() if not self.store.is_broken else None)
        if self.outage.is_on(now):
            instants.append(self.outage.until)
        elif self._has_slot() and not self._is_stopping and not self.settler.unsettled:
            instants.append(self.store.next_due(now))
            instants.append(self.gate.next_change(now))
            if self.store.look_every_s:
                instants.append(now.boot + self.store.look_every_s)
        if self.reporter.is_changed:
            instants.append(self.reporter.due_at)
        if self.config.linger_s and self._idle_since is not None:
            instants.append(self._idle_since + self._linger_s())
        return min(instant for instant in instants if instant is not None)

    def _heed_signals(self, now):
        if self.wakeups.terms_n and not self._is_stopping:
            self._is_stopping = True
            self._kill_at = now.boot + self.config.grace_s
            self._leave_by = self._kill_at + KILL_AFTER_S
            self.log.info("stopping", running=len(self.executor.running))
        if self._kill_at is not None and (now.boot >= self._kill_at or self.wakeups.terms_n > 1):
            self._kill_at = None
            self.executor.stop_all(now, KILL_AFTER_S)
        if self.wakeups.is_reload_wanted:
            self.wakeups.is_reload_wanted = False
            self._reload()

    def _reload(self):
        """A bad file keeps the running configuration; what names the spool is not changed under a running worker."""
        try:
            fresh = configuration.load(self.config.path, self.config.queue)
        except BadConfig as error:
            self.log.error("reload", error=error, kept="the running configuration")
            return
        for fixed in ("spool", "run_dir", "store", "queue", "user"):
            if getattr(fresh, fixed) != getattr(self.config, fixed):
                self.log.warning("reload", key=fixed.upper(), needs="a restart")
                setattr(fresh, fixed, getattr(self.config, fixed))
        vars(self.config).update(vars(fresh))
        self.executor.handlers, self.executor.grace_s = fresh.handlers, fresh.grace_s
        self.gate.reload()
        self.log.info("reloaded", file=self.config.path)

    def _heed_cancels(self, now):
        """`cancel --running` left the claim's token in R/cancel/ and poked us: end its handler. The file goes when that is over."""
        if not self._was_poked or not self.executor.running:
            return
        self._was_poked = False
        try:
            wanted = set(posix.listdir(self.run_path + "/cancel"))
        except OSError:
            return  # /run was emptied: the safety scan makes it again
        for slot in list(self.executor.running.values()) if wanted else ():
            if slot.lease.token in wanted and self.executor.cancel(slot.lease.entry.id, now):
                self.log.info("cancelling", id=slot.lease.entry.id, type=slot.lease.entry.type)
                wanted.discard(slot.lease.token)
        for token in wanted:
            if "-%s-" % self.name in token:  # it ended by itself, or long ago
                seam.forget("%s/cancel/%s" % (self.run_path, token))

    # --- claim and execute ----------------------------------------------------------------------------------

    def _has_slot(self):
        return len(self.executor.running) < self.config.concurrency

    def _fill_slots(self, now):
        """Start what is ready while there are slots; True when a fresh look found nothing to start."""
        if self._is_stopping or not self._has_slot() or self.settler.unsettled or self.outage.is_on(now):
            return False
        if self._is_only_output and self.store.is_dozing:
            return False  # a handler said something: nothing new to start
        if self.config.require_mount and not is_mounted(self.config.require_mount):
            self._go_down(now, "not mounted: " + self.config.require_mount)
            return False
        is_fresh = False
        try:
            while self._has_slot():
                is_stale, self._is_freed = is_fresh or self._is_freed, False
                lease = self.store.claim(now, lambda type: self.gate.may_run(type, now), self.config.lease_s, is_stale)
                if lease:
                    self._start_guarded(lease, now)
                    if self.settler.unsettled or self.outage.is_on(now):
                        return False
                    self.outage.end()
                    continue
                if self.store.adopt(now):
                    continue
                if is_fresh:
                    self.outage.end()
                    self._was_blocked = bool(self.store.blocked)
                    return True
                self.wakeups.say_asleep()  # before the last look: whoever comes after it sees the sign
                self._looked_ns = _changed_ns(self.config.spool_path + "/incoming")
                is_fresh = True
        except (OSError, EdgeqError) as error:
            self._go_down(now, error)
        return False

    def _start_guarded(self, lease, now):
        """One job's bug must not stop the others: its type is held, the line says what to report.

        Our own disk's trouble between claim and start puts the job back, uncharged.
        """
        try:
            self._start(lease, now)
        except (OSError, EdgeqError) as error:
            self.settler.settle(lease, Hold("", str(error)), None, now)
            self._go_down(now, error)
        except Exception as error:
            self.settler.settle(lease, Hold("held", "edgeq bug: %s: %s" % (type(error).__name__, error)), None, now)

    def _start(self, lease, now):
        entry = lease.entry
        self.reporter.is_changed = True
        self._idle_since = None
        settings = self.gate.settings(entry.type)
        max_attempts = lease.record.max_attempts or settings.max_attempts
        if entry.attempts > max_attempts:
            self.settler.settle(lease, Bury(lease.last_error or "interrupted at each of its tries"), None, now)
            return
        if self.gate.is_paused(entry.type, now):
            # RACE: paused between look and claim. Whoever paused and saw nothing running must be right (OTA).
            self.settler.settle(lease, Hold("", "paused"), None, now)
            return
        try:
            self.executor.start(lease, settings, max_attempts, now)
            self.gate.started(entry.type)
        except CannotStart as error:
            self.settler.settle(lease, Hold("held", error.why), None, now)
        except Shortage as error:
            self.settler.settle(lease, Hold("", error.why), None, now)
            self._go_down(now, error)

    def _keep_alive(self, now):
        """Heartbeats, in RAM. A lease that somebody took over: its handler is ended, its outcome forgotten (P5)."""
        if now.boot < self._beat_at:
            return
        self._beat_at = now.boot + self.config.lease_s / 3
        slots = {id(slot.lease): slot for slot in self.executor.running.values()}
        for slot in slots.values():
            slot.lease.handler = (slot.pid, slot.start)
        leases = [slot.lease for slot in slots.values()] + self.settler.leases()
        try:
            lost = self.store.heartbeat(leases, now, self.config.lease_s)
        except OSError as error:
            self.log.warning("heartbeat", error=error.strerror)
            return
        for lease in lost:
            self.log.warning("lease lost", id=lease.entry.id)
            if id(lease) in slots:
                self.executor.abandon(slots[id(lease)])
                self.gate.ended(lease.entry.type)
            self.settler.give_up(lease)

    # --- settle -----------------------------------------------------------------------------------------------

    def _collect(self, now):
        for slot, outcome in self.executor.collect(now):
            lease = slot.lease
            self.reporter.is_changed = True
            self._is_only_output = False
            self.gate.ended(lease.entry.type)
            settings = self.gate.settings(lease.entry.type)
            if settings.concurrency and lease.entry.type in self.store.blocked:
                self._is_freed = True  # what waits of it was passed over in the last listing, and may be first in line
            verdict = decide(lease.entry.attempts, lease.record.max_attempts or settings.max_attempts, outcome, settings,
                             self.config.jitter, _draw)
            self.settler.settle(lease, verdict, outcome, now)

    def _ended_n(self):
        return self.tally.done_n + self.tally.buried_n

    def _is_drained(self, now):
        """Everything is paused: what was done is made safe at once, somebody may be waiting for it (OTA)."""
        return self.store.pauses.is_paused("", now)

    def _flush_if_due(self, now, is_asleep=False):
        due_at = self.store.flush_due_at()
        if self.store.is_broken or self.outage.is_on(now) or due_at is None:
            return
        if now.boot >= due_at or not self.executor.running and (self._is_stopping or is_asleep and self._is_drained(now)):
            try:
                self.store.flush(now)
            except (OSError, EdgeqError) as error:
                self._go_down(now, error)

    def _go_down(self, now, error):
        """Trouble with our own disk. A refused password ends the worker, and `--once` tries only so often."""
        if isinstance(error, BadPassword) and not self.executor.running:
            raise error
        self.outage.begin(now, error)
        if self.once and self.outage.n >= ONCE_TRIES and not self.executor.running:
            raise error if isinstance(error, (OSError, EdgeqError)) else EdgeqError("work", self.store.root, error)

    # --- the safety scan, and what only the elected worker does ----------------------------------------------------

    def _safety_scan(self, now, is_first=False):
        self._safety_at, self._scanned_n = now.boot + self.config.safety_scan_s, self._ended_n()
        self.reporter.is_changed = True
        try:
            if not is_first:
                self._restore_run()
            self._was_poked = True  # a cancel whose poke was lost
            if not self.elected.is_ours():
                self.elected.drop()
                self.elected.take(wait=False)
            self.tally.is_elected = self.elected.fd >= 0
            is_up = not self.store.is_broken and not self.outage.is_on(now)
            if is_up and (self.tally.is_elected or self.store.reaps_everywhere or self._is_elected_one_frozen(now)):
                self._reap(now)
            if is_up and self.tally.is_elected:
                if retain(self.store, now, self.log) >= PER_PASS:  # there may be more: what is bounded is bounded soon
                    self._safety_at = min(self._safety_at, now.boot + SURPLUS_GAP_S)
                sweep_run(self.run_path, {entry.token for entry in self.store.entries(PROCESSING)})
                self.guard.load_ballast()
        except (OSError, EdgeqError) as error:
            self._go_down(now, error)
        if self.tally.is_elected and self.reporter.takes_turn(now):
            self._write_status(now)
            self.log.info("status " + self.reporter.line)

    def _reap_if_due(self, now):
        """Between two safety scans: a look at the store saw a lease that ran out."""
        if self.store.is_reap_due and not self.once:
            try:
                self._reap(now)
            except (OSError, EdgeqError) as error:
                self._go_down(now, error)

    def _is_elected_one_frozen(self, now):
        """The lock's holder lives and gives no sign of life: stopped, or hung in the kernel. The guard would kill it; where
        none watches over it, the others reap meanwhile. That needs no lock: a claim changes hands by one rename (P5)."""
        stamps = [tally.stamp for tally in read_tallies(self.run_path).values() if tally.is_elected]
        return bool(stamps) and now.boot - max(stamps) > FROZEN_SCANS * self.config.safety_scan_s + 1

    def _restore_run(self):
        """Somebody emptied /run: make it again (B45)."""
        self.store.make_folders()
        self.wakeups.restore()

    def _reap(self, now):
        def end(holder, token):
            return end_survivors(holder, "%s/ctl/%s" % (self.run_path, token))

        def judge(lease):
            settings = self.gate.settings(lease.entry.type)
            return after_death(lease.entry.attempts, lease.record.max_attempts or settings.max_attempts, settings,
                               self.config.jitter, _draw)

        self.store.sweep_dead(now)
        for lease, verdict in reap(self.store, now, self.config.lease_s, end, judge, self.log):
            self.settler.settle(lease, verdict, None, now)

    def _write_status(self, now, worker="up"):
        try:
            self.outage.why = self.reporter.write(now, worker, self.outage.why)
        except OSError as error:
            self.log.warning("status", error=error.strerror)


def _in_ram(path):
    try:
        return find_mount(path)[2]
    except OSError:
        return False


def _changed_ns(folder):
    """When a name in `folder` last came or went; 0 for a store without such a folder."""
    try:
        return posix.stat(folder).st_mtime_ns
    except OSError:
        return 0


def _draw():
    """A number in [0, 1) from the kernel: no random module, no seed to repeat after a restore."""
    return int.from_bytes(posix.urandom(2), "big") / 65536
