"""The spool's front door and the operator's verbs: everything that looks an id up before it moves a file.

One id names one job while any file or journal line has it [M]. An enqueue with a given id therefore holds `R/id.lock`,
looks the id up along the way jobs move (and once more, since a job may move past the look-up), and flushes what it found
before it says "already queued". Generated ids contain their own SEQ and a piece of the kernel's uuid: never seen before.
"""

import posix
from posix import O_RDWR, O_NONBLOCK, O_CLOEXEC, O_WRONLY, O_APPEND

from edgeq import disk as seam
from edgeq import record as records
from edgeq.errors import BadJob, Busy, CannotCreate, Duplicate, NotFound, StoreDown, EACCES, ELOOP, ENXIO, EPERM
from edgeq.job import DEFAULT_PRIORITY, DLQ, DONE, FAILED, INCOMING, PROCESSING, Entry, format_version, parse_name
from edgeq.store.base import ALREADY_DEAD, ALREADY_DONE, ALREADY_QUEUED, QUEUED, Receipt

LOOKS = 50  # how often a moving job is looked for before we say busy


def enqueue(spool, job, now, fast):
    """Receipt; the job is durable unless `fast`. OSError before the rename: nothing is left behind."""
    if job.id is None:
        return Receipt(_publish(spool, job, now, not fast), QUEUED)
    with seam.Lock(spool.run + "/id.lock"):
        status = _standing(spool, job, now)
        if status is None:
            _publish(spool, job, now, not fast)
            status = QUEUED
    return Receipt(job.id, status)


def _standing(spool, job, now):
    """What a second enqueue of job.id is told, after what it found was made durable; None when the id is free."""
    for _ in range(LOOKS):
        where, entry = seek(spool, job.id)
        if where is None:
            return None
        if where == DONE:
            spool.journal.flush_all()
            return ALREADY_DONE
        path = spool.path(where, entry.name if where != DLQ else job.id + ".json")
        try:
            fd = spool.disk.open_read(path)  # read only: opening for writing could make an empty job
        except FileNotFoundError:
            continue  # RACE: it moved on between look and open
        try:
            spool._record_of(fd, spool.disk.fstat(fd))
            spool.disk.flush(fd)
            return ALREADY_DEAD if where == DLQ else ALREADY_QUEUED
        except BadJob as error:
            if where not in (INCOMING, FAILED):
                spool.set_aside(where, path.rpartition("/")[2], error.why)
                continue
            # a torn file that nobody acknowledged: the whole one is safe before it goes
            _publish(spool, job, now, True)
            spool.set_aside(where, entry.name, error.why)
            return QUEUED
        finally:
            spool.disk.close(fd)
    raise Busy("enqueue", job.id, "the job with this id does not stand still", "repeat")


def seek(spool, id):
    """(folder, Entry) of the highest-ranking place that has the id, (None, None) when it is free."""
    found = {}
    needle = ".%s." % id
    # along the way jobs move, then the beginning once more: a job that moves meanwhile is met at least once
    for folder in (INCOMING, FAILED, PROCESSING, FAILED, INCOMING):
        if folder in found:
            continue
        for name in spool._names(folder):
            if needle in name:
                entry = parse_name(folder, name)
                if entry and entry.id == id:
                    found[folder] = entry
                    break
    if spool.journal.find(id):
        return DONE, None
    if spool.disk.exists(spool.path(DLQ, id + ".json")):
        return DLQ, Entry(DLQ, 0, 0, 0, False, 0, False, "", id)
    for folder in (PROCESSING, FAILED, INCOMING):
        if folder in found:
            return folder, found[folder]
    return None, None


def find(spool, id):
    """(folder, Entry or None, Record or None, Line or None) of an id; folder None when nobody knows it."""
    for _ in range(LOOKS):
        where, entry = seek(spool, id)
        if where in (None, DONE):
            return where, None, None, spool.journal.find(id) if where else None
        name = id + ".json" if where == DLQ else entry.name
        try:
            fd = spool.disk.open_read(spool.path(where, name))
        except FileNotFoundError:
            continue
        try:
            return where, entry, spool._record_of(fd, spool.disk.fstat(fd)), None
        except BadJob:
            return where, entry, None, None
        finally:
            spool.disk.close(fd)
    raise Busy("show", id, "the job does not stand still", "repeat")


