"""Counters -> the status line (DESIGN 7), for a console, a script, the log and /run.

Each worker keeps a Tally and leaves it in `R/workers/PID-START`; whoever reports adds the tallies of all living workers.
Instants in /run are of the boot clock, so that a reader computes ages afresh and a clock step changes none.
"""

import posix

from edgeq import disk
from edgeq.clock import iso
from edgeq.errors import EdgeqError
from edgeq.job import FAILED, INCOMING
from edgeq.lease import is_alive
from edgeq.log import escape
from edgeq.store.base import Counts

BUCKET_S = 5
REPORT_GAP_S = 0.25  # /run/status is written at most so often while busy
FIELDS = ("ready", "processing", "done", "dead", "oldest_ready_s", "retries_1m", "delayed", "failed", "corrupt", "held", "paused",
          "worker", "durable", "clock", "free_kb", "flushes", "written_kb")


class Tally:
    """One worker's counters since its start. retries: bucket start (boot clock) -> count; last_error is escaped text."""

    def __init__(self):
        self.done_n = self.retried_n = self.buried_n = self.flushes_n = self.written_kb = 0
        self.hits = self.misses = self.evictions = 0
        self.retries = {}
        self.last_error = ""
        self.error_at = 0
        self.is_elected = False
        self.stamp = 0

    def count_retry(self, boot):
        self.retried_n += 1
        bucket = int(boot) // BUCKET_S * BUCKET_S
        self.retries[bucket] = self.retries.get(bucket, 0) + 1
        if len(self.retries) > 24:
            self.retries = {b: n for b, n in self.retries.items() if b > bucket - 60}

    def note_error(self, text, boot):
        self.last_error, self.error_at = text[:120], int(boot)

    def line(self):
        retries = ",".join("%d:%d" % item for item in sorted(self.retries.items())) or "-"
        return "%d %d %d %d %d %d %d %d %d %d %s %d %s\n" % (
            self.is_elected, self.stamp, self.done_n, self.retried_n, self.buried_n, self.flushes_n, self.written_kb,
            self.hits, self.misses, self.evictions, retries, self.error_at, self.last_error)


