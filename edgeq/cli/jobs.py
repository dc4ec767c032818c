"""`ls`, `show`, `why`: look at jobs, change nothing."""

from edgeq import disk as seam
from edgeq.clock import iso
from edgeq.errors import BadJob, NO, NotFound, OK
from edgeq.gate import Gate
from edgeq.job import CORRUPT, DLQ, DONE, FAILED, FOLDERS, INCOMING, PROCESSING, is_word
from edgeq.log import escape
from edgeq.record import quote

STATES = ("ready", "delayed", "running", "dead") + FOLDERS
OPTIONS = {"ls": {"type": "text"}, "show": {}, "why": {}}
HELP = {"ls": """
One line a job: ID TYPE STATE prio= tries= due=. Without STATE all that are not done.
STATE: %s
""" % " ".join(STATES)}


def run(context):
    return {"ls": _ls, "show": _show, "why": _why}[context.verb](context)


def _ls(context):
    if len(context.args) > 1:
        raise context.usage("one STATE at most")
    state = context.args[0] if context.args else ""
    if state and state not in STATES:
        raise context.usage("STATE '%s' is none of: %s" % (escape(state, 30), " ".join(STATES)))
    store, now, wanted = context.open_store(), context.clock.read(), context.options.get("type")
    found = False
    for type, line in _rows(store, now, state):
        if wanted is None or type == wanted:
            context.out(line)
            found = True
    return OK if found else NO


def _rows(store, now, state):
    """(type, line) of the jobs in `state`, "" for all that are not done."""
    folders = {"": (INCOMING, PROCESSING, FAILED, DLQ), "ready": (INCOMING, FAILED), "delayed": (INCOMING,), "running": (PROCESSING,),
               "dead": (DLQ,)}.get(state, (state,))
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
    wait_s = store._wait_s(entry, now)
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
    for name in sorted(store._names(CORRUPT)):
        if not name.endswith(".why"):
            try:
                why = seam.read_text(store.path(CORRUPT, name + ".why")).strip()
            except OSError:
                why = "no reason recorded"
            yield "", '%s corrupt why="%s"' % (escape(name), escape(why))


def _done_rows(store):
    for name in store.journal.segments():
        for line in store.journal.lines(name):
            yield line.type, "%s %s done at=%s tries=%d ms=%d result=%s" % (
                line.id, line.type, iso(line.done_at), line.attempts, line.ms, line.note)


def _text(raw):
    """The text of a raw JSON string."""
    from edgeq.record import _scanstring
    return _scanstring(raw, 1, True)[0] if raw[:1] == '"' else raw


def _one_id(context):
    if len(context.args) != 1:
        raise context.usage("one ID")
    if not is_word(context.args[0]):
        raise BadJob(context.verb, "id", "not 1 to 64 letters, digits, '_' or '-'")
    return context.args[0]


def _show(context):
    id = _one_id(context)
    store = context.open_store()
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
    store, now = context.open_store(), context.clock.read()
    where, entry, record, line = store.find(id)
    if where is None:
        raise NotFound("why", id, "no such job: never queued here, cancelled, or done longer ago than the journal remembers")
    context.out("%s: %s" % (id, _explanation(context, store, now, where, entry, record, line)))
    return OK


def _explanation(context, store, now, where, entry, record, line):
    if line is not None:
        return "done at %s on try %d after %d ms, result %s" % (iso(line.done_at), line.attempts, line.ms, line.note)
    if where == DLQ:
        if record is None:
            return "dead, and its letter cannot be read; edgeq check --repair sets it aside"
        return 'dead after %d tries, last error "%s"; edgeq kick %s puts it back' % (
            record.attempts or 0, escape(_text(record.raw.get("last_error", '"no reason recorded"'))), entry.id)
    last = store.last_error(entry.id)
    past = "%d of %s tries" % (entry.attempts, record.max_attempts if record and record.max_attempts else context.config.max_attempts)
    past += ', last error "%s"' % escape(last) if last else ""
    if where == PROCESSING:
        holder = store.leases.read(entry.token)
        if holder is None:
            return "claimed, %s, but nobody holds the lease; the worker reaps it" % past
        return "%s, %s, by worker %d since %d s, lease for %d s more" % (
            "settling" if entry.settling else "running", past, holder.pid, now.boot - holder.started_at,
            max(holder.leased_until - now.boot, 0))
    return "%s, %s, %s" % ("failed" if where == FAILED else "waiting", past, _next_step(context, store, now, entry))


def _next_step(context, store, now, entry):
    """When and why it runs next."""
    gate = Gate(context.config, store.pauses, lambda: 0, context.log)
    why_not = gate.why_not(entry.type, now)
    if why_not:
        return "does not run: " + why_not
    try:
        kind, until, why = seam.read_text("%s/types/%s" % (store.run, entry.type)).rstrip("\n").split(" ", 2)
        return 'its type is %s ("%s"), tried again in %d s' % (kind, escape(why), max(int(until) - now.boot, 0))
    except (OSError, ValueError):
        pass
    if entry.due:
        wait_s = store._wait_s(entry, now)
        if wait_s is None:
            return "waits for a clock that can be trusted"
        if wait_s > 0:
            return "next try in %d s" % (wait_s + 1)
    return "ready"


