"""The command line: find the verb, read its options, open what it needs, turn errors into one line and an exit code.

One file per family of verbs, imported when asked for: the worker carries only its own. No traceback reaches a user.
"""

import gc
import posix
import sys

from edgeq import config as configuration
from edgeq.clock import open_clock
from edgeq.cli.options import parse, suggest
from edgeq.errors import BadUsage, EdgeqError, NotFound, IO_ERROR, OK, USAGE, from_os
from edgeq.job import is_word
from edgeq.log import Log, say

SOFTWARE = 70  # EX_SOFTWARE: a bug of ours

VERBS = {  # verb: (module, arguments and options, one line)
    "enqueue": ("enqueue", "TYPE [JSON | - | --text S | --file F] [options]", "queue a job; prints its id"),
    "status": ("status", "[-v | --json | --prom [--output FILE]] [--all]", "one line: is it healthy (0), degraded (1), broken (2)"),
    "pause": ("operate", "[TYPE] [--for SECONDS | --for ever]", "start nothing, or no TYPE, for 1 h"),
    "resume": ("operate", "[TYPE]", "end a pause; let held types try again"),
    "wait": ("operate", "ID... [--timeout SECONDS]", "until all are done (0), one will not be (1), or time is up (75)"),
    "drain": ("stop", "[--timeout SECONDS]", "pause everything, wait until nothing runs: safe to update"),
    "work": ("work", "[--once | --preflight] [--concurrency N]", "the worker"),
    "ls": ("jobs", "[STATE] [--type T]", "one line a job; STATE: ready delayed running dead, a folder's name"),
    "show": ("jobs", "ID", "the record of a job"),
    "why": ("jobs", "ID", "one line: where it is, what happened, what comes next"),
    "kick": ("operate", "ID... | --all [--type T]", "put dead letters back"),
    "cancel": ("stop", "[--running] ID", "remove a job; --running: end it first"),
    "purge": ("operate", "STATE | all [--force]", "empty dlq, corrupt, done (the rest with --force)"),
    "top": ("top", "[--interval SECONDS]", "live view for a serial console, 80x24, plain ASCII"),
    "log": ("log", "[-f] [-n N] [--type T]", "the journal and the events as text; -f goes on"),
    "move": ("move", "--to STORE", "carry all jobs of the configured store to another"),
    "forward": ("forward", "--to REDIS [--once] [--jobs-per-s N] [--kb-per-s N]", "send this queue's jobs to the fleet's Redis"),
    "check": ("check", "[--repair]", "every broken promise as a sentence, then what else is wrong"),
}

GLOBAL_OPTIONS = {"queue": "text", "config": "text", "help": "flag"}

TEXT = """usage: edgeq [--queue Q] [--config FILE] VERB ...

%s

  guard    keeps one worker alive: what /etc/init.d/S85edgeq starts

'edgeq VERB --help' says more of one, with examples. Exit codes: 0 yes, 1 no,
2 broken (status), 64 usage, 65 bad input, 69 not there, 73 cannot create,
74 I/O error, 75 try later, 77 not permitted, 78 configuration.
"""


class OutputGone(Exception):
    """Nobody reads our output any more: leave quietly."""


class Context:
    """What a verb works with. options: dict of what was given; args: the rest."""

    def __init__(self, verb, options, args, config, clock, log):
        self.verb, self.options, self.args = verb, options, args
        self.config, self.clock, self.log = config, clock, log
        self._stores = []

    def open_store(self, config=None, log=None):
        """The store of `config`, the board's own by default; hung up when the verb is over."""
        from edgeq.store import open_store
        self._stores.append(open_store(config or self.config, self.clock, log or self.log))
        gc.freeze()  # what was imported until now stays for good; the zipapp starts without the collector
        gc.enable()
        return self._stores[-1]

    def hang_up(self):
        for store in self._stores:
            store.hang_up()

    def open_existing(self):
        """The store of a verb that only looks; NotFound on a board where nothing was ever queued."""
        store = self.open_store()
        if not store.disk.exists(store.home):
            raise NotFound(self.verb, store.home, "nothing was queued here yet")
        return store

    def usage(self, why):
        return BadUsage(self.verb, why, "usage: edgeq %s %s" % (self.verb, VERBS[self.verb][1]))

    @staticmethod
    def out(text):
        """Print, or OutputGone. text: str without the final newline."""
        if not say(1, text + "\n"):
            raise OutputGone()


