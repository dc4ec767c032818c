"""Coalescing by key: of the jobs with one key at most one runs and, with `--latest`, at most one waits.

* plain `--key K`: while a job with K waits, another enqueue is that job ("already queued", its id is told).
* `--key K --latest`: the new job is published and flushed first, then the waiting ones with K are removed, counted and
  logged (P1). The record says so (`"latest":true`): whatever a cut or a crash left between the two steps, and an older try
  that fails while the new job waits, is removed where it would be claimed or retried. So the newest payload wins.
* a job whose key runs waits until that one has ended.

`R/keys/index` knows which ids have which key: `whole`, then `KEY ID` lines, written ahead of the publish, under
`R/id.lock`. It is a hint: the record decides. Gone or grown beyond LIMIT_BYTES, it is made again from the records; where
it cannot be written, they are read each time.
"""

import posix
from posix import O_APPEND, O_CLOEXEC, O_NOFOLLOW, O_TRUNC, O_WRONLY

from edgeq import disk as seam
from edgeq.errors import BadJob
from edgeq.job import FAILED, INCOMING, PROCESSING, parse_name

WHOLE = "whole\n"
LIMIT_BYTES = 65536
MANY = 16  # ids of one key; as in the wrapper, which counts words


def waiting(spool, key):
    """[(Entry, Record)] of the waiting jobs that have `key`, the oldest first. The caller holds the lock on ids."""
    ids = _ids(spool, key)
    found = []
    for folder in (INCOMING, FAILED):
        for name in spool._names(folder):
            if ids is None or name.rpartition(".")[0].rpartition(".")[2] in ids:
                entry = parse_name(folder, name)
                record = entry and read(spool, entry)
                if record and record.key == key:
                    found.append((entry, record))
    if ids and len(ids) > MANY:
        _rebuild(spool)  # most of them are done: shell producers would look for each
    return sorted(found, key=lambda pair: pair[0].seq)


def note(spool, key, id):
    """Write ahead that `id` will have `key`. The caller holds the lock on ids."""
    try:
        if _index(spool).startswith(WHOLE):
            fd = posix.open(spool.run + "/keys/index", O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC)
            try:
                posix.write(fd, ("%s %s\n" % (key, id)).encode())
            finally:
                posix.close(fd)
    except OSError:
        _forget_all(spool)  # not told is not whole


def is_running(spool, key, token):
    """True when another claim than `token` has the key and has not ended."""
    for entry in spool.entries(PROCESSING):
        if entry.token != token and not entry.settling:
            record = read(spool, entry)
            if record and record.key == key:
                return True
    return False


def successor(spool, entry, key):
    """The Entry of a waiting job that took entry's place by `--latest`, flushed; None when there is none."""
    with spool.id_lock:
        for other, record in reversed(waiting(spool, key)):
            if record.is_latest and not _was_kicked(other, record) and other.seq > entry.seq and flush(spool, other):
                return other
    return None


def replace(spool, old, id):
    """The job `id` is safe: remove `old` ([Entry], waiting ones) for it. A claimed one has begun to run: it is left."""
    folders = set()
    for entry in old:
        try:
            # CRASH: still there after a cut: removed by the next --latest, or where it would be claimed.
            spool.disk.unlink(spool.path(entry.path))
        except FileNotFoundError:
            continue
        folders.add(entry.state)
        spool.tell_superseded(entry.id, entry.type, id)
    for folder in folders:
        spool.flush_folder(folder)


def bound(spool):
    """An index that grew too long goes; the next one who needs it makes it again."""
    try:
        if posix.stat(spool.run + "/keys/index").st_size > LIMIT_BYTES:
            with spool.id_lock:
                _forget_all(spool)
    except OSError:
        pass


def read(spool, entry, name=None):
    """The Record of `entry`, None when it is gone or cannot be read. name: its file's, where that does not say its state."""
    try:
        fd = spool.disk.open_read(spool.path(entry.state, name or entry.name))
    except OSError:
        return None
    try:
        return spool._record_of(fd, spool.disk.fstat(fd))
    except BadJob:
        return None
    finally:
        spool.disk.close(fd)


def _was_kicked(entry, record):
    """Back from dlq/ with a new SEQ: its payload is older than that, and takes nobody's place."""
    return entry.again and record.created_at is not None and record.created_at < entry.seq // 1_000_000


def flush(spool, entry):
    """The waiting job is on the medium; False when it is waiting no more, or in doubt and not ours to write again."""
    try:
        fd = spool.disk.open_read(spool.path(entry.path))
    except FileNotFoundError:
        return False
    try:
        spool.make_safe(fd, entry.state, entry.name)
        return True
    except PermissionError:
        return False
    finally:
        spool.disk.close(fd)


def _index(spool):
    """The index's text, "" when there is none."""
    try:
        return seam.read_text(spool.run + "/keys/index", 8 * LIMIT_BYTES)
    except FileNotFoundError:
        return ""


def _ids(spool, key):
    """The ids that may have `key`; None when nobody knows and every record must be read."""
    text = _index(spool)
    if not text.startswith(WHOLE):
        text = _rebuild(spool)
    head = key + " "
    return text and {line[len(head):] for line in text.split("\n") if line.startswith(head)}


def _rebuild(spool):
    """Make the index from the records: its text, None where it cannot be written."""
    lines = [WHOLE]
    for folder in (INCOMING, FAILED, PROCESSING):
        for entry in spool.entries(folder):
            record = None if entry.settling else read(spool, entry)
            if record and record.key:
                lines.append("%s %s\n" % (record.key, entry.id))
    text = "".join(lines)
    try:
        fd = posix.open(spool.run + "/keys/index", O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC)
    except OSError:
        return None
    try:
        posix.write(fd, text.encode())
        return text
    except OSError:  # RAM is full: what was written must not look whole
        posix.ftruncate(fd, 0)
        return None
    finally:
        posix.close(fd)


def _forget_all(spool):
    try:
        posix.truncate(spool.run + "/keys/index", 0)
    except OSError:
        pass
