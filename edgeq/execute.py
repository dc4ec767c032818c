"""Run handlers: `HANDLERS/TYPE` with the payload on stdin, one slot each, until an Outcome.

    start --> running --deadline, stop, cancel: TERM to the group--> ending --grace over: KILL--> killed
                 '-----------------------'-- the handler ends --'--------------------------------> collect

The worker owns the poll object, the clock and the signals; nothing here waits for a handler. It must have a
SIGCHLD handler (ignored, the kernel would reap behind our back), and every child of the process is reaped here, strays
that a pid 1 inherits included. What a handler gets: its own session, folder `/`, fds 0 to 2, a small clean
environment, default signals, first place for the OOM killer, its type's limits. What is left of its group when it
ends is killed (B41, B47). Of its output the last 4 KiB are kept and no more is ever in memory (B55).

`start` fails in two ways: CannotStart, this image cannot run the type (it is held); Shortage, we lack
descriptors, processes or memory (nobody's fault, nothing is charged). Neither leaves anything behind.

A plain handler is started by posix_spawn, which costs the same however large we are. Whatever it cannot express
(USER, NICE, and MEM_MB, which must not bind ourselves for a moment: the spawn would fail) goes by fork, several times as dear.
"""

import posix
import resource
from _signal import SIGKILL, SIGSTOP, SIGTERM, SIG_DFL, SIG_SETMASK, pthread_sigmask, signal
from posix import O_CLOEXEC, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_RDWR, O_WRONLY, WEXITED, WNOHANG, WNOWAIT
from select import POLLIN
from time import sleep

from edgeq import disk
from edgeq.errors import EIO, ENOENT, ENOMEM, OUR_SHORTAGE
from edgeq.job import Outcome
from edgeq.lease import is_alive, start_time

RUNNING, ENDING, KILLED = "running", "ending", "killed"
TIMEOUT, STOP, CANCEL, ABANDON = "timeout", "stop", "cancel", "abandon"  # why we ended it; "" when we did not

TAIL_BYTES = CTL_BYTES = 4096
CHUNK_BYTES = 16384
PUMP_READS = 4  # one full pipe a wake-up, so that no handler keeps the worker from the others
DRAIN_READS = 64  # the largest pipe (16 pages of 64 KiB): all a handler can have left, and an end to it
FOREVER = float("inf")
SIGNALS = tuple(n for n in range(1, 32) if n not in (SIGKILL, SIGSTOP))  # Python itself ignores PIPE and XFSZ
MFD_CLOEXEC, MFD_NOEXEC_SEAL = 1, 8
CLD_EXITED = 1
MIB = 1 << 20
PATH = b"/sbin:/usr/sbin:/bin:/usr/bin"
GONE_WAIT_S, GONE_ROUNDS = 0.01, 200  # two seconds for killed processes to be gone
ENVIRON_BYTES = 262_144


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


class Slot:
    """One running handler. started_at, deadline: boot clock; at `deadline` the next step of `state` is due.

    pid is its session and group, too. out_fd: -1 once it closed its output.
    """

    __slots__ = ("lease", "pid", "_start", "started_at", "timeout_s", "deadline", "out_fd", "tail", "state", "cause", "ctl_path")

    def __init__(self, lease, pid, started_at, timeout_s, out_fd, ctl_path):
        self.lease, self.pid, self._start, self.started_at = lease, pid, None, started_at
        self.timeout_s, self.deadline = timeout_s, started_at + timeout_s
        self.out_fd, self.tail, self.ctl_path = out_fd, bytearray(), ctl_path
        self.state, self.cause = RUNNING, ""

    @property
    def start(self):
        """Its start time in ticks, 0 when it had ended before somebody asked: looked up then, short jobs never pay for it."""
        if self._start is None:
            try:
                self._start = start_time(self.pid)
            except OSError:  # no descriptor left: unknown this time
                return 0
        return self._start


