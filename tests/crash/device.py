"""A disk that remembers: every write and flush below a real file system, in order, with the writer's marks between them.

    writer -> ext4 or xfs -> loop device -> the file `disk` on a FUSE server of our own -> the log

The server speaks raw /dev/fuse, one request at a time, so the log's order is the order in which the disk took things. The
file `mark` beside `disk` takes the writer's notes: a write to it returns when the note is in the log, behind every flush that
returned before.

Everything lives in a mount namespace of its own, below one tmpfs: when the last process is gone, so are the mounts. What
SIGKILL can leave is a loop device with our name on it; `clean_leftovers` takes it away before the next run. A process that
holds both the FUSE descriptor and a mount on it dies into a deadlock: the server never sees the mounts, the
writer closes the descriptor before it mounts a file system.
"""

import ctypes
import errno
import fcntl
import os
import select
import signal
import stat
import struct
import sys
import time

BLOCK = 4096
TAG = "edgeq-crash"
CLONE_NEWNS, MS_REC, MS_PRIVATE, MNT_DETACH, PR_SET_PDEATHSIG = 0x20000, 0x4000, 1 << 18, 2, 1
LOOP_CLR_FD, LOOP_GET_STATUS64, LOOP_CONFIGURE, LOOP_CTL_GET_FREE = 0x4C01, 0x4C05, 0x4C0A, 0x4C82
LOOP_MAJOR, LO_FLAGS_DIRECT_IO = 7, 16
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2  # ext4 and xfs alike
LOOP_CONFIG = struct.Struct("<II5Q4I64s64s32s2Q64s")
LOOP_INFO = struct.Struct("<5Q4I64s64s32s2Q")

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    """A C library call; OSError when it says -1."""
    if getattr(libc, name)(*args) != 0:
        error = ctypes.get_errno()
        raise OSError(error, "%s: %s" % (name, os.strerror(error)))


def mount(source, target, kind, flags=0, options=""):
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def umount(target, flags=0):
    """Unmount; busy for a moment (somebody looks at all mounts) is waited out."""
    for left in range(200, -1, -1):
        try:
            return call("umount2", target.encode(), flags)
        except OSError as error:
            if error.errno != errno.EBUSY or not left:
                raise
            time.sleep(0.01)


def forget_changes(target):
    """What is mounted at `target` takes no write any more and is unmounted without its last ones: its image is done with."""
    fd = os.open(target, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("<I", NO_LOG_FLUSH))
    finally:
        os.close(fd)


