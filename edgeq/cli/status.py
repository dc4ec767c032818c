"""`edgeq status`: the line of DESIGN 7 (the wrapper prints it without Python), a table, JSON, Prometheus text.

The table keeps 80 columns whatever jobs and types are called; a number that has no room is told in thousands. `survey` is
the view by type that `top` shows, too.
"""

import posix

from edgeq import config as configuration
from edgeq import disk as seam
from edgeq.errors import EdgeqError
from edgeq.gate import Gate
from edgeq.job import DLQ, FAILED, INCOMING, PROCESSING, is_word
from edgeq.lease import is_alive
from edgeq.log import escape
from edgeq.record import quote, _scanstring
from edgeq.report import Status, merge, parse_run_line, read_tallies
from edgeq.space import Guard, find_mount

OPTIONS = {"status": {"v": "flag", "json": "flag", "prom": "flag", "all": "flag", "output": "text"}}
HELP = {"status": """
One line for scripts and people. Exit code: 0 healthy, 1 degraded (dead or
corrupt jobs, a held type, untrusted clock, not durable), 2 broken (no worker,
a stalled one, spool full or read-only, ballast spent).

  -v             a table of all types, then pauses, cache, what was removed,
                 and each worker's last error
  --json         one JSON object a queue
  --prom         Prometheus text format
  --output FILE  with --prom: into FILE, by a rename, for a textfile collector
  --all          every queue below SPOOL; the worst exit code

  edgeq status || edgeq status -v
  edgeq status --all --prom --output /run/node-exporter/edgeq.prom
"""}
NUMBERS = (  # name in the line, name and kind for Prometheus, help
    ("ready", "ready", "gauge", "jobs that may run now"),
    ("processing", "processing", "gauge", "jobs that run"),
    ("done", "done_total", "counter", "jobs done since the spool was made"),
    ("dead", "dead", "gauge", "dead letters"),
    ("oldest_ready_s", "oldest_ready_seconds", "gauge", "how long the oldest ready job has been ready"),
    ("retries_1m", "retries_1m", "gauge", "retries in the last minute"),
    ("delayed", "delayed", "gauge", "jobs that are to run later"),
    ("failed", "failed", "gauge", "jobs that wait for their next try"),
    ("corrupt", "corrupt", "gauge", "files that were set aside"),
    ("held", "held", "gauge", "waiting jobs of types that cannot run"),
    ("paused", "paused", "gauge", "pauses in force"),
    ("free_kb", "free_kb", "gauge", "KiB free below the spool"),
    ("flushes", "flushes_total", "counter", "flushes since the workers started"),
    ("written_kb", "written_kb_total", "counter", "KiB written since the workers started"))
BY_TYPE = ("ready", "delayed", "running", "failed", "held", "dead")
COLUMNS = 80
AGES_S = (60, 600, 3600)  # the age buckets: younger than these, and older


class TypeRow:
    """What waits and runs of one type. ages: ready jobs by age, see AGES_S; oldest_s: -1 when nobody knows."""

    def __init__(self):
        self.ready = self.delayed = self.running = self.failed = self.held = self.dead = 0
        self.ages = [0] * (len(AGES_S) + 1)
        self.oldest_s = 0
        self.last_error = ""


def run(context):
    options = context.options
    if context.args:
        raise context.usage("takes no arguments")
    if "output" in options and "prom" not in options:
        raise context.usage("--output goes with --prom")
    worst, families = 0, {}
    for queue in _queues(context.config) if options.get("all") else [context.config.queue]:
        if options.get("all"):
            context.config = configuration.load(context.config.path, queue)
        worst = max(worst, _show(context, queue, families))
    if options.get("prom"):
        _tell_prometheus(context, families)
    return worst


def _queues(config):
    """Folders below SPOOL that hold a spool."""
    found = []
    try:
        names = sorted(posix.listdir(config.spool))
    except FileNotFoundError:
        names = []
    for name in names:
        if is_word(name) and _is_folder("%s/%s/%s" % (config.spool, name, INCOMING)):
            found.append(name)
    return found or [config.queue]


def _is_folder(path):
    try:
        return seam.is_folder(posix.lstat(path))
    except OSError:
        return False


def _show(context, queue, families):
    now = context.clock.read()
    store = context.open_store()
    status = read_status(context, store, now)
    paused = _pauses(store, now)
    free_kb = _free_kb(store, context.config)
    values = status.values(now, len(paused), free_kb)
    if context.options.get("json"):
        expired, superseded = store.gone()
        context.out("{%s}" % ",".join('"%s":%s' % (key, value if isinstance(value, int) else quote(value)) for key, value in dict(
            queue=queue, **values, last_error=status.last_error, reason=status.reason, exit=status.exit,
            expired=expired, superseded=superseded).items()))
    elif context.options.get("prom"):
        _collect(families, context, store, now, queue, values, status)
    else:
        context.out(status.line(queue, now, len(paused), free_kb))
        if context.options.get("v"):
            context.out(_table(context, store, now, paused))
    return status.exit


