"""Exit codes and the exception family.

Errors are sorted by who acts next: the worker tries again later (StoreDown, StoreFull), the caller
changes the request (Duplicate, LeaseLost, NotFound, BadJob, BadConfig, Refused), the programmer fixes a bug (any
other exception; never caught except around one job in the worker loop).

Each error prints as one line: what was tried, on which object, why, what to do.
"""

# sysexits(3), the codes scripts already know
OK = 0
NO = 1
USAGE = 64
BAD_INPUT = 65
UNAVAILABLE = 69
CANNOT_CREATE = 73
IO_ERROR = 74
TRY_LATER = 75
NOT_PERMITTED = 77
BAD_CONFIG = 78

ENOENT, EIO, ENXIO, EACCES, EPERM, EEXIST, ENOTDIR, EISDIR, EINVAL = 2, 5, 6, 13, 1, 17, 20, 21, 22
ENOSPC, EROFS, EDQUOT, EMFILE, ENFILE, ENOMEM, EAGAIN, ENOTSUP, EXDEV, ELOOP, ENOTEMPTY, ENOSYS, ESPIPE = (
    28, 30, 122, 24, 23, 12, 11, 95, 18, 40, 39, 38, 29)

NO_ROOM = (ENOSPC, EDQUOT)
# descriptors, memory: never the fault of a file or a job
OUR_SHORTAGE = (EMFILE, ENFILE, ENOMEM, EAGAIN)


class EdgeqError(Exception):
    """Base of every error a user may meet. `exit_code` is what the command line returns for it."""

    exit_code = IO_ERROR

    def __init__(self, verb, what, why, todo=""):
        self.verb, self.what, self.why, self.todo = verb, what, why, todo
        Exception.__init__(self, ": ".join(str(part) for part in (verb, what, why, todo) if part))


class StoreDown(EdgeqError):
    """The store cannot be used now, or a flush failed and nothing may be called safe until it is reopened."""

    exit_code = IO_ERROR


class StoreFull(EdgeqError):
    """No room for more: bytes, inodes, jobs. Nothing was left behind."""

    exit_code = TRY_LATER


class Duplicate(EdgeqError):
    """The id has a job already, where that is not the answer asked for."""

    exit_code = TRY_LATER


class LeaseLost(EdgeqError):
    """Somebody else holds the claim now. The late worker changes nothing (P5)."""

    exit_code = TRY_LATER


class NotFound(EdgeqError):
    exit_code = NO


class Busy(EdgeqError):
    """The object is in use; the same request will do later."""

    exit_code = TRY_LATER


class BadJob(EdgeqError):
    """What was handed in cannot be read as a job."""

    exit_code = BAD_INPUT


class BadUsage(EdgeqError):
    exit_code = USAGE


class BadConfig(EdgeqError):
    exit_code = BAD_CONFIG


class BadPassword(BadConfig):
    """The server of the store does not let us in: waiting does not help."""


class NotPermitted(EdgeqError):
    exit_code = NOT_PERMITTED


class CannotCreate(EdgeqError):
    exit_code = CANNOT_CREATE


def from_os(verb, what, error):
    """The EdgeqError that an OSError of the disk means, with the remedy a technician can use."""
    why = "%s (errno %d)" % (error.strerror or "error", error.errno or 0)
    if error.errno in NO_ROOM:
        return StoreFull(verb, what, why, "free some space or inodes, then repeat")
    if error.errno == EROFS:
        return StoreDown(verb, what, why, "remount the spool read-write")
    if error.errno in (EACCES, EPERM):
        return NotPermitted(verb, what, why, "run as root or as a member of group edgeq")
    if error.errno in OUR_SHORTAGE:
        return Busy(verb, what, why, "repeat later")
    return StoreDown(verb, what, why, "see 'edgeq check'")