def _name_job(spool, job, now):
    """(name, bytes) of a new job's file; the id is generated where none was given."""
    seq = spool.seq.issue(now)
    if job.id is None:
        job.id = "%016d-%s" % (seq, seam.make_uuid()[:8])
    due = 0
    if job.at is not None:
        due = int(job.at)
    elif job.delay_s:
        due = seq // 1_000_000 + int(job.delay_s)
    entry = Entry(INCOMING, job.priority, seq, due, job.at is not None and due > 0, 0, False, job.type, job.id)
    return entry.name, records.encode(job, seq, due)


def _publish(spool, job, now, flush):
    """Dot-file, rename, one flush; the id. A failed flush is StoreDown: it may still run."""
    name, data = _name_job(spool, job, now)
    folder = spool.path(INCOMING)
    try:
        path, fd = spool.disk.write_dot(folder, data)
    except FileNotFoundError as error:
        raise CannotCreate("enqueue", folder, error.strerror, "start the worker once, or make the folder") from None
    try:
        try:
            spool.disk.rename(path, folder + "/" + name)
        except OSError:
            spool.disk.unlink(path)
            raise
        if flush:
            _flush_accepted(spool, fd, job.id)
    finally:
        spool.disk.close(fd)
    poke(spool.run, str(job.priority))
    return job.id


def _flush_accepted(spool, fd, id):
    try:
        spool.disk.flush(fd)
    except OSError as error:
        spool.is_broken = True
        raise StoreDown("enqueue", id, "cannot flush: %s; it may still run" % error.strerror,
                        "repeat with the same --id %s" % id) from None


def enqueue_many(spool, jobs, now):
    """[Receipt], one flush for all. All dot-files are written before the first becomes visible: no room, no job."""
    with seam.Lock(spool.run + "/id.lock"):
        receipts, fresh, seen = [], [], set()
        for job in jobs:
            status = None
            if job.id is not None:
                status = ALREADY_QUEUED if job.id in seen else _standing(spool, job, now)
                seen.add(job.id)
            if status is None:
                fresh.append((job,) + _name_job(spool, job, now))
            receipts.append(Receipt(job.id, status or QUEUED))
        _publish_many(spool, fresh)
    for digit in sorted({job.priority for job, _, _ in fresh}):
        poke(spool.run, str(digit))
    return receipts


def _publish_many(spool, fresh):
    folder, written, visible = spool.path(INCOMING), [], []
    try:
        for job, name, data in fresh:
            path, fd = spool.disk.write_dot(folder, data)
            spool.disk.close(fd)
            written.append((path, folder + "/" + name))
        for path, target in written:
            spool.disk.rename(path, target)
            visible.append(target)
    except OSError:
        # nothing was acknowledged: take back what is still ours to take back
        for path in [path for path, target in written if target not in visible] + visible:
            spool._remove(path)
        raise
    if not fresh:
        return
    try:
        sync_file_system(spool.disk, folder)
    except OSError as error:
        spool.is_broken = True
        raise StoreDown("enqueue", "batch of %d" % len(fresh), "cannot flush: %s; they may still run" % error.strerror,
                        "repeat with the same ids") from None


def sync_file_system(disk, folder):
    """syncfs(2): every file of the batch in one go. ctypes is imported for this verb alone."""
    import ctypes
    fd = disk.open(folder, posix.O_RDONLY | O_CLOEXEC)
    try:
        disk.flushes_n += 1
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
            error = ctypes.get_errno()
            raise OSError(error, posix.strerror(error))
    finally:
        disk.close(fd)


