"""The front door for Python: check the wish, ask the guard, store. The shell wrapper does the same with the same answers."""

from edgeq import record as records
from edgeq.errors import BadJob, BadUsage, StoreFull
from edgeq.job import Job, check_word


def make_job(config, type, payload, id=None, priority=None, max_attempts=None, timeout_s=None, expires_s=None, key=None,
             delay_s=None, at=None, latest=False):
    """A Job whose every field was checked. payload: bytes of JSON, as they came. BadJob names the first field that is wrong."""
    check_word(type, "type")
    if id is not None:
        check_word(id, "id")
    if key is not None:
        records.check_key(key)
    elif latest:
        raise BadUsage("enqueue", "--latest", "needs --key")
    for name, value, low, high in (
            ("priority", priority, 0, 9), ("max-attempts", max_attempts, 1, records.MAX_ATTEMPTS_LIMIT),
            ("timeout", timeout_s, 1, records.TIMEOUT_LIMIT_S), ("expires", expires_s, 1, records.EXPIRES_LIMIT_S),
            ("delay", delay_s, 0, records.DELAY_LIMIT_S), ("at", at, 0, records.LAST_INSTANT)):
        if value is not None and not low <= value <= high:
            raise BadJob("enqueue", name, "not a whole number from %d to %d" % (low, high))
    text = records.check_payload(payload, config.max_payload_bytes)
    return Job(type, text.encode(), id=id, priority=5 if priority is None else priority, max_attempts=max_attempts,
               timeout_s=timeout_s, expires_s=expires_s, key=key, delay_s=delay_s or 0, at=at, latest=latest)


def make_batch(config, lines):
    """[Job] of NDJSON lines (bytes); BadJob names the first bad line, and nothing of the batch is accepted."""
    jobs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = records.decode(line if line[-1:] == b"\n" else line + b"\n", config.max_payload_bytes)
            job = records.to_job(record)
            if job.latest and job.key is None:
                raise BadJob("enqueue", "latest", "needs a key")
            job.payload = records.check_payload(job.payload, config.max_payload_bytes).encode()
            jobs.append(job)
        except BadJob as error:
            raise BadJob("enqueue", "line %d" % number, error.why, "nothing of the batch was accepted") from None
    return jobs


def admit(guard, jobs_n):
    """Ask the guard; StoreFull says bytes, inodes, jobs or SPOOL_MAX_KB."""
    full = guard.ask(jobs_n)
    if full:
        raise StoreFull("enqueue", "spool", "full: " + full, "nothing was queued; free some, or raise the limit")


def enqueue(store, guard, job, now, jobs_n, fast=False):
    """Receipt of one job."""
    admit(guard, jobs_n)
    return store.enqueue(job, now, fast)
