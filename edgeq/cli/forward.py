"""`edgeq forward --to redis://...`: this device's queue drains into the fleet's Redis whenever that can be reached.

It takes the worker's place for this queue: it claims in order, hands over, settles. A job's id in the fleet is `NODE:ID`, so two
boards that send the same id make two jobs. At least once on the wire, once in the queue: the fleet's store knows ids, and a
job is done here only when it is accepted there.

While the fleet cannot be reached nothing is claimed: no try is charged and no flash written; pauses grow to PAUSE_MAX_S. What was
claimed when the line broke is held, uncharged. A power cut in between: the claim is reaped and sent again, the same id.

    spool -claim-> [processing] -enqueue NODE:ID-> Redis, then done here
                        '--- no line: hold, pause
"""

import posix
from _signal import SIGINT, SIGTERM, set_wakeup_fd, signal
from select import POLLIN, poll as make_poll

from edgeq import disk as seam
from edgeq.config import with_store
from edgeq.errors import BadConfig, EdgeqError, OK, TRY_LATER
from edgeq.job import Job
from edgeq.lease import start_time
from edgeq.log import Log
from edgeq.reap import end_survivors
from edgeq.retain import retain

OPTIONS = {"forward": {"to": "text", "once": "flag", "jobs-per-s": "whole", "kb-per-s": "whole"}}
HELP = {"forward": """
Send this queue's jobs to the fleet's Redis whenever it can be reached, in
order, as NODE:ID (NODE=, or a name made once for this device). Instead of a
worker: the jobs run where the fleet's workers are. Offline costs no attempt.

  --once            leave when nothing is ready: 0 all sent, 75 no line
  --jobs-per-s N    at most so many jobs a second
  --kb-per-s N      at most so many KiB of payload a second

  edgeq forward --to 'redis://10.0.0.1:6379/0?queue=app_jobs'
"""}
BATCH = 32
PAUSE_FIRST_S, PAUSE_MAX_S = 1, 60


def run(context):
    if context.args or not context.options.get("to"):
        raise context.usage("--to redis://HOST:PORT/DB?queue=NAME")
    if not context.options["to"].startswith(("redis://", "rediss://")):
        raise context.usage("--to: a redis:// or rediss:// URL")
    config = context.config
    log = Log(context.clock, config.log, "info", config.run_path + "/events")
    source = context.open_store(config, log)
    target = context.open_store(with_store(config, context.options["to"]), log)
    source.start(context.clock.read())
    return Forwarder(source, target, context.clock, log, config, context.options).run()


