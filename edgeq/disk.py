"""The seam to the disk and to the C layer.

Every call that touches the spool goes through one `Disk`, so that a test double can fail the n-th of them. The
store says what is durable; this module only does what it says: a result that is not checked here does not exist.

Only C modules are imported: `os`, `subprocess` or `signal` would cost more RAM than all of edgeq.

Publishing (P2): write under a dot-name in the target's folder, rename, flush the file once through the
descriptor that was open before the rename. One flush of the file commits data and name on ext4, xfs, f2fs and
UBIFS; a cut in between can leave a torn file under the final name, which nobody acknowledged and the reader notices.
"""

import fcntl
import posix
from posix import O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_CLOEXEC, O_DIRECTORY

from edgeq.errors import EINVAL, ENOTSUP, EROFS, EXDEV

S_IFMT, S_IFREG, S_IFDIR, S_IFIFO = 0o170000, 0o100000, 0o040000, 0o010000
FILE_MODE = 0o640
READ_CHUNK = 65536
TEXT_BYTES = 16384  # a larger buffer, however little comes, has the C library move the end of the heap to and fro


def read_text(path, limit=TEXT_BYTES, follow=False):
    """A small text file of the kernel, of /run or (follow: through links) of /etc; what is no UTF-8 survives as surrogates."""
    fd = posix.open(path, O_RDONLY | O_CLOEXEC | (0 if follow else O_NOFOLLOW))
    try:
        data = posix.read(fd, limit)
        while len(data) < limit > TEXT_BYTES:  # a long list of the kernel comes a page at a time
            part = posix.read(fd, limit - len(data))
            if not part:
                break
            data += part
        return data.decode("utf-8", "surrogateescape")
    finally:
        posix.close(fd)


def make_uuid():
    """The kernel's random uuid: unguessable dot-names and ids without a module of our own."""
    return read_text("/proc/sys/kernel/random/uuid").strip()


def is_file(status):
    """A regular file with one name: not a link, a FIFO or a hard link to somebody's secret (P11)."""
    return status.st_mode & S_IFMT == S_IFREG and status.st_nlink == 1


def is_folder(status):
    return status.st_mode & S_IFMT == S_IFDIR


class Disk:
    """Calls that touch the spool, counted. A name here is a system call or a fixed sequence of them."""

    def __init__(self):
        self.flushes_n = 0
        self.written_bytes = 0
        self.is_reduced = False  # a folder could not be flushed: this file system cannot promise (B18)

    # --- single calls; a test double replaces these -------------------------------------------------

    open = staticmethod(posix.open)
    close = staticmethod(posix.close)
    read = staticmethod(posix.read)
    pread = staticmethod(posix.pread)
    write = staticmethod(posix.write)
    pwrite = staticmethod(posix.pwrite)
    rename = staticmethod(posix.rename)
    unlink = staticmethod(posix.unlink)
    mkdir = staticmethod(posix.mkdir)
    rmdir = staticmethod(posix.rmdir)
    fsync = staticmethod(posix.fsync)
    fdatasync = staticmethod(posix.fdatasync)
    sync = staticmethod(posix.sync)
    fchmod = staticmethod(posix.fchmod)
    scandir = staticmethod(posix.scandir)
    listdir = staticmethod(posix.listdir)  # all names at once, dot-names too: for a folder that is small
    lstat = staticmethod(posix.lstat)
    fstat = staticmethod(posix.fstat)
    statvfs = staticmethod(posix.statvfs)

    @staticmethod
    def syncfs(fd):
        from edgeq import libc  # ctypes: for `enqueue --batch` and `move` alone
        libc.syncfs(fd)

    @staticmethod
    def sync_file_range(fd, flags):
        from edgeq import libc
        libc.sync_file_range(fd, flags)

    # --- sequences -----------------------------------------------------------------------------------

    def names(self, folder):
        """Names in `folder` that do not begin with a dot, in no order."""
        with self.scandir(folder) as found:
            for entry in found:
                name = entry.name
                if name[0] != ".":
                    yield name

    def open_read(self, path):
        """A descriptor that follows no link and blocks on no FIFO."""
        return self.open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)

    def read_file(self, path, limit):
        """The bytes of a small file, at most `limit` of them."""
        fd = self.open_read(path)
        try:
            return self.read_fd(fd, limit)
        finally:
            self.close(fd)

    def read_fd(self, fd, limit):
        """At most `limit` bytes from the start of `fd`."""
        data = self.pread(fd, min(READ_CHUNK, limit), 0)
        while len(data) >= READ_CHUNK and len(data) < limit:  # a short read is the end of a regular file
            part = self.pread(fd, min(READ_CHUNK, limit - len(data)), len(data))
            if not part:
                break
            data += part
        return data

    def write_all(self, fd, data):
        """Write everything or raise; a short write is carried on, so that the error that cut it shows."""
        view = memoryview(data)
        while view:
            view = view[self.write(fd, view):]
        self.written_bytes += len(data)

    def pwrite_all(self, fd, data, offset):
        view = memoryview(data)
        while view:
            n = self.pwrite(fd, view, offset)
            view, offset = view[n:], offset + n
        self.written_bytes += len(data)

    def flush(self, fd):
        """Data and name of an open file are on the medium, or OSError."""
        self.flushes_n += 1
        try:
            self.fsync(fd)
        except OSError as error:
            if error.errno not in (EINVAL, ENOTSUP):
                raise
            # this file system cannot flush one file or folder (B18): everything, then, and status says so
            self.is_reduced = True
            self.sync()

    def flush_data(self, fd):
        """Data written into blocks the file already has; no journal commit of its own."""
        self.flushes_n += 1
        self.fdatasync(fd)

    def flush_folder(self, path):
        """The names in `path` are on the medium."""
        fd = self.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        try:
            self.flush(fd)
        finally:
            self.close(fd)

    def write_dot(self, folder, data):
        """Write `data` under a fresh dot-name in `folder`; returns (path, descriptor). Nothing stays on error.

        data: bytes, or pieces of bytes where the whole would only be there to make our heap larger.
        """
        path = "%s/.%s" % (folder, make_uuid())
        try:
            fd = self.open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, FILE_MODE)
        except OSError as error:
            error.filename = folder  # a name that differs each time would be told each time (B20)
            raise
        try:
            self.fchmod(fd, FILE_MODE)  # whatever the umask (B73)
            for piece in (data,) if isinstance(data, bytes) else data:
                self.write_all(fd, piece)
        except OSError:
            self.close(fd)
            self.unlink(path)
            raise
        return path, fd

    def publish(self, folder, name, data, flush=True):
        """Make `folder/name` hold `data`, as in `write_dot`: dot-name, rename, one flush of the file (P2).

        On OSError from the flush the file is visible but not safe: the caller must not acknowledge it.
        """
        path, fd = self.write_dot(folder, data)
        try:
            # CRASH: a cut after this rename leaves nothing, or a torn file under the name: set aside by the
            # reader (tests/crash). Before it: a dot-file, swept.
            try:
                self.rename(path, folder + "/" + name)
            except OSError:
                self.unlink(path)
                raise
            if flush:
                self.flush(fd)
        finally:
            self.close(fd)

    def replace(self, folder, name, data):
        """Publish the old careful way where the file must never be seen torn: flush, rename, flush the folder."""
        path, fd = self.write_dot(folder, data)
        try:
            try:
                self.flush(fd)
                self.rename(path, folder + "/" + name)
            except OSError:
                self.unlink(path)
                raise
        finally:
            self.close(fd)
        self.flush_folder(folder)

    def exists(self, path):
        """True when a name is there, whatever it is. An unreadable folder is an error, not an absence."""
        try:
            self.lstat(path)
        except FileNotFoundError:
            return False
        return True

    def make_folder(self, path, mode):
        """Make `path` with `mode` if it is missing; its status when it was there. A file in its place is an error."""
        try:
            status = self.lstat(path)  # nearly always: one call
        except FileNotFoundError:
            try:
                self.mkdir(path, 0o700)
                posix.chmod(path, mode)
                return None
            except FileExistsError:  # RACE: somebody was quicker
                status = self.lstat(path)
        if not is_folder(status):
            raise NotADirectoryError(20, "is not a folder", path)
        return status


