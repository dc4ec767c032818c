"""What stands in the lists and hashes, as text: a job's element <-> Job, Entry, ReadLine."""

from edgeq import disk as seam
from edgeq import record as records
from edgeq.job import Entry, is_word
from edgeq.store.journal import ReadLine

ENTRY = ("st", "pr", "seq", "due", "at", "att", "again", "type", "tok")  # fields of a job's hash, as `entry_of` wants them


def text_of(data):
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)


def info_of(answer):
    if isinstance(answer, dict):
        return {key: str(value) for key, value in answer.items()}
    return dict(line.split(":", 1) for line in text_of(answer).split("\r\n") if ":" in line)


def id_in(element):
    """The id that an element of ours begins with; "" when it is not of ours."""
    head = element[:200].split(b'"', 4)
    return text_of(head[3]) if len(head) > 3 and head[0] == b"{" and head[1] == b"id" else ""


def entry_of(id, fields):
    """The Entry of a job's hash; None when there is none."""
    state, priority, seq, due, is_at, attempts, again, type, token = fields[:9]
    if not state:
        return None
    return Entry(text_of(state), int(priority), int(seq), int(due), is_at == b"1", int(attempts), again == b"1", text_of(type), id,
                 text_of(token or b""))


def line_of(id, n, data):
    seq, done_at, attempts, type, ms, note = text_of(data).split(" ", 5)
    return ReadLine(id, n, int(seq), int(done_at), int(attempts), type, int(ms), note)


def options_of(job):
    """The fields of a record between created_at and available_at, as they stand in it."""
    parts = []
    if job.priority != records.DEFAULT_PRIORITY:
        parts.append(',"priority":%d' % job.priority)
    for field in ("max_attempts", "timeout_s", "expires_s"):
        if getattr(job, field) is not None:
            parts.append(',"%s":%d' % (field, getattr(job, field)))
    if job.key is not None:
        parts.append(',"key":"%s"' % job.key + (',"latest":true' if job.latest else ""))
    return "".join(parts)


def job_of(element, limit_bytes):
    """The Job that a foreign producer's element asks for; BadJob when it is none.

    `task` may stand for `type`; then, without a `payload`, the rest of the object is the payload.
    """
    text = records.one_line(records._decode(element))
    raw = records._fields(text)
    if "type" not in raw and "task" in raw:
        raw["type"] = raw.pop("task")
        if "payload" not in raw:
            rest = ["%s:%s" % (records.quote(key), value) for key, value in raw.items() if key not in ("id", "type")]
            raw = {key: raw[key] for key in ("id", "type") if key in raw}
            raw["payload"] = "{%s}" % ",".join(rest)
        text = "{%s}" % ",".join("%s:%s" % (records.quote(key), value) for key, value in raw.items())
    record = records.decode_text(text, limit_bytes)
    return records.to_job(record)


def without_end(record):
    """A dead letter's record as it was before it died."""
    fresh = records.Record()
    fresh.raw = {key: value for key, value in record.raw.items() if key not in ("attempts", "last_error", "failed_at")}
    return fresh


def node_name(store):
    """This device's name in the fleet: NODE, or one made once and kept beside the store, never in an image."""
    if store.config.node:
        return store.config.node
    path = store.path("node")
    try:
        name = store.disk.read_file(path, 100).decode("ascii", "replace").strip()
        if is_word(name):
            return name
    except FileNotFoundError:
        pass
    name = "n" + seam.make_uuid()[:12].replace("-", "")
    store.disk.replace(store.home, "node", name.encode() + b"\n")
    return name
