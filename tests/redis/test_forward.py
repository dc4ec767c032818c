"""`edgeq forward`: a device's spool drains into the fleet's Redis; `edgeq move` to Redis and back."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.redis.bench import QUEUE
from tests.redis_server import wait_until


class Device:
    """A board with a spool of its own, and a forwarder."""

    def __init__(self, root, url, **keys):
        root.mkdir()
        self.root, self.url, self.conf = root, url, root / "edgeq.conf"
        settings = {"SPOOL": root / "spool", "RUN_DIR": root / "run", "HANDLERS": root, "BALLAST_KB": 0, "SAFETY_SCAN_S": 1, **keys}
        self.conf.write_text("".join("%s=%s\n" % item for item in settings.items()))
        self.children = []

    def argv(self, *words):
        return [sys.executable, "-m", "edgeq", "--config", str(self.conf), *words]

    def edgeq(self, *words):
        return subprocess.run(self.argv(*words), capture_output=True, text=True, timeout=60)

    def enqueue(self, *words):
        assert self.edgeq("enqueue", *words).returncode == 0

    def forward(self, *words):
        child = subprocess.Popen(self.argv("forward", "--to", self.url, *words), stderr=subprocess.PIPE)
        self.children.append(child)
        return child

    def close(self):
        for child in self.children:
            child.kill()
            child.communicate()


@pytest.fixture
def make_device(bench):
    made = []

    def make(root, **keys):
        made.append(Device(root, bench.url, **keys))
        return made[-1]
    yield make
    for device in made:
        device.close()


def ids_of(bench):
    with bench.client as client:
        return [json.loads(text)["id"] for text in reversed(client.lrange(QUEUE, 0, -1))]


def test_jobs_go_over_in_order_and_run_there(bench, make_device, tmp_path):
    device = make_device(tmp_path / "a", NODE="n1")
    for n in range(5):
        device.enqueue("mail", json.dumps({"n": n}), "--id", "j%d" % n)
    assert device.edgeq("forward", "--to", bench.url, "--once").returncode == 0
    assert ids_of(bench) == ["n1:j%d" % n for n in range(5)]
    assert "done=5" in device.edgeq("status").stdout + device.edgeq("status", "-v").stdout
    bench.work()
    bench.wait_ran(5)
    bench.wait_empty()
    assert bench.ran() == ["n1:j%d" % n for n in range(5)]


def test_two_boards_that_send_the_same_id_make_two_jobs(bench, make_device, tmp_path):
    devices = [make_device(tmp_path / name) for name in "ab"]  # NODE is made, once for each
    for device in devices:
        device.enqueue("mail", "{}", "--id", "same")
        assert device.edgeq("forward", "--to", bench.url, "--once").returncode == 0
    nodes = [id.split(":")[0] for id in ids_of(bench)]
    assert len(set(nodes)) == 2
    devices[0].enqueue("mail", "{}", "--id", "next")
    assert devices[0].edgeq("forward", "--to", bench.url, "--once").returncode == 0
    assert ids_of(bench)[2] == nodes[0] + ":next"


def test_a_week_offline_burns_no_attempt(bench, make_device, tmp_path):
    device = make_device(tmp_path / "a", NODE="n1")
    device.enqueue("mail", "{}", "--id", "a")
    bench.server.stop()
    name = sorted(os.listdir(device.root / "spool/default/incoming"))
    for _ in range(3):
        assert device.edgeq("forward", "--to", bench.url, "--once").returncode == 75
    assert sorted(os.listdir(device.root / "spool/default/incoming")) == name, "nothing was claimed"
    child = device.forward()
    bench.server.start()
    wait_until(lambda: ids_of(bench) == ["n1:a"], 30, "the job over there")
    device.enqueue("mail", "{}", "--id", "b")
    wait_until(lambda: ids_of(bench) == ["n1:a", "n1:b"], 30, "the next one, woken by its poke")
    child.send_signal(signal.SIGTERM)
    assert child.wait(20) == 0


def test_killed_anywhere_each_job_is_once_in_the_queue(bench, make_device, tmp_path):
    device = make_device(tmp_path / "a", NODE="n1")
    lines = "".join('{"type":"mail","id":"j%03d"}\n' % n for n in range(120))
    assert subprocess.run(device.argv("enqueue", "--batch"), input=lines, text=True, capture_output=True).returncode == 0
    seen = 0
    for _ in range(4):
        child = device.forward("--jobs-per-s", "30")
        wait_until(lambda: len(ids_of(bench)) > seen or child.poll() is not None, 30, "some more over there")
        child.send_signal(signal.SIGKILL)
        child.wait()
        seen = len(ids_of(bench))
    assert device.edgeq("forward", "--to", bench.url, "--once").returncode == 0
    wait_until(lambda: device.edgeq("forward", "--to", bench.url, "--once").returncode == 0 and len(ids_of(bench)) == 120, 60)
    assert sorted(ids_of(bench)) == ["n1:j%03d" % n for n in range(120)]


def test_move_to_redis_and_back_keeps_every_job(bench, make_device, tmp_path):
    device = make_device(tmp_path / "a")
    device.enqueue("mail", '{"n":1e999}', "--id", "a", "--priority", "2")
    device.enqueue("mail", "{}", "--id", "later", "--delay", "5000")
    device.enqueue("mail", "[1,  2]", "--id", "b")
    assert device.edgeq("move", "--to", bench.url).returncode == 0
    assert device.edgeq("ls").stdout == ""
    home = device.conf.read_text()
    device.conf.write_text(home + "STORE=%s\n" % bench.url)
    assert device.edgeq("check").stdout.count("job ") == 0
    assert device.edgeq("move", "--to", "spool:%s" % (tmp_path / "a" / "spool")).returncode == 0
    device.conf.write_text(home)
    shown = [device.edgeq("show", id).stdout for id in ("a", "b", "later")]
    assert '"n":1e999' in shown[0] and '"priority":2' in shown[0] and "[1,  2]" in shown[1] and "available_at" in shown[2]
    with bench.client as client:
        assert client.llen(QUEUE) == 0 and not list(client.scan_iter(QUEUE + ":job:*"))
