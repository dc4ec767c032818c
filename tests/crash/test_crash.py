"""The crash images as a test, and that the bench cleans up after itself. The figures: `make check-crash`."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
BENCH = [sys.executable, "-m", "tests.crash.bench", "--with-parent"]


def bench(*options):
    return subprocess.Popen(BENCH + list(options), cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def detached():
    """How many loop devices of killed runs were still there; now they are not."""
    out = subprocess.run(BENCH + ["--clean"], cwd=REPO, check=True, capture_output=True, text=True).stdout
    return int(re.search(r"(\d+) loop devices of a killed run detached", out)[1])


def kill_at_work(number):
    """A bench that was killed while it recorded and checked; its exit code, once its children are gone."""
    run = bench("--images", "60")
    line = ""
    while not line.startswith("canary"):
        line = run.stdout.readline()
        assert line, "the bench ended before it was killed"
    children = Path("/proc/%d/task/%d/children" % (run.pid, run.pid)).read_text().split()
    run.send_signal(number)
    run.communicate()
    ends_at = time.monotonic() + 30
    while any(os.path.exists("/proc/" + pid) for pid in children):  # init reaps them
        assert time.monotonic() < ends_at, "a process stayed"
        time.sleep(0.01)
    return run.returncode


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_image_lost_what_was_acknowledged():
    run = bench()
    out, _ = run.communicate()
    print(out)
    assert run.returncode == 0, out
    images, lost = re.search(r"crash images: (\d+) checked, (\d+) lost, canaries all caught", out).groups()
    assert int(images) >= 2000 and lost == "0"


def test_a_run_that_was_killed_leaves_nothing():
    """After TERM at once, after KILL as soon as the next run begins. One test: the loop devices are everybody's."""
    detached()
    assert kill_at_work(signal.SIGTERM) == 143
    assert detached() == 0
    assert kill_at_work(signal.SIGKILL) == -signal.SIGKILL
    detached()
    assert detached() == 0
