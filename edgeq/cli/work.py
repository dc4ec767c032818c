"""`edgeq work`: wire one worker and run it."""

import posix

from edgeq.errors import NotPermitted, TRY_LATER
from edgeq.job import INCOMING
from edgeq.log import Log
from edgeq.space import is_mounted
from edgeq.worker import Worker

OPTIONS = {"work": {"once": "flag", "concurrency": "whole", "preflight": "flag"}}
HELP = {"work": """
Run jobs until told to stop. TERM lets running handlers finish within GRACE_S
and puts the rest back; HUP reads the configuration again.

  --once            leave when nothing is ready: 0 drained, 75 something ready
                    could not run
  --concurrency N   handlers at once, instead of CONCURRENCY
  --preflight       only look whether a worker could work here, and make what
                    is missing

  edgeq work --once
"""}


def run(context):
    config = context.config
    if context.args:
        raise context.usage("takes no arguments")
    if "concurrency" in context.options:
        if not 1 <= context.options["concurrency"] <= 256:
            raise context.usage("--concurrency: 1 to 256")
        config.concurrency = context.options["concurrency"]
    if "preflight" in context.options:
        from edgeq.cli import preflight
        return preflight.run(context)
    log = Log(context.clock, config.log, "info", config.run_path + "/events")
    for key in config.unknown:
        log.warning("configuration", key=key, why="unknown here, ignored", file=config.path)
    if config.require_mount and not is_mounted(config.require_mount):
        if context.options.get("once"):
            log.error("work", mount=config.require_mount, why="not mounted")
            return TRY_LATER
        _await_mount(config, log)
    posix.chdir("/")
    posix.umask(0o022)
    store = context.open_store(log=log)
    if config.user:
        store.make_folders()  # as root, for that user
        _become(config.user, store.owner()[1])
    _need_group(store)
    store.start(context.clock.read())
    return Worker(store, config, context.clock, log, context.options.get("once", False)).run()


def _await_mount(config, log):
    """Wait until the data partition is there; nothing is written below its mount point before (B44).

    The kernel says when the mount table changes: no polling.
    """
    import select
    log.warning("waiting", mount=config.require_mount, why="not mounted yet")
    fd = posix.open("/proc/self/mountinfo", posix.O_RDONLY | posix.O_CLOEXEC)
    table = select.poll()
    table.register(fd, select.POLLERR | select.POLLPRI)
    while not is_mounted(config.require_mount):
        table.poll(int(config.safety_scan_s * 1000))
        posix.lseek(fd, 0, 0)
        while posix.read(fd, 65536):
            pass
    posix.close(fd)


def _need_group(store):
    """A job file is 0640 and of the folder's group: who is not in it would take every job of others for a corrupt one."""
    try:
        gid = store.disk.lstat(store.path(INCOMING)).st_gid
    except FileNotFoundError:
        return  # it will be ours
    if posix.geteuid() != 0 and gid not in [posix.getegid()] + posix.getgroups():
        raise NotPermitted("work", store.path(INCOMING), "belongs to group %d, in which this user is not" % gid,
                           "add it to that group, or start as root with USER=")


def _become(user, group):
    """Drop to USER for good; its supplementary groups included, and the one of the job files whether it is in it or not."""
    import pwd
    found = pwd.getpwnam(user)
    if posix.geteuid() == found.pw_uid:
        return
    if posix.geteuid() != 0:
        raise NotPermitted("work", "USER=%s" % user, "only root may change the user", "start as root or as %s" % user)
    posix.setgroups(posix.getgrouplist(user, found.pw_gid) + [group])
    posix.setgid(found.pw_gid)
    posix.setuid(found.pw_uid)
