"""`edgeq work --preflight`: is this board fit for a worker? Asked in the foreground, so that a start can say why not (B34).

Makes what is missing, gives the folders their owner, group and mode again, writes and flushes one small file. One line
on stdout when all is well, warnings on stderr; errors as everywhere. Exit 75: the partition of REQUIRE_MOUNT is not
there yet; a worker would wait for it.

A new image can give group edgeq (or USER) another number, while the files on the data partition keep the old one. Then
everything that had the old number gets the new one: through descriptors, never through links, and nothing that has a
second name, since incoming/ is writable for the group.
"""

import posix
import sys

from edgeq import disk as seam
from edgeq.errors import CannotCreate, EISDIR, ENOENT, ENOTDIR, EEXIST, OK, TRY_LATER, from_os
from edgeq.log import escape, say
from edgeq.space import find_mount, is_mounted

O_PATH = 0o10000000


def run(context):
    config = context.config
    for key in config.unknown:
        _warn(config, "unknown key %s in %s: ignored" % (key, config.path))
    if config.require_mount and not is_mounted(config.require_mount):
        _warn(config, "nothing is mounted on REQUIRE_MOUNT=%s: the worker waits for it" % config.require_mount)
        return TRY_LATER
    posix.chdir("/")
    posix.umask(0o022)
    store = context.open_store()
    if config.store.startswith("redis"):
        return OK  # a worker waits for a server that is not there yet (B40)
    try:
        store.make_folders()
        changed_n = restore_owners(store)
        for folder in dict.fromkeys((store.home, store.root)):
            _try_to_write(store.disk, folder)
        point, kind, in_ram = find_mount(store.root)
    except OSError as error:
        raise _explained(store, error) from None
    if changed_n:
        _warn(config, "gave %d names of %s their owner, group or mode again" % (changed_n, store.root))
    if in_ram:
        _warn(config, "NOT DURABLE: %s is in RAM (%s on %s): a power cut loses every job: set SPOOL to a flash partition" % (
            store.root, kind, point))
    elif store.disk.is_reduced:
        _warn(config, "NOT DURABLE: %s on %s cannot flush folders" % (kind, point))
    foreign = find_foreign_code()
    if foreign:
        _warn(config, foreign)
    context.out("%s: fit: %s on %s (%s), Python %d.%d.%d" % ((config.queue, store.root, point, kind) + sys.version_info[:3]))
    return OK


def find_foreign_code():
    """What it means that this zipapp has no byte code for this Python; empty when it has, or is none."""
    archive = getattr(seam.__spec__.loader, "archive", None)  # Python's importer has one; the zipapp's own, for byte code, has not
    if archive is None or not seam.__spec__.origin.endswith(".py"):
        return ""
    return "%s has no byte code for Python %d.%d: each start compiles the source: make pyz PYTHON=python%d.%d" % (
        (archive,) + sys.version_info[:2] * 2)


def _warn(config, text):
    say(2, "edgeq: %s: warning: %s\n" % (config.queue, escape(text, 400)))


def _explained(store, error):
    what = error.filename or store.root
    if error.errno in (ENOENT, ENOTDIR, EEXIST, EISDIR):
        return CannotCreate("work", what, error.strerror, "something else is in its place: move it away")
    return from_os("work", what, error)


def _try_to_write(disk, folder):
    """A real block, flushed: a read-only or dying medium says so now and not with the first job."""
    path, fd = disk.write_dot(folder, b"edgeq\n" * 100)
    try:
        disk.flush(fd)
    finally:
        disk.close(fd)
        disk.unlink(path)


def restore_owners(store):
    """Owner, group and mode of the spool's folders and files as they should be; how many names were changed.

    CRASH: a folder is changed after its files, the queue's own folder last: the next start finds what is left to do.
    """
    if posix.geteuid() != 0:
        return 0
    owner, group = store.owner()
    changed_n = 0
    for path, mode in store.folders():
        place = path + "/." if path == store.home else path  # that one may be a link
        fd = posix.open(place, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC)
        try:
            found = posix.fstat(fd)
            if (found.st_uid, found.st_gid) != (owner, group):
                changed_n += _change_files(fd, (found.st_uid, found.st_gid), (owner, group)) + 1
                posix.chown(fd, owner, group)
                posix.chmod(fd, mode)  # chown clears the setgid bit
            elif found.st_mode & 0o7777 != mode:
                changed_n += 1
                posix.chmod(fd, mode)
        finally:
            posix.close(fd)
    return changed_n


def _change_files(folder_fd, old, new):
    """Files in the folder that have the old numbers; how many."""
    changed_n = 0
    for name in posix.listdir(folder_fd):
        try:
            fd = posix.open(name, O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC, dir_fd=folder_fd)
        except FileNotFoundError:
            continue
        try:
            found = posix.fstat(fd)
            uid = new[0] if found.st_uid == old[0] else -1
            gid = new[1] if found.st_gid == old[1] else -1
            if seam.is_file(found) and (uid, gid) != (-1, -1):
                posix.chown("/proc/self/fd/%d" % fd, uid, gid)
                changed_n += 1
        finally:
            posix.close(fd)
    return changed_n