class Forwarder:
    """One process. options: those of the command line."""

    def __init__(self, source, target, clock, log, config, options):
        self.source, self.target, self.clock, self.log, self.config = source, target, clock, log, config
        self.is_once = bool(options.get("once"))
        self.jobs_per_s, self.bytes_per_s = options.get("jobs-per-s") or 0, 1024 * (options.get("kb-per-s") or 0)
        self.node = target.node
        self.is_stopping, self.is_reachable = False, False
        self.pause_s, self.until, self.scan_at = 0.0, 0.0, 0.0
        self.elected = seam.Lock(config.run_path + "/lock")
        self.fifo = "%s/wake/%d-%d" % (config.run_path, posix.getpid(), start_time(posix.getpid()))

    def run(self):
        poll, signals = self._open()
        code = OK
        try:
            while not self.is_stopping:
                now = self.clock.read()
                if now.boot >= self.scan_at:
                    self._scan(now)
                sent_n = self._send(now) if now.boot >= self.until else 0
                if sent_n or self.is_stopping:
                    continue
                if self.is_once and not (self.is_reachable and now.boot < self.until):  # not merely at its rate
                    code = OK if self.is_reachable else TRY_LATER
                    break
                self._sleep(poll, signals)
        finally:
            set_wakeup_fd(-1)
            seam.forget(self.fifo + ".asleep")
            seam.forget(self.fifo)
            self.elected.drop()
            self.source.close(self.clock.read())
            self.target.link.close()
        return code

    def _open(self):
        reader, writer = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
        set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (SIGTERM, SIGINT):
            signal(number, self._on_term)
        seam.forget(self.fifo)
        posix.mkfifo(self.fifo, 0o660)
        self.fifo_fd = posix.open(self.fifo, posix.O_RDWR | posix.O_NONBLOCK | posix.O_CLOEXEC)
        poll = make_poll()
        poll.register(reader, POLLIN)
        poll.register(self.fifo_fd, POLLIN)
        return poll, (reader, self.fifo_fd)

    def _on_term(self, *_):
        self.is_stopping = True

    def _sleep(self, poll, fds):
        now = self.clock.read()
        instants = [self.scan_at, self.source.flush_due_at()]
        instants.append(self.until if self.until > now.boot else self.source.next_due(now))
        wait_s = max(min(at for at in instants if at is not None) - now.boot, 0)
        for fd, _ in poll.poll(int(wait_s * 1000) + 1):
            try:
                posix.read(fd, 4096)
            except BlockingIOError:
                pass
        now = self.clock.read()
        due_at = self.source.flush_due_at()
        if due_at is not None and now.boot >= due_at:
            self.source.flush(now)

    def _scan(self, now):
        """What a dead one left goes back at once; bounds are kept."""
        self.scan_at = now.boot + self.config.safety_scan_s
        if not (self.elected.is_ours() or self.elected.take(wait=False)):
            return
        self.source.sweep_dead(now)
        for entry, holder in self.source.stale(now):
            end_survivors(holder, "%s/ctl/%s" % (self.config.run_path, entry.token))
            lease = self.source.take_over(entry, holder, now, self.config.lease_s)
            if lease:
                self.source.retry(lease, 0, "forward was interrupted", now)
        retain(self.source, now, self.log)

    def _send(self, now):
        """How many jobs went over now."""
        if not self._reach(now):
            return 0
        leases = self._claim(now)
        if not leases:
            return 0
        try:
            self.target.enqueue_many([self._job(lease) for lease in leases], now)
        except EdgeqError as error:
            for lease in reversed(leases):
                self.source.hold(lease, "", False, now)
            self._offline(now, error)
            return 0
        for lease in leases:
            # CRASH: it is there and not yet done here: sent again under the same id, which the fleet knows
            self.source.ack(lease, now, "forwarded")
        self.source.flush(now)
        self._keep_rate(leases, now)
        return len(leases)

    def _claim(self, now):
        leases, size = [], 0
        limit = min(BATCH, self.jobs_per_s or BATCH)
        while len(leases) < limit and not (self.bytes_per_s and size >= self.bytes_per_s):
            lease = self.source.claim(now, self._may_go(now), self.config.lease_s, not leases)
            if lease is None:
                if self.source.adopt(now):
                    continue
                if not leases:
                    posix.close(posix.open(self.fifo + ".asleep", posix.O_CREAT | posix.O_WRONLY | posix.O_CLOEXEC, 0o644))
                    lease = self.source.claim(now, self._may_go(now), self.config.lease_s, True)
                if lease is None:
                    break
            leases.append(lease)
            size += len(lease.record.payload)
        return leases

    def _may_go(self, now):
        return lambda type: not self.source.pauses.is_paused(type, now)

    def _job(self, lease):
        """Its id and its key are this device's own in the fleet, too."""
        entry, record = lease.entry, lease.record
        return Job(entry.type, record.payload, id="%s:%s" % (self.node, entry.id), priority=entry.priority,
                   max_attempts=record.max_attempts, timeout_s=record.timeout_s, expires_s=record.expires_s,
                   key="%s:%s" % (self.node, record.key) if record.key else None, latest=record.is_latest)

    def _reach(self, now):
        """Before anything is claimed: is there a line?"""
        try:
            self.target.link.call("PING")
        except BadConfig:
            raise
        except EdgeqError as error:
            self._offline(now, error)
            return False
        if not self.is_reachable:
            self.log.info("forward", node=self.node, to=self.target.place.shown)
        self.is_reachable, self.pause_s = True, 0.0
        return True

    def _offline(self, now, error):
        self.is_reachable = False
        self.pause_s = min(max(self.pause_s * 2, PAUSE_FIRST_S), PAUSE_MAX_S)
        self.until = now.boot + self.pause_s * (1 - posix.urandom(1)[0] / 512)
        self.log.warning("offline", error=error)

    def _keep_rate(self, leases, now):
        wait_s = 0.0
        if self.jobs_per_s:
            wait_s = len(leases) / self.jobs_per_s
        if self.bytes_per_s:
            wait_s = max(wait_s, sum(len(lease.record.payload) for lease in leases) / self.bytes_per_s)
        self.until = now.boot + wait_s