def poke(run, digit):
    """Tell busy workers (R/arrivals) and wake sleeping ones (their FIFO). A lost poke costs one safety scan, no job."""
    try:
        fd = posix.open(run + "/arrivals", O_WRONLY | O_APPEND | O_CLOEXEC)
        try:
            posix.write(fd, digit.encode())
        finally:
            posix.close(fd)
        names = posix.listdir(run + "/wake")
    except OSError:
        return
    for name in names:
        if name.endswith(".asleep"):
            _poke_one("%s/wake/%s" % (run, name[:-7]), digit)


def _poke_one(path, digit):
    try:
        if posix.lstat(path).st_mode & seam.S_IFMT != seam.S_IFIFO:
            return
        fd = posix.open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC)
        try:
            posix.write(fd, digit.encode())
        finally:
            posix.close(fd)
    except OSError:
        pass  # gone or full: its reader is waking up already


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
        with seam.Lock(spool.run + "/id.lock"):
            return _adopt_record(spool, path, record, now)
    except BadJob as error:
        spool.doubt(folder, name, error.why, stamp, now)
        return False
    finally:
        spool.disk.close(fd)


def _adopt_record(spool, path, record, now):
    job = records.to_job(record)
    if job.id is not None:
        where, entry = seek(spool, job.id)
        if where is not None:
            if where == DLQ and not spool._has_whole_dead(job.id):
                where = None
        if where is not None:
            _drop_dropped(spool, path, job, where, entry)
            return False
    if job.at is not None and job.at <= now.wall and spool.seq.is_trusted(now):
        job.at = None
    name, _ = _name_job(spool, job, now)
    entry = parse_name(INCOMING, name)
    entry.again = record.was_dead  # `mv dlq/ID.json incoming/` by hand is a kick
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
        spool.disk.flush_folder(spool.path(DLQ))
    else:
        try:
            fd = spool.disk.open_read(spool.path(entry.path))
        except FileNotFoundError:
            return  # it moved: looked at again with the next listing
        try:
            spool._flush(fd)
        finally:
            spool.disk.close(fd)
    spool._remove(path)
    spool.dropped_n += 1
    spool.log.info("dropped", id=job.id, because="the same id is in " + where)


def kick(spool, id, now):
    """A dead letter becomes a waiting job: tries restart, redelivered is set. Durable when it returns."""
    with seam.Lock(spool.run + "/id.lock"):
        where, _ = seek(spool, id)
        if where == DONE:
            raise Duplicate("kick", id, "is done already")
        if where in (INCOMING, PROCESSING, FAILED):
            raise Duplicate("kick", id, "has a job in %s/" % where, "wait until it ends")
        source = spool.path(DLQ, id + ".json")
        try:
            fd = spool.disk.open_read(source)
        except FileNotFoundError:
            raise NotFound("kick", id, "no such dead letter", "see 'edgeq ls dlq'") from None
        try:
            record = spool._record_of(fd, spool.disk.fstat(fd))
            priority = DEFAULT_PRIORITY if record.priority is None else record.priority
            entry = Entry(INCOMING, priority, spool.seq.issue(now), 0, False, 0, True, record.type, id)
            spool.disk.rename(source, spool.path(entry.path))
            _flush_accepted(spool, fd, id)
        except BadJob as error:
            raise BadJob("kick", id, error.why, "see 'edgeq check --repair'") from None
        finally:
            spool.disk.close(fd)
    spool.forget_error(id)
    poke(spool.run, str(priority))


def cancel(spool, id, now):
    """Remove a job that does not run; durable when it returns. The folder's name it was in."""
    for _ in range(LOOKS):
        where, entry = seek(spool, id)
        if where in (None, DONE):
            raise NotFound("cancel", id, "is done already" if where else "no such job", "see 'edgeq ls'")
        if where == PROCESSING:
            raise Busy("cancel", id, "is running", "wait, or use --running")
        try:
            spool.disk.unlink(spool.path(where, id + ".json" if where == DLQ else entry.name))
        except FileNotFoundError:
            continue  # RACE: claimed or kicked meanwhile
        spool.disk.flush_folder(spool.path(where))
        spool.forget_error(id)
        return where
    raise Busy("cancel", id, "the job does not stand still", "repeat")
