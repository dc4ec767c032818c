"""Claims that nobody rightly holds go back to failed/, or to dlq/ when their tries are spent (P5).

A dead owner's handler is ended *before* the take-over: should we die in between, the next reaper finds the same old token
and does it again. A late owner lives and would take our kill for the job's own crash: there the claim is taken first,
with the old handler's identity in our own lease, and then the handler is ended, before the job can run again.
"""

from edgeq.lease import is_alive


def reap(store, now, lease_s, end_survivors, decide, log):
    """[(Lease, Verdict)] of the claims taken over, for the caller to settle.

    end_survivors(holder, token): kill what is left of that claim's handler, identity checked.
    decide(lease) -> Verdict.
    """
    taken = []
    for entry, holder in store.stale(now):
        is_late = holder is not None and is_alive(holder.pid, holder.start)
        if not is_late:
            end_survivors(holder, entry.token)
        lease = store.take_over(entry, holder, now, lease_s)
        if lease is None:
            continue
        if is_late:
            end_survivors(holder, entry.token)
        log.warning("reaped", id=entry.id, type=entry.type, attempt=entry.attempts,
                    because="late" if is_late else "worker died")
        taken.append((lease, decide(lease)))
    return taken
