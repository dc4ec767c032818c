"""A file that somebody dropped into incoming/ under another name becomes a job: of the spool's walk, so loaded by every worker."""

from edgeq import record as records
from edgeq.errors import BadJob, Busy, EACCES, ELOOP, ENXIO, EPERM
from edgeq.job import DLQ, DONE, INCOMING, format_version, parse_name
from edgeq.store import keys
from edgeq.store.rank import has_whole_dead, seek


def adopt(spool, folder, name, now):
    """Make a job of a file that a person dropped under another name; True when it became one.

    The content is kept to the byte: only the name changes, by one rename, never over another file.
    """
    if format_version(name) or folder != INCOMING:
        return False
    path = spool.path(folder, name)
    stamp = (0, 0)
    try:
        fd = spool.disk.open_read(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (EACCES, EPERM, ELOOP, ENXIO):
            spool.doubt(folder, name, error.strerror, stamp, now)
            return False
        raise
    try:
        status = spool.disk.fstat(fd)
        stamp = (status.st_size, status.st_mtime_ns)
        record = spool._record_of(fd, status, spool.config.max_payload_bytes)
        with spool.id_lock:
            if not adopt_record(spool, path, record, now):
                return False
        # CRASH: its SEQ is safe before it can be claimed: else a job that takes the board down would come back under the
        # dropped name and a new SEQ each time, suspected by no boot (P4; tests/crash).
        spool._flush(fd)
        return True
    except BadJob as error:
        spool.doubt(folder, name, error.why, stamp, now)
        return False
    finally:
        spool.disk.close(fd)


def adopt_record(spool, path, record, now):
    job = records.to_job(record)
    if job.id is not None:
        where, entry = seek(spool, job.id)
        if where is not None:
            if where == DLQ and not has_whole_dead(spool, job.id):
                where = None
        if where is not None:
            _drop_dropped(spool, path, job, where, entry)
            return False
    if record.was_dead or job.at is not None and job.at <= now.wall and spool.seq.is_trusted(now):
        job.at = None  # a kick waits for nothing
    name, _ = name_job(spool, job, now)
    entry = parse_name(INCOMING, name).moved(INCOMING, again=record.was_dead)  # `mv dlq/ID.json incoming/` by hand is a kick
    try:
        spool.disk.rename(path, spool.path(entry.path))
    except FileNotFoundError:
        return False
    spool.log.info("adopted", id=job.id, type=job.type)
    return True


def _drop_dropped(spool, path, job, where, entry):
    """The id has its job already: what ranks higher is flushed, then the dropped file goes."""
    if where == DONE:
        spool._flush_journal()
    elif where == DLQ:
        spool.flush_folder(DLQ)
    else:
        try:
            fd = spool.disk.open_read(spool.path(entry.path))
        except FileNotFoundError:
            return  # it moved: looked at again with the next listing
        try:
            spool.make_safe(fd, where, entry.name)
        except (PermissionError, Busy):
            return  # in doubt, and not to be written again now: both stay
        finally:
            spool.disk.close(fd)
    spool._remove(path)
    spool.dropped_n += 1
    spool.log.info("dropped", id=job.id, because="the same id is in " + where)


def name_job(spool, job, now):
    """(name, bytes) of a new job's file; the id is generated where none was given."""
    entry = spool.new_entry(job, now)
    if job.key is not None:
        keys.note(spool, job.key, job.id)
    return entry.name, records.encode(job, entry.seq, entry.due)
