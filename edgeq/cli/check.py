"""`edgeq check [--repair]`: everything that breaks a promise or keeps jobs from running, a sentence each, with its remedy.

In this order: the store's own promises (offline, too), storage, permissions, clock, configuration, handlers, Python, init. A
sentence begins with its part. Without --repair nothing is written. `note:` lines are no findings: a stopped worker may
be what was wanted.
"""

import posix
import sys

from edgeq import disk as seam
from edgeq.config import KEYS, TYPE_KEYS, load_type, _lines
from edgeq.errors import BadConfig, EdgeqError, NO, OK
from edgeq.job import DLQ, FAILED, INCOMING, PROCESSING, is_word, parse_name
from edgeq.lease import is_alive
from edgeq.log import escape
from edgeq.cli.status import read_status
from edgeq.reap import end_survivors
from edgeq.space import Guard, find_mount, is_mounted

OPTIONS = {"check": {"repair": "flag"}}
HELP = {"check": """
Exit 0: clean. 1: findings, one sentence each, with what to do. Works with the
worker running or stopped; without --repair nothing is changed.

  --repair   clear what a power cut left, give the folders their modes again

  edgeq check
  /etc/init.d/S85edgeq stop; edgeq check --repair; /etc/init.d/S85edgeq start
"""}
JOB_FOLDERS, FILE_MODE = (INCOMING, PROCESSING, FAILED, DLQ), 0o640
# module: what is missing without it. Buildroot can leave each of these out.
MODULES = (("fcntl", "all locks"), ("select", "the worker"), ("_json", "speed"), ("resource", "MEM_MB, FSIZE_MB"),
           ("termios", "edgeq top"), ("ctypes", "enqueue --batch"), ("pwd", "USER"))
VOLATILE = ("/tmp", "/run", "/var/run", "/var/tmp", "/dev/shm", "/var/spool")


def run(context):
    if context.args:
        raise context.usage("takes no arguments")
    store, now = context.open_store(), context.clock.read()
    is_repairing = context.options.get("repair", False)
    if is_repairing:
        store.make_folders()
        _end_handlers(store, now)
    found = ["store: " + sentence for sentence in store.check(now, is_repairing) + store.notes()]
    try:
        found += _check_storage(context, store) + _check_permissions(context, store, is_repairing)
        found += _check_clock(context, store, now) + _check_configuration(context) + _check_handlers(context, store)
    except EdgeqError as error:  # a store that cannot be read: what was found so far says more
        found.append("store: %s" % error)
    found += _check_python(context)
    from edgeq.cli.preflight import find_foreign_code
    foreign = find_foreign_code()
    notes = (["note: python: " + foreign] if foreign else []) + _look_at_time()
    for sentence in found + notes + _look_at_place(store) + _look_at_init(context, store, now):
        context.out(escape(sentence, 400))
    context.out("%d finding%s" % (len(found), "" if len(found) == 1 else "s") if found else "clean")
    return NO if found else OK


def _end_handlers(store, now):
    """What dead workers left running ends before its job can run again (P5)."""
    try:
        for entry, holder in store.stale(now):
            end_survivors(holder, "%s/ctl/%s" % (store.run, entry.token))
    except EdgeqError:
        pass  # nothing can be read: the store's own check says so, and repairs it


def _check_storage(context, store):
    found, config = [], context.config
    try:
        point, kind, in_ram = find_mount(store.root)
    except OSError as error:
        return ["storage: %s: %s: start the worker once, or --repair" % (store.root, error.strerror)]
    if in_ram:
        found.append("storage: %s is in RAM (%s on %s): a power cut loses every job: set SPOOL to a flash partition" % (
            store.root, kind, point))
    if config.require_mount and not is_mounted(config.require_mount):
        found.append("storage: nothing is mounted on REQUIRE_MOUNT=%s: mount it" % config.require_mount)
    if posix.statvfs(store.root).f_flag & 1:
        found.append("storage: %s is mounted read-only: remount it read-write, see dmesg for why" % point)
    guard = Guard(store.disk, store.root, store.run, config)
    full = guard.judge(sum(1 for state in (INCOMING, FAILED) for _ in _entries(store, state)))
    if full:
        found.append("storage: intake is refused: %s: free some or lower the limit" % full)
    elif guard.free_kb < 2 * config.min_free_kb:
        found.append("storage: %d KiB free, intake stops below MIN_FREE_KB=%d: free some" % (guard.free_kb, config.min_free_kb))
    if not guard.has_ballast() and seam.Disk().exists(store.root + "/running"):
        found.append("storage: the ballast is spent: the worker puts it back when %d KiB are free" % (
            config.min_free_kb + 2 * config.ballast_kb))
    return found