class Executor:
    """The handlers that run now, `running`: pid -> Slot. poll: where their output is registered."""

    def __init__(self, handlers, ctl_folder, queue, poll, grace_s, log):
        self.handlers, self.ctl_folder, self.queue = handlers, ctl_folder, queue
        self.poll, self.grace_s, self.log = poll, grace_s, log
        self.running, self._outputs = {}, {}
        self._memfd_flags = _probe_memfd()
        self._can_spawn = hasattr(posix, "posix_spawn")
        self._environ = {b"PATH": posix.environ.get(b"PATH") or PATH, b"HOME": b"/", b"EDGEQ_QUEUE": queue.encode()}
        self._environ.update((key, posix.environ[key]) for key in (b"TZ", b"LANG") if key in posix.environ)
        _keep_to_ourselves()

    def start(self, lease, settings, max_attempts, now):
        """Run the handler of `lease`: a Slot, or CannotStart or Shortage. settings: the type's; the job's timeout wins."""
        path = "%s/%s" % (self.handlers, lease.entry.type)
        ctl_path = "%s/%s" % (self.ctl_folder, lease.token)
        user = _find_user(settings.user)
        fds, pid = [], 0  # stdin, write end and read end of the output
        try:
            self._prepare(fds, lease, ctl_path, user)
            pid = self._launch(path, self._environment(lease, max_attempts, ctl_path), fds, settings, user)
        finally:
            for fd in fds if not pid else fds[:2]:
                posix.close(fd)
            if not pid:
                _remove(ctl_path)
        slot = Slot(lease, pid, now.boot, lease.record.timeout_s or settings.timeout_s, fds[2], ctl_path)
        self.running[pid] = self._outputs[slot.out_fd] = slot
        self.poll.register(slot.out_fd, POLLIN)
        return slot

    def owns(self, fd):
        return fd in self._outputs

    def pump(self, fd):
        """Read a bounded part of what a handler wrote; at its end close `fd`. A late call for a closed one is nothing."""
        slot = self._outputs.get(fd)
        if slot and not _swallow(fd, slot.tail, PUMP_READS):
            self._close_output(slot)

    def collect(self, now):
        """[(Slot, Outcome)] of the handlers that ended, not in order of ending; abandoned ones are reaped in silence."""
        ended = []
        while True:
            try:
                child = posix.waitid(posix.P_ALL, 0, WEXITED | WNOHANG | WNOWAIT)
            except ChildProcessError:
                return ended
            if child is None:
                return ended
            slot = self.running.pop(child.si_pid, None)
            if slot:
                # RACE: before the wait that frees the pid: till then the group's number is nobody else's.
                self._signal(slot, SIGKILL)
            posix.waitpid(child.si_pid, 0)
            if slot:
                outcome = self._finish(slot, child, now)
                if slot.cause != ABANDON:
                    ended.append((slot, outcome))

    def tick(self, now):
        """Take the steps that are due: TERM at the timeout, KILL when the grace is over."""
        for slot in self.running.values():
            if now.boot < slot.deadline:
                continue
            if slot.state == RUNNING:
                self._end(slot, TIMEOUT, now, self.grace_s)
            else:
                self.log.warning("handler-ignores-term", id=slot.lease.entry.id, type=slot.lease.entry.type, pid=slot.pid)
                self._kill(slot)

    def next_deadline(self):
        """When `tick` has something to do, on the boot clock; None: not before a child ends."""
        deadline = min((slot.deadline for slot in self.running.values()), default=FOREVER)
        return None if deadline == FOREVER else deadline

    def stop_all(self, now, grace_s):
        """TERM to every handler; those that last longer than `grace_s` are killed by `tick`."""
        for slot in self.running.values():
            self._end(slot, STOP, now, grace_s)

    def cancel(self, id, now):
        """End the job `id` for a person; False when it does not run (or has just ended: its outcome stands)."""
        for slot in self.running.values():
            if slot.lease.entry.id == id and slot.cause != ABANDON and self._end(slot, CANCEL, now, self.grace_s):
                slot.cause = CANCEL
                return True
        return False

    def abandon(self, slot):
        """Somebody else holds the claim now: kill the handler, forget how it ends (P5)."""
        if self.running.get(slot.pid) is slot:  # collected, its number may be anybody's
            slot.cause = ABANDON
            self._kill(slot)

    def _prepare(self, fds, lease, ctl_path, user):
        """Make the control file and fill `fds` as far as it goes. No means, no start: Shortage, whatever the errno."""
        try:
            ctl = posix.open(ctl_path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0o600)
            try:
                fds.append(self._open_stdin(ctl_path))
                _write_ahead(fds[0], lease.record.stdin())
                reader, writer = posix.pipe2(O_CLOEXEC)
                fds += writer, reader
                posix.set_blocking(fds[2], False)  # ours only: a handler must not meet EAGAIN
                if user:  # stdin and output too: who names /dev/stderr opens it anew
                    for fd in (ctl, fds[0], fds[1]):
                        posix.fchown(fd, user[0], user[1])
            finally:
                posix.close(ctl)
        except OSError as error:
            raise Shortage("%s: %s" % (self.ctl_folder, error.strerror) if error.filename else error.strerror) from None

    def _open_stdin(self, ctl_path):
        """A nameless file for the payload; not a pipe, which would need feeding."""
        if self._memfd_flags:
            return posix.memfd_create("edgeq-stdin", self._memfd_flags)
        fd = posix.open(ctl_path + "~", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0o600)
        posix.unlink(ctl_path + "~")
        return fd

    def _environment(self, lease, max_attempts, ctl_path):
        return {**self._environ, b"EDGEQ_ID": lease.entry.id, b"EDGEQ_TYPE": lease.entry.type,
                b"EDGEQ_ATTEMPT": str(lease.entry.attempts), b"EDGEQ_MAX_ATTEMPTS": str(max_attempts),
                b"EDGEQ_REDELIVERED": "1" if lease.redelivered else "0", b"EDGEQ_CTL": ctl_path}

    def _launch(self, path, environ, fds, settings, user):
        """The pid of the handler, past its exec."""
        try:
            with _FirstForOom():
                if self._can_spawn and not (user or settings.nice or settings.mem_mb):
                    try:
                        return _spawn(path, environ, fds, settings.fsize_mb)
                    except NotImplementedError:  # a C library without setsid here
                        self._can_spawn = False
                return _fork(path, environ, fds, settings, user)
        except OSError as error:
            raise _explain(error, path) from None

    def _end(self, slot, cause, now, grace_s):
        """TERM to the group and KILL after `grace_s`; False when it has ended by itself. The first cause stands."""
        if slot.state == RUNNING:
            # RACE: a handler that ended just before has its own outcome, not a timeout or a stop.
            if posix.waitid(posix.P_PID, slot.pid, WEXITED | WNOHANG | WNOWAIT):
                slot.deadline = FOREVER
                return False
            slot.state, slot.cause, slot.deadline = ENDING, cause, now.boot + grace_s
            self._signal(slot, SIGTERM)
        elif slot.state == ENDING:
            slot.deadline = min(slot.deadline, now.boot + grace_s)
        return True

    def _kill(self, slot):
        slot.state, slot.deadline = KILLED, FOREVER
        self._signal(slot, SIGKILL)

    def _signal(self, slot, number):
        """To the whole group. Only for a child not yet waited for: it pins the number."""
        try:
            posix.killpg(slot.pid, number)
        except OSError as error:  # a set-user-id handler of an unprivileged worker
            self.log.warning("cannot-signal", pid=slot.pid, signal=number, why=error.strerror)

    def _finish(self, slot, child, now):
        """The Outcome of a reaped handler; everything it held is closed and removed."""
        if slot.out_fd >= 0:
            _swallow(slot.out_fd, slot.tail, DRAIN_READS)
            self._close_output(slot)
        ctl = read_ctl(slot.ctl_path)
        _remove(slot.ctl_path)
        exited = child.si_code == CLD_EXITED
        return Outcome(child.si_status if exited else None, 0 if exited else child.si_status,
                       timed_out=slot.cause == TIMEOUT, stopped=slot.cause == STOP, cancelled=slot.cause == CANCEL,
                       duration_s=now.boot - slot.started_at, timeout_s=slot.timeout_s, tail=bytes(slot.tail), ctl=ctl)

    def _close_output(self, slot):
        self.poll.unregister(slot.out_fd)
        del self._outputs[slot.out_fd]
        posix.close(slot.out_fd)
        slot.out_fd = -1


