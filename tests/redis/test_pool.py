"""The pool: init.d/edgeq-supervisor.conf under a real supervisord, and the Redis edition in one file."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis as redis_py

from tests.redis.bench import QUEUE
from tests.redis_server import wait_until

REPO = Path(__file__).resolve().parents[2]
JOBS = 2000
LIGHT = "#!/bin/sh\n: >$OUT/$EDGEQ_ID.$$.ran\n"


@pytest.fixture(scope="session")
def pyz(tmp_path_factory):
    """dist/edgeq-redis.pyz as `make pyz-redis` builds it, from the tests' own redis-py."""
    path = tmp_path_factory.mktemp("pyz") / "edgeq-redis.pyz"
    package = os.path.dirname(redis_py.__file__)
    subprocess.run([sys.executable, str(REPO / "tools/build_pyz.py"), "--redis", package, "-o", str(path)], check=True,
                   stdout=subprocess.DEVNULL)
    return path


class Supervisor:
    """supervisord with our program file, its paths moved."""

    def __init__(self, root, pyz, conf):
        self.file, self.root = root / "supervisord.conf", root
        program = (REPO / "init.d/edgeq-supervisor.conf").read_text()
        for old, new in (("command=/usr/lib/edgeq/edgeq-redis.pyz work", "command=%s --config %s work" % (pyz, conf)),
                         ("/var/log/", "%s/" % root)):
            assert old in program
            program = program.replace(old, new)
        self.file.write_text(
            "[supervisord]\nnodaemon=true\nlogfile=%s/sv.log\npidfile=%s/sv.pid\nchildlogdir=%s\n" % (root, root, root)
            + "[unix_http_server]\nfile=%s/s\n[supervisorctl]\nserverurl=unix://%s/s\n" % (root, root)
            + "[rpcinterface:supervisor]\nsupervisor.rpcinterface_factory = "
            + "supervisor.rpcinterface:make_main_rpcinterface\n" + program)
        daemon = shutil.which("supervisord", path="/usr/bin")
        assert daemon, "no supervisord: tools/setup-test.sh installs it"
        env = {"PATH": "/usr/bin:/bin", "EDGEQ_PYTHON": sys.executable}
        self.child = subprocess.Popen([daemon, "-c", str(self.file)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ctl(self, *words):
        return subprocess.run(["/usr/bin/supervisorctl", "-c", str(self.file), *words], capture_output=True, text=True, timeout=90,
                              env={"PATH": "/usr/bin:/bin"}).stdout

    def pids(self):
        """Of the workers that run."""
        return [int(line.split("pid ")[1].split(",")[0]) for line in self.ctl("status").splitlines() if "RUNNING" in line]

    def close(self):
        if self.child.poll() is None:
            self.child.terminate()
        self.child.wait(60)


@pytest.fixture
def supervise(tmp_path, pyz):
    made = []

    def make(bench):
        made.append(Supervisor(tmp_path, pyz, bench.conf))
        return made[-1]
    yield make
    for supervisor in made:
        supervisor.close()


def marked(word):
    """Pids of the processes whose command line holds `word`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def test_four_workers_two_of_them_killed_lose_no_job(make_bench, supervise):
    bench = make_bench(CONCURRENCY=4)
    bench.handler("mail", LIGHT)
    with bench.client as client:
        client.lpush(QUEUE, *('{"id":"j%d","task":"mail"}' % n for n in range(JOBS)))
    supervisor = supervise(bench)
    wait_until(lambda: len(supervisor.pids()) == 4, 60, "four workers")
    wait_until(lambda: len(bench.ran()) > 20, 60, "some jobs done")
    killed = supervisor.pids()[:2]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bench.lengths() == (0, 0, 0) and bench.client.zcard(QUEUE + ":failed") == 0, 180, "an empty queue")
    with bench.client as client:
        done = client.zrange(QUEUE + ":doneorder", 0, -1)
        assert client.hget(QUEUE + ":meta", "done_n") == str(JOBS)
    assert sorted(done) == sorted("j%d" % n for n in range(JOBS)) and set(bench.ran()) == set(done)
    wait_until(lambda: len(set(supervisor.pids()) - set(killed)) == 4, 60, "four workers again")


def test_stop_leaves_no_grandchild(make_bench, supervise):
    """B41: under Supervisor, whose stop signals only its own child, nothing of a handler's group is left."""
    bench = make_bench()
    bench.handler("nap", "#!/bin/sh\nsleep 31337.%d & sleep 31337.%d & wait\n" % (os.getpid(), os.getpid()))
    word = "31337.%d" % os.getpid()
    for n in range(4):
        bench.push("n%d" % n, "nap")
    supervisor = supervise(bench)
    wait_until(lambda: len(marked(word)) >= 8, 60, "naps")
    supervisor.ctl("stop", "edgeq:*")
    wait_until(lambda: not marked(word), 5, "no grandchild")
    assert bench.lengths()[1] == 0, "what was interrupted waits again"


def test_a_wrong_password_is_not_tried_again_and_a_redis_that_is_away_is(make_bench, supervise):
    bench = make_bench("--requirepass", "word")
    supervisor = supervise(bench)
    wait_until(lambda: supervisor.ctl("status").count("EXITED") + supervisor.ctl("status").count("FATAL") == 4, 60, "four refusals")


def test_B40_supervisor_does_not_give_up(make_bench, supervise):
    """B40: four workers under Supervisor wait for a Redis that comes later."""
    bench = make_bench()
    bench.server.stop()
    supervisor = supervise(bench)
    wait_until(lambda: len(supervisor.pids()) == 4, 60, "four workers that wait")
    wait_until(lambda: "refused" in "".join(path.read_text() for path in bench.root.glob("edgeq.*.log")))
    bench.server.start()
    bench.push("a")
    bench.wait_ran(1)


def test_the_device_edition_says_where_redis_is(make_bench, tmp_path):
    bench = make_bench()
    path = tmp_path / "edgeq.pyz"
    subprocess.run([sys.executable, str(REPO / "tools/build_pyz.py"), "-o", str(path)], check=True, stdout=subprocess.DEVNULL)
    result = subprocess.run([sys.executable, str(path), "--config", str(bench.conf), "enqueue", "mail", "{}"],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 78 and "edgeq-redis.pyz" in result.stderr
    assert b"redis/client.py" not in path.read_bytes()


def test_the_redis_edition_carries_its_licence(pyz):
    data = pyz.read_bytes()
    assert b"redis/LICENSE" in data and b"redis/client.pyc" in data and b"MIT License" in data
