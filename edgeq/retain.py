"""What goes, and when: bounds on done, dlq and corrupt, half-written leftovers, and what dead workers left in /run.

One bounded pass per safety scan of the elected worker; the store knows what it keeps (`Store.prune`).
"""

import posix

from edgeq import disk
from edgeq.lease import is_alive


def retain(store, now, log):
    """One pass; how many files went from the store."""
    gone = store.prune(now)
    if gone:
        log.info("pruned", files=gone)
    return gone


def sweep_run(run, claimed):
    """Remove wake-up FIFOs, worker notes, orphan leases and ctl files of processes that are gone. RAM only.

    claimed: tokens that stand in processing/; their leases say which handler to end, so the reaper needs them.
    """
    for folder in ("wake", "workers"):
        path = "%s/%s" % (run, folder)
        for name in posix.listdir(path):
            pid, _, start = name.partition(".")[0].partition("-")
            if not (pid.isdigit() and start.isdigit() and is_alive(int(pid), int(start))):
                disk.forget("%s/%s" % (path, name))
    for folder in ("leases", "ctl", "cancel"):
        path = "%s/%s" % (run, folder)
        for token in posix.listdir(path):
            parts = token.rstrip("~").split("-")
            if len(parts) == 4 and parts[1].isdigit() and parts[2].isdigit() and is_alive(int(parts[1]), int(parts[2])):
                continue  # an orphan goes only when its owner is dead
            if token not in claimed:
                disk.forget("%s/%s" % (path, token))
