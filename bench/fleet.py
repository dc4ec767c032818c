"""One worker on Redis, without handlers: edgeq, RQ, a plain BLMOVE loop. `python3 -m bench redis`, a section of `make bench`.

Each claims (or dequeues) and settles empty jobs that were put before, one after the other. CPU: of the worker's own process, and
with the server's. RQ runs its SimpleWorker, which forks nothing. The plain loop promises nothing: no lease, no retry.
Needs redis-server and the packages redis and rq.
"""

import shutil
import tempfile
import time
from pathlib import Path

from tests.harness import Log
from tests.redis_server import Server


def nothing():
    """RQ's handler."""


def edgeq(server, n):
    from edgeq import config as configuration
    from edgeq.clock import Clock
    from edgeq.job import Job
    from edgeq.store import open_store
    folder = tempfile.mkdtemp()
    path = Path(folder) / "edgeq.conf"
    path.write_text("STORE=%s?queue=ours\nSPOOL=%s/q\nRUN_DIR=%s/run\n" % (server.url, folder, folder))
    clock = Clock()
    store = open_store(configuration.load(str(path)), clock, Log())
    store.start(clock.read())
    for at in range(0, n, 100):
        store.enqueue_many([Job("t") for _ in range(min(100, n - at))], clock.read())

    def run():
        done_n = 0
        while lease := store.claim(clock.read()):
            store.ack(lease, clock.read())
            done_n += 1
        store.close(clock.read())
        return done_n
    return run


def rq(server, n):
    import logging
    import redis
    from rq import Queue, SimpleWorker
    logging.disable(logging.CRITICAL)
    client = redis.Redis(port=server.port)
    queue = Queue(connection=client)
    for _ in range(n):
        queue.enqueue("bench.fleet.nothing")
    worker = SimpleWorker([queue], connection=client)
    return lambda: (worker.work(burst=True, logging_level="CRITICAL"), n)[1]


def blmove(server, n):
    import redis
    client = redis.Redis(port=server.port)
    for at in range(n):
        client.lpush("plain", b'{"id":%d,"task":"t"}' % at)

    def run():
        for _ in range(n):
            text = client.blmove("plain", "plain_processing", 1, "RIGHT", "LEFT")
            client.lrem("plain_processing", 1, text)
        return n
    return run


CONTESTANTS = (("edgeq redis", edgeq), ("RQ (SimpleWorker)", rq), ("plain BLMOVE loop", blmove))


def measure(put, n, cpu_ns):
    """(worker's CPU seconds, the server's, wall seconds) for n jobs, on a server of its own."""
    server = Server()
    try:
        run = put(server, n)
        cpu, wall, other = time.process_time(), time.monotonic(), cpu_ns(server.child.pid)
        done_n = run()
        if done_n != n:
            raise SystemExit("bench: %s did %d of %d jobs" % (put.__name__, done_n, n))
        return time.process_time() - cpu, (cpu_ns(server.child.pid) - other) / 1e9, time.monotonic() - wall
    finally:
        server.close()


def fleet(n, rounds, cpu_ns):
    """{contestant: jobs a CPU second, ...}: the best of a few rounds, rounds of all alternating."""
    found = {name: [] for name, _ in CONTESTANTS}
    for _ in range(rounds):
        for name, put in CONTESTANTS:
            found[name].append(measure(put, n, cpu_ns))
    rows = {}
    for name, times in found.items():
        own, both, wall = min(t[0] for t in times), min(t[0] + t[1] for t in times), min(t[2] for t in times)
        rows[name] = {"jobs_cpu_s": round(n / own), "with_server": round(n / both), "jobs_s": round(n / wall)}
    for row in rows.values():
        row["x_rq"] = round(row["jobs_cpu_s"] / rows["RQ (SimpleWorker)"]["jobs_cpu_s"], 1)
    return rows


def check():
    """What is missing for this section, by name."""
    missing = [] if shutil.which("redis-server") else ["redis-server"]
    for module in ("redis", "rq"):
        try:
            __import__(module)
        except ImportError:
            missing.append(module)
    return missing