def _pauses(store, now):
    try:
        return store.pauses.all(now)
    except (OSError, EdgeqError):
        return {}


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
    except EdgeqError as error:
        status.last_error = escape(str(error))
    except OSError as error:
        if store.disk.exists(store.home):  # else nothing was queued here yet
            status.last_error = escape("%s: %s" % (error.filename or store.root, error.strerror))
    if counts:
        status.ready, status.processing, status.done, status.dead = counts.ready, counts.processing, counts.done, counts.dead
        status.delayed, status.failed, status.corrupt = counts.delayed, counts.failed, counts.corrupt
        status.oldest = counts.oldest_at
        status.held = _held_n(store)
    last = _last_words(store.run, context.clock.boot_id)
    # `idle`: it left because nothing was to do (LINGER_S)
    status.worker = "idle" if last and last.worker == "idle" else "down"
    status.clock = "ok" if context.config.clock == "none" or _is_trusted(store, now) else "untrusted"
    status.durable = "no" if _in_ram(_ground(store)) else "yes"
    merge(status, read_tallies(store.run))
    status.last_error = status.last_error or (last.last_error if last else "")
    guard = Guard(store.disk, store.root, store.run, context.config)
    full = ""
    try:
        full = guard.judge(status.ready + status.delayed + status.failed)
    except OSError:
        pass
    status.judge(full, counts is None, status.worker == "down" or guard.has_ballast())
    return status


def _held_n(store):
    """Waiting jobs of the types that a worker noted as held."""
    try:
        held = {name for name in posix.listdir(store.run + "/types") if (read_gate(store.run, name) or " ")[0] == "held"}
    except OSError:
        return 0
    return sum(entry.type in held for state in (INCOMING, FAILED) for entry in _entries(store, state)) if held else 0


def _last_words(run, boot_id):
    """The Status that the last worker of this boot left, None where none did."""
    try:
        last = parse_run_line(seam.read_text(run + "/status"))
        return last if last.boot_id == boot_id else None
    except (OSError, ValueError):
        return None


def _is_trusted(store, now):
    try:
        return store.is_trusted(now)
    except (OSError, EdgeqError):
        return False


def _ground(store):
    """The folder whose file system is told of: the store's, or the one it will be made in."""
    return store.root if store.disk.exists(store.root) else store.root.rpartition("/")[0]


def _in_ram(path):
    try:
        return find_mount(path)[2]
    except OSError:
        return True  # not there: nothing of it is on flash


def _free_kb(store, config):
    guard = Guard(store.disk, _ground(store), store.run, config)
    try:
        guard.measure()
    except OSError:
        return 0
    return guard.free_kb


def _collect(families, context, store, now, queue, values, status):
    """Add this queue's samples to `families`: {(name, kind, help): [sample line]}: a family's samples stand together."""
    def add(name, kind, help, value, labels=""):
        families.setdefault((name, kind, help), []).append('edgeq_%s{queue="%s"%s} %d' % (name, queue, labels, value))
    for key, name, kind, help in NUMBERS:
        add(name, kind, help, values[key])
    expired, superseded = store.gone()
    add("expired_total", "counter", "jobs that expired since the boot", expired)
    add("superseded_total", "counter", "jobs replaced by --latest since the boot", superseded)
    add("up", "gauge", "1: a worker is up", status.worker == "up")
    add("exit", "gauge", "exit code of edgeq status: 0 healthy, 1 degraded, 2 broken", status.exit)
    for type, row in sorted(survey(context, store, now).items()):
        for state in BY_TYPE:
            add("jobs", "gauge", "jobs by type and state", getattr(row, state), ',type="%s",state="%s"' % (type, state))


def _tell_prometheus(context, families):
    lines = []
    for (name, kind, help), samples in families.items():
        lines += ["# HELP edgeq_%s %s" % (name, help), "# TYPE edgeq_%s %s" % (name, kind)] + samples
    text = "\n".join(lines)
    if "output" in context.options:
        seam.write_run(context.options["output"], text.encode() + b"\n", 0o644)
    else:
        context.out(text)


# --- by type ------------------------------------------------------------------------------------------------


