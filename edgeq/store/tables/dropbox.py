"""The drop-box of a store that keeps no job files: shell producers and people leave files in incoming/, the worker takes them in.

Rows first, in one safe transaction for many files, then the files go. A file that comes back after a cut is known by its id, so
whoever removes a row for ever flushes the folder before (`cancel`, `purge`, the bounds). What cannot be read is
doubted for two seconds, then set aside, as in a spool (P6). A newer format is left where it is.
"""

from binascii import crc32

from edgeq import record as records
from edgeq.errors import BadJob, EACCES, EIO, ELOOP, ENXIO, EPERM
from edgeq.job import INCOMING, Entry, format_version, parse_name
from edgeq.store.tables.jobs import insert, standing
from edgeq.store.tables.rows import other_of

AT_ONCE = 256  # files that share a commit


def adopt(store, now):
    """Take in what shell producers and people dropped into incoming/; how many files became jobs."""
    store._usable()
    adopted = take_in(store, now)
    for state, name in store.view.strangers:
        if not store.disk.exists(store.path(state, name)):
            store.check(now, repair=True)  # no file: a row that makes no name
            break
    if adopted:
        store.view.filled_at = -1e9  # the next claim lists again
    return adopted


def take_in(store, now):
    """How many files became jobs."""
    names = [name for name in store._names(INCOMING)
             if not format_version(name) and store.view.doubtful.get(name, 0) <= now.boot]
    names.sort()
    return sum(take_in_some(store, names[at:at + AT_ONCE], now) for at in range(0, len(names), AT_ONCE))


def take_in_some(store, names, now):
    files = [found for found in (read_file(store, name, now) for name in names) if found]
    if not files:
        return 0
    with store.db.write(True):
        adopted_n = sum(adopt_file(store, name, stamp, record, now) for name, stamp, record in files)
    for name, _, _ in files:
        # CRASH: not flushed: a file that comes back has its row or its completion, and is dropped
        store._remove(store.path(INCOMING, name))
    return adopted_n


def read_file(store, name, now):
    """(name, (size, time), Record) of a dropped file; None: gone, or cannot be read (yet)."""
    try:
        fd = store.disk.open_read(store.path(INCOMING, name))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (ELOOP, EACCES, EPERM, EIO, ENXIO):
            raise
        store.doubt(INCOMING, name, error.strerror, (0, 0), now)
        return None
    stamp = (0, 0)
    try:
        status = store.disk.fstat(fd)
        stamp = (status.st_size, status.st_mtime_ns)
        entry = parse_name(INCOMING, name)
        record = store._record_of(fd, status, 0 if entry else store.config.max_payload_bytes)
        if entry and (record.id not in (None, entry.id) or record.type != entry.type):
            raise BadJob("read", "record", "its name and its content disagree")
        return name, stamp, record
    except BadJob as error:
        store.doubt(INCOMING, name, error.why, stamp, now)
        return None
    finally:
        store.disk.close(fd)


def adopt_file(store, name, stamp, record, now):
    """A row of a dropped file; True when it became one. Inside a transaction."""
    entry = parse_name(INCOMING, name) or entry_of_stranger(store, name, stamp, record, now)
    if entry.seq <= store._reissue_to:
        seq = store.seq.issue(now)
        due = entry.due
        if due and not entry.is_at:
            due = min(due + (seq - entry.seq) // 1_000_000, records.LAST_INSTANT)
        entry = entry.moved(INCOMING, seq=seq, due=due)
    word = standing(store, entry.id)
    if word:
        store.dropped_n += 1
        store.log.info("dropped", id=entry.id, because=word)
        return False
    insert(store, entry, record, record.payload, record.created_at or entry.seq // 1_000_000, other_of(record), "",
           int(now.wall))
    return True


def entry_of_stranger(store, name, stamp, record, now):
    """A file under another name. An id of our own making is the same each time: a cut may bring the file back."""
    job = records.to_job(record)
    if job.at is not None and job.at <= now.wall and store.seq.is_trusted(now):
        job.at = None
    id = job.id or "drop-%x-%08x" % (stamp[1], crc32(name.encode("utf-8", "surrogateescape") + record.payload))
    return Entry(INCOMING, job.priority, store.seq.issue(now), int(job.at or 0), bool(job.at), 0, record.was_dead, job.type, id)


def find_file(store, id):
    """The same of a file that nobody has taken in yet."""
    for name in store._names(INCOMING):
        entry = parse_name(INCOMING, name) if ".%s." % id in name else None
        if entry and entry.id == id:
            found = read_file(store, name, store.clock.read())
            return INCOMING, entry, found[2] if found else None, None
    return None, None, None, None
