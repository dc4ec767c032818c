"""edgeq as a contestant: its stores in this process, its worker and its shell wrapper as they are shipped."""

import os
import shutil
import subprocess
import sys
import tempfile
import time

from edgeq import config as configuration
from edgeq.clock import Clock
from edgeq.job import Job
from edgeq.store import open_store

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WRAPPER = os.path.join(ROOT, "dist/edgeq")  # as `make install` lays it out
PYZ = os.path.join(ROOT, "dist/edgeq.pyz")
PAYLOAD = b'{"url":"https://example.net/hook","to":["a@example.net","b@example.net"],"n":1234567890,"text":"%s"}' % (b"x" * 100)
LIMIT_S = 120


class Quiet:
    """A log that says nothing."""

    def __getattr__(self, strength):
        return lambda event, **fields: None


class Queue:
    """One queue: spool below `folder`, the rest in RAM. settings: lines of the configuration; None: without such a line."""

    def __init__(self, folder, **settings):
        self.ram = tempfile.mkdtemp(prefix="eq-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.handlers, self.run = self.ram + "/handlers", self.ram + "/run/default"
        self.conf, self.spool = self.ram + "/edgeq.conf", folder + "/spool/default"
        os.mkdir(self.handlers)
        os.symlink("/bin/true", self.handlers + "/job")
        lines = dict({"SPOOL": folder + "/spool", "RUN_DIR": self.ram + "/run", "HANDLERS": self.handlers, "MAX_JOBS": 1000000,
                      "REPORT_S": 0}, **settings)
        with open(self.conf, "w") as conf:
            conf.writelines("%s=%s\n" % item for item in lines.items() if item[1] is not None)
        self.environ = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "EDGEQ_CONF": self.conf, "EDGEQ_PYZ": PYZ,
                        "EDGEQ_PYTHON": sys.executable}
        self.worker = self.store = None
        self.clock = Clock()

    def close(self):
        self.stop_worker()
        if self.store:
            self.store.close(self.clock.read())
        shutil.rmtree(self.ram)

    # --- in this process ---------------------------------------------------------------------------------

    def open(self):
        """The store as a worker has it; the first job of a boot (its mark, the first journal segment) lies behind it."""
        self.store = open_store(configuration.load(self.conf), self.clock, Quiet(), None)
        self.store.start(self.clock.read())
        self.put(1)
        self.drain(1)
        return self

    def put(self, n):
        for _ in range(n):
            self.store.enqueue(Job("job", PAYLOAD), self.clock.read())

    def put_many(self, n, at_once):
        for at in range(0, n, at_once):
            self.store.enqueue_many([Job("job", PAYLOAD) for _ in range(min(at_once, n - at))], self.clock.read())

    def step(self):
        """Claim one job, do nothing, ack; the batch is flushed as the worker would."""
        now = self.clock.read()
        lease = self.store.claim(now, _may_run, 60)
        self.store.ack(lease, now)
        due_at = self.store.flush_due_at()
        if due_at is not None and now.boot >= due_at:
            self.store.flush(now)

    def drain(self, n):
        for _ in range(n):
            self.step()
        self.store.flush(self.clock.read())

    # --- as shipped ------------------------------------------------------------------------------------------

    def shell(self, *args, **options):
        """The wrapper, run by BusyBox ash; returns its output."""
        return subprocess.run(self.shell_command(*args), env=self.environ, check=True, stdout=subprocess.PIPE, **options).stdout

    def shell_command(self, *args):
        return ["busybox", "sh", WRAPPER, *args]

    def start_worker(self, *args):
        self.worker = subprocess.Popen([sys.executable, "-m", "edgeq", "work", *args], env=self.environ, cwd=ROOT,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not args:
            self.await_("a worker", self.is_asleep)
        return self.worker.pid

    def stop_worker(self):
        if self.worker:
            self.worker.terminate()
            self.worker.wait()
            self.worker = None

    def is_asleep(self):
        try:
            return any(name.endswith(".asleep") for name in os.listdir(self.run + "/wake"))
        except FileNotFoundError:
            return False

    def gate(self):
        """Jobs wait for a flag in RAM: until `open_gate`, which writes nothing to flash and pokes the worker."""
        os.makedirs(self.conf + ".d")
        with open(self.conf + ".d/job.conf", "w") as conf:
            conf.write("NEEDS=go\n")

    def open_gate(self):
        os.makedirs(self.ram + "/run/cond", exist_ok=True)
        open(self.ram + "/run/cond/go", "w").close()
        for name in os.listdir(self.run + "/wake"):
            if not name.endswith(".asleep"):
                with open("%s/wake/%s" % (self.run, name), "r+b", buffering=0) as fifo:
                    fifo.write(b"5")

    def is_drained(self):
        """Nothing waits, nothing runs, nothing is settled but not flushed."""
        return not (os.listdir(self.spool + "/incoming") or os.listdir(self.spool + "/processing"))

    def await_(self, what, condition):
        limit = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > limit or self.worker and self.worker.poll() is not None:
                raise SystemExit("bench: edgeq: %s did not come" % what)
            time.sleep(0.005)


def _may_run(type):
    return True
