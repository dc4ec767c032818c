"""`make bench`: side by side with real peers, as a table and as JSON; loud when a peer is missing."""

import json
import os
import subprocess
import sys

import pytest

from bench.ours import ROOT

PEERS = {"SQLite queue", "persist-queue", "huey (SQLite)", "dirq", "beanstalkd -f0"}


@pytest.fixture(scope="module")
def bench():
    """bench(words...): what `make bench` runs; the peers are installed as far as they are missing."""
    subprocess.run([ROOT + "/tools/setup-bench.sh"], check=True)

    def run(*words, python=ROOT + "/build/peers/bin/python", **environ):
        return subprocess.run([python, "-m", "bench", "--quick", *words], cwd=ROOT, env=dict(os.environ, **environ),
                              capture_output=True, text=True)
    return run


def test_every_peer_has_its_figures(bench):
    done = bench("--json", "burst")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["results"]["burst"]
    assert {name.partition(": ")[0] for name in rows} == PEERS | {"edgeq spool", "edgeq sqlite"}
    assert all(set(row) == {"kib", "flushes", "cpu_us"} and row["cpu_us"] > 0 for row in rows.values())
    ours = rows["edgeq spool: drain"]
    assert ours["kib"] <= 1.5 and ours["flushes"] <= 0.05
    assert ours["kib"] < rows["beanstalkd -f0: drain"]["kib"] < rows["SQLite queue: drain"]["kib"]


def test_producers_at_once_share_the_commits_of_a_slow_disk(bench):
    done = bench("--json", "many_shells")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["results"]["many_shells"].values()
    assert row["kib"] <= 15 and row["flushes"] <= 0.6, "a disk that is not slow: about 1 flush each"


def test_redis_has_its_figures(bench):
    done = bench("--json", "redis")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["results"]["redis"]
    assert set(rows) == {"edgeq redis", "RQ (SimpleWorker)", "plain BLMOVE loop"}
    assert rows["edgeq redis"]["x_rq"] >= 5 and rows["edgeq redis"]["with_server"] > rows["RQ (SimpleWorker)"]["with_server"]


@pytest.mark.parametrize("words, mark", (((), "What each promises\n"), (("--markdown",), "## What each promises\n")))
def test_a_table_says_what_each_promises(bench, words, mark):
    done = bench("idle", *words)
    assert done.returncode == 0, done.stderr
    assert mark in done.stdout and "Time is compressed" in done.stdout and "at most once" in done.stdout
    assert "beanstalkd writes fewer bytes" in done.stdout and max(map(len, done.stdout.split("\n"))) <= 132


def test_a_missing_peer_is_said_aloud(bench):
    done = bench("idle", python=sys.executable)
    assert done.returncode != 0 and "missing: " in done.stderr and "huey" in done.stderr and done.stdout == ""
    assert bench("nonsense").returncode == 2
