"""The operator's verbs on rows: kick, cancel, purge. Each is durable when it returns."""

from edgeq.errors import BadJob, Busy, Duplicate, NotFound
from edgeq.job import CORRUPT, DLQ, DONE, INCOMING, PROCESSING
from edgeq.store import bounds
from edgeq.store.arrivals import poke
from edgeq.store.tables.done import drop_lines, is_done
from edgeq.store.tables.dropbox import take_in
from edgeq.store.tables.jobs import find_row, read_row
from edgeq.store.tables.rows import BY_ID


def kick(store, id, now):
    """A dead letter becomes a waiting job: tries restart, redelivered is set."""
    with store.db.write(True):
        row = find_row(store, id)
        if row is None:
            if is_done(store, id):
                raise Duplicate("kick", id, "is done already")
            raise NotFound("kick", id, "no such dead letter", "see 'edgeq ls dlq'")
        if row[0] != DLQ:
            raise Duplicate("kick", id, "has a job in %s/" % row[0], "wait until it ends")
        try:
            read_row(store, row)
        except BadJob as error:
            raise BadJob("kick", id, error.why, "see 'edgeq check --repair'") from None
        store.db.change("UPDATE jobs SET status='incoming', seq=?, available_at=0, is_at=0, attempts=0, again=1, updated_at=?"
                        + BY_ID, (store.seq.issue(now), int(now.wall), store.queue, id))
    store.forget_error(id)
    poke(store.run, str(row[1]))


def cancel(store, id, now):
    """Remove a job that does not run. The name of the state it was in."""
    take_in(store, now)
    # CRASH: a file whose row goes for ever must not come back
    store.flush_folder(INCOMING)
    with store.db.write(True):
        row = store.db.one("SELECT status FROM jobs" + BY_ID, (store.queue, id))
        if row is None:
            raise NotFound("cancel", id, "is done already" if is_done(store, id) else "no such job", "see 'edgeq ls'")
        if row[0] == PROCESSING:
            raise Busy("cancel", id, "is running", "wait, or use --running")
        store.db.change("DELETE FROM jobs" + BY_ID, (store.queue, id))
    store.forget_error(id)
    return row[0]


def purge(store, states, now):
    """Empty whole states; how many jobs, completions and files went."""
    gone = 0
    take_in(store, now)
    store.flush_folder(INCOMING)
    with store.db.write(True):
        for state in states:
            if state == DONE:
                gone += drop_lines(store)
            elif state != CORRUPT:
                gone += store.db.change("DELETE FROM jobs WHERE queue=? AND status=?", (store.queue, state))
    if CORRUPT in states:
        gone += bounds.purge_folder(store, CORRUPT) + len([store.db.drop_copy(name) for name in store.db.bad_copies()])
    return gone
