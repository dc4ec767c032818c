"""Configuration: `KEY=value` lines, the same file that the shell wrapper reads, never executed.

Optional double quotes, `#` comments, blank lines; the last of equal keys wins. A missing file means the
defaults. A bad value is BadConfig naming file and line, before any job is touched (B94); an unknown key is reported
in `unknown` and ignored, since an older firmware may meet a newer file.

Read in this order, later over earlier: FILE, `FILE.d/@QUEUE.conf`; per job type `FILE.d/TYPE.conf`.
"""

from edgeq import disk
from edgeq.errors import BadConfig
from edgeq.job import is_word

DEFAULT_PATH = "/etc/edgeq.conf"
MAX_FILE_BYTES = 65536
BLANKS = " \t\r\v\f"  # what the shell takes for [[:space:]]


def _text(value):
    return value


def _store(value):
    scheme, _, path = value.partition(":")
    if scheme == "spool" and path or scheme == "sqlite":
        _path(path)
    if scheme == "sqlite" and path[-1] == "/":
        raise ValueError("names no file")
    return value


def _path(value):
    path = value.rstrip("/")
    if path[:1] != "/":
        raise ValueError("not an absolute path")
    return path


def _path_or_none(value):
    return _path(value) if value else value


def _queue(value):
    if not is_word(value):
        raise ValueError("not a queue name: letters, digits, '_' and '-'")
    return value


def _whole(low, high):
    def parse(value):
        if not (value.isascii() and value.isdigit() and len(value) <= 12 and low <= int(value) <= high):
            raise ValueError("not a whole number from %d to %d" % (low, high))
        return int(value)
    return parse


def _seconds(low, high):
    def parse(value):
        digits = value.replace(".", "", 1)
        if not (digits.isascii() and digits.isdigit() and len(value) <= 15 and low <= float(value) <= high):
            raise ValueError("not a number of seconds from %g to %g" % (low, high))
        return float(value) if "." in value else int(value)
    return parse


def _ratio(value):
    digits = value.replace(".", "", 1)
    if not (digits.isascii() and digits.isdigit() and len(value) <= 8 and float(value) <= 0.5):
        raise ValueError("not a number from 0 to 0.5")
    return float(value)


def _choice(*words):
    def parse(value):
        if value not in words:
            raise ValueError("not one of: %s" % " ".join(word or "(empty)" for word in words))
        return value
    return parse


def _name(value):
    if value and not is_word(value):
        raise ValueError("not a name: letters, digits, '_' and '-'")
    return value


YEAR_S = 31_622_400
KEYS = {  # key: (default, parser)
    "SPOOL": ("/var/lib/edgeq", _path),
    "QUEUE": ("default", _queue),
    "STORE": ("", _store),
    "HANDLERS": ("/etc/edgeq/handlers", _path),
    "RUN_DIR": ("/run/edgeq", _path),
    "USER": ("", _name),
    "CONCURRENCY": (2, _whole(1, 256)),
    "LINGER_S": (0, _seconds(0, YEAR_S)),
    "LEASE_S": (60, _seconds(1, 86400)),
    "TIMEOUT_S": (300, _seconds(0.1, 604_800)),
    "GRACE_S": (10, _seconds(0, 3600)),
    "MAX_ATTEMPTS": (5, _whole(1, 999)),
    "BASE_DELAY_S": (5, _seconds(0, 86400)),
    "MAX_DELAY_S": (3600, _seconds(0, 2_592_000)),
    "JITTER": (0.2, _ratio),
    "SYNC_WINDOW_MS": (10_000, _whole(0, 3_600_000)),
    "SYNC_JOBS": (32, _whole(1, 10_000)),
    "SCAN_CACHE": (256, _whole(1, 65536)),
    "SAFETY_SCAN_S": (60, _seconds(0.1, 86400)),
    "MIN_FREE_KB": (1024, _whole(0, 1 << 40)),
    "MIN_FREE_INODES": (64, _whole(0, 1 << 40)),
    "BALLAST_KB": (64, _whole(0, 1 << 20)),
    "MAX_JOBS": (10_000, _whole(1, 10_000_000)),
    "MAX_PAYLOAD_KB": (64, _whole(1, 16384)),
    "DONE_KEEP_KB": (256, _whole(16, 1 << 20)),
    "DLQ_KEEP": (500, _whole(0, 1_000_000)),
    "CORRUPT_KEEP": (100, _whole(0, 1_000_000)),
    "SPOOL_MAX_KB": (0, _whole(0, 1 << 40)),
    "DLQ_KEEP_KB": (1024, _whole(0, 1 << 40)),
    "CORRUPT_KEEP_KB": (256, _whole(0, 1 << 40)),
    "KEEP_DAYS": (0, _whole(0, 36500)),
    "REPORT_S": (300, _seconds(0, YEAR_S)),
    "LOG": ("stderr", _choice("stderr", "syslog")),
    "REQUIRE_MOUNT": ("", _path_or_none),
    "CLOCK": ("", _choice("", "none")),
    "NODE": ("", _name),
    "REDIS_PASSWORD_FILE": ("", _path_or_none),
}