def syncfs(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        call("syncfs", fd)
    finally:
        os.close(fd)


def own_mounts():
    """A mount namespace of our own, from which nothing leaks and which dies with us."""
    call("unshare", CLONE_NEWNS)
    mount("none", "/", "none", MS_REC | MS_PRIVATE)


def die_with_parent(parent):
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def start_time(pid):
    try:
        with open("/proc/%d/stat" % pid) as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0


children = set()  # those that `spawn` started and nobody waited for


def spawn(work):
    """Fork; the child runs `work()` and leaves with its result (0 for None). The pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # no child that `end_children` does not know
    pid = os.fork()
    if pid:
        children.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return pid
    children.clear()
    code = 1
    try:
        die_with_parent(parent)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        code = work() or 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# --- loop devices ------------------------------------------------------------------------------------


class Loop:
    """A loop device on `path`. `nodes`: a folder for its device node, where ours may be made. Others take and leave such
    devices at the same time: the kernel is asked for a free one until one is really ours. is_direct: it has several calls under
    way at once, and they may end in any order."""

    def __init__(self, path, nodes, is_direct=False):
        self.owner = "%s.%d.%d.%s" % (TAG, os.getpid(), start_time(os.getpid()), _pid_space())
        backing = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.path = self._take(backing, nodes, LO_FLAGS_DIRECT_IO if is_direct else 0)
        finally:
            os.close(backing)

    def _take(self, backing, nodes, flags):
        config = LOOP_CONFIG.pack(backing, 0, *[0] * 8, flags, self.owner.encode(), b"", b"", 0, 0, b"")
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            for _ in range(1000):
                number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
                node = "%s/loop%d" % (nodes, number)
                if not os.path.exists(node):
                    os.mknod(node, stat.S_IFBLK | 0o600, os.makedev(LOOP_MAJOR, number))
                fd = os.open(node, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.ioctl(fd, LOOP_CONFIGURE, config)
                    return node
                except OSError as error:
                    if error.errno not in (errno.EBUSY, errno.ENXIO):
                        raise
                finally:
                    os.close(fd)
        finally:
            os.close(control)
        raise OSError(errno.EBUSY, "no free loop device")

    def detach(self):
        _detach(self.path)


def _pid_space():
    """The number of our pid namespace: a container's devices are its own business."""
    return os.readlink("/proc/self/ns/pid").strip("pid:[]")


def _detach(node):
    fd = os.open(node, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, LOOP_CLR_FD)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    finally:
        os.close(fd)


def clean_leftovers(nodes):
    """Detach loop devices of runs that were killed; what they lie on is aborted first. How many there were."""
    gone = 0
    for name in os.listdir("/sys/block"):
        if not name.startswith("loop") or not os.path.exists("/sys/block/%s/loop/backing_file" % name):
            continue
        number = int(name[4:])
        node = "%s/%s" % (nodes, name)
        if not os.path.exists(node):
            os.mknod(node, stat.S_IFBLK | 0o600, os.makedev(LOOP_MAJOR, number))
        try:
            fd = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            info = LOOP_INFO.unpack(fcntl.ioctl(fd, LOOP_GET_STATUS64, bytes(LOOP_INFO.size)))
        except OSError:
            continue  # gone meanwhile
        finally:
            os.close(fd)
        owner = info[9].rstrip(b"\0").decode("ascii", "replace").split(".")
        if owner[0] != TAG or owner[3] != _pid_space() or start_time(int(owner[1])) == int(owner[2]):
            continue
        _abort_fuse(info[0])
        _detach(node)
        gone += 1
    return gone


def _abort_fuse(device):
    """Cut a FUSE connection that a dead run left below its loop device; a tmpfs has none."""
    folder = "/sys/fs/fuse/connections"
    minor = (device & 0xFF) | (device >> 12 & 0xFFF00)
    if not os.path.isdir(folder):
        return
    if not os.listdir(folder):
        try:
            mount("fusectl", folder, "fusectl")
        except OSError:
            return
    try:
        with open("%s/%d/abort" % (folder, minor), "w") as file:
            file.write("1")
    except FileNotFoundError:
        pass


# --- the server ----------------------------------------------------------------------------------------

ROOT, DISK, MARK = 1, 2, 3
(LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR, RELEASEDIR,
 INTERRUPT, DESTROY, BATCH_FORGET) = 1, 2, 3, 4, 14, 15, 16, 17, 18, 20, 25, 26, 27, 29, 36, 38, 42
MAX_WRITE = 1 << 20
FOREVER_S = 1 << 30
DIRECT_IO, KEEP_CACHE = 1, 2
BIG_WRITES, ASYNC_DIO, MAX_PAGES = 1 << 5, 1 << 15, 1 << 22
IN_HEADER, OUT_HEADER = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
ENTRY = struct.Struct("<B3xIQ")  # kind, length, offset: one log entry's head, the bytes follow
WROTE, FLUSHED, NOTED = 1, 2, 3


class Server:
    """Serves `disk` (a copy of the image file `base`) and `mark` on the descriptor `fd` until unmounted. Logs to `log`."""

    def __init__(self, fd, base, log):
        self.fd = fd
        with open(base, "rb") as file:
            self.data = bytearray(file.read())
        self.log = open(log, "wb", buffering=1 << 20)

    is_direct = False  # how the loop device uses us

    def run(self):
        while True:
            try:
                request = self._take()
            except OSError as error:
                if error.errno == errno.ENODEV:
                    break
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                if error.errno == errno.EPERM:  # the writer has not mounted it yet
                    time.sleep(0.001)
                    continue
                raise
            _, operation, unique, node, *_ = IN_HEADER.unpack_from(request)
            if operation in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            self._serve(operation, unique, node, memoryview(request)[IN_HEADER.size:])
            if operation == DESTROY:
                break
        self.log.close()

    def _take(self):
        return os.read(self.fd, MAX_WRITE + BLOCK)

    def _serve(self, operation, unique, node, body):
        answer = self._answer(operation, node, body)
        code, data = (-answer, b"") if isinstance(answer, int) else (0, answer)
        try:
            os.write(self.fd, OUT_HEADER.pack(OUT_HEADER.size + len(data), code, unique) + data)
        except FileNotFoundError:
            pass  # the asker is gone

    def _answer(self, operation, node, body):
        """The reply's bytes, or an errno."""
        if operation == WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            data = bytes(body[40:40 + size])
            if node == DISK:
                self.data[offset:offset + size] = data
                self.log.write(ENTRY.pack(WROTE, size, offset) + data)
            else:
                self.log.write(ENTRY.pack(NOTED, size, 0) + data)
            return struct.pack("<II", size, 0)
        if operation == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return bytes(self.data[offset:offset + size]) if node == DISK else b""
        if operation == FSYNC:
            if node == DISK:
                self.log.write(ENTRY.pack(FLUSHED, 0, 0))
            return b""
        if operation == INIT:
            _, minor, readahead, flags = struct.unpack_from("<IIII", body)
            wanted = flags & (BIG_WRITES | ASYNC_DIO | MAX_PAGES)
            return struct.pack("<IIIIHHIIHHI28x", 7, min(minor, 31), readahead, wanted, 16, 12, MAX_WRITE, 1,
                               MAX_WRITE // BLOCK, 0, 0)
        if operation == LOOKUP:
            found = {b"disk\0": DISK, b"mark\0": MARK}.get(bytes(body))
            return errno.ENOENT if found is None else struct.pack("<4QII", found, 0, FOREVER_S, FOREVER_S, 0, 0) + self._attr(found)
        if operation in (GETATTR, SETATTR):
            return struct.pack("<QII", FOREVER_S, 0, 0) + self._attr(node)
        if operation in (OPEN, OPENDIR):
            return struct.pack("<QIi", 0, KEEP_CACHE if node == DISK else DIRECT_IO, 0)
        if operation == STATFS:
            return struct.pack("<5QIIII24x", 0, 0, 0, 0, 0, BLOCK, 255, BLOCK, 0)
        if operation in (RELEASE, RELEASEDIR, FLUSH, DESTROY):
            return b""
        return errno.ENOSYS

    def _attr(self, node):
        mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o666
        size = len(self.data) if node == DISK else 0
        return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, BLOCK, 0)


class Late(Server):
    """A disk that has many calls under way and takes the bytes of jobs last: when it is asked for nothing else, the newest first.

    What it has not taken it has not said yes to, and a flush does not mean it.
    """

    is_direct = True
    IDLE_MS = 2
    JOB = b'"payload":{"n":'

    def __init__(self, fd, base, log):
        Server.__init__(self, fd, base, log)
        self.held = []  # (number, node, body) of writes
        self.poll = select.poll()
        self.poll.register(fd, select.POLLIN)

    def _take(self):
        while self.held and not self.poll.poll(self.IDLE_MS):
            Server._serve(self, WRITE, *self.held.pop())
        return Server._take(self)

    def _serve(self, operation, unique, node, body):
        if operation == WRITE and node == DISK and self.JOB in bytes(body[40:]):
            self.held.append((unique, node, body))
        else:
            Server._serve(self, operation, unique, node, body)


class Bench:
    """`root`: a folder in RAM that only this process and its children see."""

    def __init__(self, root="/dev/shm"):
        self.root = root
        own_mounts()
        mount("tmpfs", root, "tmpfs", 0, "mode=0700,size=75%")
        for name in ("dev", "fuse", "disk"):
            os.mkdir("%s/%s" % (root, name))
        self.leftovers_n = clean_leftovers(root + "/dev")

    def record(self, base, log, kind, options, write, make_server=Server, limit_s=120):
        """Run `write(mount point, mark file)` in a child on a disk that begins as `base`; its calls to the disk go to `log`."""
        fuse_fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        server = spawn(lambda: make_server(fuse_fd, base, log).run())
        writer = spawn(lambda: self._write(fuse_fd, kind, options, write, make_server.is_direct))
        os.close(fuse_fd)
        ended = await_child(writer, limit_s)
        if ended is None:
            end_children()  # the server's end aborts the connection, so the writer can die
        if await_child(server, 10) != 0 or ended != 0:
            end_children()
            raise RuntimeError("the recorded writer %s (its words are above)" % (
                "did not end in %d s" % limit_s if ended is None else "failed"))

    def end(self):
        """Nothing of ours stays: no process, no loop device."""
        end_children()
        clean_leftovers(self.root + "/dev")

    def _write(self, fuse_fd, kind, options, write, is_direct):
        own_mounts()
        fuse, disk = self.root + "/fuse", self.root + "/disk"
        mount("disk", fuse, "fuse", 0, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % fuse_fd)
        os.close(fuse_fd)
        loop = Loop(fuse + "/disk", self.root + "/dev", is_direct)
        try:
            mount(loop.path, disk, kind, 0, options)
            try:
                write(disk, fuse + "/mark")
            except BaseException:
                umount(disk, MNT_DETACH)  # the error counts, not who still has a file open because of it
                raise
            umount(disk)
        finally:
            loop.detach()
        umount(fuse, MNT_DETACH)  # an open `mark` of a child still about is no reason to wait


def await_child(pid, limit_s):
    """The exit code of child `pid`, None when it is still there after `limit_s`; somebody waited for it already: 0."""
    ends_at = time.monotonic() + limit_s
    wait_s = 0.001
    while pid in children:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > ends_at:
            return None
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, 0.05)
    return 0


def end_children():
    for pid in list(children):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        children.discard(pid)