class Reporter:
    """What a worker tells: its tally, `R/status`, `R/brief`, `R/space`. RAM only.

    store, gate, guard: the worker's; is_in_ram: path -> whether it lies in RAM. is_changed: there is something new to tell, from
    `due_at` (boot clock) on.
    """

    def __init__(self, config, boot_id, name, store, gate, guard, is_in_ram):
        self.config, self.boot_id, self.run = config, boot_id, config.run_path
        self.store, self.gate, self.guard, self.is_in_ram = store, gate, guard, is_in_ram
        self.tally, self.tally_path = Tally(), "%s/workers/%s" % (self.run, name)
        self.is_changed, self.due_at = True, 0.0
        self.line = ""
        self._counts, self._log_at = Counts(), None
        self._ground = self._is_volatile = None  # where the store was found to lie, and whether that is in RAM

    def write(self, now, worker, trouble):
        """Tell all of it; the trouble, which is a new one when the store's jobs could not be counted. OSError: /run's."""
        self.due_at = now.boot + max(REPORT_GAP_S, self.store.gauges().names_n / 10_000)
        self._write_tally(now)
        status, trouble = self._make_status(now, worker, trouble)
        for name, line in (("status", status.run_line()), ("brief", status.brief_line(self.guard.free_kb))):
            disk.write_run("%s/%s" % (self.run, name), line.encode("ascii", "replace"), 0o644)
        self.guard.publish()
        self.is_changed = False
        return trouble

    def close(self):
        try:
            disk.forget(self.tally_path)
        except OSError:
            pass

    def takes_turn(self, now):
        """True when the line is due in the log: each REPORT_S. On demand workers come and go within it: one of them does it."""
        path, gap_s = self.run + "/reported", self.config.report_s
        if not gap_s:
            return False
        try:
            if self._log_at is None:
                self._log_at = int(disk.read_text(path)) + gap_s if self.config.linger_s else 0
        except (OSError, ValueError):  # none did in this boot
            self._log_at = 0
        if now.boot < self._log_at:
            return False
        self._log_at = now.boot + gap_s
        if self.config.linger_s:
            try:
                disk.write_run(path, b"%d\n" % now.boot)
            except OSError:
                pass  # RAM is full: said once more than needed
        return True

    def _write_tally(self, now):
        tally, gauges = self.tally, self.store.gauges()
        tally.stamp = int(now.boot)
        tally.flushes_n, tally.written_kb = gauges.flushes_n, gauges.written_kb
        tally.hits, tally.misses, tally.evictions = gauges.hits, gauges.misses, gauges.evictions
        disk.write_run(self.tally_path, tally.line().encode("ascii", "replace"), 0o644)

    def _make_status(self, now, worker, trouble):
        """(Status, trouble). The counts are a fresh listing's, or the last ones when the store cannot be read (B09)."""
        status, store = Status(), self.store
        status.boot_id, status.scan_s, status.worker = self.boot_id, self.config.safety_scan_s, worker
        try:
            self._counts = store.counts(now, lambda type: self.gate.may_run(type, now))
        except (OSError, EdgeqError) as error:
            trouble = trouble or str(error)
        counts = self._counts
        held = {type: n for type, n in store.blocked.items() if self.gate.is_held(type, now)}
        status.held = sum(n[INCOMING] + n[FAILED] for n in held.values())
        status.ready = counts.ready - sum(n[INCOMING] for n in held.values())
        status.processing, status.done, status.dead = counts.processing, counts.done, counts.dead
        status.delayed, status.failed, status.corrupt = counts.delayed, counts.failed, counts.corrupt
        status.oldest = int(counts.oldest_at + 0.999) if counts.oldest_at else 0
        status.clock = "ok" if self.config.clock == "none" or store.is_trusted(now) else "untrusted"
        status.durable = "no" if store.gauges().is_reduced or self._lies_in_ram() else "yes"
        merge(status, read_tallies(self.run))
        status.last_error = status.last_error or escape(trouble or store.notice())
        self.guard.judge(counts.ready + counts.delayed + counts.failed)
        status.judge(self.guard.full, bool(trouble) or store.is_broken, self.guard.has_ballast())
        self.line = status.line(self.config.queue, now, len(store.pauses.all(now)), self.guard.free_kb)
        return status, trouble

    def _lies_in_ram(self):
        """Looked up in the mount table when something else lies under the store's name."""
        try:
            status = posix.stat(self.store.root)
            ground = status.st_dev, status.st_ino
        except OSError:
            ground = None
        if ground is None or ground != self._ground:
            self._ground, self._is_volatile = ground, self.is_in_ram(self.store.root)
        return self._is_volatile


def _parse_tally(text):
    fields = text.rstrip("\n").split(" ", 12)
    tally = Tally()
    tally.is_elected, tally.stamp = fields[0] == "1", int(fields[1])
    (tally.done_n, tally.retried_n, tally.buried_n, tally.flushes_n, tally.written_kb, tally.hits, tally.misses,
     tally.evictions) = (int(field) for field in fields[2:10])
    tally.retries = parse_retries(fields[10])
    tally.error_at, tally.last_error = int(fields[11]), fields[12]
    return tally


def parse_retries(text):
    """{bucket: count} of `B:N,B:N` or `-`."""
    return {} if text == "-" else {int(b): int(n) for b, _, n in (pair.partition(":") for pair in text.split(","))}


def read_tallies(run):
    """{(pid, start): Tally} of the living workers."""
    tallies = {}
    try:
        names = posix.listdir(run + "/workers")
    except FileNotFoundError:
        return tallies
    for name in names:
        pid, _, start = name.partition("-")
        if pid.isdigit() and start.isdigit() and is_alive(int(pid), int(start)):
            try:
                tallies[int(pid), int(start)] = _parse_tally(disk.read_text("%s/workers/%s" % (run, name)))
            except (OSError, ValueError, IndexError):
                continue  # being replaced, or somebody else's file
    return tallies


