"""`edgeq status`: the line of DESIGN 7 (the wrapper prints it without Python), a table, JSON, Prometheus text."""

import posix

from edgeq import disk as seam

from edgeq.job import DLQ, FAILED, INCOMING, PROCESSING, is_word
from edgeq.lease import is_alive
from edgeq.log import escape
from edgeq.record import quote
from edgeq.report import Status, merge, parse_run_line, read_tallies
from edgeq.space import Guard, find_mount

OPTIONS = {"status": {"v": "flag", "json": "flag", "prom": "flag", "all": "flag"}}
HELP = {"status": """
One line for scripts and people. Exit code: 0 healthy, 1 degraded (dead or corrupt jobs, a held
type, untrusted clock, not durable), 2 broken (no worker, stalled, spool full or read-only).

  -v       a table of all types, the scan cache, the workers' last errors
  --json   one JSON object   --prom   Prometheus text format
  --all    every queue below SPOOL; the worst exit code
"""}
NUMBERS = ("ready", "processing", "done", "dead", "oldest_ready_s", "retries_1m", "delayed", "failed", "corrupt", "held", "paused",
           "free_kb", "flushes", "written_kb")


def run(context):
    if context.args:
        raise context.usage("takes no arguments")
    queues = _queues(context.config) if context.options.get("all") else [context.config.queue]
    worst, first = 0, True
    for queue in queues:
        context.config.queue = queue
        worst = max(worst, _show(context, queue, first))
        first = False
    return worst


def _queues(config):
    """Folders below SPOOL that hold a spool."""
    found = []
    for name in sorted(posix.listdir(config.spool)):
        if is_word(name) and _is_folder("%s/%s/%s" % (config.spool, name, INCOMING)):
            found.append(name)
    return found or [config.queue]


def _is_folder(path):
    try:
        return seam.is_folder(posix.lstat(path))
    except OSError:
        return False


def _show(context, queue, is_first):
    now = context.clock.read()
    store = context.open_store()
    status = read_status(context, store, now)
    paused = store.pauses.all(now)
    free_kb = _free_kb(store, context.config)
    values = status.values(now, len(paused), free_kb)
    if context.options.get("json"):
        context.out("{%s}" % ",".join('"%s":%s' % (key, value if isinstance(value, int) else quote(value)) for key, value in dict(
            queue=queue, **values, last_error=status.last_error, reason=status.reason, exit=status.exit).items()))
    elif context.options.get("prom"):
        context.out(_prometheus(queue, values, status, is_first))
    else:
        context.out(status.line(queue, now, len(paused), free_kb))
        if context.options.get("v"):
            context.out(_table(context, store, now, paused))
    return status.exit


def read_status(context, store, now):
    """The Status: from /run with a worker up, counted from the folders without one."""
    status = _from_run(store.run, context.clock.boot_id)
    if status is not None:
        if now.boot - status.stamp > 2 * status.scan_s:
            status.worker, status.exit, status.reason = "stalled", 2, "stalled"
        return status
    return _from_folders(context, store, now)


def _from_run(run, boot_id):
    try:
        status = parse_run_line(seam.read_text(run + "/status"))
    except (OSError, ValueError):
        return None
    if status.boot_id != boot_id or status.worker not in ("up", "stalled") or not is_alive(status.pid, status.start):
        return None
    return status


def _from_folders(context, store, now):
    status, counts = Status(), None
    try:
        counts = store.counts(now)
    except OSError as error:
        status.last_error = escape("%s: %s" % (error.filename or store.root, error.strerror))
    if counts:
        status.ready, status.processing, status.done, status.dead = counts.ready, counts.processing, counts.done, counts.dead
        status.delayed, status.failed, status.corrupt = counts.delayed, counts.failed, counts.corrupt
        status.oldest = counts.oldest_at
    status.worker = _lingering(store.run, context.clock.boot_id)
    status.clock = "ok" if context.config.clock == "none" or _is_trusted(store, now) else "untrusted"
    status.durable = "no" if _in_ram(store.root) else "yes"
    merge(status, read_tallies(store.run))
    guard = Guard(store.disk, store.root, store.run, context.config)
    full = ""
    try:
        full = guard.judge(status.ready + status.delayed + status.failed)
    except OSError:
        pass
    status.judge(full, counts is None, status.worker == "down" or guard.has_ballast())
    return status