def _look_at_place(store):
    """`note:` lines: places that are not wrong by themselves."""
    try:
        kind = find_mount(store.root)[1]
    except OSError:
        return []
    if any(store.root.startswith(folder + "/") for folder in VOLATILE):
        return ["note: storage: %s lies where systems clean up or mount RAM: better a folder of its own" % store.root]
    if kind == "ubifs":
        room = posix.statvfs(store.root)
        return ["note: storage: UBIFS says %d KiB free and may mean more: it does not count on compression; MIN_FREE_KB=%d is of "
                "what it says" % (room.f_bavail * room.f_frsize // 1024, store.config.min_free_kb)]
    if kind == "overlay":
        return ["note: storage: %s lies on an overlay: what a flush is worth is up to its upper layer" % store.root]
    return []


def _entries(store, state):
    try:
        yield from store.entries(state)
    except FileNotFoundError:
        return


def _check_permissions(context, store, is_repairing):
    """Folders and job files as DESIGN 9 has them: a member of the group may enqueue, and change nobody else's job."""
    found = []
    owner, group = store.owner()
    for path, mode in store.folders():
        try:
            status = posix.stat(path)
        except FileNotFoundError:
            continue  # said already
        if status.st_mode & 0o7777 != mode:
            found.append("permissions: %s is %04o: repair makes it %04o" % (path, status.st_mode & 0o7777, mode))
        if (status.st_uid, status.st_gid) != (owner, group):
            found.append("permissions: %s belongs to %d:%d: repair (as root) gives it to %d:%d" % (
                path, status.st_uid, status.st_gid, owner, group))
        found += _check_modes(path, is_repairing)
    if is_repairing:
        _restore_modes(store)
    if context.config.path and _mode_of(context.config.path) & 0o002:
        found.append("permissions: %s is writable by everybody: chmod o-w" % context.config.path)
    return found


def _restore_modes(store):
    from edgeq.cli.preflight import restore_owners
    if posix.geteuid() == 0:
        restore_owners(store)
        return
    for path, mode in store.folders():
        if _mode_of(path) not in (0, mode):
            posix.chmod(path, mode)


def _check_modes(path, is_repairing):
    """One sentence for all job files of a folder that others may read or write, or the group may write."""
    folder = path.rpartition("/")[2]
    if folder not in JOB_FOLDERS:
        return []
    wrong = []
    for name in posix.listdir(path):
        whole = "%s/%s" % (path, name)
        if (parse_name(folder, name) or folder == DLQ and name[0] != ".") and _mode_of(whole) & 0o7777 & ~FILE_MODE:
            wrong.append(name)
            if is_repairing:
                _set_mode(whole)
    if not wrong:
        return []
    return ["permissions: %d file%s in %s/ may be read or changed by others, such as %s: repair makes them 0640" % (
        len(wrong), "s" if len(wrong) > 1 else "", folder, min(wrong))]


def _set_mode(path):
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC)
    except OSError:
        return  # it moved on, or is a link
    try:
        if seam.is_file(posix.fstat(fd)):
            posix.fchmod(fd, FILE_MODE)
    finally:
        posix.close(fd)


def _mode_of(path):
    """The permission bits of a regular file or folder; 0 for what is gone or a link."""
    try:
        status = posix.lstat(path)
    except OSError:
        return 0
    return status.st_mode & 0o7777 if seam.is_folder(status) or seam.is_file(status) else 0


def _check_clock(context, store, now):
    if context.config.clock != "none" and not store.is_trusted(now):
        return ["clock: earlier than the newest job or this program: set the time, or CLOCK=none for a board without one"]
    return []


def _look_at_time():
    """A `note:` where time_t has 32 bits: edgeq's own arithmetic goes on past 2038, but libc cannot look at a file any more."""
    from time import gmtime
    try:
        gmtime(1 << 31)
    except OverflowError:
        return ["note: clock: time has 32 bits in this image: from 2038-01-19T03:14:08Z on no program can look at a file that was"
                " written since: build its libc for 64-bit time"]
    return []


def _check_configuration(context):
    config = context.config
    found = ["configuration: unknown key %s in %s is ignored: remove it or update edgeq" % (key, config.path)
             for key in config.unknown]
    try:
        names = sorted(posix.listdir(config.path + ".d"))
    except OSError:
        names = []
    for name in names:
        if name.startswith("@") or not name.endswith(".conf"):
            continue
        type, path = name[:-5], "%s.d/%s" % (config.path, name)
        if not is_word(type):
            found.append("configuration: %s is no job type's file: rename or remove it" % path)
            continue
        bad = load_type(config, type).bad
        if bad:
            found.append("%s: type %s is held" % (bad, type))
            continue
        for _, key, _ in _lines(path):
            if key not in TYPE_KEYS:
                found.append("configuration: unknown key %s in %s is ignored: %s" % (
                    key, path, "it goes into " + config.path if key in KEYS else "remove it or update edgeq"))
    if config.lease_s < 5:
        found.append("configuration: LEASE_S=%g is short: a worker starved for so long loses its jobs: raise it" % config.lease_s)
    return found


def _check_handlers(context, store):
    """Types that are waiting for a handler, and handlers that cannot be run."""
    found, folder = [], context.config.handlers
    types = {entry.type for state in (INCOMING, FAILED) for entry in _entries(store, state)}
    try:
        types.update(name for name in posix.listdir(folder) if is_word(name))
    except OSError as error:
        found.append("handlers: %s: %s: set HANDLERS or make the folder" % (folder, error.strerror))
    for type in sorted(types):
        why = _handler_trouble("%s/%s" % (folder, type))
        if why:
            found.append("handlers: %s/%s %s" % (folder, type, why))
    return found


def _handler_trouble(path):
    try:
        status = posix.stat(path)
    except OSError as error:
        return "is missing (%s): its jobs are held: install it" % error.strerror
    if status.st_mode & 0o170000 != 0o100000:
        return "is no file: put an executable there"
    if not status.st_mode & 0o111:
        return "is not executable: chmod +x"
    if status.st_mode & 0o002:
        return "is writable by everybody: chmod o-w"
    try:
        with open(path, "rb") as file:
            head = file.read(256)
    except OSError as error:
        return "cannot be read (%s): run check as root" % error.strerror
    if not head:
        return "is empty: install it again"
    if head[:4] == b"\x7fELF":
        return ""
    if head[:2] != b"#!":
        return "has no #! line: the kernel cannot start it: add one"
    interpreter = head[2:].split(b"\n")[0].strip(b" \t").split(b" ")[0]
    if interpreter.endswith(b"\r"):
        return "has DOS line ends: the kernel looks for an interpreter that ends in \\r: convert it"
    if not interpreter or not _exists(interpreter):
        return "names an interpreter that is not there: %s: install it or correct the #! line" % escape(interpreter, 60)
    return ""


def _exists(path):
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


def _check_python(context):
    found = []
    needed = MODULES + ((("syslog", "LOG=syslog"),) if context.config.log == "syslog" else ())
    needed += (("sqlite3", "STORE=sqlite"),) if context.config.store.startswith("sqlite:") else ()
    for name, lost in needed:
        try:
            __import__(name)
        except ImportError:
            found.append("python: no module %s in Python %d.%d, needed for %s: enable it in Buildroot" % (
                (name,) + sys.version_info[:2] + (lost,)))
    return found


def _look_at_init(context, store, now):
    """`note:` lines: who runs the worker, and whether anybody would start it again."""
    try:
        status = read_status(context, store, now)
    except (OSError, EdgeqError, BadConfig):
        return []
    guard = _guard_pid(context.config)
    if status.worker == "stalled":
        return ["note: init: worker %d is stalled: /etc/init.d/S85edgeq restart" % status.pid]
    if status.worker == "down":
        return ["note: init: no worker runs%s: /etc/init.d/S85edgeq start" % (", its guard waits to start it" if guard else "")]
    if status.worker == "up" and not guard:
        return ["note: init: worker %d has no guard of ours: unless a supervisor started it, nobody starts it again" % status.pid]
    return []


def _guard_pid(config):
    """The pid of the guard that holds the lock of this queue, 0 when none does."""
    path = "%s/%s.guard" % (config.run_dir, config.queue)
    try:
        fields = seam.read_text(path).split()
        lock = seam.Lock(path, shared=True)
        if lock.take(wait=False):
            lock.drop()
            return 0
        return int(fields[0]) if is_alive(int(fields[0]), int(fields[1])) else 0
    except (OSError, ValueError, IndexError):
        return 0
