"""What is said: one line an event, bounded in any lasting error; `edgeq log`."""

import os
import re
import subprocess

from edgeq.log import Log
from tests.console.console import wait_for
from tests.harness import Clock

MINUTE_BYTES = 8192
LINE = re.compile(r'[a-z_-]+( [a-z_-]+)?( [a-z_0-9]+=("([^"\\]|\\.)*"|[A-Za-z0-9_./:+@,%~-]+))*')


class Fed(Log):
    """A log that keeps what it says: [(boot second, line)]."""

    def __init__(self, clock):
        Log.__init__(self, clock)
        self.said = []

    def _write(self, strength, line, now):
        self.said.append((now.boot, "edgeq: 2026-07-20T10:15:00Z %s %s\n" % (strength, line)))


def bytes_a_minute(said):
    """The most that any 60 seconds held."""
    return max(sum(len(line) for at, line in said if since <= at < since + 60) for since, _ in said)


def test_a_flood_of_different_lines_fits_into_eight_kib_a_minute_and_says_how_many_it_swallowed():
    clock = Clock()
    log = Fed(clock)
    for n in range(30000):  # ten minutes, fifty a second: each job another line
        log.info("retry", id="job-%d" % n, type="t", attempt=1, why="exit 1: no route to host", wait_s=5)
        log.warning("dead", id="job-%d" % n, type="t", why="exit 65", output=b"x" * 300)
        clock.sleep(0.02)
    log.info("last")
    assert 4096 < bytes_a_minute(log.said) < MINUTE_BYTES
    unsaid = [line for _, line in log.said if " unsaid " in line]
    assert len(unsaid) == 9
    told = sum(" retry " in line and " unsaid " not in line for _, line in log.said)
    swallowed = sum(int(re.search(r"retry=(\d+)", line)[1]) for line in unsaid)
    assert told + swallowed + log._unsaid.get("retry", 0) == 30000


def test_an_error_is_heard_through_the_flood():
    clock = Clock()
    log = Fed(clock)
    for n in range(3000):
        log.info("retry", id="job-%d" % n, why="exit 1")
    log.error("store", error="Input/output error")
    log.info("status 2026-07-20T10:15:00Z queue=default")
    assert " error store " in log.said[-2][1] and " info status " in log.said[-1][1]


def test_the_same_error_is_told_once_a_minute():
    clock = Clock()
    log = Fed(clock)
    for _ in range(600):
        log.error("store", error="Input/output error")
        clock.sleep(1)
    assert len(log.said) == 10 and all("repeated=59" in line for _, line in log.said[1:])


def test_events_are_one_line_whatever_they_carry():
    clock = Clock()
    log = Fed(clock)
    for hostile in ("a\nedgeq: forged", "\x1b[2J", "key=value", 'qu"ote\\', "ü温", b"\xff\x00", "", "a b", "\r"):
        log.info("dead", id="x", why=hostile)
    for _, line in log.said:
        assert line.count("\n") == 1 and line.isascii() and line[:-1].isprintable()
        assert LINE.fullmatch(line[:-1].split(" ", 3)[3]), line


def test_a_lasting_error_of_a_real_worker_stays_under_the_limit(console):
    """Every handler fails at once, hundreds of jobs, no backoff: what the worker says in its first minute, and its ring in RAM."""
    console.configure(BASE_DELAY_S=0, MAX_ATTEMPTS=3, CONCURRENCY=4)
    console.handler("bad", 'echo "no route to host, no route to host, no route to host"; exit 1')
    batch = "".join('{"type":"bad","id":"job-%d"}\n' % n for n in range(300))
    console.ok("enqueue", "--batch", input=batch.encode())
    console.start("--once")
    wait_for(lambda: len(console.names("dlq")) == 300, "all are dead")
    console.workers[0].wait()
    assert 2000 < len(console.log()) < MINUTE_BYTES
    assert len(console.run_text("events")) < MINUTE_BYTES
    assert all(line.startswith("edgeq: 2") for line in console.log().splitlines())


def test_the_ring_in_ram_is_bounded(tmp_path):
    clock = Clock()
    log = Log(clock, events=str(tmp_path / "events"))

    null, err = os.open("/dev/null", os.O_WRONLY), os.dup(2)
    os.dup2(null, 2)
    try:
        for n in range(20000):
            log.info("retry", id="job-%d" % n)
            clock.sleep(1)
    finally:
        os.dup2(err, 2)
        os.close(null), os.close(err)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events", "events.1"] and sum(sizes) <= 65536 + 200
    assert (tmp_path / "events").read_text().endswith("id=job-19999\n")


def test_log_shows_the_journal_and_the_events_in_order(console):
    console.handler("good", "echo result=fine >$EDGEQ_CTL")
    console.handler("bad", "echo 'a \x1b[2J \"q\"'; exit 65")
    console.ok("enqueue", "good", "--id", "g1")
    console.ok("enqueue", "bad", "--id", "b1")
    console.ok("work", "--once")
    shown = console.ok("log").splitlines()
    assert any(re.fullmatch(r"2\S+Z done id=g1 type=good try=1 ms=\d+ result=fine", line) for line in shown)
    assert any(" warning dead id=b1 type=bad " in line for line in shown)
    assert shown == sorted(shown, key=lambda line: line[:20]) and all(line.isascii() and line.isprintable() for line in shown)
    assert console.ok("log", "-n", "1") == shown[-1]
    assert all("type=bad " in line for line in console.ok("log", "--type", "bad").splitlines())


def test_log_follows(console):
    console.handler("good", ":")
    console.ok("enqueue", "good", "--id", "before")
    console.ok("work", "--once")
    follower = subprocess.Popen(console.argv("log", "-f", "--type", "good"), env=console.env(), stdout=subprocess.PIPE, text=True)
    try:
        assert "id=before" in follower.stdout.readline()
        console.ok("enqueue", "good", "--id", "after")
        console.ok("work", "--once")
        assert "id=after" in follower.stdout.readline()
        follower.send_signal(2)
        assert follower.wait(10) == 130
    finally:
        follower.kill()
        follower.wait()
        follower.stdout.close()
