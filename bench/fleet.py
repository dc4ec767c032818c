"""`python3 -m bench.fleet [JOBS]`: jobs a CPU second of one worker on Redis, without handlers: edgeq, RQ, a plain BLMOVE loop.

Needs redis-server and the packages redis and rq. Each claims (or dequeues) and settles JOBS empty jobs that were put before; the
CPU is the worker process's own. RQ runs its SimpleWorker, which forks nothing.
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.harness import Log
from tests.redis_server import Server


def nothing():
    """The handler."""


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


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    server, rates = Server(), {}
    try:
        for put in (edgeq, rq, blmove):
            run = put(server, n)
            cpu, wall = time.process_time(), time.monotonic()
            done_n = run()
            assert done_n == n, (put.__name__, done_n)
            cpu, wall = time.process_time() - cpu, time.monotonic() - wall
            rates[put.__name__] = n / cpu
            print("%-8s %7.0f jobs a CPU second, %7.0f jobs a second" % (put.__name__, n / cpu, n / wall))
    finally:
        server.close()
    print("edgeq / rq: %.1f" % (rates["edgeq"] / rates["rq"]))


if __name__ == "__main__":
    main()
