"""`edgeq log [-f]`: what was done and what happened, one line each, in order of time.

Two sources: the done journal (on flash, bounded by DONE_KEEP_KB, survives a reboot) and the workers' events
(`R/events.1`, `R/events`: RAM, the last 32 to 64 KiB since the boot; syslog, or wherever the worker's stderr goes, has the
rest). Lines are put in order by the time they carry; after a step of the clock that is not the order in which things happened.

    2026-07-20T10:15:00Z done id=ID type=T try=1 ms=12 result=-
    2026-07-20T10:15:02Z info retry id=ID type=T attempt=1 why="exit 1: no route" wait_s=4.2
"""

import posix
from select import poll

from edgeq.clock import iso
from edgeq.errors import NO, OK

OPTIONS = {"log": {"f": "flag", "n": "whole", "type": "text"}}
HELP = {"log": """
The done journal and the workers' events of this boot as text, in order of time.
Events are kept in RAM, 32 KiB at the least; syslog has the rest (LOG=syslog).
Exit 1: there is nothing.

  -f          go on: print what comes, until interrupted
  -n N        only the last N lines
  --type T    only what is said of type T

  edgeq log -n 20
  edgeq log -f --type send_webhook
"""}
LOOK_MS = 500  # -f only: a person watches
READ_BYTES = 1 << 16


def run(context):
    if context.args:
        raise context.usage("takes no arguments")
    source, wanted = Source(context.open_store()), context.options.get("type")
    lines = [line for line in source.fresh() if _is_wanted(line, wanted)]
    if "n" in context.options:
        lines = lines[len(lines) - min(context.options["n"], len(lines)):]
    for line in lines:
        context.out(line)
    if not context.options.get("f"):
        return OK if lines else NO
    while True:
        poll().poll(LOOK_MS)
        for line in source.fresh():
            if _is_wanted(line, wanted):
                context.out(line)


def _is_wanted(line, type):
    return type is None or " type=%s " % type in line + " "


class Source:
    """Both sources, read on from where the last look ended."""

    def __init__(self, store):
        self.store = store
        self.last_n = 0  # number of the last journal line told
        self.told = {}  # inode of an events file -> bytes told

    def fresh(self):
        """The lines that are new since the last call, in order of time."""
        lines = list(self._done()) + list(self.events())
        return sorted(lines, key=lambda line: line[:20])

    def _done(self):
        last_n = self.last_n
        try:
            for line in self.store.done_lines():
                if line.n > self.last_n:
                    last_n = max(last_n, line.n)
                    yield "%s done id=%s type=%s try=%d ms=%d result=%s" % (
                        iso(line.done_at), line.id, line.type, line.attempts, line.ms, line.note)
        except FileNotFoundError:
            pass  # no spool yet
        self.last_n = last_n

    def events(self):
        """The workers' lines that are new since the last call, the older file first."""
        seen = {}
        for name in ("events.1", "events"):
            try:
                inode, size, text = _read(self.store.run + "/" + name, self.told)
            except OSError:
                continue
            whole, newline, rest = text.rpartition("\n")
            seen[inode] = size - len(rest.encode("utf-8", "surrogateescape"))
            for line in whole.split("\n") if newline else ():
                yield _plain(line)
        self.told = seen


def _plain(line):
    """The worker escaped its events; the file could be anybody's."""
    return "".join(c if " " <= c < "\x7f" else "?" for c in line)


def _read(path, told):
    """(inode, size, what was not told yet) of an events file."""
    fd = posix.open(path, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC)
    try:
        status = posix.fstat(fd)
        at = told.get(status.st_ino, 0)
        data = posix.pread(fd, READ_BYTES, at if at <= status.st_size else 0)
        return status.st_ino, at + len(data), data.decode("utf-8", "surrogateescape")
    finally:
        posix.close(fd)
