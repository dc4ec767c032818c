"""One line per event: `edgeq: WHEN STRENGTH EVENT key=value ...`, to stderr or syslog.

Values are made safe: no control byte, no newline, no second line whatever a job carries (P11). An event that repeats
with the same words within a minute is counted and told once (B20). A reader that went away, or a full log disk, costs
log lines, never the worker (B59).
"""

import posix

from edgeq.clock import iso

STRENGTHS = ("debug", "info", "warning", "error")
SYSLOG_LEVELS = {"debug": 7, "info": 6, "warning": 4, "error": 3}
REPEAT_S = 60
REMEMBERED = 64


def escape(text, limit=120):
    """`text` (str or bytes) as printable ASCII, at most `limit` bytes, the rest as `\\xNN`; `\\` and `"` escaped."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    out, size = [], 0
    for byte in data:
        if byte in (34, 92):
            piece = "\\" + chr(byte)
        elif 32 <= byte < 127:
            piece = chr(byte)
        else:
            piece = "\\x%02x" % byte
        size += len(piece)
        if size > limit:
            break
        out.append(piece)
    return "".join(out)


def show(value):
    """`value` as the right side of key=value: quoted when it is not one plain word."""
    text = escape(str(value) if not isinstance(value, bytes) else value, 400)
    plain = text and all(c.isalnum() or c in "-_./:+@,%~" for c in text)
    return text if plain else '"%s"' % text


def say(fd, text):
    """Write a line to a person; False when nobody can read it."""
    data = text.encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[posix.write(fd, data):]
    except OSError:
        return False
    return True


class Log:
    """Where events go. `clock` dates the lines; `target` is `stderr` or `syslog`."""

    def __init__(self, clock, target="stderr", threshold="info"):
        self.clock, self.target = clock, target
        self.threshold = STRENGTHS.index(threshold)
        self._seen = {}  # line -> [boot second of the last telling, times swallowed since]

    def debug(self, event, **fields):
        self._event("debug", event, fields)

    def info(self, event, **fields):
        self._event("info", event, fields)

    def warning(self, event, **fields):
        self._event("warning", event, fields)

    def error(self, event, **fields):
        self._event("error", event, fields)

    def _event(self, strength, event, fields):
        if STRENGTHS.index(strength) < self.threshold:
            return
        line = " ".join([event] + ["%s=%s" % (key, show(value)) for key, value in fields.items()])
        now = self.clock.read()
        if strength in ("warning", "error"):
            last = self._seen.get(line)
            if last and now.boot - last[0] < REPEAT_S:
                last[1] += 1
                return
            if last and last[1]:
                line_out = "%s repeated=%d" % (line, last[1])
            else:
                line_out = line
            self._remember(line, now.boot)
        else:
            line_out = line
        self._write(strength, line_out, now)

    def _remember(self, line, boot):
        if len(self._seen) >= REMEMBERED:
            self._seen.pop(min(self._seen, key=lambda known: self._seen[known][0]))
        self._seen[line] = [boot, 0]

    def _write(self, strength, line, now):
        if self.target == "syslog":
            import syslog  # on demand: a C module, absent from a worker that logs to stderr
            syslog.syslog(SYSLOG_LEVELS[strength] | syslog.LOG_DAEMON, "edgeq: " + line)
        else:
            say(2, "edgeq: %s %s %s\n" % (iso(now.wall), strength, line))
