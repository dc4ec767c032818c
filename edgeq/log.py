"""One line per event: `edgeq: WHEN STRENGTH EVENT key=value ...`, to stderr or syslog.

Values are made safe: no control byte, no newline, no second line whatever a job carries (P11). An event that repeats
with the same words within a minute is counted and told once (B20). A minute has room for 7 KiB; what does not fit is counted,
and the next minute begins with `unsaid EVENT=N ...`. A reader that went away, or a full log disk, costs log lines, never the
worker (B59).
"""

import posix

from edgeq.clock import iso

STRENGTHS = ("debug", "info", "warning", "error")
SYSLOG_LEVELS = {"debug": 7, "info": 6, "warning": 4, "error": 3}
REPEAT_S = 60
REMEMBERED = 64
MINUTE_BYTES, URGENT_BYTES = 7168, 2048  # of log a minute, whatever goes wrong; the second part is kept for errors
OVERHEAD_BYTES = 48  # what stands before a line
EVENTS_BYTES = 32768
EVENTS_FLAGS = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_CLOEXEC


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
    """Where events go. `clock` dates the lines; `target` is `stderr` or `syslog`.

    events: a file in RAM that gets each line, too, for `edgeq log`; with one full file before it at most 2 * EVENTS_BYTES.
    """

    def __init__(self, clock, target="stderr", threshold="info", events=""):
        self.clock, self.target, self.events = clock, target, events
        self.threshold = STRENGTHS.index(threshold)
        self._is_open = False
        self._seen = {}  # line -> [boot second of the last telling, times swallowed since]
        self._minute_at, self._left_bytes = -REPEAT_S, 0
        self._unsaid = {}  # event -> how many were not told for want of room

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
            self._remember(line, now.boot)
            if last and last[1]:
                line = "%s repeated=%d" % (line, last[1])
        if self._has_room(len(line) + OVERHEAD_BYTES, strength == "error" or event.startswith("status "), now):
            self._write(strength, line, now)
        else:
            self._unsaid[event] = self._unsaid.get(event, 0) + 1

    def _remember(self, line, boot):
        if len(self._seen) >= REMEMBERED:
            self._seen.pop(min(self._seen, key=lambda known: self._seen[known][0]))
        self._seen[line] = [boot, 0]

    def _has_room(self, size, is_urgent, now):
        """Whether this minute's bytes allow a line of `size`; an error may use the part that is kept for such.

        A new minute begins with what the last one could not tell.
        """
        if now.boot - self._minute_at >= REPEAT_S:
            self._minute_at, self._left_bytes = now.boot, MINUTE_BYTES
            if self._unsaid:
                counts = " ".join("%s=%d" % (event.replace(" ", "_"), n) for event, n in self._unsaid.items())
                self._unsaid = {}
                self._write("warning", "unsaid " + counts, now)
        if self._left_bytes - size < (0 if is_urgent else URGENT_BYTES):
            return False
        self._left_bytes -= size
        return True

    def _write(self, strength, line, now):
        if self.target == "syslog":
            import syslog  # on demand: a C module, absent from a worker that logs to stderr
            if not self._is_open:
                syslog.openlog("edgeq", 0, syslog.LOG_DAEMON)
                self._is_open = True
            syslog.syslog(SYSLOG_LEVELS[strength], line)
        else:
            say(2, "edgeq: %s %s %s\n" % (iso(now.wall), strength, line))
        if self.events:
            self._keep("%s %s %s\n" % (iso(now.wall), strength, line))

    def _keep(self, text):
        """RAM may be full, or gone: not worth a word."""
        try:
            fd = posix.open(self.events, EVENTS_FLAGS, 0o640)
            try:
                posix.write(fd, text.encode())
                is_full = posix.lseek(fd, 0, 1) > EVENTS_BYTES
            finally:
                posix.close(fd)
            if is_full:
                posix.rename(self.events, self.events + ".1")
        except OSError:
            pass
