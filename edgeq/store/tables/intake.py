"""The front door of the SQLite store: jobs that come in together are one transaction, all of them or none.

What a shell producer dropped into incoming/ comes in by dropbox.py.
"""

import posix

from edgeq.errors import EdgeqError, StoreDown
from edgeq.job import INCOMING
from edgeq.store.base import ALREADY_QUEUED, QUEUED, Receipt
from edgeq.store.arrivals import poke
from edgeq.store.tables.dropbox import take_in
from edgeq.store.tables.jobs import insert, standing
from edgeq.store.tables.keys import waiting
from edgeq.store.tables.rows import BY_ID, LATEST


def enqueue_many(store, jobs, now, is_safe=True):
    """[Receipt]."""
    if any(job.id is not None or job.key is not None for job in jobs):
        take_in(store, now)  # the id, or the key, may stand in a dropped file
    given, superseded = [job.id for job in jobs], []
    try:
        with store.db.write(False):
            words = [standing(store, job.id) or _add(store, job, now, superseded) for job in jobs]
        if is_safe or superseded or set(words) != {QUEUED}:  # what is called queued may be another's unflushed row
            store._sync()
    except (OSError, EdgeqError) as error:
        what = jobs[0].id if len(jobs) == 1 else "batch of %d" % len(jobs)
        for job, id in zip(jobs, given):
            job.id = id
        if not store.is_broken or isinstance(error, EdgeqError):
            raise
        raise StoreDown("enqueue", what, "cannot flush: %s; it may still run" % error.strerror,
                        "repeat with the same --id %s" % what) from None
    for entry, id in superseded:
        store.tell_superseded(entry.id, entry.type, id)
    _wake(store, {job.priority for job, word in zip(jobs, words) if word == QUEUED})
    return [Receipt(job.id, word) for job, word in zip(jobs, words)]


def _add(store, job, now, superseded):
    """A new row, or the waiting job with its key. superseded: gets (Entry, by which id) of those whose place it took."""
    old = [] if job.key is None else waiting(store, job.key)
    if old and not job.latest:
        job.id = old[0].id
        return ALREADY_QUEUED
    entry = store.new_entry(job, now)
    insert(store, entry, job, job.payload, entry.seq // 1_000_000, LATEST if job.latest else None, "", int(now.wall))
    for other in old:
        store.db.change("DELETE FROM jobs" + BY_ID, (store.queue, other.id))
        superseded.append((other, job.id))
    return QUEUED


def _wake(store, digits):
    if store.config.linger_s:
        # RACE: a worker that just left is started again when incoming/ changed since its last look (Worker._write_next_due)
        posix.utime(store.path(INCOMING))
    for digit in sorted(digits):
        poke(store.run, str(digit))
