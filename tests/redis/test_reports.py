"""Field reports whose Redis side has its test here: B20 B53 B84. The others: test_claim.py, test_redis.py, test_pool.py."""

import contextlib
import os
import signal
import time

from tests.redis.bench import QUEUE
from tests.redis.proxies import Proxy
from tests.redis_server import wait_until

IN_TWO = """#!/bin/sh
: >"$OUT/$EDGEQ_ID.begun"
while [ ! -e "$OUT/go" ]; do sleep 0.05; done
: >"$OUT/$EDGEQ_ID.$$.ran"
"""


class ShutDoor(Proxy):
    """Hangs up at once. tries: when somebody came."""

    def __init__(self):
        self.tries = []
        Proxy.__init__(self, 0)

    def serve(self, client):
        self.tries.append(time.monotonic())


def test_a_closed_port_is_told_and_not_shouted(make_faked):
    """B20: nobody answers at Redis' port: the first error is named at once, what follows is seldom and counted, not repeated."""
    door = ShutDoor()
    bench = make_faked(door.port)
    worker = bench.work()
    wait_until(lambda: "store" in bench.log(), 10, "the error")
    wait_until(lambda: len(door.tries) >= 4, what="four tries")
    assert door.tries[3] - door.tries[1] > 1 and worker.poll() is None, "pauses that grow to 8 s: ten tries a minute"
    assert len(bench.log()) + (bench.root / "run/default/events").stat().st_size < 2048, bench.log()
    door.close()


def test_a_delay_longer_than_the_lease_is_one_run(bench):
    """B53: lease 1 s, due in 3 s, three workers: one run, not before it is due, never in processing while it waits."""
    bench.append_conf(LEASE_S=1)
    for _ in range(3):
        bench.work()
    began = time.monotonic()
    assert bench.edgeq("enqueue", "mail", "{}", "--id", "late", "--delay", "3").returncode == 0
    with bench.client as client:
        def look():
            if not bench.ran():
                waiting = client.hget(QUEUE + ":job:late", "st") == "incoming"
                assert not waiting or client.llen(QUEUE + "_processing") == 0
            return bench.ran()
        wait_until(look, 20)
        assert time.monotonic() - began >= 2.9
        bench.wait_empty()
        assert client.hget(QUEUE + ":meta", "done_n") == "1"
    assert bench.ran() == ["late"]


def test_a_kill_repeats_only_what_was_in_flight(bench):
    """B84: worker and handler are killed half way through the first job; the second one, done meanwhile, is not repeated."""
    bench.handler("long", IN_TWO)
    bench.push("first", "long")
    worker = bench.work()
    wait_until(lambda: (bench.out / "first.begun").exists())
    bench.push("second")
    wait_until(lambda: bench.client.hexists(QUEUE + ":done", "second"))
    handlers = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_handler(pid, bench)]
    for pid in [worker.pid, *handlers]:
        with contextlib.suppress(ProcessLookupError):  # a handler's `sleep` that ended by itself
            os.kill(pid, signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL
    (bench.out / "first.begun").unlink()
    bench.work()
    wait_until(lambda: (bench.out / "first.begun").exists())
    (bench.out / "go").touch()
    bench.wait_empty()
    assert sorted(path.name.split(".")[0] for path in bench.out.glob("*.ran")) == ["first", "second"]
    assert bench.client.hget(QUEUE + ":meta", "done_n") == "2"


def is_handler(pid, bench):
    try:
        with open("/proc/%s/environ" % pid, "rb") as f:
            return ("EDGEQ_CTL=%s/" % (bench.root / "run")).encode() in f.read()
    except OSError:
        return False
