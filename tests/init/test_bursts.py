"""On-demand mode under fire: bursts of jobs, long and short gaps, retries and delays that fall due while only the guard is there,
guards, workers and producers killed at random, a power cut in the middle.

No job waits longer than its due time + 2 s, or one safety scan more where its poke can have been lost; there is never a second
worker, and the starts are about as many as the bursts. On a machine that others use too, five times the slowest start of a bare
interpreter in the same run is added.

120 jobs; FULL=1: 1,000. The seed of the choices is printed.
"""

import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.init.board import wait_for

FULL = os.environ.get("FULL", "") not in ("", "0")
JOBS_N, BURST_N = (1000, 40) if FULL else (120, 24)  # jobs in all, in one burst at most
LINGER_S, SCAN_S, RETRY_S, PROMISED_S = 2, 8, 4, 2

NOTE = "cat >/dev/null; read -r up _ </proc/uptime; echo \"$EDGEQ_ID $EDGEQ_ATTEMPT $up\" >>/data/ran"
BURST = """while read -r id type more; do
    read -r up _ </proc/uptime
    echo "$id $up" >>/data/asked
    edgeq enqueue $type --id $id $more >/dev/null && echo $id >>/data/queued
done"""
COUNTED = """#!/bin/sh
case $1 in work) read -r up _ </proc/uptime; echo "$$ $up" >>/tmp/starts ;; esac
exec /bin/sh /usr/lib/edgeq/real.pyz "$@"
"""


@pytest.fixture
def board(cold_board):
    """The guard under init's respawn, so that a killed one comes back."""
    (cold_board.root / "etc/init.d/S85edgeq").unlink()
    with open(cold_board.root / "etc/inittab", "a") as inittab:
        inittab.write("::respawn:/usr/bin/edgeq guard\n")
    program = cold_board.root / "usr/lib/edgeq/edgeq.pyz"
    program.rename(program.with_name("real.pyz"))
    cold_board.write("usr/lib/edgeq/edgeq.pyz", COUNTED, 0o755)
    cold_board.configure(LINGER_S=LINGER_S, SAFETY_SCAN_S=SCAN_S, BASE_DELAY_S=RETRY_S, JITTER=0, CONCURRENCY=4,
                         SPOOL="/data/edgeq")
    cold_board.handler("ok", NOTE)
    cold_board.handler("flaky", NOTE + "; [ $EDGEQ_ATTEMPT -gt 1 ]")
    yield cold_board.boot()


class Watch(threading.Thread):
    """Counts workers, and times a bare interpreter now and then."""

    def __init__(self, board):
        super().__init__(daemon=True)
        self.board, self.most, self.slowest_s, self.fastest_s, self.is_over = board, 0, 0, 9, threading.Event()

    def run(self):
        n = 0
        while not self.is_over.wait(0.1):
            self.most = max(self.most, len(self._workers()))
            n += 1
            if n % 10 == 0:
                begun = time.monotonic()
                subprocess.run([sys.executable, "-IS", "-c", "pass"], check=True)
                took_s = time.monotonic() - begun
                self.slowest_s, self.fastest_s = max(self.slowest_s, took_s), min(self.fastest_s, took_s)

    def _workers(self):
        """Host pids. A child between fork and exec looks like a worker, but has one for its parent."""
        parents = {}
        for pid, words in self.board.processes().items() if self.board.init is not None else ():
            if "edgeq_start" in words and " work --queue " in words:
                try:
                    pid = self.board.host_pid(pid)
                    parents[pid] = int(Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[1])
                except (KeyError, OSError):
                    pass  # it has just gone
        return [pid for pid, parent in parents.items() if parent not in parents]