def read_ctl(path):
    """What a handler wrote to EDGEQ_CTL: `retry_after` (float, seconds) and `result` (str), the last of equal keys.

    The handler may have put anything there: a link, a FIFO, a gigabyte. Whatever is not understood is left out.
    """
    try:
        if not posix.lstat(path).st_size:  # nearly always: saves three calls
            return {}
        fd = posix.open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
        try:
            data = posix.read(fd, CTL_BYTES + 1) if disk.is_file(posix.fstat(fd)) else b""
        finally:
            posix.close(fd)
    except OSError:
        return {}
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    if len(data) > CTL_BYTES:
        lines.pop()  # cut off: `retry_after=1` may have been 1000
    found = {}
    for line in lines:
        key, _, value = line.partition("=")
        if key == "result":
            found[key] = value.rstrip("\r")
        elif key == "retry_after" and _seconds(value) is not None:
            found[key] = _seconds(value)
    return found


def end_survivors(holder, ctl_path):
    """Kill what a dead or late worker's handler left, wait until it is gone (at most two seconds): how many there were.

    holder: the lease's Holder, or None. Its group is killed only while the leader is that very process; besides, every
    process whose environment names `ctl_path`: that finds a handler spawned just before its worker died, a
    group without its leader, and who changed session. Never ourselves, our parent (the guard) or pid 1.
    """
    spared = (1, posix.getpid(), posix.getppid())
    mark = b"\0EDGEQ_CTL=%s\0" % ctl_path.encode("utf-8", "surrogateescape")
    killed = set()
    for _ in range(GONE_ROUNDS):
        found = [process for process in _marked(mark) if process[0] not in spared]
        if holder and holder.group not in spared and is_alive(holder.group, holder.group_start):
            found.append((holder.group, holder.group_start))
            _kill_quietly(-holder.group)
        for pid, _ in found:
            _kill_quietly(pid)
        killed.update(found)
        if not found:
            break
        # RACE: a process may have forked while we looked: done when a look finds nobody, not when those found are gone.
        sleep(GONE_WAIT_S)
    return len(killed)