def main(argv=None):
    """Run `argv` (without the program's name; default: the process's own); the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    _fill_fds()
    try:
        return _run(list(argv))
    except OutputGone:
        return IO_ERROR
    except EdgeqError as error:
        say(2, "edgeq: %s\n" % _one_line(str(error)))
        return error.exit_code
    except OSError as error:
        found = from_os(argv[0] if argv else "edgeq", error.filename or "disk", error)
        say(2, "edgeq: %s\n" % _one_line(str(found)))
        return found.exit_code
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        say(2, "edgeq: out of memory: repeat later\n")
        return 75
    except Exception as error:  # a bug: still one line, with what a report needs
        line = error.__traceback__
        while line.tb_next:
            line = line.tb_next
        say(2, "edgeq: bug: %s: %s (%s:%d): please report it\n" % (
            type(error).__name__, _one_line(str(error)), line.tb_frame.f_code.co_filename, line.tb_lineno))
        return SOFTWARE


def _run(argv):
    verb, argv, leading = _find_verb(argv)
    if verb is None:
        if not leading.get("help"):
            say(2, usage_text())
            return USAGE
        Context.out(usage_text().rstrip("\n"))
        return OK
    module = __import__("edgeq.cli." + VERBS[verb][0], None, None, ["run"])
    options, args = parse(verb, argv, dict(module.OPTIONS.get(verb, {}), **GLOBAL_OPTIONS))
    options = dict(leading, **options)
    if options.get("help"):
        Context.out("usage: edgeq %s %s\n\n%s" % (verb, VERBS[verb][1], module.HELP.get(verb, VERBS[verb][2]).strip("\n")))
        return OK
    if options.get("config") == "":
        raise BadUsage(verb, "--config", "needs a file")
    path = options.get("config") or posix.environ.get(b"EDGEQ_CONF", b"").decode() or configuration.DEFAULT_PATH
    if "queue" in options and not is_word(options["queue"]):
        raise BadUsage(verb, "--queue", "not a queue name: letters, digits, '_' and '-'")
    config = configuration.load(path, options.get("queue"))
    clock = open_clock(posix.environ)
    log = Log(clock, "stderr", "warning")
    context = Context(verb, options, args, config, clock, log)
    try:
        return module.run(context)
    finally:
        context.hang_up()


def _find_verb(argv):
    """(verb or None, the other words, global options that stood before the verb)."""
    leading = {}
    while argv:
        word = argv.pop(0)
        name, equals, value = word[2:].partition("=")
        if word in ("-h", "help", "--help"):
            leading["help"] = True
        elif word.startswith("--") and GLOBAL_OPTIONS.get(name) == "text":
            if not equals and not argv:
                raise BadUsage("edgeq", word, "needs a value")
            leading[name] = value if equals else argv.pop(0)
        elif word == "--version":
            from edgeq import __version__
            say(1, "edgeq %s, Python %s\n" % (__version__, sys.version.split()[0]))
            sys.exit(0)
        elif word in VERBS:
            return word, argv, leading
        else:
            raise BadUsage("edgeq", _one_line(word)[:40], "no such verb" + suggest(word, VERBS), "'edgeq --help' lists them")
    return None, argv, leading


def usage_text():
    return TEXT % "\n".join("  %-8s %s" % (verb, line) for verb, (_, _, line) in VERBS.items())


def _one_line(text):
    return "".join(c if c.isprintable() else "?" for c in text)


def _fill_fds():
    """A closed stdin, stdout or stderr must not become the number of a job's file (B57)."""
    for fd in (0, 1, 2):
        try:
            posix.fstat(fd)
        except OSError:
            # lowest free number first, so this opens exactly `fd`; read only: writing to it fails, as it should
            posix.open("/dev/null", posix.O_RDONLY)
