"""The spool's side of `edgeq move`: give jobs away, take them in, let them go. See Parcel in store/base.py for the order of steps.

Taking in is idempotent by id: what ranks higher wins (completion, dead letter, failed, waiting), so a move that was killed
anywhere, even one after which a worker ran on the source, is simply done again.
"""

from edgeq import record as records
from edgeq.errors import BadJob
from edgeq.job import DLQ, DONE, FAILED, INCOMING, Entry
from edgeq.store import bounds, rank
from edgeq.store.base import RANK, Parcel, is_above
from edgeq.store.together import sync_file_system

STATES = (DLQ, FAILED, INCOMING)


def export(spool):
    """Completions, oldest first, then jobs: what ranks highest first. Unreadable and newer ones stay."""
    for line in spool.done_lines():
        yield Parcel(line=line)
    for state in STATES:
        for entry in list(spool.entries(state)):
            record = _read(spool, entry)
            if record is None:
                continue
            if state == DLQ:
                priority = records.DEFAULT_PRIORITY if record.priority is None else record.priority
                entry = Entry(DLQ, priority, (record.created_at or 0) * 1_000_000, 0, False, record.attempts or 0, False,
                              record.type, entry.id)
            yield Parcel(entry, record, None, spool.last_error(entry.id))


def _path(spool, entry):
    return spool.path(DLQ, entry.id + ".json") if entry.state == DLQ else spool.path(entry.path)


def _read(spool, entry):
    """The Record of an entry's file, None when it is gone or cannot be read."""
    try:
        return spool.read_record(_path(spool, entry))
    except (FileNotFoundError, BadJob):
        return None


def take_parcel(spool, parcel, now):
    """Take one in; True when that changed anything. Not safe before `seal`."""
    spool.journal.remember_once()
    with spool.id_lock:
        where, old = rank.seek(spool, parcel.id)
        if where == DONE or where in RANK and _read(spool, old) and not is_above(parcel, old):
            return False
        if parcel.line:
            spool.journal.carry(parcel.line, spool.seq.newest())
            if where is not None:
                spool._flush_journal()  # whoever drops a file because of a line flushes the line first [M]
        else:
            _write(spool, parcel)
        if where is not None and (parcel.line or _path(spool, old) != _path(spool, parcel.entry)):
            # CRASH: both after a cut: the higher one is kept when it is claimed, reaped or taken in again
            spool._remove(_path(spool, old))
    return True


def _write(spool, parcel):
    """The file, visible and not flushed."""
    entry, target = parcel.entry, _path(spool, parcel.entry)
    path, fd = spool.disk.write_dot(target.rpartition("/")[0], records.encode_whole(parcel.record, entry))
    spool.disk.close(fd)
    try:
        spool.disk.rename(path, target)
    except OSError:
        spool.disk.unlink(path)
        raise
    if parcel.last_error and entry.state != DLQ:
        spool._save_error(entry.id, parcel.last_error)


def seal(spool):
    """All that was taken in is on the medium, the highest SEQ too; or OSError."""
    try:
        spool.journal.carry_seq(spool.seq.newest())
        sync_file_system(spool.disk, spool.home)
    except OSError:
        spool.lose_faith()
        raise


def let_go(spool, parcels):
    """Another store has sealed these: their files go."""
    folders = set()
    for parcel in parcels:
        if parcel.entry:
            spool._remove(_path(spool, parcel.entry))
            folders.add(parcel.entry.state)
    for folder in folders:
        spool.flush_folder(folder)


def let_go_done(spool, now):
    """Another store has all completions: the journal begins anew, with its SEQ and count."""
    bounds.purge(spool, [DONE], now)