def _lingering(run, boot_id):
    """`idle` when the last worker left because nothing was to do (LINGER_S), else `down`."""
    try:
        last = parse_run_line(seam.read_text(run + "/status"))
        return "idle" if last.worker == "idle" and last.boot_id == boot_id else "down"
    except (OSError, ValueError):
        return "down"


def _is_trusted(store, now):
    try:
        return store.seq.is_trusted(now)
    except OSError:
        return False


def _in_ram(path):
    try:
        return find_mount(path)[2]
    except OSError:
        return False


def _free_kb(store, config):
    guard = Guard(store.disk, store.root, store.run, config)
    try:
        guard.measure()
    except OSError:
        return 0
    return guard.free_kb


def _prometheus(queue, values, status, is_first):
    lines = []
    for key in NUMBERS:
        if is_first:
            lines.append("# TYPE edgeq_%s %s" % (key, "counter" if key in ("done", "flushes", "written_kb") else "gauge"))
        lines.append('edgeq_%s{queue="%s"} %d' % (key, queue, values[key]))
    lines.append('edgeq_up{queue="%s"} %d' % (queue, status.worker == "up"))
    lines.append('edgeq_healthy{queue="%s"} %d' % (queue, status.exit == 0))
    return "\n".join(lines)


def _table(context, store, now, paused):
    """At most 80 columns: one row a type, then the cache and the workers."""
    rows = {}
    view = store.view
    for state in (INCOMING, PROCESSING, FAILED):
        for entry in store.entries(state):
            if entry.settling:
                continue  # its handler has ended; it waits for the flush
            row = rows.setdefault(entry.type, [0, 0, 0, 0, 0.0])
            row[(INCOMING, PROCESSING, FAILED).index(state)] += 1
            if state == INCOMING and not row[4] or state == INCOMING and entry.seq < row[4]:
                row[4] = entry.seq
    for entry in store.entries(DLQ):
        record = store.find(entry.id)[2]
        row = rows.setdefault(record.type if record else "?", [0, 0, 0, 0, 0.0])
        row[3] += 1
    lines = ["%-20s %7s %7s %7s %7s %9s  %s" % ("TYPE", "WAITING", "RUNNING", "FAILED", "DEAD", "OLDEST_S", "STATE")]
    for type, (waiting, running, failed, dead, seq) in sorted(rows.items()):
        age = max(int(now.wall - seq / 1e6), 0) if seq else 0
        lines.append("%-20s %7d %7d %7d %7d %9d  %s" % (
            type if len(type) <= 20 else type[:19] + "~", waiting, running, failed, dead, age, _type_state(store, type, paused)[:14]))
    tallies = read_tallies(store.run)
    hits = sum(tally.hits for tally in tallies.values()) or view.hits
    misses = sum(tally.misses for tally in tallies.values())
    evictions = sum(tally.evictions for tally in tallies.values())
    lines.append("cache hits=%d misses=%d evictions=%d  newer_format=%d" % (hits, misses, evictions, view.newer_n))
    for (pid, _), tally in sorted(tallies.items()):
        lines.append(("worker %d%s done=%d retries=%d dead=%d last_error=\"%s\"" % (
            pid, " (elected)" if tally.is_elected else "", tally.done_n, tally.retried_n, tally.buried_n, tally.last_error))[:80])
    return "\n".join(lines)


def _type_state(store, type, paused):
    if "" in paused or type in paused:
        return "paused"
    try:
        return seam.read_text("%s/types/%s" % (store.run, type)).split(" ")[0]
    except OSError:
        return "ok"


