"""What travels: Job, Entry, Lease, Outcome, Verdict, and the file-name codec.

A job's state is its file's name (DESIGN 2), so this is the only module that knows how a name is spelled:

    waiting     PRIO.SEQ.DUE.ATT.TYPE.ID.json
    claimed     PRIO.SEQ.DUE.ATT.TYPE.ID.TOKEN.json
    settling    PRIO.SEQ.DUE.ATT.TYPE.ID.TOKEN.settling
"""

from edgeq.errors import BadJob

INCOMING, PROCESSING, FAILED, DLQ, CORRUPT, DONE = "incoming", "processing", "failed", "dlq", "corrupt", "done"
FOLDERS = (INCOMING, PROCESSING, FAILED, DLQ, CORRUPT, DONE)

DEFAULT_PRIORITY = 5
SEQ_LIMIT = 9_000_000_000_000_000  # the year 2255; a clock beyond it counts on from the last number
MAX_NAME_BYTES = 255
WORD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def is_word(text, limit=64):
    """A TYPE or an ID: `[A-Za-z0-9_][A-Za-z0-9_-]{0,63}`. No dot, no slash, no leading dash: never a path or an option."""
    return 0 < len(text) <= limit and text[0] != "-" and WORD.issuperset(text)


def check_word(text, what):
    """`text`, or BadJob naming `what`."""
    if not isinstance(text, str) or not is_word(text):
        raise BadJob("enqueue", what, "not 1 to 64 letters, digits, '_' or '-' (no leading '-')")
    return text


class Job:
    """What was asked for.

    payload: bytes, one JSON value on one line, opaque. delay_s: seconds from acceptance. at: Unix seconds or None.
    max_attempts, timeout_s, expires_s: None means the configuration's value. latest: it takes the place of those with its key.
    """

    __slots__ = ("id", "type", "payload", "priority", "max_attempts", "timeout_s", "expires_s", "key", "delay_s", "at", "latest")

    def __init__(self, type, payload=b"{}", id=None, priority=DEFAULT_PRIORITY, max_attempts=None, timeout_s=None,
                 expires_s=None, key=None, delay_s=0, at=None, latest=False):
        self.type, self.payload, self.id, self.priority = type, payload, id, priority
        self.max_attempts, self.timeout_s, self.expires_s = max_attempts, timeout_s, expires_s
        self.key, self.delay_s, self.at, self.latest = key, delay_s, at, latest


class Entry:
    """A job as stored: the fields of its name plus the state it is in.

    due: Unix seconds, 0 for at once; is_at: due is a point in time, not a delay. attempts: tries charged.
    again: an earlier run may have happened (`r`). token, settling: set while claimed. Fields stand still: `moved` changes them.
    """

    __slots__ = ("state", "priority", "seq", "due", "is_at", "attempts", "again", "type", "id", "token", "settling", "_name")

    def __init__(self, state, priority, seq, due, is_at, attempts, again, type, id, token="", settling=False):
        self.state, self.priority, self.seq, self.due, self.is_at = state, priority, seq, due, is_at
        self.attempts, self.again, self.type, self.id = attempts, again, type, id
        self.token, self.settling = token, settling
        self._name = None

    @property
    def name(self):
        if self._name is None:
            self._name = self._spell()
        return self._name

    def _spell(self):
        return "%d.%016d.%d%s.%d%s.%s.%s.%s%s" % (
            self.priority, self.seq, self.due, "a" if self.is_at else "", self.attempts, "r" if self.again else "",
            self.type, self.id, self.token and self.token + ".", "settling" if self.settling else "json")

    @property
    def path(self):
        return self.state + "/" + self.name

    def moved(self, state, **changes):
        """A copy in another state; `changes` are fields. A move out of processing drops the token."""
        new = Entry(state, self.priority, self.seq, self.due, self.is_at, self.attempts, self.again, self.type, self.id)
        for field, value in changes.items():
            setattr(new, field, value)
        return new


def parse_name(state, name):
    """The Entry that `name` in folder `state` spells, or None when it is no such name.

    Only a name that comes back to the letter counts: `007` attempts or a 17-digit SEQ is somebody else's.
    """
    parts = name.split(".")
    claimed = state == PROCESSING
    if len(parts) != (8 if claimed else 7) or not name.isascii():
        return None
    prio, seq, due, att, type, id = parts[:6]
    is_at = due[-1:] == "a"
    again = att[-1:] == "r"
    due, att = due[:-1] if is_at else due, att[:-1] if again else att
    if not (prio.isdigit() and seq.isdigit() and due.isdigit() and att.isdigit() and len(att) <= 4 and len(due) <= 12):
        return None
    if len(prio) != 1 or len(seq) != 16 or not is_word(type) or not is_word(id):
        return None
    token = parts[6] if claimed else ""
    if claimed and not is_word(token):
        return None
    if parts[-1] != "json" and not (claimed and parts[-1] == "settling"):
        return None
    if due[0] == "0" != due or att[0] == "0" != att:
        return None
    entry = Entry(state, int(prio), int(seq), int(due), is_at, int(att), again, type, id, token, parts[-1] == "settling")
    entry._name = name
    return entry