class Lock:
    """An exclusive or shared flock on a file in /run. The kernel drops it when its holder dies, however it dies.

    `with` may be nested: a second descriptor of the same file would wait for ourselves. Where the file cannot be made
    (before any worker ran, not as root) and the lock is not `is_needed`, one goes on without it.
    """

    def __init__(self, path, shared=False, mode=0o660, is_needed=True):
        self.path, self.mode, self.is_needed = path, mode, is_needed
        self.how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self.fd, self._depth = -1, 0

    def take(self, wait=True):
        """True when held now. With wait=False, False when somebody else holds it."""
        if self.fd >= 0:
            return True
        fd = posix.open(self.path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, self.mode)
        try:
            fcntl.flock(fd, self.how if wait else self.how | fcntl.LOCK_NB)
        except OSError as error:
            posix.close(fd)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self.fd = fd
        return True

    def is_ours(self):
        """False when the file we hold is no longer the one under the name (somebody emptied /run)."""
        try:
            return self.fd >= 0 and posix.stat(self.path).st_ino == posix.fstat(self.fd).st_ino
        except FileNotFoundError:
            return False

    def try_exclusive(self):
        """Turn a shared hold into an exclusive one if nobody else holds it."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def drop(self):
        if self.fd >= 0:
            posix.close(self.fd)
            self.fd = -1

    def __enter__(self):
        try:
            self.take()
        except (FileNotFoundError, PermissionError):
            if self.is_needed:
                raise
        self._depth += 1
        return self

    def __exit__(self, *_):
        self._depth -= 1
        if not self._depth:
            self.drop()


def create_run(path, data, mode=0o640):
    """Make a file in /run that nobody reads before we say so: no rename needed."""
    fd = posix.open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode)
    try:
        posix.write(fd, data)
    finally:
        posix.close(fd)


def write_run(path, data, mode=0o640):
    """Replace a file in /run: write beside it, rename. RAM only: nothing is flushed."""
    temp = "%s.%d~" % (path, posix.getpid())
    fd = posix.open(temp, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | posix.O_TRUNC, mode)
    try:
        posix.write(fd, data)
    finally:
        posix.close(fd)
    posix.rename(temp, path)


def forget(path):
    """Remove a file in /run; gone already is as good."""
    try:
        posix.unlink(path)
    except FileNotFoundError:
        pass


def is_read_only(error):
    return error.errno == EROFS


def is_other_mount(error):
    return error.errno == EXDEV