def _marked(mark):
    """(pid, start time) of the processes whose environment holds `mark`."""
    for name in posix.listdir("/proc"):
        if name.isdigit() and mark in _environ_of(name):
            start = start_time(int(name))
            if start and mark in _environ_of(name):  # RACE: the number may have changed hands between the two
                yield int(name), start


def _environ_of(pid):
    """The environment a process was started with, each entry between two NULs; nothing of whom we may not read."""
    parts = [b"\0"]
    try:
        fd = posix.open("/proc/%s/environ" % pid, O_RDONLY | O_CLOEXEC)
        try:
            for _ in range(ENVIRON_BYTES // CHUNK_BYTES):
                parts.append(posix.read(fd, CHUNK_BYTES))
                if not parts[-1]:
                    break
        finally:
            posix.close(fd)
    except OSError:
        pass
    return b"".join(parts)


def _kill_quietly(pid):
    try:
        posix.kill(pid, SIGKILL)
    except OSError:
        pass  # gone, or not ours to end


def _keep_to_ourselves():
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


def _probe_memfd():
    """Flags that memfd_create takes here (newer kernels complain without the second, older ones with it); 0: it is missing."""
    for flags in (MFD_CLOEXEC | MFD_NOEXEC_SEAL, MFD_CLOEXEC):
        try:
            posix.close(posix.memfd_create("edgeq", flags))
            return flags
        except (AttributeError, OSError):
            pass
    return 0


def _find_user(name):
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


def _write_ahead(fd, data):
    """Write all of `data`, leaving the offset at the start for the reader."""
    at = 0
    while at < len(data):
        at += posix.pwrite(fd, data[at:], at)


def _swallow(fd, tail, reads_n):
    """Move what is there into `tail`, which keeps the last of it, in at most `reads_n` reads; False at the end."""
    for _ in range(reads_n):
        try:
            chunk = posix.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        tail += chunk[-TAIL_BYTES:]
        del tail[:-TAIL_BYTES]
        if len(chunk) < CHUNK_BYTES:
            return True
    return True


def _seconds(text):
    """A finite number of seconds, not negative; None for anything else."""
    try:
        number = float(text) if text.isascii() and "_" not in text else -1
    except ValueError:
        return None
    return number if 0 <= number < FOREVER else None


def _remove(path):
    try:
        posix.unlink(path)
    except OSError:
        pass  # never made, or a handler put a folder there: RAM, gone at the next boot


class _FirstForOom:
    """First in line for the OOM killer: a handler inherits it from us, cheaper and sooner than written for it afterwards."""

    def __enter__(self):
        try:
            self.fd = posix.open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC)
            self.before = posix.read(self.fd, 16)
            posix.write(self.fd, b"1000")
        except OSError:  # not in this kernel; or no descriptor, and then nothing starts anyway
            self.fd = -1

    def __exit__(self, *_):
        if self.fd >= 0:
            try:
                posix.write(self.fd, self.before)
            except OSError:
                pass  # a handler may run already: nothing may be raised any more
            posix.close(self.fd)


def _spawn(path, environ, fds, fsize_mb):
    actions = [(posix.POSIX_SPAWN_DUP2, fds[0], 0), (posix.POSIX_SPAWN_DUP2, fds[1], 1), (posix.POSIX_SPAWN_DUP2, fds[1], 2)]
    before = _limit(resource.RLIMIT_FSIZE, fsize_mb) if fsize_mb else None
    try:
        return posix.posix_spawn(path, (path,), environ, file_actions=actions, setsid=True, setsigmask=(), setsigdef=SIGNALS)
    finally:
        if before:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _fork(path, environ, fds, settings, user):
    """As _spawn, with another user, nice value or memory limit. The child's errno comes back by a pipe its exec closes."""
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
            _limit(resource.RLIMIT_FSIZE, settings.fsize_mb)
        if user:
            posix.setgroups(user[2])
            posix.setgid(user[1])
            posix.setuid(user[0])
        if settings.mem_mb:  # last: from here we may be over it ourselves
            _limit(resource.RLIMIT_AS, settings.mem_mb)
        posix.execve(path, (path,), environ)
    except OSError as error:
        code = error.errno
    except MemoryError:
        code = ENOMEM
    finally:
        posix.write(writer, b"%d" % code)
        posix._exit(127)


def _limit(what, mib):
    """Set a soft limit, within the hard one; returns the limits before."""
    soft, hard = before = resource.getrlimit(what)
    soft = mib * MIB
    resource.setrlimit(what, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    return before


def _explain(error, path):
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
