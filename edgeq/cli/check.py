"""`edgeq check [--repair]`: the store's broken promises, then what else keeps jobs from running, each with its remedy."""

import posix

from edgeq.config import load_type
from edgeq.errors import NO, OK
from edgeq.job import FOLDERS, INCOMING, is_word
from edgeq.log import escape
from edgeq.space import Guard, find_mount, is_mounted

OPTIONS = {"check": {"repair": "flag"}}
HELP = {"check": "Exit 0: clean. 1: findings, one sentence each. --repair clears the leftovers of a power cut."}


def run(context):
    if context.args:
        raise context.usage("takes no arguments")
    store, now = context.open_store(), context.clock.read()
    is_repairing = context.options.get("repair", False)
    if is_repairing:
        store.make_folders()
    found = ["store: " + sentence for sentence in store.check(now, is_repairing)]
    found += _check_storage(context, store) + _check_clock(context, store, now)
    found += _check_configuration(context) + _check_handlers(context, store)
    for sentence in found:
        context.out(escape(sentence, 400))
    context.out("%d finding%s" % (len(found), "" if len(found) == 1 else "s") if found else "clean")
    return NO if found else OK


def _check_storage(context, store):
    found = []
    try:
        point, kind, in_ram = find_mount(store.root)
    except OSError as error:
        return ["storage: %s: %s: start the worker once" % (store.root, error.strerror)]
    if in_ram:
        found.append("storage: %s is in RAM (%s on %s): a power cut loses every job; set SPOOL to a flash partition" % (
            store.root, kind, point))
    if context.config.require_mount and not is_mounted(context.config.require_mount):
        found.append("storage: nothing is mounted on REQUIRE_MOUNT=%s: mount it" % context.config.require_mount)
    guard = Guard(store.disk, store.root, store.run, context.config)
    full = guard.judge(sum(1 for _ in store.entries(INCOMING)))
    if full:
        found.append("storage: intake is refused: %s: free some or lower the limit" % full)
    if posix.statvfs(store.root).f_flag & 1:
        found.append("storage: %s is mounted read-only: remount it read-write" % point)
    for folder in FOLDERS:
        status = posix.stat(store.path(folder))
        if status.st_mode & 0o002:
            found.append("permissions: %s/ is writable by everybody: chmod o-w" % folder)
    return found


def _check_clock(context, store, now):
    if context.config.clock != "none" and not store.seq.is_trusted(now):
        return ["clock: earlier than the newest job or this program: set the time, or CLOCK=none for a board without one"]
    return []


def _check_configuration(context):
    return ["configuration: unknown key %s in %s is ignored: remove it or update edgeq" % (key, context.config.path)
            for key in context.config.unknown]


def _check_handlers(context, store):
    """Types that are waiting for a handler, and handlers that cannot be run."""
    found, folder = [], context.config.handlers
    types = {entry.type for state in ("incoming", "failed") for entry in store.entries(state)}
    try:
        types.update(name for name in posix.listdir(folder) if is_word(name))
    except OSError as error:
        found.append("handlers: %s: %s: set HANDLERS or make the folder" % (folder, error.strerror))
    for type in sorted(types):
        why = _handler_trouble("%s/%s" % (folder, type))
        if why:
            found.append("handlers: %s/%s %s" % (folder, type, why))
        settings = load_type(context.config, type)
        if settings.bad:
            found.append("configuration: " + settings.bad)
    return found


def _handler_trouble(path):
    try:
        status = posix.stat(path)
    except OSError as error:
        return "is missing (%s): its jobs are held; install it" % error.strerror
    if status.st_mode & 0o170000 != 0o100000:
        return "is no file: put an executable there"
    if not status.st_mode & 0o111:
        return "is not executable: chmod +x"
    with open(path, "rb") as file:
        head = file.read(256)
    if not head:
        return "is empty: install it again"
    if head[:4] == b"\x7fELF":
        return ""
    if head[:2] != b"#!":
        return "has no #! line: the kernel cannot start it"
    interpreter = head[2:].split(b"\n")[0].strip().split(b" ")[0]
    if not interpreter or not _exists(interpreter):
        return "names an interpreter that is not there: %s" % escape(interpreter, 60)
    return ""


def _exists(path):
    try:
        posix.stat(path)
    except OSError:
        return False
    return True
