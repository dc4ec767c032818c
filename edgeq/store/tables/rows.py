"""A job as a row: columns <-> Entry and Record. What the table `jobs` keeps is what a file's name and content say together.

`status` is the folder's name of the same state. `other` holds the fields of a record that have no column, as raw JSON text.
An integrator may insert and update rows by hand; whatever a row says is checked like a file's content before it runs (P6).
"""

from edgeq import record as records
from edgeq.errors import BadJob
from edgeq.job import DLQ, FAILED, INCOMING, PROCESSING, Entry
from edgeq.record import quote

ENTRY_COLUMNS = "status, priority, seq, available_at, is_at, attempts, again, type, id, worker_id"
RECORD_COLUMNS = 'payload, max_attempts, timeout_s, expires_s, "key", other, created_at, last_error, updated_at'
COLUMNS = ENTRY_COLUMNS + ", " + RECORD_COLUMNS

STATES = (INCOMING, PROCESSING, FAILED, DLQ)
BY_ID = " WHERE queue=? AND id=?"
HELD = BY_ID + " AND status='processing' AND worker_id=?"

# the name the job would have as a file: the order and the state in one string, for the ready view
NAME = ("printf('%d.%016d.%d%s.%d%s.%s.%s.json', priority, seq, available_at, CASE is_at WHEN 0 THEN '' ELSE 'a' END,"
        " attempts, CASE again WHEN 0 THEN '' ELSE 'r' END, type, id)")

LATEST = '"latest":true'  # as it stands in `other`

HAVE_COLUMNS = frozenset((
    "id", "type", "payload", "created_at", "priority", "max_attempts", "timeout_s", "expires_s", "key", "available_at",
    "attempts", "last_error", "failed_at"))


def entry_of(row):
    """The Entry of a row that begins with ENTRY_COLUMNS."""
    state, priority, seq, due, is_at, attempts, again, type, id, token = row[:10]
    return Entry(state, priority, seq, due, bool(is_at), attempts, bool(again), type, id, token)


def record_of(row, limit_bytes):
    """The Record of a row of COLUMNS; BadJob when it says no job."""
    try:
        text = _text_of(row)
    except (TypeError, ValueError, AttributeError):
        raise BadJob("read", "row", "a column holds what it should not") from None
    return records.decode(text.encode("utf-8", "surrogateescape"), limit_bytes)


def _text_of(row):
    state, priority, seq, due, is_at, attempts, again, type, id, token = row[:10]
    payload, max_attempts, timeout_s, expires_s, key, other, created_at, last_error, updated_at = row[10:]
    parts = ['{"id":%s,"type":%s,"created_at":%d' % (quote(id), quote(type), created_at or seq // 1_000_000)]
    for name, value in (("priority", priority), ("max_attempts", max_attempts), ("timeout_s", timeout_s),
                        ("expires_s", expires_s), ("available_at", due if state != DLQ and due else None)):
        if value is not None and (name, value) != ("priority", records.DEFAULT_PRIORITY):
            parts.append('"%s":%d' % (name, value))
    if key is not None:
        parts.append('"key":%s' % quote(key))
    if other:
        parts.append(other)
    if state == DLQ:
        parts.append('"attempts":%d,"last_error":%s,"failed_at":%d' % (attempts, quote(last_error), updated_at))
    parts.append('"payload":%s}\n' % payload)
    return ",".join(parts)


def text_of(raw):
    """The text of a raw JSON string, "" for anything else."""
    return records._scanstring(raw, 1, True)[0] if raw[:1] == '"' else ""


def other_of(record):
    """The fields of `record` without a column, as raw JSON text; None when there are none."""
    rest = ["%s:%s" % (quote(key), value) for key, value in record.raw.items() if key not in HAVE_COLUMNS]
    return ",".join(rest) or None
