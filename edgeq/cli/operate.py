"""What an operator does to jobs and queues: kick, purge, pause, resume, wait."""

from select import poll

from edgeq import disk as seam
from edgeq.errors import BadJob, BadUsage, Busy, Duplicate, NO, NotFound, OK, TRY_LATER
from edgeq.job import CORRUPT, DLQ, DONE, FAILED, INCOMING, PROCESSING, is_word
from edgeq.log import say
from edgeq.store.arrivals import poke
from edgeq.store.pauses import DEFAULT_FOR_S, PAUSE_LIMIT_S

OPTIONS = {"kick": {"all": "flag", "type": "text"}, "purge": {"force": "flag"},
           "pause": {"for": "text"}, "resume": {}, "wait": {"timeout": "whole"}}
HELP = {
    "kick": """
Dead letters become waiting jobs again: tries restart, EDGEQ_REDELIVERED is set.
Prints the ids. Exit 1: there were none.

  --all            all of them; --type T: of this type only

  edgeq kick job-20260720-001
  edgeq kick --all --type send_webhook
""",
    "purge": """
Empty dlq, corrupt or done (the memory of processed ids); incoming and failed
with --force. 'all --force' is a factory reset of the queue's jobs: waiting ones
first, the journal last, so that a power cut at any point leaves whole jobs and
no id that runs twice. Refused (75) while something runs.

  edgeq purge dlq
  edgeq drain && edgeq purge all --force && edgeq resume
""",
    "pause": """
Start nothing, or no job of TYPE. A pause ends by itself after --for SECONDS
(3600), never with --for ever. It survives a reboot. Jobs may be queued; what
runs goes on.

  edgeq pause
  edgeq pause send_webhook --for 600
""",
    "resume": """
End the pause of everything, or of TYPE; let held and offline types try again
at once. Exit 1: nothing was paused or held.

  edgeq resume
  edgeq resume send_webhook
""",
    "wait": """
Exit 0: all are done. 1: one is dead, cancelled or unknown. 75: --timeout is
over.

  edgeq wait --timeout 60 "$(edgeq enqueue archive_log '"/var/log/messages"')"
""",
}
LOOK_MS = 200  # how often `wait` looks
PURGEABLE, FORCED = (DLQ, CORRUPT, DONE), (INCOMING, FAILED)


def run(context):
    return {"kick": _kick, "purge": _purge, "pause": _pause, "resume": _resume, "wait": _wait}[context.verb](context)


def _kick(context):
    store = context.open_store()
    if context.options.get("all"):
        if context.args:
            raise context.usage("--all takes no ID")
        ids = [entry.id for entry in store.entries(DLQ)]
    else:
        if not context.args or "type" in context.options:
            raise context.usage("ID... or --all [--type T]")
        ids = _ids(context, context.args)
    store.make_folders()
    code, kicked = OK, 0
    for id in ids:
        if "type" in context.options:
            record = store.find(id)[2]
            if record is None or record.type != context.options["type"]:
                continue
        try:
            store.kick(id, context.clock.read())
            context.out(id)
            kicked += 1
        except (NotFound, Duplicate, BadJob) as error:
            say(2, "edgeq: %s\n" % error)
            code = max(code, error.exit_code)
    return code if code or kicked else NO


def _purge(context):
    states = context.args
    if len(states) != 1 or states[0] not in PURGEABLE + FORCED + ("all",):
        raise context.usage("STATE is one of: %s all" % " ".join(PURGEABLE + FORCED))
    chosen = PURGEABLE + FORCED if states[0] == "all" else (states[0],)
    if not context.options.get("force") and (states[0] == "all" or states[0] in FORCED):
        raise context.usage("%s holds jobs that were accepted: add --force" % states[0])
    store = context.open_store()
    store.make_folders()
    if PROCESSING and states[0] == "all" and any(store.entries(PROCESSING)):
        raise Busy("purge", "all", "jobs are running", "'edgeq drain' first")
    for name in _listed(store.run + "/errors") if states[0] == "all" else ():
        seam.forget("%s/errors/%s" % (store.run, name))
    context.out("purged %d" % store.purge([state for state in (INCOMING, FAILED, DLQ, CORRUPT, DONE) if state in chosen],
                                          context.clock.read()))
    return OK


def _pause(context):
    type = _type(context)
    length = context.options.get("for", str(DEFAULT_FOR_S))
    if length != "ever" and not (length.isascii() and length.isdigit() and len(length) <= 12 and 1 <= int(length) <= PAUSE_LIMIT_S):
        raise context.usage("--for: 1 to %d seconds, or ever" % PAUSE_LIMIT_S)
    store = context.open_store()
    store.make_folders()
    store.pauses.set(type, 0 if length == "ever" else int(length), context.clock.read())
    poke(store.run, "5")
    return OK


def _resume(context):
    """End the pause, and let a held or offline type try at once."""
    type = _type(context)
    store = context.open_store()
    was_waiting = False
    for name in [type] if type else _listed(store.run + "/types"):
        was_waiting = store.disk.exists("%s/types/%s" % (store.run, name)) or was_waiting
        seam.forget("%s/types/%s" % (store.run, name))
    try:
        store.pauses.clear(type)
    except NotFound:
        if not was_waiting:
            raise
    poke(store.run, "0")
    return OK


def _listed(folder):
    import posix
    try:
        return posix.listdir(folder)
    except FileNotFoundError:
        return []


def _type(context):
    if len(context.args) > 1:
        raise context.usage("one TYPE at most")
    if context.args and not is_word(context.args[0]):
        raise BadUsage(context.verb, "type", "not 1 to 64 letters, digits, '_' or '-'")
    return context.args[0] if context.args else ""


def _ids(context, args):
    for id in args:
        if not is_word(id):
            raise BadUsage(context.verb, "id", "not 1 to 64 letters, digits, '_' or '-'")
    return args


def _wait(context):
    if not context.args:
        raise context.usage("ID...")
    left = list(_ids(context, context.args))
    store = context.open_existing()
    ends_at = _ends_at(context)
    while True:
        for id in list(left):
            where = store.find(id)[0]
            if where == DONE:
                left.remove(id)
            elif where in (None, DLQ):
                raise NotFound("wait", id, "is dead" if where else "unknown or cancelled", "see 'edgeq why %s'" % id)
        if not left:
            return OK
        if context.clock.read().boot >= ends_at:
            return TRY_LATER
        poll().poll(LOOK_MS)


def _ends_at(context):
    timeout = context.options.get("timeout")
    return float("inf") if timeout is None else context.clock.read().boot + timeout
