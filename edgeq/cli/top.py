"""`edgeq top`: a live view for a serial console: 80x24, plain ASCII, no colours, no curses.

What is sent to the terminal: text, and three sequences that every VT100 knows (go to row, clear to the end of the line,
clear to the end of the screen); only lines that changed, so that 9600 baud will do. TERM=dumb, or none: frames one
after the other without any sequence. No terminal at all: one frame.

The terminal's settings are put back whatever ends the program but KILL (then: `stty sane`): the loop knows no way out
but its end, signals only set a flag. Nothing else is changed: no other screen, no hidden cursor.

Counts come from where `status` has them; finished jobs by minute from the journal at the start and then from the count of
done, failed ones from the workers' events.
"""

import posix
import termios
from _signal import SIGCONT, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIG_IGN, signal
from select import POLLERR, POLLHUP, POLLIN, poll as make_poll

from edgeq import disk as seam
from edgeq.cli import OutputGone
from edgeq.cli.log import Source
from edgeq.cli.status import age, cut, read_status, short, survey, _free_kb, _pauses
from edgeq.clock import iso, parse_iso
from edgeq.errors import EdgeqError, OK
from edgeq.job import DLQ, PROCESSING
from edgeq.log import escape, say
from edgeq.store.arrivals import poke
from edgeq.store.pauses import DEFAULT_FOR_S

OPTIONS = {"top": {"interval": "whole"}}
HELP = {"top": """
A live view: counts, rates, the age of what is ready by type, finished and
failed jobs by minute, what runs. 80 columns, 24 lines, plain ASCII.

  --interval SECONDS   between two looks (2)

Keys: q quit   p pause everything for 1 h   r resume   k kick the dead letters
(p and k ask first)

  edgeq top --interval 5
"""}
ROWS, COLUMNS, MINUTES = 24, 79, 60  # one column less than 80: a full line would wrap on some terminals
SCALE = " .:-=+*#%@"
HINT = "q quit  p pause  r resume  k kick"
TIMED_OUT_FRAMES = 5  # a look that takes long is made less often: at most a fifth of the time


def run(context):
    if context.args:
        raise context.usage("takes no arguments")
    interval_s = context.options.get("interval", 2)
    if not 1 <= interval_s <= 3600:
        raise context.usage("--interval: 1 to 3600")
    model = Model(context)
    if not (posix.isatty(0) and posix.isatty(1)):
        context.out("\n".join(model.frame()).rstrip("\n"))
        return OK
    return Screen(context, model, interval_s).run()


