"""Bounds on what is kept: the done journal, dead letters, what was set aside, half-written leftovers.

By count and bytes, which need no clock, and by age (KEEP_DAYS) only while the clock is trusted. Never touches incoming,
processing or failed. Bounded work per pass; links are removed, never followed.
"""

from edgeq.job import CORRUPT, DLQ, DONE, FAILED, INCOMING, PROCESSING, format_version, parse_name
from edgeq.errors import EISDIR, ENOTEMPTY
from edgeq.store import keys
from edgeq.store.base import PER_PASS
from edgeq.store.journal import FORMAT, parse_segment

DAY_S = 86400


def prune(spool, now):
    """One pass; how many files went."""
    config = spool.config
    gone = _prune_folder(spool, DLQ, config.dlq_keep, config.dlq_keep_kb, now)
    gone += _prune_journal(spool)
    gone += prune_leftovers(spool, now)
    keys.bound(spool)
    spool.ages.look(now)
    return gone


def prune_leftovers(store, now):
    """The part that any store with folders has: corrupt/ and half-written files."""
    config = store.config
    return _prune_folder(store, CORRUPT, config.corrupt_keep, config.corrupt_keep_kb, now) + _sweep_dots(store, now)


def _prune_folder(spool, folder, keep, keep_kb, now):
    """Drop the oldest beyond `keep` files, `keep_kb` KiB or KEEP_DAYS: at most PER_PASS, and no more of them are ever in memory."""
    oldest, n, size = [], 0, 0
    for name in spool.disk.names(spool.path(folder)):
        status = None if name.endswith(".why") or format_version(name) else _status(spool, spool.path(folder, name))
        if status:
            n, size = n + 1, size + status.st_size
            oldest.append((status.st_mtime, status.st_size, name))
            if len(oldest) >= 2 * PER_PASS:
                oldest.sort()
                del oldest[PER_PASS:]
    limit_s, gone = spool.config.keep_days * DAY_S if spool.seq.is_trusted(now) else 0, 0
    for mtime, bytes, name in sorted(oldest)[:PER_PASS]:
        if n <= keep and size <= keep_kb * 1024 and not (limit_s and spool.ages.age_s(mtime * 1e6, now) > limit_s):
            break
        _remove_tree(spool, spool.path(folder, name))
        spool._remove(spool.path(folder, name + ".why"))
        n, size, gone = n - 1, size - bytes, gone + 1
        if folder == DLQ:
            spool.log.warning("dead letter dropped", id=name[:-5], because="DLQ_KEEP, DLQ_KEEP_KB or KEEP_DAYS")
    return gone


def _status(spool, path):
    """lstat, or None: a dot-file is renamed, a letter kicked, while we look."""
    try:
        return spool.disk.lstat(path)
    except FileNotFoundError:
        return None


def _remove_tree(spool, path):
    """Remove a file, or a folder that a person dropped; a link itself, never what it names."""
    try:
        spool._remove(path)
    except OSError as error:
        if error.errno not in (EISDIR, 1):
            raise
        for name in list(spool.disk.names(path)):
            _remove_tree(spool, path + "/" + name)
        try:
            spool.disk.rmdir(path)
        except OSError as error:
            if error.errno != ENOTEMPTY:
                raise


def _prune_journal(spool):
    """Delete the oldest segments beyond DONE_KEEP_KB: each only when no file has an id of it, the folders flushed first [M]."""
    gone = 0
    while gone < PER_PASS:  # a busy minute fills more than one
        name = spool.journal.surplus()
        if name is None or _holds_live_id(spool, name):
            break
        _flush_jobs(spool)  # for each: what went after the flush before is not safe by it
        spool.journal.delete(name)
        gone += 1
    return gone


def _flush_jobs(spool):
    """Before a segment goes [M]."""
    for folder in (INCOMING, PROCESSING, FAILED, DLQ):
        # CRASH: a name removed but not flushed would come back without the line that says it is done.
        spool.flush_folder(folder)


def _holds_live_id(spool, segment):
    ids = {line.id for line in spool.journal.lines(segment)}
    for folder in (INCOMING, PROCESSING, FAILED):
        for name in spool.disk.names(spool.path(folder)):
            entry = parse_name(folder, name)
            if entry and entry.id in ids:
                return True
    return any(name[:-5] in ids for name in spool.disk.names(spool.path(DLQ)))


def _sweep_dots(spool, now):
    """Half-written files: gone after a day of uptime in which they did not change."""
    gone, seen = 0, {}
    for folder in ("",) + spool.states:
        path = spool.path(folder) if folder else spool.home
        with spool.disk.scandir(path) as found:
            dots = [entry.name for entry in found if entry.name[0] == "."]
        for name in dots[:PER_PASS]:
            first = spool.dots.get(folder + "/" + name, now.boot)
            status = _status(spool, path + "/" + name)
            if status is None:
                continue
            age_s = now.wall - status.st_mtime
            if now.boot - first > DAY_S or (now.boot > DAY_S and spool.seq.is_trusted(now) and age_s > DAY_S):
                _remove_tree(spool, path + "/" + name)
                gone += 1
            else:
                seen[folder + "/" + name] = first
    spool.dots = seen  # the others became files long ago: each job has such a name for a moment
    return gone


def purge(spool, states, now):
    """Empty whole states; how many files went. Durable when it returns, and a cut at any point leaves whole jobs."""
    gone = 0
    for state in states:
        if state == DONE:
            gone += _purge_journal(spool)
            continue
        gone += purge_folder(spool, state)
    return gone


def purge_folder(store, folder):
    """Empty one folder; how many files went."""
    gone = 0
    for name in list(store.disk.names(store.path(folder))):
        _remove_tree(store, store.path(folder, name))
        gone += not name.endswith(".why")
    store.flush_folder(folder)
    return gone


def _purge_journal(spool):
    """All segments but the newest, which carries the highest SEQ and the count; a fresh one becomes the newest first."""
    try:
        spool.journal.renew_empty(spool.seq.newest())
    except OSError:
        spool.is_broken = spool.is_broken or spool.journal.is_unsafe
        raise
    _flush_jobs(spool)
    gone = 0
    for name in spool.journal.segments()[:-1]:
        if parse_segment(name)[2] == FORMAT and not _holds_live_id(spool, name):  # a newer program's memory is its own
            spool.journal.delete(name)
            gone += 1
    spool.flush_folder(DONE)
    return gone
