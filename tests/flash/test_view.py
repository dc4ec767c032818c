"""The scan cache: what it costs by depth, and that it misses nothing (issue 5.2). CPU as ratios, the least of a few rounds."""

import os
import resource
import subprocess
import sys
import time

import pytest

from bench.ours import ROOT, Queue
from edgeq.job import INCOMING, Job
from tests.harness import Board


def put(board, store, id, **wishes):
    store.enqueue(Job("mail", id=id, **wishes), board.now)


def take(board, store, fresh=False):
    lease = store.claim(board.now, None, 60, fresh)
    return lease and lease.entry.id


# --- nothing is missed ----------------------------------------------------------------------------------------------------


def test_jobs_of_one_tick_are_never_missed(tmp_path):
    """Arrivals that leave the folder's time of change as it was; the worker looks once more before it sleeps."""
    board = Board(tmp_path, SCAN_CACHE=16)
    store = board.open()
    put(board, store, "a")
    stamp = os.stat(board.spool / INCOMING)
    assert take(board, store) == "a"
    for id in "bcd":
        put(board, store, id)
        os.utime(board.spool / INCOMING, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert [take(board, store, fresh=True) for _ in range(4)] == ["b", "c", "d", None]
    store._alive.drop()
    store.journal.close()


@pytest.mark.parametrize("by_hand", (False, True))
def test_a_more_urgent_arrival_is_seen_at_once(tmp_path, by_hand):
    """Not at the next listing: by the digit that its producer left, an `edgeq` in a shell included."""
    board = Board(tmp_path, SCAN_CACHE=64)
    store = board.open()
    for n in range(40):
        put(board, store, "low%d" % n)
    assert take(board, store) == "low0"
    if by_hand:
        subprocess.run(["busybox", "sh", ROOT + "/overlay/usr/bin/edgeq", "enqueue", "mail", "--priority", "0", "--id", "now"],
                       env={"EDGEQ_CONF": str(board.conf), "PATH": os.environ["PATH"]}, check=True, stdout=subprocess.DEVNULL)
    else:
        put(board, store, "now", priority=0)
    assert [take(board, store), take(board, store)] == ["now", "low1"]
    store._alive.drop()
    store.journal.close()


def test_hits_misses_and_evictions_are_counted(tmp_path):
    board = Board(tmp_path, SCAN_CACHE=16)
    store = board.open()
    for n in range(48):
        put(board, store, "j%02d" % n)
    assert [take(board, store) for _ in range(48)] == ["j%02d" % n for n in range(48)]
    gauges = store.gauges()
    assert gauges.hits == 48 and gauges.misses == 3 and gauges.evictions == 32 + 16
    store._alive.drop()
    store.journal.close()


def test_the_head_never_holds_more_than_it_may(tmp_path):
    board = Board(tmp_path, SCAN_CACHE=16)
    store = board.open()
    store.enqueue_many([Job("mail", priority=n % 10) for n in range(500)], board.now)
    last = ""
    for _ in range(200):
        entry = store.claim(board.now, None, 60).entry
        assert len(store.view.head) <= 16
        key = "%d.%d" % (entry.priority, entry.seq)
        assert key > last
        last = key
    store._alive.drop()
    store.journal.close()


# --- what it costs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """{1,000: queue, 10,000: queue}"""
    queues = {}
    for n in (1000, 10000):
        queues[n] = Queue(str(tmp_path_factory.mktemp("deep")), DONE_KEEP_KB=1024).open()
        queues[n].put_many(n, 1000)
    yield queues
    for queue in queues.values():
        queue.close()


def cpu_us(work):
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1e6


def test_the_first_of_ten_thousand_comes_soon(deep):
    queue = deep[10000]
    found = []
    for _ in range(3):
        queue.store.view.head = []
        found.append(cpu_us(queue.step))
    assert min(found) < 60_000  # aim: 20 ms on a quiet machine


def test_depth_costs_little(deep):
    """A whole head each round, so one listing in each; aim 1.3, a naive flat folder has 2.8, others 30."""
    found = {n: min(cpu_us(lambda: [queue.step() for _ in range(256)]) for _ in range(3)) for n, queue in deep.items()}
    assert found[10000] / found[1000] < 1.8, found


def test_memory_does_not_grow_with_depth(deep):
    """10,000 names are listed in less than 1 MiB more than none."""
    code = """
import resource, sys
sys.path.insert(0, %r)
from bench.ours import Queue, Quiet
from edgeq import config
from edgeq.clock import Clock
from edgeq.store import open_store
clock = Clock()
for conf in %r:
    store = open_store(config.load(conf), clock, Quiet(), None)
    for _ in range(3):
        store.view.fill(clock.read(), None)
    print(store.view.ready_n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
""" % (ROOT, [deep[1000].conf, deep[10000].conf])
    out = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert int(out[2]) > 8000 and int(out[3]) - int(out[1]) <= 1024, out


def test_the_shell_stays_within_a_few_bare_shells(tmp_path):
    """Forks decide, and the parsing: aims 3, 4 and 2.2 times a bare `busybox sh`; the bound is what must not creep back."""
    queue = Queue(str(tmp_path))
    hundred = '{"url":"https://example.net/hook/%s","n":12345}' % ("x" * 54)
    commands = {"bare": ["busybox", "sh", "-c", ":"], "{}": queue.shell_command("enqueue", "job", "{}"),
                "object": queue.shell_command("enqueue", "job", hundred)}
    try:
        queue.shell("enqueue", "job", "{}")
        found = {}
        for _ in range(3):
            for name, command in commands.items():
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                for _ in range(15):
                    subprocess.run(command, env=queue.environ, check=True, stdout=subprocess.DEVNULL)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                found[name] = min(found.get(name, 9e9), cpu)
        assert found["{}"] / found["bare"] < 9 and found["object"] / found["bare"] < 12, found
    finally:
        queue.close()
