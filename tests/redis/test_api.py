"""The Python API: the example of docs/python.md as it stands there, and handlers that crash, hang and fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPO)}

ROUGH = """
import os, sys, time
from edgeq import Worker, open_store

def crash(payload):
    os.abort()

def hang(payload):
    time.sleep(600)

def text(payload):
    assert payload == "just text"

if __name__ == "__main__":
    queue = open_store(sys.argv[1], folder=sys.argv[2], grace_s=1)
    for type, payload in (("crash", {}), ("hang", {}), ("text", "just text")):
        queue.put(type, payload, id=type, max_attempts=1, timeout_s=1 if type == "hang" else 60)
    Worker(queue, {"crash": crash, "hang": hang, "text": text}, once=True).run()
    print(*(queue.find(id) for id in ("crash", "hang", "text")))
"""


def run(path, *args):
    return subprocess.run([sys.executable, str(path), *args], env=ENV, capture_output=True, text=True, timeout=100, cwd=path.parent)


@pytest.fixture(params=("redis", "spool", "sqlite"))
def url(request, tmp_path):
    if request.param == "redis":
        return request.getfixturevalue("bench").url
    return {"spool": "spool:%s/q", "sqlite": "sqlite:%s/q/queue.db"}[request.param] % tmp_path


def test_the_example_in_the_documentation_runs(url, tmp_path):
    code, = re.findall(r"```python\n(.*?)```", (REPO / "docs/python.md").read_text(), re.S)
    path = tmp_path / "mails.py"
    path.write_text(code)
    result = run(path, url, str(tmp_path / "state"))
    assert result.stdout == "done dlq\n", result.stderr


def test_a_crash_and_a_timeout_do_not_hurt_the_worker(url, tmp_path):
    path = tmp_path / "rough.py"
    path.write_text(ROUGH)
    result = run(path, url, str(tmp_path / "state"))
    assert result.stdout == "dlq dlq done\n", result.stderr


def test_import_edgeq_stays_tiny():
    code = "import sys; before = set(sys.modules); import edgeq; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-S", "-c", code], env=ENV, capture_output=True, text=True)
    assert result.stdout == "edgeq\n"
