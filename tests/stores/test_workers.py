"""Many worker processes on one store: each job once, whoever is killed. FULL=1: five rounds of 2,000 jobs."""

import collections
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgeq.job import Job
from tests.harness import Board

REPO = Path(__file__).resolve().parents[2]
FULL = os.environ.get("FULL", "") not in ("", "0")
ROUNDS, JOBS_N = (5, 2000) if FULL else (1, 500)
WORKERS_N, LIMIT_S = 8, 240
STORES = {"spool": {}, "sqlite": {"STORE": "sqlite:{root}/spool/queue.db"}}


@pytest.fixture(params=sorted(STORES))
def crowd(request, tmp_path):
    """A queue whose handler leaves its id in `ran`, and the workers on it."""
    found = Crowd(tmp_path, {key: value.format(root=tmp_path) for key, value in STORES[request.param].items()})
    yield found
    found.end()


class Crowd:
    def __init__(self, root, settings):
        self.board = Board(root, SAFETY_SCAN_S=1, BASE_DELAY_S=0, SYNC_WINDOW_MS=500, MIN_FREE_KB=0, **settings)
        self.ran_path, self.workers = root / "ran", []
        handlers = Path(self.board.config.handlers)
        handlers.mkdir()
        (handlers / "t").write_text('#!/bin/sh\necho "$EDGEQ_ID" >>"%s"\n' % self.ran_path)
        (handlers / "t").chmod(0o755)
        self.ran_path.touch()

    def store(self):
        from edgeq.clock import Clock
        self.board.clock = Clock()
        return self.board.open(start=False)

    def enqueue(self, ids):
        store = self.store()
        store.make_folders()
        store.enqueue_many([Job("t", id=id) for id in ids], self.board.now)
        store.close(self.board.now, clean=False)

    def start(self, *words):
        with open(self.board.root / ("log%d" % len(self.workers)), "wb") as log:
            self.workers.append(subprocess.Popen(
                [sys.executable, "-m", "edgeq", "work", *words], cwd=REPO, stdin=subprocess.DEVNULL, stderr=log,
                env=dict(os.environ, EDGEQ_CONF=str(self.board.conf), PYTHONPATH=str(REPO))))
        return self.workers[-1]

    def ran(self):
        return self.ran_path.read_text().split()

    def logs(self):
        return "".join(path.read_text(errors="replace") for path in sorted(self.board.root.glob("log*")))

    def wait_for(self, condition, what):
        ends_at = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < ends_at, "%s: not within %d s: %s" % (what, LIMIT_S, self.logs()[-3000:])
            time.sleep(0.01)

    def end(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("round", range(ROUNDS))
def test_eight_workers_run_each_job_exactly_once(crowd, round):
    ids = ["j%04d" % n for n in range(JOBS_N)]
    crowd.enqueue(ids)
    for _ in range(WORKERS_N):
        crowd.start("--once")
    for worker in crowd.workers:
        assert worker.wait(LIMIT_S) == 0, crowd.logs()[-3000:]
    assert sorted(crowd.ran()) == ids
    store = crowd.store()
    assert store.counts(crowd.board.now).done == JOBS_N and store.check(crowd.board.now) == []
    assert " error " not in crowd.logs(), crowd.logs()
    store.close(crowd.board.now)


@pytest.mark.parametrize("round", range(ROUNDS))
def test_killed_workers_lose_nothing_and_repeat_only_what_ran(crowd, round):
    """P9 for a process that dies: only what was running then runs again."""
    seed = random.randrange(10 ** 6)
    print("seed", seed)
    draw, kills = random.Random(seed), 8
    ids = ["j%04d" % n for n in range(JOBS_N // 2)]
    crowd.enqueue(ids)
    for _ in range(4):
        crowd.start()
    for n in range(kills):
        goal = len(ids) * (n + 1) // (kills + 2)
        crowd.wait_for(lambda: len(crowd.ran()) >= goal, "%d ran" % goal)
        victim = draw.choice([worker for worker in crowd.workers if worker.poll() is None])
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        crowd.start()
    store = crowd.store()
    crowd.wait_for(lambda: set(crowd.ran()) == set(ids) and store.counts(crowd.board.now).done == len(ids), "all are done")
    # what a killed worker had settled and not flushed is taken over by the next safety scan, not at once
    crowd.wait_for(lambda: not any(store.entries("processing")), "no claim is left")
    for worker in crowd.workers:
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(LIMIT_S) == 0, crowd.logs()[-3000:]
    counts = collections.Counter(crowd.ran())
    assert sum(counts.values()) - len(ids) <= kills * crowd.board.config.concurrency
    assert store.check(crowd.board.now) == [] and list(store.entries("dlq")) == []
    store.close(crowd.board.now)
