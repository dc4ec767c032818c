"""The spool's front door and the operator's verbs: everything that looks an id up before it moves a file.

One id names one job while any file or journal line has it [M]. An enqueue with a given id therefore holds `R/id.lock`,
looks the id up along the way jobs move (and once more, since a job may move past the look-up), and makes safe what it found
before it says "already queued". Generated ids contain their own SEQ and a piece of the kernel's uuid: never seen before.
"""

from edgeq.errors import BadJob, Busy, CannotCreate, Duplicate, NotFound, StoreDown
from edgeq.job import DEFAULT_PRIORITY, DLQ, DONE, FAILED, INCOMING, PROCESSING, Entry, parse_name
from edgeq.store import keys
from edgeq.store.adopt import adopt_record, name_job
from edgeq.store.base import ALREADY_DEAD, ALREADY_DONE, ALREADY_QUEUED, QUEUED, Receipt
from edgeq.store.arrivals import poke
from edgeq.store.rank import seek
from edgeq.store.together import Together

LOOKS = 50  # how often a moving job is looked for before we say busy


def enqueue(spool, job, now, fast):
    """Receipt; the job is durable unless `fast`. OSError before the rename: nothing is left behind."""
    if job.id is None and job.key is None:
        return Receipt(_publish(spool, job, now, not fast), QUEUED)
    with spool.id_lock:
        status = None if job.id is None else _standing(spool, job, now)
        if status is None and job.key is not None:
            return _enqueue_keyed(spool, job, now, fast)
        if status is None:
            _publish(spool, job, now, not fast)
            status = QUEUED
    return Receipt(job.id, status)


def _enqueue_keyed(spool, job, now, fast):
    """The Receipt: of the job that waits with this key, or of the new one, which with `latest` takes the place of those."""
    old = [entry for entry, _ in keys.waiting(spool, job.key)]
    if not job.latest:
        for entry in old:
            if keys.flush(spool, entry):
                return Receipt(entry.id, ALREADY_QUEUED)
    # CRASH: the new one is safe before an old one goes, --fast or not; a cut between the two leaves both: see keys.py
    _publish(spool, job, now, not fast or bool(old))
    if job.latest:
        keys.replace(spool, old, job.id)
    return Receipt(job.id, QUEUED)


def _standing(spool, job, now):
    """What a second enqueue of job.id is told, after what it found was made durable; None when the id is free."""
    _take_in_by_hand(spool, job.id, now)
    for _ in range(LOOKS):
        where, entry = seek(spool, job.id)
        if where is None:
            return None
        if where == DONE:
            spool._flush_journal()
            return ALREADY_DONE
        path = spool.path(where, entry.name if where != DLQ else job.id + ".json")
        try:
            fd = spool.disk.open_read(path)  # read only: opening for writing could make an empty job
        except FileNotFoundError:
            continue  # RACE: it moved on between look and open
        try:
            spool._record_of(fd, spool.disk.fstat(fd))
            spool.make_safe(fd, where, path.rpartition("/")[2])
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


def _take_in_by_hand(spool, id, now):
    """A dead letter that a person moved back (`mv dlq/ID.json incoming/`) is the job already, before a worker adopts it."""
    path = spool.path(INCOMING, id + ".json")
    try:
        fd = spool.disk.open_read(path)
    except FileNotFoundError:
        return
    try:
        record = spool._record_of(fd, spool.disk.fstat(fd))
        if record.id == id:
            adopt_record(spool, path, record, now)
    except BadJob:
        pass  # whoever adopts sets it aside
    finally:
        spool.disk.close(fd)


def find(spool, id):
    """(folder, Entry or None, Record or None, Line or None) of an id; folder None when nobody knows it."""
    for _ in range(LOOKS):
        where, entry = seek(spool, id)
        if where in (None, DONE):
            return where, None, None, spool.journal.find(id) if where else None
        name = id + ".json" if where == DLQ else entry.name
        try:
            return where, entry, spool.read_record(spool.path(where, name)), None
        except FileNotFoundError:
            continue
        except BadJob:
            return where, entry, None, None
    raise Busy("show", id, "the job does not stand still", "repeat")