class Fire:
    """What happens to the board, and when."""

    def __init__(self, board, rng):
        self.board, self.rng, self.made_n, self.kills_n, self.bursts_n = board, rng, 0, 0, 0
        self.delays, self.troubles = {}, []  # {id: delay asked for}, [(from, to)] uptimes where pokes may be lost

    def uptime(self):
        return float(self.board.sh("cut -d' ' -f1 /proc/uptime").out)

    def accepted_n(self):
        return len(self.board.sh("cat /data/queued 2>/dev/null").out.split())

    def burst(self, size):
        lines = []
        for _ in range(size):
            id, kind = "j%04d" % self.made_n, self.rng.random()
            self.made_n += 1
            self.delays[id] = self.rng.randint(1, 6) if kind < 0.2 else 0
            more = "--delay %d" % self.delays[id] if self.delays[id] else ""
            lines.append("%s %s %s\n" % (id, "flaky" if kind > 0.85 else "ok", more))
        self.bursts_n += 1
        process = subprocess.Popen(self.board.argv(BURST), env={"PATH": "/sbin:/usr/sbin:/bin:/usr/bin"}, stdin=subprocess.PIPE)
        process.stdin.write("".join(lines).encode())
        process.stdin.close()
        return process

    def kill_somebody(self):
        """A guard, a worker or a producer, whoever is there."""
        found = [pid for pid, words in self.board.processes().items()
                 if re.search("edgeq_start|# edgeq guard|edgeq enqueue", words) and "nsenter" not in words]
        if found:
            before = self.uptime()
            self.board.sh("kill -KILL %d" % self.rng.choice(found))
            self.kills_n += 1
            self.troubles.append((before - 1, self.uptime() + 2))

    def go(self, jobs_n):
        end_n = self.accepted_n() + jobs_n
        while (left_n := end_n - self.accepted_n()) > 0:
            producer = self.burst(min(self.rng.randint(1, BURST_N), left_n))
            if self.rng.random() < 0.5:
                time.sleep(self.rng.uniform(0, 0.4))
                self.kill_somebody()
            producer.wait(120)
            # a gap: within LINGER_S, just when the worker leaves, or long after it
            time.sleep(self.rng.choice((0.2, LINGER_S + self.rng.uniform(-0.3, 0.5), LINGER_S + 2)))
            if self.rng.random() < 0.2:
                self.kill_somebody()

    def power_cut(self):
        self.board.power_off()
        before = float(Path("/proc/uptime").read_text().split()[0])
        self.board.boot()
        self.troubles.append((before - 60, self.uptime() + 3))  # what fell due before it is due at the boot
        self.kills_n += 1


def read_times(text):
    """{id: [(try, uptime)]} of /data/ran."""
    found = {}
    for id, attempt, up in (line.split() for line in text.splitlines()):
        found.setdefault(id, []).append((int(attempt), float(up)))
    return found


def find_late(fire, asked, ran, limit_s):
    """Sentences on jobs that waited too long; the longest wait without and with trouble."""
    late, longest = [], [0, 0]
    for id, runs in ran.items():
        due = asked[id] + fire.delays[id] + (1 if fire.delays[id] else 0)  # DUE counts whole seconds
        for attempt, up in runs:
            in_trouble = any(begin <= due <= end or begin <= up <= end for begin, end in fire.troubles)
            waited_s = up - due
            longest[in_trouble] = max(longest[in_trouble], waited_s)
            if waited_s > limit_s + (SCAN_S if in_trouble else 0):
                late.append("%s, try %d: %.1f s%s" % (id, attempt, waited_s, " in trouble" if in_trouble else ""))
            due = up + RETRY_S + 1
    return late, longest


def done(board):
    """Ids in the journal."""
    return {line.split()[0] for line in board.sh("cat /data/edgeq/default/done/*.log").out.splitlines() if line}


@pytest.mark.timeout(900)
def test_bursts_kills_and_a_power_cut_in_on_demand_mode(board):
    seed = int.from_bytes(os.urandom(4), "big")
    fire, watch = Fire(board, random.Random(seed)), Watch(board)
    watch.start()
    fire.go(JOBS_N // 2)
    starts_before = board.sh("cat /tmp/starts").out
    fire.power_cut()
    fire.go(JOBS_N - JOBS_N // 2)
    queued = set(board.sh("cat /data/queued").out.split())
    wait_for(lambda: queued <= done(board), "every accepted job is done")
    watch.is_over.set()
    watch.join()
    ran = read_times(board.sh("cat /data/ran").out)
    asked = dict((id, float(up)) for id, up in map(str.split, board.sh("cat /data/asked").out.splitlines()))
    starts = len((starts_before + board.sh("cat /tmp/starts").out).split()) // 2
    limit_s = PROMISED_S + 5 * (watch.slowest_s - watch.fastest_s)
    late, longest = find_late(fire, asked, ran, limit_s)
    print("\nseed %d: %d jobs, %d bursts, %d kills, %d starts; longest wait %.1f s, in trouble %.1f s; limit %.1f s" % (
        seed, len(queued), fire.bursts_n, fire.kills_n, starts, *longest, limit_s))
    assert not late, (seed, late)
    assert watch.most == 1, seed
    assert fire.bursts_n / 3 <= starts <= 4 * fire.bursts_n + 2 * fire.kills_n, (seed, starts)
