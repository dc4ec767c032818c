"""An ext4 whose disk takes its time to flush, as flash does and a loop device in RAM does not.

The disk is the crash tests' FUSE server (tests/crash/device.py), told to wait before it answers a flush.
"""

import json
import os
import struct
import tempfile
import time

from bench.flash import MIB, Cost, run
from tests.crash import device

SIZE_MIB = 256


class SlowServer(device.Server):
    """As the recording one, but it keeps no log, and a flush takes `flush_s`."""

    flush_s = 0.0

    def _answer(self, operation, node, body):
        if operation == device.FSYNC:
            time.sleep(self.flush_s)
        if operation == device.WRITE and node == device.DISK:
            _, offset, size = struct.unpack_from("<QQI", body)
            self.data[offset:offset + size] = body[40:40 + size]
            return struct.pack("<II", size, 0)
        return super()._answer(operation, node, body)


def cost_on(flush_s, prepare, work):
    """The Cost of `work(place, prepare(place))` on a fresh file system whose flushes take `flush_s`."""
    with tempfile.TemporaryDirectory(prefix="edgeq-slow-") as folder:
        base, told = folder + "/base", folder + "/told"
        with open(base, "wb") as image:
            image.truncate(SIZE_MIB * MIB)
        run("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0", base)
        os.mkdir(folder + "/root")
        if not _in_child(lambda: _record(folder, flush_s, base, told, prepare, work)):
            raise SystemExit("bench: the slow disk failed (its words are above)")
        with open(told) as file:
            return Cost(*json.load(file))


def _record(folder, flush_s, base, told, prepare, work):
    SlowServer.flush_s = flush_s

    def write(place, _):
        prepared = prepare(place)
        device.syncfs(place)
        before, begun = _read(place), time.monotonic()
        work(place, prepared)
        device.syncfs(place)
        after = _read(place)
        if time.monotonic() - begun < (after[1] - before[1]) * flush_s:
            raise RuntimeError("the disk was not slow: what it was asked to flush takes longer than all of it took")
        with open(told, "w") as file:
            json.dump([(after[0] - before[0]) / 2, after[1] - before[1]], file)
    bench = device.Bench(folder + "/root")
    try:
        bench.record(base, "/dev/null", "ext4", "", write, make_server=SlowServer)
    finally:
        bench.end()


def _read(place):
    """(sectors, flushes) of the device under `place`."""
    with open("/proc/self/mountinfo") as table:
        number, = [fields[2] for fields in map(str.split, table) if fields[4] == place]
    with open("/sys/dev/block/%s/stat" % number) as stat:
        fields = stat.read().split()
    return int(fields[6]), int(fields[15])


def _in_child(work):
    """True when `work()` came to its end in a process of its own, with mounts of its own."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            os.write(2, ("%r\n" % error).encode())
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0
