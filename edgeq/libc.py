"""Two calls of the C library that Python's posix lacks: syncfs and sync_file_range.

Importing this imports ctypes, which a small Python may lack: only `enqueue --batch` and `move` do, see `Disk.syncfs`.
A call that the C library does not have fails with ENOSYS, as one that the kernel does not have.
"""

import ctypes
import posix

from edgeq.errors import ENOSYS

_LIBC = ctypes.CDLL(None, use_errno=True)


def _find(name, *argtypes):
    """A function of the C library, None where it has no such. argtypes: without them a 32-bit board would pass 32-bit offsets."""
    try:
        function = getattr(_LIBC, name)
    except AttributeError:
        return None
    function.argtypes = argtypes
    return function


_SYNCFS = _find("syncfs", ctypes.c_int)
_SYNC_FILE_RANGE = _find("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)  # off64_t twice


def has_syncfs():
    return _SYNCFS is not None


def syncfs(fd):
    _call(_SYNCFS, fd)


def sync_file_range(fd, flags):
    """The whole file: 0 bytes means up to its end."""
    _call(_SYNC_FILE_RANGE, fd, 0, 0, flags)


def _call(function, *args):
    if function is None:
        raise OSError(ENOSYS, posix.strerror(ENOSYS))
    if function(*args) != 0:
        error = ctypes.get_errno()
        raise OSError(error, posix.strerror(error))
