"""`ls`, `show`, `why`: look at jobs, change nothing."""

from edgeq.cli.status import _text, read_gate, read_status
from edgeq.clock import iso
from edgeq.config import load_type
from edgeq.errors import BadJob, BadUsage, NO, NotFound, OK
from edgeq.gate import Gate
from edgeq.job import CORRUPT, DLQ, DONE, FAILED, FOLDERS, INCOMING, PROCESSING, is_word
from edgeq.lease import is_alive
from edgeq.log import escape
from edgeq.record import quote

STATES = ("ready", "delayed", "running", "dead") + FOLDERS
OPTIONS = {"ls": {"type": "text"}, "show": {}, "why": {}}
HELP = {
    "ls": """
One line a job: ID TYPE STATE prio= tries= due=. Without STATE all that are not
done. Exit 1: there is none.
STATE: %s

  edgeq ls
  edgeq ls dead --type send_webhook
  edgeq ls done | tail
""" % (" ".join(STATES)),
    "show": """
The record of a job as it lies on disk, or its line in the journal. Exit 1: no
such job.

  edgeq show job-20260720-001
""",
    "why": """
One line: where a job is, its tries, what happened last, what is in its way now,
and when it runs next. Exit 1: no such job.

  edgeq why job-20260720-001
""",
}


def run(context):
    return {"ls": _ls, "show": _show, "why": _why}[context.verb](context)


def _ls(context):
    if len(context.args) > 1:
        raise context.usage("one STATE at most")
    state = context.args[0] if context.args else ""
    if state and state not in STATES:
        raise context.usage("STATE '%s' is none of: %s" % (escape(state, 30), " ".join(STATES)))
    store, now, wanted = context.open_existing(), context.clock.read(), context.options.get("type")
    found = False
    for type, line in _rows(store, now, state):
        if wanted is None or type == wanted:
            context.out(line)
            found = True
    return OK if found else NO


def _rows(store, now, state):
    """(type, line) of the jobs in `state`, "" for all that are not done."""
    folders = {"": (INCOMING, PROCESSING, FAILED, DLQ), "ready": (INCOMING, FAILED), "delayed": (INCOMING,),
               "running": (PROCESSING,), "dead": (DLQ,)}.get(state, (state,))
    for folder in folders:
        if folder == CORRUPT:
            yield from _corrupt_rows(store)
        elif folder == DONE:
            yield from _done_rows(store)
        elif folder == DLQ:
            yield from _dead_rows(store)
        else:
            for entry in sorted(store.entries(folder), key=lambda entry: (entry.priority, max(entry.seq, entry.due * 1_000_000))):
                word = _state_word(store, entry, now)
                if state in ("ready", "delayed") and word not in (state,):
                    continue
                due = iso(entry.due) if entry.due else "now"
                yield entry.type, "%s %s %s prio=%d tries=%d%s due=%s" % (
                    entry.id, entry.type, word, entry.priority, entry.attempts, "r" if entry.again else "", due)


def _state_word(store, entry, now):
    if entry.state == PROCESSING:
        return "settling" if entry.settling else "running"
    if not entry.due:
        return "ready"
    wait_s = store.wait_s(entry, now)
    if wait_s is not None and wait_s <= 0:
        return "ready"
    return "failed" if entry.state == FAILED else "delayed"


def _dead_rows(store):
    for entry in store.entries(DLQ):
        record = store.find(entry.id)[2]
        if record is None:
            yield "?", "%s ? dead unreadable" % entry.id
        else:
            error = _text(record.raw.get("last_error", '"no reason recorded"'))
            yield record.type, '%s %s dead tries=%d last_error="%s"' % (
                entry.id, record.type, record.attempts or 0, escape(error))


def _corrupt_rows(store):
    for name, why in store.corrupt():
        yield "", '%s corrupt why="%s"' % (escape(name), escape(why))


def _done_rows(store):
    for line in store.done_lines():
        yield line.type, "%s %s done at=%s tries=%d ms=%d result=%s" % (
            line.id, line.type, iso(line.done_at), line.attempts, line.ms, line.note)


def _one_id(context):
    if len(context.args) != 1:
        raise context.usage("one ID")
    if not is_word(context.args[0]):
        raise BadUsage(context.verb, "id", "not 1 to 64 letters, digits, '_' or '-'")
    return context.args[0]


def _show(context):
    id = _one_id(context)
    store = context.open_existing()
    where, _, record, line = store.find(id)
    if where is None:
        raise NotFound("show", id, "no such job", "see 'edgeq ls'")
    if line is not None:
        context.out(line.encode().decode().rstrip("\n"))
    elif record is None:
        raise BadJob("show", id, "its file in %s/ cannot be read" % where, "see 'edgeq check --repair'")
    else:
        context.out("{%s}" % ",".join("%s:%s" % (quote(key), value) for key, value in record.raw.items()))
    return OK


