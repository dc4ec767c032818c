"""A claim's end: by token, in one transaction each (P5)."""

from edgeq.errors import LeaseLost, NO_ROOM
from edgeq.job import DLQ, DONE, FAILED, INCOMING
from edgeq.store.journal import ReadLine, escape_note
from edgeq.store.tables.done import add_line, done_count, is_done
from edgeq.store.tables.keys import successor
from edgeq.store.tables.rows import HELD


def ack(store, lease, now, note="", ms=0):
    """Done: the row becomes a completion; safe at the next flush."""
    entry = lease.entry
    line = ReadLine(entry.id, 0, entry.seq, int(store.seq.seconds(now)), entry.attempts, entry.type,
                    ms, escape_note(note))

    def finish():
        _remove(store, lease)
        if not is_done(store, entry.id):
            add_line(store, line, done_count(store) + 1)
    _settle(store, finish)
    store._forget(lease)
    store._forget_errors_of(entry)
    store.batch.add_move(DONE, now)


def retry(store, lease, wait_s, why, now):
    """Another try after `wait_s`. Not for one whose place a newer job took."""
    newer = lease.record.key and successor(store, lease.entry, lease.record.key)
    if newer:
        store.drop(lease, "superseded", now)
        store.tell_superseded(lease.entry.id, lease.entry.type, newer)
        return
    waiting = store._retried(lease.entry, wait_s, now)
    _put(store, lease, waiting, now, why)
    store.view.add_wait(waiting.name, now.boot + wait_s)
    store.batch.add_move(FAILED, now)


def bury(store, lease, why, now, attempts=None):
    """Dead letter, after `attempts` tries (default: those charged). Durable when it returns."""
    attempts = lease.entry.attempts if attempts is None else attempts
    _put(store, lease, lease.entry.moved(DLQ, due=0, is_at=False, attempts=attempts), now, why, is_safe=True)
    store.forget_error(lease.entry.id)


def hold(store, lease, why, ran, now):
    """Back as it was, nothing charged. ran: the handler had started (exit 69)."""
    _put(store, lease, store._held(lease, ran), now, why)


def give_back(store, lease, why, now):
    """Back because the worker stops."""
    _put(store, lease, store._given_back(lease.entry), now, why)
    store.batch.add_move(INCOMING, now)


def drop(store, lease, why, now):
    """Gone by a person's wish; durable when it returns."""
    store._usable()
    store.flush_folder(INCOMING)  # a dropped file must not bring it back
    _settle(store, lambda: _remove(store, lease), lease)
    store._forget(lease)
    store.forget_error(lease.entry.id)


def _put(store, lease, target, now, why, is_safe=False):
    """Our claim becomes `target`, or LeaseLost."""
    def move():
        _holding(store, lease, store.db.change(
            "UPDATE jobs SET status=?, seq=?, available_at=?, is_at=?, attempts=?, again=?, worker_id='', leased_until=NULL,"
            " last_error=CASE ? WHEN '' THEN last_error ELSE ? END, updated_at=?" + HELD,
            (target.state, target.seq, target.due, target.is_at, target.attempts, target.again, why, why,
             int(store.seq.seconds(now)), store.queue, target.id, lease.token)))
    _settle(store, move, lease if is_safe else None)
    if why:
        store._save_error(target.id, why)
    store._forget(lease)


def _remove(store, lease):
    _holding(store, lease, store.db.change("DELETE FROM jobs" + HELD, (store.queue, lease.entry.id, lease.token)))


def _holding(store, lease, hits_n):
    """LeaseLost when the change hit no row of ours: roll back, forget (P5)."""
    if not hits_n:
        store._forget(lease)
        raise LeaseLost("settle", lease.entry.id, "the claim is somebody else's now")


def _settle(store, change, safe_lease=None):
    """Run `change` in a transaction; on a full disk again with the log copied back, then with the ballast (P7).

    safe_lease: and flush it. A flush that failed may be repeated with the same lease: the row has moved already.
    """
    store._usable()
    if not (safe_lease and safe_lease.is_moved):
        rooms = [store.on_full] * bool(store.on_full) + [store._copy_log]
        while True:
            try:
                with store.db.write(False):
                    change()
                break
            except OSError as error:
                if error.errno not in NO_ROOM or not rooms:
                    raise
                rooms.pop()()
    if safe_lease:
        safe_lease.is_moved = True
        store._sync()
