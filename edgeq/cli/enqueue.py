"""`edgeq enqueue` in Python: the same job, byte for byte in meaning, as the shell wrapper makes. `--batch` lives only here."""

import posix

from edgeq.cli import OutputGone
from edgeq.clock import parse_iso
from edgeq.enqueue import admit, enqueue, make_batch, make_job
from edgeq.errors import BadJob, BadUsage, CannotCreate, EdgeqError, EBADF, OK, TRY_LATER
from edgeq.log import say
from edgeq.record import text_payload
from edgeq.space import Guard, is_mounted
from edgeq.store.base import ALREADY_DEAD, QUEUED

OPTIONS = {"enqueue": {
    "text": "text", "file": "text", "id": "text", "delay": "whole", "at": "text", "priority": "whole", "max-attempts": "whole",
    "timeout": "whole", "expires": "whole", "key": "text", "latest": "flag", "fast": "flag", "batch": "flag"}}
HELP = {"enqueue": """
Exit 0 means: a power cut now loses nothing. Prints the id.

  JSON              the payload; - reads it from stdin; none: {}
  --text S          the payload is S as a JSON string
  --file F          the payload is F's text as a JSON string; -: stdin's
  --id ID           name it; a second enqueue of the id is the same job
  --delay SECONDS   not before
  --at T            not before T: Unix seconds or YYYY-MM-DDTHH:MM:SSZ
  --priority N      0 first, 9 last (5)
  --max-attempts N  --timeout SECONDS   instead of the type's
  --expires SECONDS not later than this after now: removed then, and counted
  --key K           while a job with K waits, this is that job
  --latest          with --key: this takes the place of those that wait
  --fast            do not wait for the flash: a power cut may lose it
  --batch           one record object a line on stdin (only "type" is
                    required), one flush for all

  edgeq enqueue send_webhook '{"url":"https://example.net/hook"}'
  edgeq enqueue sync_config --key sync-config --latest "$(cat config.json)"
"""}


WORDS = ("type", "id", "key", "priority", "max-attempts", "timeout", "expires", "delay", "at")  # wrong ones are bad usage


def run(context):
    config, options, now = context.config, context.options, context.clock.read()
    if config.require_mount and not is_mounted(config.require_mount):
        say(2, "edgeq: enqueue: %s: not mounted: nothing was queued; mount it, then repeat\n" % config.require_mount)
        return TRY_LATER
    _need_stdout()
    jobs = _batch(context) if options.get("batch") else [_job(context)]
    store = context.open_store()
    try:
        store.make_folders()
    except PermissionError:
        pass  # a member of the group before any worker ran: incoming/ is all that is needed
    guard = Guard(store.disk, store.root, store.run, config)
    counts = store.counts(now)
    waiting_n = counts.ready + counts.delayed + counts.failed
    if options.get("batch"):
        admit(guard, waiting_n + len(jobs) - 1)
        receipts = store.enqueue_many(jobs, now)
    else:
        receipts = [enqueue(store, guard, jobs[0], now, waiting_n, options.get("fast", False))]
    if options.get("fast"):
        say(2, "edgeq: enqueue: not flushed: a power cut may lose it\n")
    for receipt in receipts:
        if receipt.status != QUEUED:
            hint = "; 'edgeq kick %s' puts it back" % receipt.id if receipt.status == ALREADY_DEAD else ""
            say(2, "edgeq: enqueue: %s: %s%s\n" % (receipt.id, receipt.status, hint))
    try:
        context.out("\n".join(receipt.id for receipt in receipts))
    except OutputGone:
        what = receipts[0].id if len(receipts) == 1 else "batch of %d" % len(receipts)
        raise EdgeqError("enqueue", what, "was queued, but its id could not be printed") from None
    return OK


def _need_stdout():
    """Whoever cannot be told an id is better told no. A write of nothing asks whether one may."""
    try:
        posix.write(1, b"")
    except OSError as error:
        if error.errno == EBADF:
            raise EdgeqError("enqueue", "stdout", "is closed: the id could not be told, nothing was queued") from None


def _job(context):
    options, args = context.options, context.args
    if not args:
        raise context.usage("no TYPE")
    given = [source for source in ("text", "file") if source in options]
    if len(args) - 1 + len(given) > 1:
        raise context.usage("more than one payload")
    if "delay" in options and "at" in options:
        raise context.usage("--delay and --at together")
    if "text" in options:
        payload = text_payload(_bytes(options["text"]))
    elif "file" in options:
        payload = text_payload(_read(options["file"], context.config.max_payload_bytes))
    elif len(args) == 2:
        payload = _read("-", context.config.max_payload_bytes) if args[1] == "-" else _bytes(args[1])
    else:
        payload = b"{}"
    try:
        return make_job(context.config, args[0], payload, id=options.get("id"), priority=options.get("priority"),
                        max_attempts=options.get("max-attempts"), timeout_s=options.get("timeout"),
                        expires_s=options.get("expires"), key=options.get("key"), delay_s=options.get("delay"),
                        at=_instant(options.get("at")), latest=options.get("latest", False))
    except BadJob as error:
        if error.what not in WORDS:
            raise
        raise BadUsage("enqueue", error.what if error.what == "type" else "--" + error.what, error.why) from None


def _batch(context):
    if context.args:
        raise context.usage("--batch reads records from stdin and takes no TYPE")
    for option in context.options:
        if option not in ("batch", "queue", "config"):
            raise context.usage("--batch takes no --%s: say it in the records" % option)
    data = b""
    while True:
        part = posix.read(0, 1 << 20)
        if not part:
            break
        data += part
    jobs = make_batch(context.config, data.split(b"\n"))
    if not jobs:
        raise BadJob("enqueue", "stdin", "no record", "give one JSON object a line")
    return jobs


def _instant(text):
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 12 and int(text):
        return int(text)
    try:
        return parse_iso(text)
    except ValueError:
        raise BadJob("enqueue", "at", "neither Unix seconds nor YYYY-MM-DDTHH:MM:SSZ") from None


def _bytes(text):
    return text.encode("utf-8", "surrogateescape")


def _read(path, limit):
    """The bytes of a file or of stdin (`-`), one more than a payload may have at the most."""
    try:
        fd = 0 if path == "-" else posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        data = b""
        while len(data) <= 2 * limit:
            part = posix.read(fd, 65536)
            if not part:
                return data
            data += part
        return data
    except OSError as error:
        if isinstance(error, (FileNotFoundError, IsADirectoryError, PermissionError)):
            raise BadJob("enqueue", path, error.strerror) from None
        raise CannotCreate("enqueue", path, error.strerror) from None
