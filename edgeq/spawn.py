"""Start a handler: the C layer of `execute`. posix_spawn where it can say what is wanted, fork where it cannot.

A plain handler is started by posix_spawn, which costs the same however large we are. Whatever it cannot express
(USER, NICE, and MEM_MB, which must not bind ourselves for a moment: the spawn would fail) goes by fork, several times as dear.
"""

import posix
from _signal import SIGKILL, SIGSTOP, SIG_DFL, SIG_SETMASK, pthread_sigmask, signal
from posix import O_CLOEXEC, O_RDWR

from edgeq.errors import EIO, ENOENT, ENOMEM, OUR_SHORTAGE

SIGNALS = tuple(n for n in range(1, 32) if n not in (SIGKILL, SIGSTOP))  # Python itself ignores PIPE and XFSZ
MFD_CLOEXEC, MFD_NOEXEC_SEAL = 1, 8
MIB = 1 << 20


class CannotStart(Exception):
    """This image cannot run the type. `why`: `no handler`, or the errno's text."""

    def __init__(self, why):
        self.why = why
        Exception.__init__(self, why)


class Shortage(Exception):
    """We lack the means just now: descriptors, processes, memory, room in /run. `why`: the errno's text."""

    def __init__(self, why):
        self.why = why
        Exception.__init__(self, why)


def keep_to_ourselves():
    """Nothing we have open reaches a handler, and a descriptor of ours is never 0, 1 or 2 (B57): once and for all starts."""
    fd = 0
    while fd < 3:
        fd = posix.open("/dev/null", O_RDWR | O_CLOEXEC)
    posix.close(fd)
    for name in posix.listdir("/proc/self/fd"):
        try:
            if int(name) > 2:
                posix.set_inheritable(int(name), False)
        except OSError:
            pass  # the listing's own


def probe_memfd():
    """Flags that memfd_create takes here (newer kernels complain without the second, older ones with it); 0: it is missing."""
    for flags in (MFD_CLOEXEC | MFD_NOEXEC_SEAL, MFD_CLOEXEC):
        try:
            posix.close(posix.memfd_create("edgeq", flags))
            return flags
        except (AttributeError, OSError):
            pass
    return 0


def find_user(name):
    """(uid, gid, groups) to become, None to stay who we are; CannotStart when that cannot be."""
    if not name:
        return None
    import pwd  # on demand: a C module, for boards that name a USER
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise CannotStart("USER=%s: no such user" % name) from None
    if posix.geteuid() == 0:
        return user.pw_uid, user.pw_gid, posix.getgrouplist(name, user.pw_gid)
    if posix.geteuid() != user.pw_uid:
        raise CannotStart("USER=%s: the worker is not root" % name)
    return None


class FirstForOom:
    """First in line for the OOM killer: a handler inherits it from us, cheaper and sooner than written for it afterwards.

    Made once, with the descriptor that every start uses; without one (not in this kernel) it does nothing.
    """

    def __init__(self):
        try:
            self.fd = posix.open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC)
        except OSError:
            self.fd = -1
        self.before = b""

    def __enter__(self):
        self.before = b""
        if self.fd >= 0:
            try:
                self.before = posix.pread(self.fd, 16, 0)
                posix.pwrite(self.fd, b"1000", 0)
            except OSError:
                pass

    def __exit__(self, *_):
        if self.before:
            try:
                posix.pwrite(self.fd, self.before, 0)
            except OSError:
                pass  # a handler may run already: nothing may be raised any more


def spawn(path, environ, fds, fsize_mb):
    actions = [(posix.POSIX_SPAWN_DUP2, fds[0], 0), (posix.POSIX_SPAWN_DUP2, fds[1], 1), (posix.POSIX_SPAWN_DUP2, fds[1], 2)]
    if not fsize_mb:
        return posix.posix_spawn(path, (path,), environ, file_actions=actions, setsid=True, setsigmask=(), setsigdef=SIGNALS)
    undo = _limit("RLIMIT_FSIZE", fsize_mb)
    try:
        return spawn(path, environ, fds, 0)
    finally:
        undo()


def fork(path, environ, fds, settings, user):
    """As spawn, with another user, nice value or memory limit. The child's errno comes back by a pipe its exec closes."""
    if settings.fsize_mb or settings.mem_mb:
        import resource  # noqa: F401  before there are two of us
    reader, writer = posix.pipe2(O_CLOEXEC)
    try:
        try:
            pid = posix.fork()
            if pid == 0:
                _become_handler(path, environ, fds, settings, user, writer)
        finally:
            posix.close(writer)
        told = posix.read(reader, 16)
    finally:
        posix.close(reader)
    if told:
        posix.waitpid(pid, 0)
        raise OSError(int(told), posix.strerror(int(told)))
    return pid


def _become_handler(path, environ, fds, settings, user, writer):
    """In the child, and it never returns."""
    code = EIO
    try:
        posix.setsid()
        for target, fd in enumerate((fds[0], fds[1], fds[1])):
            posix.dup2(fd, target)
        for number in SIGNALS:
            signal(number, SIG_DFL)
        pthread_sigmask(SIG_SETMASK, ())
        posix.chdir("/")
        posix.nice(settings.nice)
        if settings.fsize_mb:
            _limit("RLIMIT_FSIZE", settings.fsize_mb)
        if user:
            posix.setgroups(user[2])
            posix.setgid(user[1])
            posix.setuid(user[0])
        if settings.mem_mb:  # last: from here we may be over it ourselves
            _limit("RLIMIT_AS", settings.mem_mb)
        posix.execve(path, (path,), environ)
    except OSError as error:
        code = error.errno
    except MemoryError:
        code = ENOMEM
    finally:
        posix.write(writer, b"%d" % code)
        posix._exit(127)


def _limit(name, mib):
    """Set a soft limit, within the hard one; returns what sets it back."""
    import resource  # here: few boards limit anything, and it is a library to load
    what, wanted = getattr(resource, name), mib * MIB
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    return lambda: resource.setrlimit(what, (soft, hard))


def explain(error, path):
    """CannotStart or Shortage for the errno of an exec. ENOENT is told apart: the file, or what its first line names."""
    if error.errno in OUR_SHORTAGE:
        return Shortage(posix.strerror(error.errno))
    if error.errno != ENOENT:
        return CannotStart(posix.strerror(error.errno))
    for look, why in ((posix.lstat, "no handler"), (posix.stat, "no handler: dangling link")):
        try:
            look(path)
        except OSError:
            return CannotStart(why)
    return CannotStart("interpreter missing")
