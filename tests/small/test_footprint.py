"""`make footprint` still measures: a short run, on this machine. Its figures are judged where a loaded machine cannot move them."""

import json
import subprocess
import sys

from tests.shell.board import REPO


def test_a_short_run_gives_every_figure():
    words = "tools/footprint.py --no-arm --json --jobs 60 --waiting 500 --pairs 1".split()
    done = subprocess.run([sys.executable, *words], cwd=REPO, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    (costs,) = figures["costs"].values()
    assert costs["start"]["ratio"] > 1 and costs["bare"]["dirty"] < costs["jobs"]["idle"]["dirty"] < costs["jobs"]["idle"]["rss"]
    assert costs["jobs"]["after"]["dirty"] - costs["jobs"]["idle"]["dirty"] < 1024
    assert costs["waiting"]["dirty"] - costs["jobs"]["idle"]["dirty"] < 1024  # SCAN_CACHE bounds it, not the number of jobs
    assert costs["on_demand"]["dirty"] <= 140 and costs["on_demand"]["burst_ms"] > 0  # 100 but for files not yet on disk
    assert costs["jobs"]["cpu_us"] > 0
    assert figures["idle"]["writes_below_spool"] == 0
    assert set(figures["modules"]["stdlib"]) <= set("_json binascii fcntl gc pwd resource select syslog".split())
