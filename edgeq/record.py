"""The job record: JSON in and out, what is torn, what is refused.

The payload is an opaque slice. It is checked once at the door and again when it is read back (a cut can leave a file of
the right size with wrong bytes), never parsed into values and never written anew. The checks are C's JSON scanner with
hooks that throw every value away.
"""

from edgeq.errors import BadJob
from edgeq.job import Job, check_word, DEFAULT_PRIORITY

try:
    from _json import make_scanner as _make_scanner, scanstring as _scanstring, encode_basestring_ascii as quote
except ImportError:  # a Python without the accelerator
    from json.scanner import py_make_scanner as _make_scanner
    from json.decoder import scanstring as _scanstring
    from json.encoder import py_encode_basestring_ascii as quote

VERSION = 1
MAX_NESTING = 64
MAX_ATTEMPTS_LIMIT = 999
TIMEOUT_LIMIT_S = 604_800
EXPIRES_LIMIT_S = DELAY_LIMIT_S = 315_360_000
LAST_INSTANT = 8_999_999_999  # SEQ_LIMIT's second
LAST_SEQ_SECOND = 9_999_999_999  # of 16 digits: SEQ goes on beyond SEQ_LIMIT, and what was accepted then is a job
RECORD_OVERHEAD = 4096  # bytes of a record beside its payload, generously
BLANKS = " \t\n\r"
KEY_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
NUMBERS = (("priority", 0, 9), ("max_attempts", 1, MAX_ATTEMPTS_LIMIT), ("timeout_s", 1, TIMEOUT_LIMIT_S),
           ("expires_s", 1, EXPIRES_LIMIT_S), ("created_at", 0, LAST_SEQ_SECOND), ("available_at", 0, LAST_INSTANT),
           ("attempts", 0, 9999))
CANONICAL = frozenset('"%s"' % field for field in ("id", "type", "key") + tuple(number[0] for number in NUMBERS))


def _refuse(constant):
    raise ValueError("%s is not JSON" % constant)


class _Checker:
    """Context for the C scanner: accepts what JSON is, keeps nothing of it."""

    strict = True
    object_hook = None
    memo = {}
    parse_constant = staticmethod(_refuse)
    parse_string = staticmethod(_scanstring)  # for the Python scanner

    @staticmethod
    def object_pairs_hook(pairs):
        return None

    @staticmethod
    def parse_float(text):
        return None

    parse_int = parse_float

    # the Python scanner asks the context for these
    @staticmethod
    def parse_object(*args):
        from json.decoder import JSONObject
        return JSONObject(*args)

    @staticmethod
    def parse_array(*args):
        from json.decoder import JSONArray
        return JSONArray(*args)


_skim = _make_scanner(_Checker)


class Record:
    """A record as it lies on disk: its fields as raw JSON text, in order.

    raw: dict of key -> JSON text. id, type: str or None. The others: int or None as asked for.
    """

    __slots__ = ("raw", "id", "type", "priority", "max_attempts", "timeout_s", "expires_s", "key", "created_at", "available_at",
                 "attempts", "was_dead", "version", "is_latest")

    @property
    def payload(self):
        """The payload's bytes, as they came."""
        return self.raw.get("payload", "{}").encode()

    def stdin(self):
        """What a handler reads: the text of a JSON string, anything else as JSON."""
        text = self.raw.get("payload", "{}")
        return _scanstring(text, 1, True)[0].encode() if text[0] == '"' else text.encode()