def _why(context):
    id = _one_id(context)
    store, now = context.open_existing(), context.clock.read()
    where, entry, record, line = store.find(id)
    if where is None:
        raise NotFound("why", id, "no such job: never queued here, cancelled, expired, or done longer ago than is remembered")
    context.out("%s: %s" % (id, _explanation(context, store, now, where, entry, record, line)))
    return OK


def _explanation(context, store, now, where, entry, record, line):
    if line is not None:
        return "done at %s on try %d after %d ms, result %s" % (iso(line.done_at), line.attempts, line.ms, line.note)
    if record is None:
        return "in %s/, but its file cannot be read: the worker sets it aside" % where
    if where == DLQ:
        return 'dead after %d %s, last error "%s"; edgeq kick %s puts it back' % (
            record.attempts or 0, "try" if record.attempts == 1 else "tries",
            escape(_text(record.raw.get("last_error", '"no reason recorded"'))), entry.id)
    last = store.last_error(entry.id)
    limit = record.max_attempts or load_type(context.config, entry.type).max_attempts
    past = ', last error "%s"' % escape(last) if last else ""
    if where == PROCESSING:
        return _who_runs_it(store, now, entry, limit) + past
    return "%s, %d of %d tries%s; %s" % (
        "failed" if where == FAILED else "waiting", entry.attempts, limit, past, _next_step(context, store, now, entry, record))


def _who_runs_it(store, now, entry, limit):
    if entry.settling:
        return "ran (try %d of %d) and is being recorded: safe with the next flush" % (entry.attempts, limit)
    holder = store.holder(entry)
    if holder is None or not is_alive(holder.pid, holder.start):
        return "claimed (try %d of %d) by a worker that is gone: the next worker puts it back" % (entry.attempts, limit)
    ran_s = max(now.boot - holder.started_at, 0)
    return "running, try %d of %d, since %s (%d s), worker %d, lease for %d s more" % (
        entry.attempts, limit, iso(now.wall - ran_s), ran_s, holder.pid, max(holder.leased_until - now.boot, 0))


def _next_step(context, store, now, entry, record):
    """When and why it runs next: the first thing that is in its way."""
    wait_s = store.wait_s(entry, now) if entry.due else 0
    if wait_s is None:
        return "waits until the clock can be trusted: it is to run at %s" % iso(entry.due)
    if wait_s > 0:
        return "%s in %d s, at %s" % ("backs off: next try" if entry.state == FAILED else "runs", -int(-wait_s // 1),
                                      iso(now.wall + wait_s))
    for left, what, verb in ((store.pauses.ends_in(entry.type, now), "type %s is" % entry.type, "resume " + entry.type),
                             (store.pauses.ends_in("", now), "everything is", "resume")):
        if left is not None:
            return "%s paused %s: edgeq %s ends it" % (
                what, "for %d s more, until %s" % (left, iso(now.wall + left)) if left else "for ever", verb)
    gate = Gate(context.config, store.pauses, lambda: 0, context.log)
    why_not = gate.why_not(entry.type, now)
    if why_not.startswith("waits for "):
        return "%s: runs when %s/cond/%s is there" % (why_not, context.config.run_dir, why_not[len("waits for "):])
    return why_not or _closed_gate(context, store, now, entry) or _ready(context, store, now, entry, record)


def _closed_gate(context, store, now, entry):
    """Held or offline, as the worker noted it; "" when not."""
    found = read_gate(store.run, entry.type)
    if not found:
        return ""
    kind, until, why = found
    todo = "install %s/%s, or " % (context.config.handlers, entry.type) if kind == "held" else ""
    return "%s: %s; tried again in %d s, or now: %sedgeq resume %s" % (
        kind, escape(why), max(until - now.boot, 0), todo, entry.type)


def _ready(context, store, now, entry, record):
    status = read_status(context, store, now)
    if status.worker in ("down", "stalled"):
        return "ready, but the worker is %s: /etc/init.d/S85edgeq %s" % (
            status.worker, "start" if status.worker == "down" else "restart")
    if status.reason == "store":
        return "ready, but the worker cannot use the spool: %s: see edgeq check" % (status.last_error or "see the log")
    running = [other for other in store.entries(PROCESSING) if not other.settling]
    if record.key and any(_has_key(store, other, record.key) for other in running):
        return "ready, but a job with its key %s runs: one at a time" % record.key
    limit = load_type(context.config, entry.type).concurrency
    if limit and sum(other.type == entry.type for other in running) >= limit:
        return "ready, but %d of its type run already (CONCURRENCY in %s.conf)" % (limit, entry.type)
    place = sum(_order(other) < _order(entry) for state in (INCOMING, FAILED) for other in store.entries(state)
                if not other.due or store.wait_s(other, now) == 0)
    full = "; the disk is full: edgeq check" if status.reason in ("full", "ballast") else ""
    return "ready, %d before it, %d running%s" % (place, len(running), full)


def _has_key(store, entry, key):
    record = store.find(entry.id)[2]
    return record is not None and record.key == key


def _order(entry):
    return entry.priority, max(entry.seq, entry.due * 1_000_000), entry.name