TYPE_KEYS = {  # per job type; None: the configuration's value
    "NEEDS": ("", _name),
    "CONCURRENCY": (0, _whole(1, 256)),
    "TIMEOUT_S": (None, _seconds(0.1, 604_800)),
    "MAX_ATTEMPTS": (None, _whole(1, 999)),
    "BASE_DELAY_S": (None, _seconds(0, 86400)),
    "MAX_DELAY_S": (None, _seconds(0, 2_592_000)),
    "SYNC_JOBS": (None, _whole(1, 10_000)),
    "USER": ("", _name),
    "NICE": (0, _whole(0, 19)),
    "MEM_MB": (0, _whole(0, 1 << 20)),
    "FSIZE_MB": (0, _whole(0, 1 << 20)),
}


class Config:
    """The settings as attributes in lower case: `config.lease_s`. `path`: the file; `unknown`: keys nobody knows."""

    def __init__(self, path=DEFAULT_PATH):
        self.path, self.unknown = path, []
        for key, (default, _) in KEYS.items():
            setattr(self, key.lower(), default)

    @property
    def spool_path(self):
        """The queue's folder on persistent storage."""
        return "%s/%s" % (self.spool, self.queue)

    @property
    def run_path(self):
        """The queue's folder in RAM."""
        return "%s/%s" % (self.run_dir, self.queue)

    @property
    def max_payload_bytes(self):
        return self.max_payload_kb * 1024


class TypeConfig:
    """One job type's settings, the configuration's where the type's file says nothing. bad: why its file cannot be used."""

    def __init__(self, config, values, bad=""):
        self.bad = bad
        for key, (default, _) in TYPE_KEYS.items():
            value = values.get(key, default)
            setattr(self, key.lower(), getattr(config, key.lower()) if value is None else value)


def load(path, queue=None):
    """The Config of file `path`, for `queue` when given. BadConfig on a bad value."""
    config = Config(path)
    _apply(config, path)
    if queue is not None:
        config.queue = _parsed("QUEUE", queue, "--queue", KEYS)
    _apply(config, "%s.d/@%s.conf" % (path, config.queue))
    if queue is not None:
        config.queue = queue
    return _settled(config)


def with_store(config, url):
    """A copy of `config` for another store."""
    other = Config(config.path)
    vars(other).update(vars(config), store=url)
    return _settled(other)


def _settled(config):
    """STORE and SPOOL agree: each names the folder that the queues' folders lie in."""
    if not config.store:
        config.store = "spool:" + config.spool
    elif config.store.startswith("spool:"):
        config.spool = config.store[len("spool:"):].rstrip("/") or config.spool
    elif config.store.startswith("sqlite:/"):
        # the queues' folders lie beside the database: shell producers drop jobs there
        config.spool = config.store[len("sqlite:"):].rpartition("/")[0] or "/"
    return config


def load_type(config, type):
    """The TypeConfig of job type `type`. A bad file does not raise: it holds this type only."""
    path = "%s.d/%s.conf" % (config.path, type)
    values = {}
    try:
        for number, key, value in _lines(path):
            if key in TYPE_KEYS:
                values[key] = _parsed(key, value, "%s line %d" % (path, number), TYPE_KEYS)
    except BadConfig as error:
        return TypeConfig(config, {}, str(error))
    return TypeConfig(config, values)


def _apply(config, path):
    for number, key, value in _lines(path):
        if key in KEYS:
            setattr(config, key.lower(), _parsed(key, value, "%s line %d" % (path, number), KEYS))
        elif key not in config.unknown:
            config.unknown.append(key)


def _parsed(key, value, where, table):
    try:
        return table[key][1](value)
    except ValueError as error:
        raise BadConfig("configuration", where, "%s=%s: %s" % (key, value[:60], error), "correct the line") from None


def _lines(path):
    """(line number, key, value) of each setting in `path`; nothing for a missing file."""
    try:
        text = disk.read_text(path, MAX_FILE_BYTES + 1, follow=True)  # /etc may hold a link to the data partition
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise BadConfig("configuration", path, error.strerror or "unreadable", "make it a readable file") from None
    if "\0" in text or len(text) > MAX_FILE_BYTES:
        raise BadConfig("configuration", path, "not a text file of at most 64 KiB", "restore the file")
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(BLANKS)
        if not line or line[0] == "#":
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.isascii() or not key.replace("_", "A").isalnum():
            raise BadConfig("configuration", "%s line %d" % (path, number), "no KEY=value: %s" % line[:40], "correct the line")
        yield number, key, _unquoted(value, path, number)


def _unquoted(value, path, number):
    if value[:1] != '"':
        return value
    body, quote, rest = value[1:].partition('"')
    if not quote or rest.strip(BLANKS)[:1] not in ("", "#"):
        raise BadConfig("configuration", "%s line %d" % (path, number), "a quote is not closed", "correct the line")
    return body