class Status:
    """Everything the status line says, as attributes; see DESIGN 7."""

    def __init__(self):
        self.ready = self.processing = self.done = self.dead = self.delayed = self.failed = self.corrupt = self.held = 0
        self.oldest = 0  # boot-clock second
        self.retries = {}
        self.worker, self.durable, self.clock = "down", "yes", "ok"
        self.flushes = self.written_kb = 0
        self.last_error = ""
        self.pid = self.start = self.stamp = 0
        self.boot_id = "-"
        self.scan_s = 60
        self.reason = "ok"
        self.exit = 0

    def judge(self, full, is_broken, has_ballast):
        """Set exit and reason: the worst thing that is wrong."""
        for code, reason, is_so in (
                (2, "down", self.worker == "down"), (2, "stalled", self.worker == "stalled"),
                (2, "store", is_broken), (2, "full", bool(full)), (2, "ballast", not has_ballast),
                (1, "dead", self.dead > 0), (1, "corrupt", self.corrupt > 0), (1, "held", self.held > 0),
                (1, "clock", self.clock != "ok"), (1, "durable", self.durable != "yes")):
            if is_so:
                self.exit, self.reason = code, reason
                return
        self.exit, self.reason = 0, "ok"

    def run_line(self):
        """The line of R/status (docs/files.md)."""
        retries = ",".join("%d:%d" % item for item in sorted(self.retries.items())) or "-"
        return ("pid=%d start=%d boot=%s stamp=%d ready=%d processing=%d done=%d dead=%d oldest=%d retries=%s delayed=%d failed=%d"
                " corrupt=%d held=%d worker=%s durable=%s clock=%s flushes=%d written_kb=%d scan_s=%d exit=%d reason=%s"
                " last_error=%s\n") % (
            self.pid, self.start, self.boot_id, self.stamp, self.ready, self.processing, self.done, self.dead, self.oldest,
            retries, self.delayed, self.failed, self.corrupt, self.held, self.worker, self.durable, self.clock,
            self.flushes, self.written_kb, max(int(self.scan_s), 1), self.exit, self.reason, self.last_error)

    def brief_line(self, free_kb):
        """The line of R/brief: what the shell's `status` prints, in few bytes and with a single `read`."""
        retries = ",".join("%d:%d" % item for item in sorted(self.retries.items())) or "-"
        return " ".join(map(str, (
            self.pid, self.start, self.boot_id[:8], self.stamp, max(int(self.scan_s), 1), self.exit, self.ready, self.processing,
            self.done, self.dead, self.oldest, retries, self.delayed, self.failed, self.corrupt, self.held, self.durable,
            self.clock, free_kb, self.flushes, self.written_kb, self.last_error))).rstrip(" ") + "\n"

    def values(self, now, paused, free_kb):
        """The fields of the status line in order, as a dict."""
        oldest_s = max(int(now.boot - self.oldest), 0) if self.oldest else 0
        retries = sum(n for bucket, n in self.retries.items() if bucket > now.boot - 60)
        found = dict(vars(self), oldest_ready_s=oldest_s, retries_1m=retries, paused=paused, free_kb=free_kb)
        return {field: found[field] for field in FIELDS}

    def line(self, queue, now, paused, free_kb):
        """The status line. One line whatever the jobs contain: last_error is escaped already."""
        pairs = " ".join("%s=%s" % item for item in self.values(now, paused, free_kb).items())
        return '%s queue=%s %s last_error="%s"' % (iso(now.wall), queue, pairs, self.last_error)


def parse_run_line(text):
    """The Status that R/status holds; ValueError when it is none."""
    head, mark, last_error = text.rstrip("\n").partition(" last_error=")
    pairs = dict(pair.partition("=")[::2] for pair in head.split(" "))
    status = Status()
    if not mark or "pid" not in pairs:
        raise ValueError("not a status line")
    for key, value in pairs.items():
        if key == "retries":
            status.retries = parse_retries(value)
        elif key == "boot":
            status.boot_id = value
        elif key in ("worker", "durable", "clock", "reason"):
            setattr(status, key, value)
        elif hasattr(status, key):
            setattr(status, key, int(value))
    status.last_error = last_error
    return status


def merge(status, tallies):
    """Add the workers' tallies to `status`; the elected worker's identity and stamp are the line's."""
    newest = -1
    for (pid, start), tally in sorted(tallies.items()):
        status.flushes += tally.flushes_n
        status.written_kb += tally.written_kb
        for bucket, n in tally.retries.items():
            status.retries[bucket] = status.retries.get(bucket, 0) + n
        if tally.last_error and tally.error_at > newest:
            newest, status.last_error = tally.error_at, tally.last_error
        if tally.is_elected or not status.pid:
            status.pid, status.start, status.stamp = pid, start, tally.stamp
