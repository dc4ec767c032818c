"""What a job costs the flash: KiB and flushes a job, read from /sys/block/loopN/stat, on a fresh ext4 on a loop device.

    python3 bench/sqlite_writes.py [STORE ...]      STORE: sqlite, spool; needs root

Two loads: 60 jobs at one a second (enqueue, claim, ack, each flush when it is due), and a burst of 1,000 that is enqueued one by
one and then drained. 200-byte payloads, `syncfs` before both readings, as in the README's table.
"""

import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from bench.flash import Flash  # noqa: E402
from edgeq import config as configuration  # noqa: E402
from edgeq.clock import Clock  # noqa: E402
from edgeq.job import Job  # noqa: E402
from edgeq.log import Log  # noqa: E402
from edgeq.store import open_store  # noqa: E402

PAYLOAD = b'{"x":"%s"}' % (b"a" * 192)


def open_stores(kind, root, mount):
    """(a producer's, a worker's) store."""
    conf = root + "/edgeq.conf"
    with open(conf, "w") as file:
        store = "STORE=sqlite:%s/q/queue.db\n" % mount if kind == "sqlite" else ""
        file.write("SPOOL=%s/q\nRUN_DIR=%s/run\n%s" % (mount, root, store))
    config, clock = configuration.load(conf), Clock()
    stores = [open_store(config, clock, Log(clock, "stderr", "error")) for _ in range(2)]
    stores[1].start(clock.read())
    return stores[0], stores[1], clock


def finish_one(worker, clock, fresh=False):
    lease = worker.claim(clock.read(), None, 60, fresh)
    if lease is None:
        return False
    worker.ack(lease, clock.read())
    due = worker.flush_due_at()
    if due is not None and clock.read().boot >= due:
        worker.flush(clock.read())
    return True


def one_a_second(producer, worker, clock, jobs_n):
    for n in range(jobs_n):
        at = time.monotonic()
        producer.enqueue(Job("t", PAYLOAD), clock.read())
        assert finish_one(worker, clock, True)
        time.sleep(max(1 - (time.monotonic() - at), 0))
    worker.flush(clock.read())


def burst(producer, worker, clock, jobs_n):
    for n in range(jobs_n):
        producer.enqueue(Job("t", PAYLOAD), clock.read())
    while finish_one(worker, clock):
        pass
    worker.flush(clock.read())


def measure(kind, load, jobs_n):
    with tempfile.TemporaryDirectory() as root, Flash(512) as flash:
        producer, worker, clock = open_stores(kind, root, flash.path)
        burst(producer, worker, clock, 150)  # folders, log and journal have their size
        before, at = flash.start(), time.monotonic()
        load(producer, worker, clock, jobs_n)
        spent_s = time.monotonic() - at
        cost = flash.since(before).per(jobs_n)
        for store in (producer, worker):
            store.close(clock.read())
    print("%-8s %-14s %7.1f KiB  %5.2f flushes a job   (%.2f ms a job)" % (
        kind, load.__name__, cost.kib, cost.flushes, spent_s * 1000 / jobs_n), flush=True)


if __name__ == "__main__":
    for kind in sys.argv[1:] or ["sqlite", "spool"]:
        measure(kind, burst, 1000)
        measure(kind, one_a_second, 60)
