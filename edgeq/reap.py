"""Claims that nobody rightly holds go back to failed/, or to dlq/ when their tries are spent (P5).

A dead owner's handler is ended *before* the take-over: should we die in between, the next reaper finds the same old token
and does it again. A late owner lives and would take our kill for the job's own crash: there the claim is taken first,
with the old handler's identity in our own lease, and then the handler is ended, before the job can run again.
"""

import posix
from _signal import SIGKILL
from posix import O_CLOEXEC, O_RDONLY
from time import sleep

from edgeq.lease import is_alive, start_time

CHUNK_BYTES, ENVIRON_BYTES = 16_384, 262_144
GONE_WAIT_S, GONE_ROUNDS = 0.01, 200  # two seconds for killed processes to be gone


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


def end_survivors(holder, ctl_path):
    """Kill what a dead or late worker's handler left, wait until it is gone (at most two seconds): how many there were.

    holder: the lease's Holder, or None. Its group is killed only while the leader is that very process; besides, every
    process whose environment names `ctl_path`: that finds a handler spawned just before its worker died, a
    group without its leader, and who changed session. Never ourselves, our parent (the guard) or pid 1.
    """
    spared = (1, posix.getpid(), posix.getppid())
    mark = b"\0EDGEQ_CTL=%s\0" % ctl_path.encode("utf-8", "surrogateescape")
    killed = set()
    for _ in range(GONE_ROUNDS):
        found = [process for process in _marked(mark) if process[0] not in spared]
        if holder and holder.group not in spared and is_alive(holder.group, holder.group_start):
            found.append((holder.group, holder.group_start))
            _kill_quietly(-holder.group)
        for pid, _ in found:
            _kill_quietly(pid)
        killed.update(found)
        if not found:
            break
        # RACE: a process may have forked while we looked: done when a look finds nobody, not when those found are gone.
        sleep(GONE_WAIT_S)
    return len(killed)


def has_survivors(ctl_path):
    """True while a process lives that the claim's handler started."""
    return any(_marked(b"\0EDGEQ_CTL=%s\0" % ctl_path.encode("utf-8", "surrogateescape")))


def _marked(mark):
    """(pid, start time) of the processes whose environment holds `mark`."""
    for name in posix.listdir("/proc"):
        if name.isdigit() and mark in _environ_of(name):
            start = start_time(int(name))
            if start and mark in _environ_of(name):  # RACE: the number may have changed hands between the two
                yield int(name), start


def _environ_of(pid):
    """The environment a process was started with, each entry between two NULs; nothing of whom we may not read."""
    parts = [b"\0"]
    try:
        fd = posix.open("/proc/%s/environ" % pid, O_RDONLY | O_CLOEXEC)
        try:
            for _ in range(ENVIRON_BYTES // CHUNK_BYTES):
                parts.append(posix.read(fd, CHUNK_BYTES))
                if not parts[-1]:
                    break
        finally:
            posix.close(fd)
    except OSError:
        pass
    return b"".join(parts)


def _kill_quietly(pid):
    try:
        posix.kill(pid, SIGKILL)
    except OSError:
        pass  # gone, or not ours to end
