"""The short soak: 5,000 jobs of every kind, workers and handlers killed meanwhile; `make soak` is the long one."""

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("store, jobs", [("spool", 5000), ("sqlite", 5000)])
def test_a_short_soak(pyz, tmp_path, store, jobs):
    """B05, B61, B62, B84: every id accounted for; memory, descriptors, zombies and journal stay flat."""
    done = subprocess.run([sys.executable, str(REPO / "tools/soak.py"), "--jobs", str(jobs), "--store", store, "--pyz", str(pyz),
                           "--growth-kb", "1024"],  # a worker is still young here: the bound of `make soak` needs a longer run
                          capture_output=True, text=True, timeout=280)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
