"""What producers say to workers: busy ones read R/arrivals, sleeping ones have a FIFO in R/wake (edgeq/wake.py)."""

import posix
from posix import O_APPEND, O_CLOEXEC, O_NONBLOCK, O_RDWR, O_WRONLY

from edgeq import disk as seam


def hear(store):
    """The PRIO digits that producers appended to R/arrivals since we last looked."""
    path = store.run + "/arrivals"
    try:
        size = posix.stat(path).st_size
        if size == store._heard:
            return []
        digits = seam.read_text(path, seam.READ_CHUNK)[store._heard:] if size > store._heard else "0"
        store._heard = size
        if size > 4096:
            posix.truncate(path, 0)
            store._heard = 0
    except OSError:
        return []
    return [c for c in digits if c.isdigit()]


def is_overtaken(store):
    """A producer published something more urgent than the head."""
    digits = hear(store)
    return bool(digits) and store.view.is_overtaken(digits)


def poke(run, digit, everybody=False):
    """Tell busy workers (R/arrivals) and wake sleeping ones (their FIFO). A lost poke costs one safety scan, no job.

    everybody: busy ones, too, by their FIFO: for a person's wish, not for a producer.
    """
    try:
        fd = posix.open(run + "/arrivals", O_WRONLY | O_APPEND | O_CLOEXEC)
        try:
            posix.write(fd, digit.encode())
        finally:
            posix.close(fd)
        names = posix.listdir(run + "/wake")
    except OSError:
        return
    for name in names:
        if name.endswith(".asleep"):
            _poke_one("%s/wake/%s" % (run, name[:-7]), digit)
        elif everybody:
            _poke_one("%s/wake/%s" % (run, name), digit)


def _poke_one(path, digit):
    try:
        if posix.lstat(path).st_mode & seam.S_IFMT != seam.S_IFIFO:
            return
        fd = posix.open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC)
        try:
            posix.write(fd, digit.encode())
        finally:
            posix.close(fd)
    except OSError:
        pass  # gone or full: its reader is waking up already
