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
"""

import posix
from _signal import SIGKILL, SIGTERM
from posix import O_CLOEXEC, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_RDWR, O_WRONLY, WEXITED, WNOHANG, WNOWAIT
from select import POLLIN

from edgeq import disk
from edgeq.job import Outcome
from edgeq.lease import start_time
from edgeq.spawn import FirstForOom, Shortage, explain, find_user, fork, keep_to_ourselves, probe_memfd, spawn

RUNNING, ENDING, KILLED = "running", "ending", "killed"
TIMEOUT, STOP, CANCEL, ABANDON = "timeout", "stop", "cancel", "abandon"  # why we ended it; "" when we did not

TAIL_BYTES = CTL_BYTES = 4096
CHUNK_BYTES = 16384
PUMP_READS = 4  # one full pipe a wake-up, so that no handler keeps the worker from the others
DRAIN_READS = 64  # the largest pipe (16 pages of 64 KiB): all a handler can have left, and an end to it
FOREVER = float("inf")
CLD_EXITED = 1
PATH = b"/sbin:/usr/sbin:/bin:/usr/bin"


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
        self._memfd_flags = probe_memfd()
        self._can_spawn = hasattr(posix, "posix_spawn")
        self._environ = {b"PATH": posix.environ.get(b"PATH") or PATH, b"HOME": b"/", b"EDGEQ_QUEUE": queue.encode()}
        self._environ.update((key, posix.environ[key]) for key in (b"TZ", b"LANG") if key in posix.environ)
        keep_to_ourselves()
        self._first_for_oom = FirstForOom()

    def start(self, lease, settings, max_attempts, now):
        """Run the handler of `lease`: a Slot, or CannotStart or Shortage. settings: the type's; the job's timeout wins."""
        path = "%s/%s" % (self.handlers, lease.entry.type)
        ctl_path = "%s/%s" % (self.ctl_folder, lease.token)
        user = find_user(settings.user)
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
            with self._first_for_oom:
                if self._can_spawn and not (user or settings.nice or settings.mem_mb):
                    try:
                        return spawn(path, environ, fds, settings.fsize_mb)
                    except NotImplementedError:  # a C library without setsid here
                        self._can_spawn = False
                return fork(path, environ, fds, settings, user)
        except OSError as error:
            raise explain(error, path) from None

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