def format_version(name):
    """N of a name that ends in `.vN.json` with N >= 2, a newer program's; else 0."""
    head, dot, last = name.rpartition(".")
    version = head.rpartition(".")[2]
    if dot and last == "json" and version[:1] == "v" and version[1:].isdigit() and version.isascii() and int(version[1:4]) >= 2:
        return int(version[1:10])
    return 0


def safe_name(name):
    """`name` as it may stand in corrupt/: plain ASCII, no leading dot or dash, bounded, never a reason's or a newer format's."""
    text = "".join(c if c in WORD or c == "." else "_" for c in name[:160])
    if text.endswith(".why") or format_version(text):
        text = text.replace(".", "_")  # nobody would count it, and no bound would remove it
    return ("_" + text[1:] if text[:1] in ("", ".", "-") else text) or "_"


class Lease:
    """A claim in somebody's hands: the entry (with its token), the record as read, and until when.

    leased_until, started_at: seconds of the boot clock. redelivered: an earlier run may have happened (P9).
    handler: (process group, its start time) once it runs. origin: the Entry it was claimed from, None for a claim taken
    over. is_moved: the claim itself became the dead letter (a full disk).
    """

    __slots__ = ("entry", "record", "started_at", "leased_until", "redelivered", "handler", "is_suspect", "last_error",
                 "origin", "is_moved")

    def __init__(self, entry, record, started_at, leased_until, redelivered, is_suspect=False, last_error=""):
        self.entry, self.record = entry, record
        self.started_at, self.leased_until = started_at, leased_until
        self.redelivered, self.is_suspect, self.last_error = redelivered, is_suspect, last_error
        self.handler, self.origin, self.is_moved = (0, 0), None, False

    @property
    def token(self):
        return self.entry.token


class Outcome:
    """How a handler ended.

    exit_code: 0..255 or None; signal: number or 0; timed_out: our timeout ended it; error: the errno text when it could
    not be started; shortage: it could not be started for want of our own resources; tail: last bytes of its output;
    ctl: what it wrote to EDGEQ_CTL as a dict of str; stopped: we ended it because we stop; cancelled: a person did.
    """

    __slots__ = ("exit_code", "signal", "timed_out", "error", "shortage", "duration_s", "tail", "ctl", "stopped", "timeout_s",
                 "cancelled")

    def __init__(self, exit_code=None, signal=0, timed_out=False, error="", shortage=False, duration_s=0.0, tail=b"", ctl=None,
                 stopped=False, timeout_s=0, cancelled=False):
        self.exit_code, self.signal, self.timed_out, self.error = exit_code, signal, timed_out, error
        self.shortage, self.duration_s, self.tail, self.ctl = shortage, duration_s, tail, ctl or {}
        self.stopped, self.timeout_s, self.cancelled = stopped, timeout_s, cancelled


class Verdict:
    """What is to happen to a claim. `why` is one line for a person."""

    __slots__ = ("why",)

    def __init__(self, why=""):
        self.why = why


class Ack(Verdict):
    """Done. `note` is the handler's result."""

    __slots__ = ("note",)

    def __init__(self, note=""):
        Verdict.__init__(self)
        self.note = note


class Retry(Verdict):
    """Another try after `wait_s`; the one just made stays charged."""

    __slots__ = ("wait_s",)

    def __init__(self, wait_s, why):
        Verdict.__init__(self, why)
        self.wait_s = wait_s


class Bury(Verdict):
    """No more tries: a person must look."""

    __slots__ = ()


class Hold(Verdict):
    """Back uncharged; the whole type waits. kind: `held` (this image cannot run it), `offline` (destination down)."""

    __slots__ = ("kind",)

    def __init__(self, kind, why):
        Verdict.__init__(self, why)
        self.kind = kind


class GiveBack(Verdict):
    """Back to waiting because the worker stops. The try is refunded only to a name that had no `r` before (P4)."""

    __slots__ = ()


class Drop(Verdict):
    """Removed by a person (`cancel --running`)."""

    __slots__ = ()