class Screen:
    """The terminal, its keys and its signals."""

    def __init__(self, context, model, interval_s):
        self.context, self.model, self.interval_s = context, model, interval_s
        self.is_dumb = posix.environ.get(b"TERM", b"dumb") in (b"dumb", b"")
        self.shown = []  # what stands on the screen
        self.asking = None  # (question, what a `y` does)
        self.said = ""
        self.is_over = False

    def run(self):
        before = termios.tcgetattr(0)
        reader, writer = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)

        def leave(*_):
            self.is_over = True
            posix.write(writer, b"x")
        for number in (SIGINT, SIGTERM, SIGHUP, SIGQUIT):
            signal(number, leave)
        signal(SIGPIPE, SIG_IGN)
        signal(SIGCONT, lambda *_: self._take_terminal(before))
        try:
            self._take_terminal(before)
            self._loop(reader)
        except OutputGone:
            pass
        finally:
            try:
                termios.tcsetattr(0, termios.TCSADRAIN, before)
                say(1, "\r\n" if self.is_dumb else "\x1b[%d;1H\x1b[K\r\n" % ROWS)
            except termios.error:
                pass  # the terminal itself is gone
        return OK

    def _take_terminal(self, before):
        """Keys one by one, without echo. Ctrl-C and Ctrl-\\ stay signals; Ctrl-Z is off: it would leave the settings behind."""
        mine = [list(part) if isinstance(part, list) else part for part in before]
        mine[3] &= ~(termios.ICANON | termios.ECHO)
        mine[6][termios.VMIN], mine[6][termios.VTIME] = 1, 0
        mine[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(0, termios.TCSANOW, mine)
        self.shown = []

    def _loop(self, reader):
        clock, poll = self.context.clock, make_poll()
        poll.register(0, POLLIN)
        poll.register(reader, POLLIN)
        next_at = 0
        while not self.is_over:
            began = clock.read().boot
            if began >= next_at:
                lines = self.model.frame()
                took_s = clock.read().boot - began
                next_at = began + max(self.interval_s, took_s * TIMED_OUT_FRAMES)
            self._draw(lines)
            for fd, event in poll.poll(max(int((next_at - clock.read().boot) * 1000), 0) + 1):
                if fd == 0:
                    if event & (POLLHUP | POLLERR) or not self._read_keys():
                        return
                    next_at = 0

    def _read_keys(self):
        """False at the end of the input."""
        try:
            keys = posix.read(0, 64)
        except OSError:
            return False
        for key in keys.decode("ascii", "replace"):
            self._press(key)
        return bool(keys)

    def _press(self, key):
        if self.asking:
            question, act = self.asking
            self.asking = None
            self.said = act() if key in "yY" else "not done"
        elif key in "qQ\x03\x04":
            self.is_over = True
        elif key == "p":
            self.asking = "pause everything for 1 h? y/n", self.model.pause
        elif key == "r":
            self.said = self.model.resume()
        elif key == "k":
            self.asking = "kick %d dead letters? y/n" % self.model.dead_n, self.model.kick
        elif key == "\x0c":
            self.shown = []

    def _draw(self, lines):
        last = self.asking[0] if self.asking else "%s   %s" % (HINT, self.said)
        lines = lines[:ROWS - 1] + [""] * (ROWS - 1 - len(lines)) + [cut(last, COLUMNS)]
        if self.is_dumb:
            if lines != self.shown:
                self._send("\n".join(line for line in lines if line) + "\n\n")
        else:
            out = "" if self.shown else "\x1b[1;1H\x1b[J"
            for row, line in enumerate(lines):
                if not self.shown or line != self.shown[row]:
                    out += "\x1b[%d;1H%s\x1b[K" % (row + 1, line)
            self._send(out + "\x1b[%d;%dH" % (ROWS, min(len(lines[-1].rstrip()) + 2, COLUMNS)))
        self.shown = lines

    @staticmethod
    def _send(text):
        if not say(1, text):
            raise OutputGone()


class Model:
    """What the frames say, and what the keys do."""

    def __init__(self, context):
        self.context = context
        self.store = context.open_store()
        self.letters = {}
        self.dead_n = 0
        self.finished, self.failed = {}, {}  # minute of the boot clock -> how many
        self._done_n = 0  # finished jobs that are counted
        self.source = Source(self.store)
        self._remember()

    # --- by minute ----------------------------------------------------------------------------------------

    def _remember(self):
        """What the last hour was like, as far as the journal knows."""
        now = self.context.clock.read()
        try:
            for line in self.store.done_lines():
                self._done_n = max(self._done_n, line.n)
                self._count(self.finished, now, now.wall - line.done_at)
        except (OSError, EdgeqError):
            pass

    @staticmethod
    def _count(table, now, ago_s, n=1):
        minute = int(now.boot - ago_s) // 60
        if 0 <= int(now.boot) // 60 - minute < MINUTES:
            table[minute] = table.get(minute, 0) + n

    def _note_rates(self, now, status):
        if status.done > self._done_n:
            self._count(self.finished, now, 0, status.done - self._done_n)
            self._done_n = status.done
        for line in self.source.events():
            words = line.split(" ")
            try:
                n = 1 if words[2:3] in (["retry"], ["dead"]) else 0
                if words[2:3] == ["unsaid"]:  # told in sum, see log.py
                    n = sum(int(word[6:]) if word[:6] == "retry=" else int(word[5:]) for word in words[3:]
                            if word[:6] == "retry=" or word[:5] == "dead=")
                if n:
                    self._count(self.failed, now, now.wall - parse_iso(words[0]), n)
            except ValueError:
                continue  # not a line of a worker's

    # --- a frame --------------------------------------------------------------------------------------------

    def frame(self):
        """The lines, at most ROWS - 1 of at most COLUMNS columns."""
        context, store, now = self.context, self.store, self.context.clock.read()
        status = read_status(context, store, now)
        self._note_rates(now, status)
        self.dead_n = status.dead
        paused = _pauses(store, now)
        values = status.values(now, len(paused), _free_kb(store, context.config))
        lines = [
            "edgeq %s  %s  worker %s  %s" % (
                context.config.queue, iso(now.wall), status.worker,
                "healthy" if not status.exit else "%s: %s" % ("degraded" if status.exit == 1 else "BROKEN", status.reason)),
            "ready %s  running %s  delayed %s  failed %s  held %s  dead %s  corrupt %s" % tuple(
                short(values[key], 6) for key in ("ready", "processing", "delayed", "failed", "held", "dead", "corrupt")),
            "done %s  oldest ready %s  free %s  paused: %s" % (
                short(status.done, 9), age(values["oldest_ready_s"]), _size(values["free_kb"]), _said_of(paused)),
            'last error "%s"' % status.last_error,
            self._spark("done/min", self.finished, now),
            self._spark("fail/min", self.failed, now),
            "%-20s %6s %6s %6s %6s %5s %6s %5s  %s" % ("TYPE", "<1m", "<10m", "<1h", "older", "RUN", "FAILED", "DEAD", "")]
        rows = sorted(survey(context, store, now, self.letters).items(), key=lambda item: (-_weight(item[1]), item[0]))
        running = list(self._running(now))
        room = ROWS - 2 - len(lines)  # one for the other heading
        shown_n = min(len(rows), max(room - len(running), room // 2))
        lines += [self._type_line(type, row) for type, row in rows[:shown_n]]
        if shown_n < len(rows):
            lines[-1] = "... %d types more" % (len(rows) - shown_n + 1)
        lines.append("%-33s %-20s %4s %7s %6s" % ("RUNNING", "TYPE", "TRY", "ELAPSED", "WORKER"))
        room = ROWS - 1 - len(lines)
        lines += running[:room]
        if len(running) > room:
            lines[-1] = "... %d running more" % (len(running) - room + 1)
        return [cut(line.rstrip(), COLUMNS) for line in lines]

    @staticmethod
    def _type_line(type, row):
        ages = ["?"] * 4 if row.oldest_s < 0 else [short(n, 6) for n in row.ages]
        return "%-20s %6s %6s %6s %6s %5s %6s %5s  %s" % (
            cut(type, 20), *ages, short(row.running, 5), short(row.failed, 6), short(row.dead, 5), escape(row.last_error, 12))

    def _running(self, now):
        for entry in self.store.entries(PROCESSING):
            if entry.settling:
                continue
            holder = self.store.holder(entry)
            yield "%-33s %-20s %4d %7s %6s" % (
                cut(entry.id, 33), cut(entry.type, 20), entry.attempts,
                _elapsed(now.boot - holder.started_at) if holder else "?", holder.pid if holder else "?")

    @staticmethod
    def _spark(name, table, now):
        """One column a minute, the newest on the right."""
        minute = int(now.boot) // 60
        for old in [at for at in table if minute - at >= MINUTES]:
            del table[old]
        counts = [table.get(at, 0) for at in range(minute - MINUTES + 1, minute + 1)]
        most = max(counts)
        columns = "".join(SCALE[-(-n * (len(SCALE) - 1) // most)] if n else SCALE[0] for n in counts)
        return "%s [%s] max %s" % (name, columns, short(most, 4))

    # --- keys -------------------------------------------------------------------------------------------------

    def pause(self):
        return self._do(lambda now: self.store.pauses.set("", DEFAULT_FOR_S, now), "paused for 1 h")

    def resume(self):
        def clear(now):
            for name in posix.listdir(self.store.run + "/types"):
                seam.forget("%s/types/%s" % (self.store.run, name))
            self.store.pauses.clear("")
        return self._do(clear, "resumed")

    def kick(self):
        def kick_all(now):
            for entry in list(self.store.entries(DLQ)):
                self.store.kick(entry.id, now)
                self.letters.pop(entry.id, None)
        return self._do(kick_all, "kicked")

    def _do(self, act, said):
        try:
            act(self.context.clock.read())
        except (OSError, EdgeqError) as error:
            return escape(str(error), 40)
        poke(self.store.run, "0", True)
        return said


def _weight(row):
    return row.running * 1000 + row.ready + row.failed + row.dead + row.held


def _size(kb):
    for divisor, unit in ((1, "K"), (1024, "M"), (1 << 20, "G")):
        if kb < divisor * 10_240:
            break
    return "%d%s" % (kb // divisor, unit)


def _said_of(paused):
    if not paused:
        return "no"
    return ", ".join("%s %s" % (type or "everything", age(left) if left else "for ever") for type, left in sorted(paused.items()))


def _elapsed(seconds):
    seconds = max(int(seconds), 0)
    return "%d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60) if seconds >= 3600 else "%d:%02d" % (
        seconds // 60, seconds % 60)
