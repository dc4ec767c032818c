"""A queue on a Redis of its own, worked by real workers: processes of this tree with a configuration and handlers."""

import json
import os
import signal
import subprocess
import sys

import redis

from edgeq.api import open_store
from tests.redis_server import Server, wait_until

QUEUE = "app_jobs"
HANDLER = """#!/bin/sh
printf '%s %s ' "$EDGEQ_ID" "$EDGEQ_ATTEMPT" >"$OUT/.$EDGEQ_ID.$$"
cat >>"$OUT/.$EDGEQ_ID.$$"
mv "$OUT/.$EDGEQ_ID.$$" "$OUT/$EDGEQ_ID.$$.ran"
"""


class Bench:
    """server: the Server used, or None for a fake at `port`. keys: the configuration's."""

    def __init__(self, root, server=None, port=None, **keys):
        self.root, self.server = root, server
        self.out, self.handlers, self.conf = root / "out", root / "handlers", root / "edgeq.conf"
        self.out.mkdir(), self.handlers.mkdir()
        self.url = "redis://127.0.0.1:%d/0?queue=%s" % (server.port if server else port, QUEUE)
        settings = {"STORE": self.url, "SPOOL": root / "spool", "RUN_DIR": root / "run", "HANDLERS": self.handlers, "BALLAST_KB": 0,
                    "SAFETY_SCAN_S": 1, "LEASE_S": 3, "BASE_DELAY_S": 1, "GRACE_S": 2, "CONCURRENCY": 2, **keys}
        self.conf.write_text("".join("%s=%s\n" % item for item in settings.items()))
        self.workers = []

    @property
    def client(self):
        """A client as a redis-cli user has one."""
        return redis.Redis(port=self.server.port, decode_responses=True, protocol=2)  # old servers know no other

    def append_conf(self, **keys):
        with self.conf.open("a") as f:
            f.write("".join("%s=%s\n" % item for item in keys.items()))

    def elsewhere(self, node="elsewhere"):
        """The queue as another host has it open: edgeq's Queue. It pokes nobody here."""
        return open_store(self.url, folder=str(self.root / node), node=node)

    def handler(self, type, text=HANDLER):
        path = self.handlers / type
        path.write_text(text.replace("$OUT", str(self.out)))
        path.chmod(0o755)

    def argv(self, *words):
        return [sys.executable, "-m", "edgeq", "--config", str(self.conf), *words]

    def env(self, **more):
        return {"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), **more}

    def edgeq(self, *words, **env):
        return subprocess.run(self.argv(*words), env=self.env(**env), capture_output=True, text=True, timeout=60)

    def work(self, *words, **env):
        path = self.root / ("worker.%d.log" % len(self.workers))
        with path.open("wb") as log:
            child = subprocess.Popen(self.argv("work", *words), env=self.env(**env), stdout=subprocess.DEVNULL, stderr=log)
        child.path = path
        self.workers.append(child)
        return child

    def log(self):
        return "".join(worker.path.read_text() for worker in self.workers)

    def warned(self, words):
        """How many lines of the logs hold `words`, reports left out."""
        return sum(words in line and " status " not in line for line in self.log().splitlines())

    def push(self, id, type="mail", **rest):
        with self.client as client:
            client.lpush(QUEUE, json.dumps({"id": id, "task": type, **rest}))

    def ran(self):
        """The ids whose handler ended, one of each run."""
        return sorted(name.split(".")[0] for name in os.listdir(self.out) if name[0] != ".")

    def status(self):
        """What the worker wrote last into /run, "" before."""
        try:
            return (self.root / "run" / "default" / "status").read_text()
        except FileNotFoundError:
            return ""

    def wait_ran(self, n, limit_s=30):
        wait_until(lambda: len(self.ran()) >= n, limit_s, "%d runs (%d so far; %s)" % (n, len(self.ran()), self.log()[-1500:]))

    def lengths(self):
        with self.client as client:
            return client.llen(QUEUE), client.llen(QUEUE + "_processing"), client.llen(QUEUE + "_dlq")

    def wait_empty(self, limit_s=30):
        wait_until(lambda: self.lengths() == (0, 0, 0), limit_s, "an empty queue")

    def close(self):
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL)
            worker.wait()
        if self.server:
            self.server.close()


def make(root, *options, **keys):
    return Bench(root, Server(*options), **keys)
