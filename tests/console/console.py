"""What the console tests share: a queue, its handlers, workers as processes, and the verbs as a person types them."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).parents[2]
WRAPPER = REPO / "overlay/usr/bin/edgeq"
COLUMNS = 80
LIMIT_S = 20
# as the head of the zipapp starts it, see tools/build_pyz.py
START = "import sys; sys.path.insert(0, '%s'); from edgeq.cli import main; sys.exit(main(sys.argv[1:]))" % REPO


def wait_for(question, what, limit_s=LIMIT_S):
    """Ask until the answer is true, which it returns; not longer than `limit_s`."""
    until = time.monotonic() + limit_s
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < until, "never: " + what
        time.sleep(0.01)


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def lines(self):
        return self.out.splitlines()

    def __repr__(self):
        return "exit %d\nstdout: %s\nstderr: %s" % (self.code, self.out, self.err)


class Console:
    """One queue below `root`."""

    def __init__(self, root, **settings):
        self.root, self.conf, self.handlers = root, root / "edgeq.conf", root / "handlers"
        self.q, self.r = root / "spool/default", root / "run/default"
        self.handlers.mkdir()
        self.workers = []
        self.configure(**settings)
        (root / "bin").mkdir()
        self.pyz = root / "bin/edgeq.pyz"
        self.pyz.write_text('#!/bin/sh\nexec %s -IS -c %s "$@"\n' % (shlex.quote(sys.executable), shlex.quote(START)))

    def configure(self, **settings):
        keys = {"SPOOL": self.root / "spool", "RUN_DIR": self.root / "run", "HANDLERS": self.handlers, "BALLAST_KB": 0,
                "MIN_FREE_KB": 0, "MIN_FREE_INODES": 0, "JITTER": 0, "SYNC_WINDOW_MS": 200, "GRACE_S": 2, "BASE_DELAY_S": 0.2}
        keys.update(settings)
        self.conf.write_text("".join("%s=%s\n" % pair for pair in keys.items()))

    def type_conf(self, type, **settings):
        folder = Path(str(self.conf) + ".d")
        folder.mkdir(exist_ok=True)
        (folder / (type + ".conf")).write_text("".join("%s=%s\n" % pair for pair in settings.items()))

    def handler(self, type, script):
        path = self.handlers / type
        path.write_text("#!/bin/sh\n" + script + "\n")
        path.chmod(0o755)
        return path

    def gate(self, type):
        """A handler that says it began and ends when `open_gate` says so."""
        os.mkfifo(self.root / (type + ".gate"))
        self.handler(type, 'echo "$EDGEQ_ID" >>%s.began; read -r code <%s.gate; exit "${code:-0}"' % (
            self.root / type, self.root / type))

    def began(self, type):
        path = self.root / (type + ".began")
        return path.read_text().split() if path.exists() else []

    def open_gate(self, type, code=0):
        with open(self.root / (type + ".gate"), "w") as gate:
            gate.write("%d\n" % code)

    def env(self, **more):
        return {"PATH": os.environ["PATH"], "EDGEQ_CONF": str(self.conf), "EDGEQ_PYZ": str(self.pyz), "PYTHONPATH": str(REPO),
                **more}

    def argv(self, *words, by="python"):
        head = [sys.executable, "-IS", "-c", START] if by == "python" else ["busybox", "sh", str(WRAPPER)]
        return head + list(words)

    def edgeq(self, *words, by="python", input=b"", env=None, **more):
        """Run a verb: `python` or the `wrapper`."""
        done = subprocess.run(self.argv(*words, by=by), input=input, env=self.env(**(env or {})), capture_output=True,
                              timeout=60, **more)
        return Result(done.returncode, *(data.decode("utf-8", "backslashreplace") for data in (done.stdout, done.stderr)))

    def ok(self, *words, **more):
        """A verb that says yes: what it printed, without the last newline."""
        result = self.edgeq(*words, **more)
        assert result.code == 0, result
        return result.out.rstrip("\n")

    def start(self, *words, up=True):
        """A worker, up and asleep or at work; its log goes to worker.log."""
        log = open(self.root / "worker.log", "ab")
        worker = subprocess.Popen(self.argv("work", *words), env=self.env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        self.workers.append(worker)
        if up:
            wait_for(lambda: "pid=%d " % worker.pid in self.run_text("status"), "the worker is up")
        return worker

    def stop(self):
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()

    def log(self):
        path = self.root / "worker.log"
        return path.read_text() if path.exists() else ""

    def run_text(self, name):
        try:
            return (self.r / name).read_text()
        except FileNotFoundError:
            return ""

    def names(self, folder):
        try:
            return sorted(name for name in os.listdir(self.q / folder) if name[0] != ".")
        except FileNotFoundError:
            return []

    def ids(self, folder):
        return [name.split(".")[5] if folder != "dlq" else name[:-5] for name in self.names(folder)]

    def running(self):
        return [name.split(".")[5] for name in self.names("processing") if name.endswith(".json")]
