"""`edgeq forward`: a device's spool drains into the fleet's Redis; `edgeq move` to Redis and back."""

import functools
import json
import os
import signal
import subprocess
import sys
import time

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

    def events(self):
        try:
            return (self.root / "run" / "default" / "events").read_text()
        except FileNotFoundError:
            return ""

    def close(self):
        for child in self.children:
            child.kill()
            child.communicate()


@pytest.fixture
def make_device_on():
    """make_device_on(url of the fleet, folder, **configuration)"""
    made = []

    def make(url, root, **keys):
        made.append(Device(root, url, **keys))
        return made[-1]
    yield make
    for device in made:
        device.close()


@pytest.fixture
def make_device(bench, make_device_on):
    return functools.partial(make_device_on, bench.url)


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


def test_a_key_is_its_devices_own_in_the_fleet_too(bench, make_device, tmp_path):
    first, second = (make_device(tmp_path / name, NODE=name) for name in ("n1", "n2"))

    def send(device, id, *words):
        device.enqueue("mail", '{"key":"n1:k","id":"%s"}' % id, "--id", id, "--key", "k", *words)
        assert device.edgeq("forward", "--to", bench.url, "--once").returncode == 0
        return ids_of(bench)
    assert send(first, "a") == ["n1:a"]
    assert send(first, "b") == ["n1:a"], "one waits with this key: it is that one"
    assert send(second, "c") == ["n1:a", "n2:c"], "another device's key"
    assert send(first, "d", "--latest") == ["n2:c", "n1:d"], "the latest takes its place"
    bench.work()
    bench.wait_ran(2)
    bench.wait_empty()
    payloads = [path.read_text().split(" ", 2)[2] for path in bench.out.glob("*.ran")]
    assert sorted(payloads) == ['{"key":"n1:k","id":"c"}', '{"key":"n1:k","id":"d"}'], "payloads are nobody's business"


@pytest.mark.parametrize("limit", (("--kb-per-s", "16"), ("--jobs-per-s", "2")))
def test_a_rate_is_kept(bench, make_device, tmp_path, limit):
    """Six jobs of 8 KiB, two a second; --once stays until all have gone."""
    device = make_device(tmp_path / "a", NODE="n1")
    lines = "".join('{"type":"mail","id":"j%d","payload":"%s"}\n' % (n, "x" * 8190) for n in range(6))
    assert subprocess.run(device.argv("enqueue", "--batch"), input=lines, text=True, capture_output=True).returncode == 0
    child, seen = device.forward("--once", *limit), []

    def look():
        n = len(ids_of(bench))
        while len(seen) < n:
            seen.append(time.monotonic())
        return child.poll() is not None
    wait_until(look, 30)
    assert child.returncode == 0 and ids_of(bench) == ["n1:j%d" % n for n in range(6)]
    assert 1.5 < seen[-1] - seen[0] < 10, "two seconds between the first two and the last two, as seen by a look each 20 ms"


def test_after_an_outage_it_goes_on_in_order(make_bench, make_device_on, tmp_path):
    """The server dies in the middle and comes back; more is queued meanwhile; each job arrives once, in order."""
    bench = make_bench("--appendfsync", "always")
    device = make_device_on(bench.url, tmp_path / "a", NODE="n1")
    lines = ["".join('{"type":"mail","id":"j%03d"}\n' % n for n in part) for part in (range(60), range(60, 90))]
    assert subprocess.run(device.argv("enqueue", "--batch"), input=lines[0], text=True, capture_output=True).returncode == 0
    device.forward("--jobs-per-s", "20")
    wait_until(lambda: ids_of(bench), 30, "some over there")
    bench.server.stop()
    wait_until(lambda: "offline" in device.events(), 30, "the outage said")
    assert subprocess.run(device.argv("enqueue", "--batch"), input=lines[1], text=True, capture_output=True).returncode == 0
    bench.server.start()
    wait_until(lambda: len(ids_of(bench)) == 90, 60, "all over there")
    assert ids_of(bench) == ["n1:j%03d" % n for n in range(90)]
    assert "attempt" not in device.edgeq("ls", "failed").stdout and device.edgeq("ls", "dlq").stdout == ""


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


def test_a_fleets_jobs_are_moved_to_no_device(bench, make_device, tmp_path):
    """A spool has no name for NODE:ID: they stay, and it is said. Another Redis takes them, keys and all."""
    device = make_device(tmp_path / "a", NODE="n1")
    device.enqueue("mail", "{}", "--id", "a", "--key", "k")
    assert device.edgeq("forward", "--to", bench.url, "--once").returncode == 0
    device.conf.write_text(device.conf.read_text() + "STORE=%s\n" % bench.url)
    device.enqueue("mail", "{}", "--id", "own")
    result = device.edgeq("move", "--to", "spool:%s" % (tmp_path / "other"))
    assert result.returncode == 1 and "1 jobs or completions of other devices" in result.stderr
    assert ids_of(bench) == ["n1:a"] and len(os.listdir(tmp_path / "other/default/incoming")) == 1
    assert device.edgeq("move", "--to", bench.url + "2").returncode == 0
    assert ids_of(bench) == []
    bench.conf.write_text(bench.conf.read_text().replace(bench.url, bench.url + "2"))
    bench.work()
    bench.wait_ran(1)
    assert bench.ran() == ["n1:a"]
