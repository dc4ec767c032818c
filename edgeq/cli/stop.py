"""`cancel` and `drain`: the two verbs that wait for something to end.

`cancel --running` puts the claim's token into `R/cancel/` and pokes the workers: the one that holds the claim ends the
handler (TERM, GRACE_S, KILL), removes the job, and then the token's file. A claim whose worker is dead is taken over, as
a reaper would.

`drain` is the interlock of an update (docs/ota.md): a pause of this boot, then waiting until no handler runs and
nothing waits for its flush. Nothing starts after it has returned 0: a worker looks at the pause after its claim, too.
"""

import posix
from select import poll

from edgeq import disk as seam
from edgeq.errors import BadUsage, Busy, NotFound, OK, TRY_LATER
from edgeq.job import DONE, PROCESSING, is_word
from edgeq.log import say
from edgeq.reap import end_survivors, has_survivors
from edgeq.store.arrivals import poke
from edgeq.store.pauses import DEFAULT_FOR_S

OPTIONS = {"cancel": {"running": "flag", "timeout": "whole"}, "drain": {"timeout": "whole"}}
HELP = {
    "cancel": """
Remove a job for good, wherever it waits, or its dead letter. Exit 0: gone, and
a power cut does not bring it back. 1: no such job, or done already. 75: it
runs.

  --running          if it runs, end it: TERM to its group, KILL after GRACE_S
  --timeout SECONDS  how long to wait for that (GRACE_S + 30); 75: still running

  edgeq cancel job-20260720-001
  edgeq cancel --running job-20260720-001
""",
    "drain": """
Pause everything for 1 h and wait until nothing runs. Exit 0: idle, all that was
done is on flash, and nothing starts until 'edgeq resume', a reboot, or the hour
is over. 75: still busy after --timeout (the pause stays). Jobs may be queued.

  edgeq drain --timeout 300 && install-update || edgeq resume
""",
}
LOOK_MS = 100  # how often these two look: both are rare, and end by themselves
SETTLE_S = 30  # how long a cancelled job may take to be gone after its grace


def run(context):
    return {"cancel": _cancel, "drain": _drain}[context.verb](context)


# --- cancel -------------------------------------------------------------------------------------------------


def _cancel(context):
    if len(context.args) != 1:
        raise context.usage("one ID")
    id = context.args[0]
    if not is_word(id):
        raise BadUsage("cancel", "id", "not 1 to 64 letters, digits, '_' or '-'")
    store = context.open_store()
    store.make_folders()
    if not context.options.get("running"):
        store.cancel(id, context.clock.read())
        return OK
    return _cancel_anyway(context, store, id)


def _cancel_anyway(context, store, id):
    ends_at = context.clock.read().boot + context.options.get("timeout", context.config.grace_s + SETTLE_S)
    token = ""
    while True:
        now = context.clock.read()
        if token and not _exists(_note(store, token)) and store.find(id)[0] in (None, DONE):
            where = store.find(id)[0]
            if where == DONE:
                raise NotFound("cancel", id, "was done before it could be stopped", "see 'edgeq why %s'" % id)
            return OK  # the worker removed the note after the job, flushed
        try:
            store.cancel(id, now)
            return OK
        except Busy:
            if _end_orphan(store, id, now):
                return OK
            token = _ask(store, id) or token
        except NotFound:
            if not token or not _exists(_note(store, token)):
                raise
        if now.boot >= ends_at:
            seam.forget(_note(store, token))
            raise Busy("cancel", id, "still runs", "repeat, or see 'edgeq why %s'" % id)
        poll().poll(LOOK_MS)


def _end_orphan(store, id, now):
    """A claim of `id` that nobody rightly holds is ours to end, as a reaper would; True when that removed the job."""
    for entry, holder in store.stale(now):
        if entry.id == id:
            end_survivors(holder, "%s/ctl/%s" % (store.run, entry.token))
            lease = store.take_over(entry, holder, now, 60)
            if lease:
                store.drop(lease, "cancelled", now)
                return True
    return False


def _ask(store, id):
    """Tell the worker that runs `id`: the claim's token, "" when it moved on."""
    for entry in store.entries(PROCESSING):
        if entry.id == id and not entry.settling:
            if not _exists(_note(store, entry.token)):
                seam.create_run(_note(store, entry.token), b"")
            poke(store.run, "0", True)
            return entry.token
    return ""


def _note(store, token):
    return "%s/cancel/%s" % (store.run, token)


def _exists(path):
    try:
        posix.lstat(path)
    except FileNotFoundError:
        return False
    return True


# --- drain --------------------------------------------------------------------------------------------------


def _drain(context):
    if context.args:
        raise context.usage("takes no arguments")
    store, now = context.open_store(), context.clock.read()
    store.make_folders()
    left = store.pauses.ends_in("", now)
    if left is None or 0 < left < DEFAULT_FOR_S:  # a longer pause of somebody else's stays what it is
        store.pauses.set("", DEFAULT_FOR_S, now, this_boot=True)
    timeout = context.options.get("timeout")
    while True:
        poke(store.run, "5", True)
        busy = _busy(store, context.clock.read())
        if not busy and not _busy(store, context.clock.read()):  # RACE: a listing can miss a name that is renamed
            return OK
        spent_s = context.clock.read().boot - now.boot
        if timeout is not None and spent_s >= timeout:
            say(2, "edgeq: drain: still busy after %d s: %s: repeat, or 'edgeq cancel --running'\n" % (
                spent_s, ", ".join(busy[:3]) + (" ..." if len(busy) > 3 else "")))
            return TRY_LATER
        poll().poll(LOOK_MS)


def _busy(store, now):
    """Ids of the claims that somebody works on: a live worker, or the handler that a dead one left."""
    stale = {entry.token for entry, _ in store.stale(now)}
    return [entry.id for entry in store.entries(PROCESSING)
            if entry.token not in stale or has_survivors("%s/ctl/%s" % (store.run, entry.token))]
