"""The command line: find the verb, read its options, open what it needs, turn errors into one line and an exit code.

One file per family of verbs, imported when asked for: the worker carries only its own. No traceback reaches a user.
"""

import posix
import sys

from edgeq import config as configuration
from edgeq.clock import open_clock
from edgeq.cli.options import parse, suggest
from edgeq.errors import BadUsage, EdgeqError, IO_ERROR, OK, USAGE, from_os
from edgeq.log import Log, say

SOFTWARE = 70  # EX_SOFTWARE: a bug of ours

VERBS = {  # verb: (module, arguments and options, one line)
    "enqueue": ("enqueue", "TYPE [JSON | - | --text S | --file F] [options] | --batch", "queue a job; prints its id"),
    "status": ("status", "[-v | --json | --prom] [--all]", "one line: is it healthy (0), degraded (1), broken (2)"),
    "pause": ("operate", "[TYPE] [--for SECONDS | --for ever]", "start nothing, or no TYPE, for 1 h"),
    "resume": ("operate", "[TYPE]", "end a pause; let held types try again"),
    "wait": ("operate", "ID... [--timeout SECONDS]", "until all are done (0), one is not to be (1), or time is up (75)"),
    "drain": ("operate", "[--timeout SECONDS]", "pause everything and wait until nothing runs: safe to update"),
    "work": ("work", "[--once] [--concurrency N]", "the worker"),
    "ls": ("jobs", "[STATE] [--type T]", "jobs in STATE: ready delayed running failed dlq incoming processing corrupt done"),
    "show": ("jobs", "ID", "the record of a job"),
    "why": ("jobs", "ID", "one line: where it is, what happened, what comes next"),
    "kick": ("operate", "ID... | --all [--type T]", "put dead letters back"),
    "cancel": ("operate", "ID", "remove a job that does not run"),
    "purge": ("operate", "STATE | all [--force]", "empty dlq, corrupt, done (the rest with --force)"),
    "check": ("check", "[--repair]", "every broken promise as a sentence, then what else is wrong"),
}

GLOBAL_OPTIONS = {"queue": "text", "config": "text", "help": "flag"}

TEXT = """usage: edgeq [--queue Q] [--config FILE] VERB ...

%s

'edgeq VERB --help' says more of one. Exit codes: 0 yes, 1 no, 64 usage, 65 bad input, 69 not there,
73 cannot create, 74 I/O error, 75 try later, 77 not permitted, 78 configuration.
"""


class OutputGone(Exception):
    """Nobody reads our output any more: leave quietly."""


class Context:
    """What a verb works with. options: dict of what was given; args: the rest."""

    def __init__(self, verb, options, args, config, clock, log):
        self.verb, self.options, self.args = verb, options, args
        self.config, self.clock, self.log = config, clock, log

    def open_store(self):
        from edgeq.store import open_store
        return open_store(self.config, self.clock, self.log)

    def usage(self, why):
        return BadUsage(self.verb, why, "usage: edgeq %s %s" % (self.verb, VERBS[self.verb][1]))

    @staticmethod
    def out(text):
        """Print, or OutputGone. text: str without the final newline."""
        if not say(1, text + "\n"):
            raise OutputGone()


def main(argv):
    """Run `argv` (without the program's name); the exit code."""
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
        say(2 if not leading.get("help") else 1, usage_text())
        return OK if leading.get("help") else USAGE
    module = __import__("edgeq.cli." + VERBS[verb][0], None, None, ["run"])
    options, args = parse(verb, argv, dict(module.OPTIONS.get(verb, {}), **GLOBAL_OPTIONS))
    options = dict(leading, **options)
    if options.get("help"):
        say(1, "usage: edgeq %s %s\n\n%s\n" % (verb, VERBS[verb][1], module.HELP.get(verb, VERBS[verb][2]).strip("\n")))
        return OK
    path = options.get("config") or posix.environ.get(b"EDGEQ_CONF", b"").decode() or configuration.DEFAULT_PATH
    config = configuration.load(path, options.get("queue"))
    clock = open_clock(posix.environ)
    log = Log(clock, "stderr", "warning")
    return module.run(Context(verb, options, args, config, clock, log))


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