def check_payload(data, limit_bytes):
    """`data` (bytes) as the one-line JSON text it may be stored as; BadJob says what is wrong with it."""
    text = _decode(data).strip(BLANKS)
    if len(text.encode()) > limit_bytes:
        raise BadJob("enqueue", "payload", "%d bytes, more than MAX_PAYLOAD_KB=%d allows" % (len(data), limit_bytes // 1024))
    if not text:
        raise BadJob("enqueue", "payload", "empty", "give JSON, '-', --text or --file")
    check_shape(text)
    if _value_end(text, 0) != len(text):
        raise BadJob("enqueue", "payload", "not JSON: something follows the value")
    return one_line(text)  # after the checks: a line break inside a string is no JSON


def one_line(text):
    """JSON text with no line break: outside a string it is white space, inside one it may not stand."""
    return text.replace("\n", " ").replace("\r", " ").strip(BLANKS)


def text_payload(data):
    """The JSON string of `data` (bytes of UTF-8 text)."""
    text = _decode(data)
    if "\0" in text:
        raise BadJob("enqueue", "text", "holds a NUL byte")
    return encode_text(text).encode()


def encode_text(text):
    """A JSON string: quotes, backslash and control characters escaped, the rest as it is."""
    out = text.replace("\\", "\\\\").replace('"', '\\"')
    if not out.isprintable():
        out = "".join(c if c >= " " and c != "\x7f" else _SHORT.get(c) or "\\u%04x" % ord(c) for c in out)
    return '"%s"' % out


_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}


def encode(job, seq, due):
    """The canonical bytes of a new record (docs/files.md), newline included. `job.payload` was checked."""
    parts = ['{"id":"%s","type":"%s","created_at":%d' % (job.id, job.type, seq // 1_000_000)]
    if job.priority != DEFAULT_PRIORITY:
        parts.append('"priority":%d' % job.priority)
    for field in ("max_attempts", "timeout_s", "expires_s"):
        if getattr(job, field) is not None:
            parts.append('"%s":%d' % (field, getattr(job, field)))
    if job.key is not None:
        parts.append('"key":"%s"' % job.key)
        if job.latest:
            parts.append('"latest":true')
    if due:
        parts.append('"available_at":%d' % due)
    parts.append('"payload":%s}\n' % job.payload.decode())
    return ",".join(parts).encode()


def encode_dead(record, entry, attempts, last_error, failed_at):
    """The record of a dead letter: the same fields with the payload untouched, plus how it died."""
    raw = {"id": quote(entry.id), "type": quote(entry.type)}
    raw.update((key, value) for key, value in record.raw.items() if key not in ("id", "type", "payload"))
    raw["priority"] = str(entry.priority)
    raw["attempts"] = str(attempts)
    raw["last_error"] = quote(last_error)
    raw["failed_at"] = str(int(failed_at))
    raw["payload"] = record.raw.get("payload", "{}")
    return ("{%s}\n" % ",".join("%s:%s" % (quote(key), value) for key, value in raw.items())).encode()


def encode_whole(record, entry):
    """The record as it was read, with the id and type of `entry`, the payload last and untouched."""
    raw = dict(record.raw, id=quote(entry.id), type=quote(entry.type))
    payload = raw.pop("payload", "{}")
    return ("{%s,\"payload\":%s}\n" % (",".join("%s:%s" % (quote(key), value) for key, value in raw.items()), payload)).encode()


def decode(data, limit_bytes):
    """The Record that `data` holds; BadJob says why it is none. A record without its final newline is torn."""
    if data[-1:] != b"\n":
        raise BadJob("read", "record", "torn: no end mark")
    return decode_text(_decode(data), limit_bytes)


def decode_text(text, limit_bytes):
    """As `decode`, for one object that needs no end mark (a line of a batch)."""
    check_shape(text, MAX_NESTING + 1)  # the payload's, inside the record
    record = Record()
    record.raw = raw = _canonical_fields(text) or _fields(text)
    if raw.get("v", "1") != "1":
        raise BadJob("read", "record", "format version %s is not known here" % raw["v"][:20])
    record.version = VERSION
    record.id = _word(raw, "id", False)
    record.type = _word(raw, "type", True)
    for field, low, high in NUMBERS:
        setattr(record, field, _number(raw, field, low, high) if field in raw else None)
    record.was_dead = bool(record.attempts) or "failed_at" in raw
    record.key = _key(raw)
    record.is_latest = raw.get("latest") == "true"
    if len(raw.get("payload", "{}").encode()) > limit_bytes:
        raise BadJob("read", "payload", "more than MAX_PAYLOAD_KB=%d allows" % (limit_bytes // 1024))
    return record


def to_job(record):
    """The Job that a dropped record or a batch line asks for. `created_at` and `attempts` are history, not wishes."""
    return Job(record.type, record.payload, id=record.id,
               priority=DEFAULT_PRIORITY if record.priority is None else record.priority,
               max_attempts=record.max_attempts, timeout_s=record.timeout_s, expires_s=record.expires_s,
               key=record.key, at=record.available_at or None, latest=record.is_latest)


def check_shape(text, nesting=MAX_NESTING):
    """Nesting bounded, no lone surrogate: what the scanner does not check."""
    if text.count("[") + text.count("{") > nesting and _depth(text) > nesting:
        raise BadJob("read", "record", "nested deeper than %d" % MAX_NESTING)
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(text)


def _decode(data):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadJob("read", "record", "not UTF-8 at byte %d" % error.start) from None


def _depth(text):
    """The deepest nesting of brackets that stand outside strings."""
    outside = text.replace("\\\\", "").replace('\\"', "").split('"')[::2]
    depth = deepest = 0
    for piece in outside:
        for c in piece:
            if c in "[{":
                depth += 1
                deepest = max(deepest, depth)
            elif c in "]}":
                depth -= 1
    return deepest


def _check_surrogates(text):
    """Each \\uD800-\\uDBFF is followed at once by \\uDC00-\\uDFFF, and none of these stands alone."""
    pieces = text.replace("\\\\", "\0\0").split("\\u")
    high = False
    for piece in pieces[1:]:
        number = piece[:4].lower()
        is_low = "dc00" <= number <= "dfff"
        if high != is_low:
            raise BadJob("read", "record", "a lone surrogate")
        high = "d800" <= number <= "dbff"
        if high and len(piece) > 4:
            raise BadJob("read", "record", "a lone surrogate")
    if high:
        raise BadJob("read", "record", "a lone surrogate")


def _value_end(text, start):
    """Where the JSON value that begins at `start` ends."""
    try:
        return _skim(text, start)[1]
    except StopIteration:
        why = "no value at character %d" % start
    except RecursionError:
        why = "nested too deep"
    except SystemError:  # 3.11 raises it on some bad input
        why = "a value at character %d does not end" % start
    except (ValueError, MemoryError) as error:
        why = str(error)
    raise BadJob("read", "record", "not JSON: %s" % why)


def _canonical_fields(text):
    """The same of a record as `encode` and the wrapper write it, at a quarter of the price; None for any other spelling.

    Exact all the same: in front of the payload stand only words and whole numbers, so a comma is a comma.
    """
    head, mark, payload = text.partition(',"payload":')
    payload = payload.removesuffix("\n")
    if not mark or head[:1] != "{" or payload[-1:] != "}":
        return None
    fields, payload = {}, payload[:-1]
    for piece in head[1:].split(","):
        key, _, value = piece.partition(":")
        is_word = value[:1] == '"' == value[-1:] and len(value) > 2 and KEY_CHARS.issuperset(value[1:-1])
        if not is_word and not (value.isdigit() and value.isascii() and (value[0] != "0" or value == "0")):
            return None
        if key not in CANONICAL or key[1:-1] in fields:
            return None
        fields[key[1:-1]] = value
    fields["payload"] = payload
    try:
        return fields if payload and _value_end(payload, 0) == len(payload) else None
    except BadJob:
        return None  # `_fields` says where


def _fields(text):
    """key -> raw text of a JSON object; BadJob for anything else, doubled keys included."""
    fields, at = {}, _skip(text, 0)
    if text[at:at + 1] != "{":
        raise BadJob("read", "record", "not a JSON object")
    at = _skip(text, at + 1)
    if text[at:at + 1] == "}":
        at += 1
    else:
        while True:
            key, at = _read_key(text, at)
            start = _skip(text, at)
            end = _value_end(text, start)
            if key in fields:
                raise BadJob("read", "record", "key %s stands twice" % quote(key)[:40])
            fields[key] = text[start:end]
            at = _skip(text, end)
            mark = text[at:at + 1]
            at = _skip(text, at + 1)
            if mark == "}":
                break
            if mark != ",":
                raise BadJob("read", "record", "not JSON: no ',' or '}' at character %d" % (at - 1))
    if _skip(text, at) != len(text):
        raise BadJob("read", "record", "not JSON: something follows the object")
    return fields


def _read_key(text, at):
    if text[at:at + 1] != '"':
        raise BadJob("read", "record", "not JSON: no key at character %d" % at)
    try:
        key, at = _scanstring(text, at + 1, True)
    except (ValueError, SystemError):  # 3.11 raises SystemError on some bad input
        raise BadJob("read", "record", "not JSON: a key at character %d does not end" % at) from None
    at = _skip(text, at)
    if text[at:at + 1] != ":":
        raise BadJob("read", "record", "not JSON: no ':' at character %d" % at)
    return key, at + 1


def _skip(text, at):
    while text[at:at + 1] and text[at] in BLANKS:
        at += 1
    return at


def _word(raw, key, is_needed):
    """A string field; `id` may also come as a whole number, as many producers write it."""
    text = raw.get(key)
    if text is None:
        if is_needed:
            raise BadJob("read", "record", "no %s" % key)
        return None
    if text[0] == '"':
        return check_word(_scanstring(text, 1, True)[0], key)
    if key == "id" and text.isdigit():
        return check_word(text, key)
    raise BadJob("read", key, "not a string")


def _key(raw):
    text = raw.get("key")
    if text is None or text == "null":
        return None
    if text[0] != '"':
        raise BadJob("read", "key", "not a string")
    return check_key(_scanstring(text, 1, True)[0])


def check_key(text):
    """A coalescing key: `[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}`."""
    if not (0 < len(text) <= 64 and text[0] not in ".-" and KEY_CHARS.issuperset(text)):
        raise BadJob("read", "key", "not 1 to 64 letters, digits, '_', '-' or '.' (no leading '-' or '.')")
    return text


def _number(raw, key, low, high):
    """A whole number field within its bounds, None when absent."""
    text = raw.get(key)
    if text is None or text == "null":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and low <= int(text) <= high):
        raise BadJob("read", key, "not a whole number from %d to %d" % (low, high))
    return int(text)
