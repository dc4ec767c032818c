"""The folders a store lies in and its folder in RAM: made where they are missing, owned as they should be, on one file system."""

import posix

from edgeq import disk as seam
from edgeq.errors import BadConfig
from edgeq.job import INCOMING

INCOMING_MODE, FOLDER_MODE, RUN_MODE = 0o3770, 0o2750, 0o755
RUN_FILES = ("id.lock", "seq", "arrivals", "keys/index", "gone", "doubt")
RUN_FOLDERS = ("leases", "wake", "keys", "ctl", "errors", "types", "workers", "cancel")
GROUPS_BYTES = 1 << 18  # of /etc/group, at most


def make_folders(store):
    """Make what is missing of the spool and of /run (B45); one file system, or BadConfig (B74)."""
    owner, group = store.owner()
    made, devices = [], set()
    root = store.home.rpartition("/")[0]
    for path, mode in [(root, 0o755)] + store.folders()[::-1]:
        # these two may be links, to the data partition perhaps; what lies in them may not
        status = _make_with_parents(store.disk, path, mode, path in (root, store.home))
        if status is None:
            made.append((path, mode))
            status = store.disk.lstat(path)
        if path == store.home:
            place = status.st_dev, status.st_ino
        elif path.startswith(store.home):
            devices.add(status.st_dev)
    for path, mode in made:
        if posix.geteuid() == 0:
            posix.chown(path, owner, group)
            posix.chmod(path, mode)  # chown clears the setgid bit
    if made:
        store.flush_folder("")
    if len(devices) != 1:
        raise BadConfig("start", store.home, "its folders lie on different file systems", "mount one file system for all")
    _notice_place(store, place)
    _make_run(store, owner, group)


def _notice_place(store, place):
    """Another folder under our name, mounted over it (B44) or made again: it has a running mark and suspects of its own."""
    if store._place not in (None, place):
        store.log.warning("another folder", path=store.home, why="something was mounted over it, or it was made again")
        store.is_marked = False
        if store._mark() not in (None, store.clock.boot_id):
            store.suspect_seq = store.seq.newest()
    store._place = place


def folders(store):
    """[(path, mode)] of the queue's own folders, the outermost last."""
    return [(store.path(folder), INCOMING_MODE if folder == INCOMING else FOLDER_MODE) for folder in store.states] + [
        (store.home, FOLDER_MODE)]


def owner(store):
    """(uid, gid) that they have; looked up once."""
    if store._ids is None:
        store._ids = _look_up(store.config)
    return store._ids


def _make_run(store, owner, group):
    uid = posix.geteuid()
    found = []  # (path, status, mode): the wrapper may have made them, before any worker ran
    for path in (store.config.run_dir, store.run) + tuple("%s/%s" % (store.run, folder) for folder in store.run_folders):
        status = _make_with_parents(store.disk, path, RUN_MODE, path in (store.config.run_dir, store.run))
        found.append((path, status or posix.stat(path), RUN_MODE))
    store.seq.newest()  # seeds it
    for name in RUN_FILES:
        path = "%s/%s" % (store.run, name)
        try:
            status = store.disk.lstat(path)
        except FileNotFoundError:
            posix.close(posix.open(path, posix.O_CREAT | posix.O_WRONLY | posix.O_CLOEXEC, 0o660))
            status = posix.stat(path)
        found.append((path, status, 0o660))
    for path, status, mode in found:
        if uid == 0 and (status.st_uid, status.st_gid) != (owner, group):
            posix.chown(path, owner, group)
        if status.st_uid == uid and status.st_mode & 0o7777 != mode:
            posix.chmod(path, mode)


def _look_up(config):
    """(uid, gid) of the spool's folders: the worker's user, group edgeq where there is one.

    The group is looked up in /etc/group, as the wrapper's own user would find it on a board: to ask the C library for a group
    that nobody has made loads and asks every name service there is, an eighth of a worker's start on Debian.
    """
    uid, gid = posix.geteuid(), posix.getegid()
    if config.user:
        import pwd
        try:
            uid, gid = pwd.getpwnam(config.user)[2:4]
        except KeyError:
            raise BadConfig("configuration", "USER=%s" % config.user, "no such user", "add it or correct the line") from None
    try:
        for line in seam.read_text("/etc/group", GROUPS_BYTES, follow=True).splitlines():
            fields = line.split(":")
            if fields[0] == "edgeq" and len(fields) > 2 and fields[2].isdecimal():
                gid = int(fields[2])
                break
    except OSError:
        pass  # no such file: no such group
    return uid, gid


def _make_with_parents(disk, path, mode, is_link_fine=False):
    """As Disk.make_folder, with parents of mode 0755."""
    try:
        return disk.make_folder(path, mode, is_link_fine)
    except FileNotFoundError:
        _make_with_parents(disk, path.rpartition("/")[0], 0o755, True)
        return disk.make_folder(path, mode, is_link_fine)