def _publish(spool, job, now, flush):
    """Dot-file, rename, one flush; the id. A failed flush is StoreDown: it may still run."""
    name, data = name_job(spool, job, now)
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
        spool.lose_faith()
        raise StoreDown("enqueue", id, "cannot flush: %s; it may still run" % error.strerror,
                        "repeat with the same --id %s" % id) from None


def enqueue_many(spool, jobs, now):
    """[Receipt], one flush for all. All dot-files are written before the first becomes visible: no room, no job."""
    with spool.id_lock:
        receipts, fresh, seen, waiting = [], [], set(), {}
        for job in jobs:
            status = None
            if job.id is not None:
                status = ALREADY_QUEUED if job.id in seen else _standing(spool, job, now)
                seen.add(job.id)
            if status is None and job.key is not None and not job.latest:
                if job.key not in waiting:
                    waiting[job.key] = next(
                        (entry.id for entry, _ in keys.waiting(spool, job.key) if keys.flush(spool, entry)), None)
                if waiting[job.key]:
                    receipts.append(Receipt(waiting[job.key], ALREADY_QUEUED))
                    continue
            if status is None:
                fresh.append((job,) + name_job(spool, job, now))
                waiting[job.key] = job.id
            receipts.append(Receipt(job.id, status or QUEUED))
        _publish_many(spool, fresh)
        for job, name, _ in fresh:
            if job.latest:
                seq = parse_name(INCOMING, name).seq
                keys.replace(spool, [entry for entry, _ in keys.waiting(spool, job.key) if entry.seq < seq], job.id)
    for digit in sorted({job.priority for job, _, _ in fresh}):
        poke(spool.run, str(digit))
    return receipts


def _publish_many(spool, fresh):
    if not fresh:
        return
    _check_can_flush()  # what cannot flush must refuse before the first job is visible
    batch = Together(spool.disk, spool.path(INCOMING))
    try:
        try:
            batch.write([(name, data) for _, name, data in fresh])
            batch.show()
        except OSError:
            batch.take_back(spool._remove)
            raise
        try:
            batch.commit()
        except OSError as error:
            spool.lose_faith()
            raise StoreDown("enqueue", "batch of %d" % len(fresh), "cannot flush: %s; they may still run" % error.strerror,
                            "repeat with the same ids") from None
    finally:
        batch.close()


def _check_can_flush():
    try:
        from edgeq.libc import has_syncfs  # for this verb alone: a small Python may lack ctypes
    except ImportError as error:
        raise StoreDown("enqueue", "batch", "no syncfs: %s" % error, "enqueue the jobs one by one") from None
    if not has_syncfs():
        raise StoreDown("enqueue", "batch", "no syncfs: the C library lacks it", "enqueue the jobs one by one")


def kick(spool, id, now):
    """A dead letter becomes a waiting job: tries restart, redelivered is set. Durable when it returns."""
    with spool.id_lock:
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
            if record.key:
                keys.note(spool, record.key, id)
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
    """Remove a job that does not run, wherever it has files; durable when it returns. The folder's name it was in."""
    found = ""
    for _ in range(LOOKS):
        where, entry = seek(spool, id)
        if found and where in (None, DONE):
            return found
        if where in (None, DONE):
            raise NotFound("cancel", id, "is done already" if where else "no such job", "see 'edgeq ls'")
        if where == PROCESSING:
            raise Busy("cancel", id, "is running", "wait, or use --running")
        try:
            spool.disk.unlink(spool.path(where, id + ".json" if where == DLQ else entry.name))
        except FileNotFoundError:
            continue  # RACE: claimed or kicked meanwhile
        spool.flush_folder(where)
        spool.forget_error(id)
        found = found or where
    raise Busy("cancel", id, "the job does not stand still", "repeat")