def survey(context, store, now, letters=None):
    """{type: TypeRow}. letters: {id: (type, last error)}, what is known of dead letters already; filled."""
    rows, due_failed, newest = {}, {}, {}
    is_trusted = _is_trusted(store, now)

    def row_of(type):
        return rows.setdefault(type, TypeRow())

    for entry in _entries(store, INCOMING):
        row, wait_s = row_of(entry.type), store.wait_s(entry, now) if entry.due else 0
        if wait_s is None or wait_s > 0:
            row.delayed += 1
            continue
        row.ready += 1
        age_s = max(int(now.wall - max(entry.seq / 1e6, entry.due)), 0) if is_trusted else -1
        row.oldest_s = max(row.oldest_s, age_s) if is_trusted else -1
        row.ages[sum(age_s >= limit for limit in AGES_S)] += 1
    for entry in _entries(store, PROCESSING):
        if not entry.settling:  # its handler has ended; it waits for the flush
            row_of(entry.type).running += 1
    for entry in _entries(store, FAILED):
        row = row_of(entry.type)
        row.failed += 1
        if not store.wait_s(entry, now):
            due_failed[entry.type] = due_failed.get(entry.type, 0) + 1
        error, at = _failure(store, entry.id)
        if error and at >= newest.get(entry.type, 0):
            newest[entry.type], row.last_error = at, error
    letters = {} if letters is None else letters
    for entry in _entries(store, DLQ):
        if entry.id not in letters:
            record = store.find(entry.id)[2]
            letters[entry.id] = (record.type, _text(record.raw.get("last_error", '""'))) if record else ("?", "")
        type, error = letters[entry.id]
        row_of(type).dead += 1
        row_of(type).last_error = row_of(type).last_error or error
    gate = Gate(context.config, store.pauses, lambda: 0, context.log)
    for type, row in rows.items():
        if is_word(type):
            _note_gate(gate, store, type, row, due_failed.get(type, 0), now)
    return rows


def _entries(store, state):
    try:
        yield from store.entries(state)
    except FileNotFoundError:
        return  # no spool yet


def _failure(store, id):
    """(last error, when it was noted) of a job that waits for its next try."""
    try:
        return store.last_error(id), posix.stat("%s/errors/%s" % (store.run, id)).st_mtime
    except OSError:
        return "", 0


def _note_gate(gate, store, type, row, due_failed_n, now):
    """What keeps the type from running stands where its last error would."""
    found = read_gate(store.run, type)
    why_not = gate.why_not(type, now)
    if found and not why_not:
        why_not = "%s: %s" % (found[0], found[2])
    if why_not:
        row.last_error = why_not
    if why_not.startswith(("held", "waits for ")):
        row.held, row.ready = row.ready + due_failed_n, 0


def read_gate(run, type):
    """(`held` or `offline`, until (boot clock), why) of a type that waits, as a worker noted it; None when it does not."""
    try:
        kind, until, why = seam.read_text("%s/types/%s" % (run, type)).rstrip("\n").split(" ", 2)
        return kind, int(until), why
    except (OSError, ValueError):
        return None


def _text(raw):
    """The text of a raw JSON string."""
    return _scanstring(raw, 1, True)[0] if raw[:1] == '"' else raw


def _table(context, store, now, paused):
    """One row a type, then the pauses, the cache, what went, the workers: at most 80 columns."""
    lines = ["%-16s %6s %5s %4s %6s %5s %5s %6s %s" % (
        "TYPE", "READY", "DELAY", "RUN", "FAILED", "HELD", "DEAD", "OLDEST", "LAST ERROR")]
    for type, row in sorted(survey(context, store, now).items()):
        lines.append("%-16s %6s %5s %4s %6s %5s %5s %6s %s" % (
            cut(type, 16), short(row.ready, 6), short(row.delayed, 5), short(row.running, 4), short(row.failed, 6),
            short(row.held, 5), short(row.dead, 5), age(row.oldest_s) if row.ready else "-", escape(row.last_error, 19)))
    for type, left in sorted(paused.items()):
        lines.append("paused: %s, %s" % (type or "everything", "%d s more" % left if left else "for ever"))
    tallies = read_tallies(store.run)
    hits, misses, evictions = (sum(getattr(tally, name) for tally in tallies.values()) for name in ("hits", "misses", "evictions"))
    lines.append("cache hits=%d misses=%d evictions=%d newer_format=%d" % (hits, misses, evictions, _newer_n(store, now)))
    lines.append("removed since the boot: expired=%d superseded=%d" % store.gone())
    lines += ["note: " + note for note in store.notes()]
    for (pid, _), tally in sorted(tallies.items()):
        lines.append("worker %d%s done=%d retries=%d dead=%d last_error=\"%s" % (
            pid, " (elected)" if tally.is_elected else "", tally.done_n, tally.retried_n, tally.buried_n, tally.last_error))
        lines[-1] = cut(lines[-1], COLUMNS - 1) + '"'
    return "\n".join(cut(line, COLUMNS) for line in lines)


def _newer_n(store, now):
    try:
        return store.counts(now).newer
    except (OSError, EdgeqError):
        return 0


def cut(text, width):
    """`text` in at most `width` columns; a `~` says that there was more."""
    return text if len(text) <= width else text[:width - 1] + "~"


def short(n, width):
    """A count in at most `width` columns."""
    for divisor, unit in ((1, ""), (1000, "k"), (1_000_000, "M"), (10 ** 9, "G")):
        text = "%d%s" % (n // divisor, unit)
        if len(text) <= width:
            return text
    return "*" * width


def age(seconds):
    """48s, 12m, 3h, 9d; ? when nobody knows."""
    if seconds < 0:
        return "?"
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return "%d%s" % (seconds // divisor, unit)
    return "%dd" % (seconds // 86400)
