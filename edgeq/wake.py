"""What wakes a worker: its FIFO in RAM (`R/wake/PID-START`), signals, and whatever else is in its poll.

Before it sleeps it says so (`NAME.asleep`), then looks once more at the store: a producer either sees the sign and pokes, or
came before the look. A poke that is lost all the same costs one safety scan, no job.

Signals: each only leaves a mark here (`terms_n`, `is_reload_wanted`, or nothing for CHLD) and a byte in the pipe that poll reads.
"""

import posix
from _signal import SIGCHLD, SIGHUP, SIGINT, SIGTERM, set_wakeup_fd, signal
from select import POLLIN

from edgeq import disk


class Wakeups:
    """The FIFO and the signals of the worker `name` (PID-START). run: the queue in RAM; poll: where both are registered."""

    def __init__(self, run, name, poll):
        self.folder, self.poll = run + "/wake", poll
        self.path = "%s/%s" % (self.folder, name)
        self.terms_n = 0
        self.is_reload_wanted = False

    def open(self):
        self._signals_fd, writer = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
        set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (SIGTERM, SIGINT):
            signal(number, self._on_term)
        signal(SIGHUP, self._on_hup)
        signal(SIGCHLD, _on_child)
        self.poll.register(self._signals_fd, POLLIN)
        self._open_fifo()

    def close(self):
        """Nobody pokes us any more; signals have no pipe."""
        set_wakeup_fd(-1)
        for path in (self.path + ".asleep", self.path):
            try:
                disk.forget(path)
            except OSError:
                pass

    def restore(self):
        """Somebody emptied /run, and its folders were made again (B45): so is the FIFO."""
        try:
            posix.lstat(self.path)
        except FileNotFoundError:
            self.poll.unregister(self._fifo_fd)
            posix.close(self._fifo_fd)
            self._open_fifo()

    def say_asleep(self):
        try:
            posix.close(posix.open(self.path + ".asleep", posix.O_CREAT | posix.O_WRONLY | posix.O_CLOEXEC, 0o644))
        except OSError:
            pass  # a producer's poke is lost: the safety scan finds the job

    def wait(self, wait_ms):
        """(is_poked, is_signalled, descriptors of others that have something) after at most `wait_ms`.

        is_poked: a producer told of a job, or a person of a wish.
        """
        ready = [fd for fd, _ in self.poll.poll(wait_ms)]
        for fd in (self._fifo_fd, self._signals_fd):
            if fd in ready:
                _drain(fd)
        is_poked = self._fifo_fd in ready
        if is_poked:
            disk.forget(self.path + ".asleep")
        return is_poked, self._signals_fd in ready, [fd for fd in ready if fd not in (self._fifo_fd, self._signals_fd)]

    def _open_fifo(self):
        disk.forget(self.path)
        posix.mkfifo(self.path, 0o660)
        if posix.geteuid() == 0:
            posix.chown(self.path, -1, posix.stat(self.folder).st_gid)
        posix.chmod(self.path, 0o660)
        # read and write: with a reader only, poll would spin after the first producer went
        self._fifo_fd = posix.open(self.path, posix.O_RDWR | posix.O_NONBLOCK | posix.O_CLOEXEC)
        self.poll.register(self._fifo_fd, POLLIN)

    def _on_term(self, *_):
        self.terms_n += 1

    def _on_hup(self, *_):
        self.is_reload_wanted = True


def _on_child(*_):
    """Python drops signals without a handler; the wake-up pipe does the work."""


def _drain(fd):
    try:
        while len(posix.read(fd, 4096)) == 4096:
            pass
    except BlockingIOError:
        pass
