"""The running mark, and who is suspect after an unclean end (P4).

The mark, a boot id, is on flash before the first claim of a boot and goes with the last worker that leaves. Where another boot's
is found, every job up to the newest SEQ may have taken the board down: each of them is charged durably before it runs again.
"""

from edgeq import disk as seam

MARK = "running"


def find_suspects(store):
    """A worker begins: the SEQ up to which jobs are suspect in this boot is `suspect_seq`; 0 after a clean stop."""
    known = known_suspects(store)
    if known is not None:
        store.suspect_seq = known
    elif read_mark(store) is None:
        note_suspects(store, 0)
    else:  # of another boot; or of this one, but /run was emptied and nobody knows any more
        note_suspects(store, store.seq.newest())


def known_suspects(store):
    """What an earlier worker of this boot found, None when there was none."""
    try:
        seq, boot_id = seam.read_text(store.run + "/suspect").split()
        return int(seq) if boot_id == store.clock.boot_id else None
    except (FileNotFoundError, ValueError):
        return None


def note_suspects(store, seq):
    store.suspect_seq = seq
    seam.write_run(store.run + "/suspect", b"%d %s\n" % (seq, store.clock.boot_id.encode()))


def read_mark(store):
    """The boot id in the running mark, None without a mark."""
    try:
        return store.disk.read_file(store.path(MARK), 100).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None


def mark_running(store):
    """Before the first claim of a boot: the mark is on flash (P4)."""
    if read_mark(store) != store.clock.boot_id:
        # CRASH: without the mark nothing was claimed yet; with it the next boot suspects every job.
        try:
            store.disk.replace(store.home, MARK, store.clock.boot_id.encode() + b"\n")
        except OSError:
            store.is_broken = True  # it may be visible and not safe: `reopen` flushes it
            raise
    store.is_marked = True


def carry_marks(store, source, now):
    """For a move: what `source` says beside its jobs, an unclean end (P4) and pauses."""
    if source.home == store.home:
        return
    mark = source._mark()
    if mark:
        store.disk.replace(store.home, MARK, mark.encode() + b"\n")
    for type, left_s in source.pauses.all(now).items():
        store.pauses.set(type, int(left_s), now)
