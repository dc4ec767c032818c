#!/usr/bin/env python3
"""Soak: many jobs with every kind of ending through the shipped zipapp, workers and handlers killed at random meanwhile.

    python3 tools/soak.py [--jobs N] [--seed N] [--store spool|sqlite] [--root DIR]

Two workers share the jobs. One is killed (kill -9) again and again and started anew; the other lives from the first job to the
last, and is what is measured. Handlers of both are killed at random. At the end each accepted id is done or dead, once; the worker
that lived has no more memory (Private_Dirty), descriptors and zombies than when it was warm, the journal is within its bound,
no lease is left, and the log holds no traceback and no more than it may. Exit 1 and a sentence for each thing that is not so.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

PYZ = Path(__file__).resolve().parents[1] / "dist" / "edgeq.pyz"
GROWTH_KB = 256
WAVE, WAITING_MAX = 250, 750  # jobs a batch, jobs that wait at most
WARM_SHARE = 3  # the first third warms it up: the allocator's pages are touched one by one, though nothing is kept
DONE_KEEP_KB = 64
STALL_S = 300  # no progress for so long is a failure
KINDS = {  # type: (share, handler, may it be dead at the end)
    "ok": (80, None, False),
    "once": (8, '[ "$EDGEQ_ATTEMPT" != 1 ]', False),
    "perm": (4, "echo no; exit 65", True),
    "crash": (3, 'kill -SEGV $$', True),
    "loud": (3, "head -c 100000 /dev/zero; echo result=well >>\"$EDGEQ_CTL\"", False),
    "hang": (1, "exec sleep 977", True),
    "child": (1, "sleep 978 & exit 0", False),
}
SETTINGS = {
    "MIN_FREE_KB": 0, "MIN_FREE_INODES": 0, "BASE_DELAY_S": 0, "MAX_ATTEMPTS": 30, "SAFETY_SCAN_S": 1, "REPORT_S": 5,
    "DONE_KEEP_KB": DONE_KEEP_KB, "DLQ_KEEP": 100000, "DLQ_KEEP_KB": 1000000, "SYNC_WINDOW_MS": 1000, "GRACE_S": 1, "CONCURRENCY": 4
}


class Soak:
    def __init__(self, root, options):
        self.root, self.options, self.dice = Path(root), options, random.Random(options.seed)
        self.q, self.r = self.root / "spool/default", self.root / "run/default"
        self.conf, self.db = self.root / "edgeq.conf", self.root / "spool/queue.db"
        self.env = {"PATH": "/usr/bin:/bin", "EDGEQ_CONF": str(self.conf)}
        self.accepted, self.done, self.dead, self.findings = set(), set(), {}, []
        self.kills = {"worker": 0, "handler": 0}
        self.log_path = self.root / "log"
        self.killed_log = self.root / "log-killed"
        self.workers = {}
        self.samples = []

    def prepare(self):
        settings = dict(SETTINGS, SPOOL=self.root / "spool", RUN_DIR=self.root / "run", HANDLERS=self.root / "handlers")
        if self.options.store == "sqlite":
            settings["STORE"] = "sqlite:%s" % self.db
        self.conf.write_text("".join("%s=%s\n" % item for item in settings.items()))
        folder = self.root / "handlers"
        folder.mkdir()
        for type, (_, script, _) in KINDS.items():
            if script is None:
                shutil.copy(shutil.which("true"), folder / type)
            else:
                (folder / type).write_text("#!/bin/sh\n%s\n" % script)
            (folder / type).chmod(0o755)
        conf = Path("%s.d" % self.conf)
        conf.mkdir()
        (conf / "hang.conf").write_text("TIMEOUT_S=0.1\nMAX_ATTEMPTS=2\n")
        (conf / "crash.conf").write_text("MAX_ATTEMPTS=2\n")

    def edgeq(self, *words, input=b""):
        done = subprocess.run([str(self.options.pyz), *words], env=self.env, input=input, capture_output=True, timeout=STALL_S)
        if done.returncode not in (0, 1, 2):
            self.findings.append("edgeq %s: exit %d: %s" % (" ".join(words), done.returncode, done.stderr[:300]))
        return done.stdout.decode()

    def start(self, name):
        log = open(self.log_path if name == "lives" else self.killed_log, "ab")
        self.workers[name] = subprocess.Popen([str(self.options.pyz), "work"], env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                                              stderr=log)
        log.close()

    # --- looking ------------------------------------------------------------------------------------------

    def count_waiting(self):
        if self.options.store == "sqlite" and self.db.exists():
            return self.rows("SELECT count(*) FROM jobs WHERE status != 'dlq'")[0][0] + len(self.names("incoming"))
        return sum(len(self.names(folder)) for folder in ("incoming", "failed", "processing"))

    def names(self, folder):
        try:
            return [name for name in os.listdir(self.q / folder) if name[0] != "."]
        except FileNotFoundError:
            return []

    def rows(self, sql):
        db = sqlite3.connect("file:%s?mode=ro" % self.db, uri=True, timeout=60)
        try:
            return db.execute(sql).fetchall()
        finally:
            db.close()

    def collect(self):
        """Note what is done and dead; dead letters are taken away, as a person would."""
        if self.options.store == "sqlite":
            self.done.update(id for id, in self.rows("SELECT job_id FROM processed_jobs"))
            for id, type in self.rows("SELECT id, type FROM jobs WHERE status = 'dlq'"):
                self.dead[id] = type
            return
        for name in self.names("dlq"):
            record = json.loads((self.q / "dlq" / name).read_text())
            self.dead[record["id"]] = record["type"]
            os.unlink(self.q / "dlq" / name)
        for name in self.names("done"):
            try:
                data = (self.q / "done" / name).read_bytes()
            except FileNotFoundError:
                continue
            for line in data.split(b"\n"):
                body, blank, crc = line.rpartition(b" ")
                if blank and crc == b"%08x" % zlib.crc32(body + b" "):
                    self.done.add(body.partition(b" ")[0].decode())

    def measure(self):
        """(Private_Dirty in KiB, open descriptors, zombies) of the worker that lives."""
        pid = self.workers["lives"].pid
        text = Path("/proc/%d/smaps_rollup" % pid).read_text()
        dead = 0
        for child in Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split():
            try:
                dead += Path("/proc/%s/stat" % child).read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                pass
        return int(re.search(r"^Private_Dirty:\s+(\d+)", text, re.M)[1]), len(os.listdir("/proc/%d/fd" % pid)), dead

    def settle(self):
        """Until nothing waits and the worker that lives sleeps: a state in which it can be measured."""
        seen, ends_at = -1, time.monotonic() + STALL_S
        while True:
            left = self.count_waiting()
            if left == 0:
                break
            if left != seen:
                seen, ends_at = left, time.monotonic() + STALL_S
            if time.monotonic() > ends_at:
                raise RuntimeError("%d jobs make no progress" % left)
            time.sleep(0.05)
            self.collect()
        while not any(
                name.startswith("%d-" % self.workers["lives"].pid) and name.endswith(".asleep")
                for name in os.listdir(self.r / "wake")) or self.children("lives"):
            if time.monotonic() > ends_at:
                raise RuntimeError("the worker does not come to rest")
            time.sleep(0.02)
        self.collect()

    def children(self, name):
        pid = self.workers[name].pid
        try:
            return [int(child) for child in Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()]
        except OSError:
            return []

    # --- harm -----------------------------------------------------------------------------------------------

    def harm(self):
        if self.dice.random() < 0.5:
            self.workers["killed"].kill()
            self.workers["killed"].wait()
            self.kills["worker"] += 1
            self.start("killed")
        else:
            for pid in self.children(self.dice.choice(["lives", "killed"]))[:1]:
                try:
                    os.kill(pid, signal.SIGKILL)
                    self.kills["handler"] += 1
                except ProcessLookupError:
                    pass

    # --- the run ----------------------------------------------------------------------------------------------

    def run(self):
        self.prepare()
        self.start("lives")
        self.start("killed")
        types = [type for type, (share, _, _) in KINDS.items() for _ in range(share)]
        begun, harm_at, told_at = time.monotonic(), 0.0, 0.0
        first = None
        while len(self.accepted) < self.options.jobs:
            wave = ["j%07d" % n for n in range(len(self.accepted), min(len(self.accepted) + WAVE, self.options.jobs))]
            lines = "".join('{"type":"%s","id":"%s","payload":{"n":"%s"}}\n' %
                            (self.dice.choice(types), id, "x" * self.dice.randrange(400)) for id in wave)
            self.accepted.update(self.edgeq("enqueue", "--batch", input=lines.encode()).split())
            seen, ends_at = -1, time.monotonic() + STALL_S
            while True:
                left = self.count_waiting()
                if left <= WAITING_MAX:
                    break
                if left != seen:
                    seen, ends_at = left, time.monotonic() + STALL_S
                if time.monotonic() > ends_at:
                    raise RuntimeError("%d jobs make no progress" % left)
                if time.monotonic() > harm_at:
                    harm_at = time.monotonic() + self.dice.uniform(0.2, 3)
                    self.harm()
                time.sleep(0.05)
                self.collect()
            self.collect()
            if first is None and len(self.accepted) >= self.options.jobs // WARM_SHARE:
                self.settle()
                first = self.measure()
            if time.monotonic() > told_at + 10:
                told_at = time.monotonic()
                print("%7d jobs, %4d s, %s KiB, kills %s" % (len(self.accepted), told_at - begun, self.measure()[0], self.kills),
                      flush=True)
        self.settle()
        last = self.measure()
        self.judge(first, last, time.monotonic() - begun)

    def judge(self, first, last, took_s):
        find = self.findings.append
        for name, worker in self.workers.items():
            worker.terminate()
            code = worker.wait(60)
            if code != 0:
                find("worker %s ended with %d" % (name, code))
        self.collect()
        lost, twice = self.accepted - self.done - set(self.dead), self.done & set(self.dead)
        if lost or twice or self.done - self.accepted:
            find("%d ids lost %s, %d done and dead, %d unknown" %
                 (len(lost), sorted(lost)[:5], len(twice), len(self.done - self.accepted)))
        if len(self.accepted) != self.options.jobs:
            find("%d of %d accepted" % (len(self.accepted), self.options.jobs))
        wrong = {id: type for id, type in self.dead.items() if not KINDS[type][2]}
        if wrong:
            find("dead, but should be done: %s" % sorted(wrong.items())[:5])
        if last[0] - first[0] >= self.options.growth_kb:
            find("memory grew by %d KiB" % (last[0] - first[0]))
        if last[1] > first[1] + 1:
            find("descriptors: %d, then %d" % (first[1], last[1]))
        if last[2]:
            find("%d zombies" % last[2])
        status = self.edgeq("status")
        counted = dict(re.findall(r"(\w+)=(\d+)", status))
        if status.count("\n") != 1 or [counted.get(key)
                                       for key in ("ready", "processing", "delayed", "failed", "corrupt")] != ["0"] * 5:
            find("status: %s" % status)
        if counted.get("done") != str(len(self.done)):
            find("status says done=%s, %d are" % (counted.get("done"), len(self.done)))
        journal_kb = sum((self.q / "done" / name).stat().st_size for name in self.names("done")) // 1024
        if self.options.store == "sqlite":
            journal_kb = sum(path.stat().st_size for path in self.db.parent.glob("queue.db*")) // 1024
        elif journal_kb > DONE_KEEP_KB * 3:  # pruned at safety scans, a segment a pass
            find("journal: %d KiB" % journal_kb)
        log_bytes = self.log_path.stat().st_size
        if log_bytes > 8192 * (took_s / 60 + 2):
            find("log: %d bytes in %d s" % (log_bytes, took_s))
        logs = self.log_path.read_text(errors="replace") + self.killed_log.read_text(errors="replace")
        for word in ("Traceback", "edgeq bug", "edgeq: bug"):
            if word in logs:
                find("the log says %s: %s" % (word, logs[logs.index(word):][:1000]))
        left = [
            name for folder in ("leases", "ctl") for name in os.listdir(self.r / folder)
            if "-%d-" % self.workers["lives"].pid in name and name[-1] != "~"
        ]
        left += [str(path) for path in self.q.rglob(".*")]
        if left:
            find("left over: %s" % left[:5])
        check = [line for line in self.edgeq("check").splitlines() if line.startswith("store:")]
        if check:
            find("check: %s" % check[:5])
        print(
            "%d jobs in %d s: %d done, %d dead; %d workers and %d handlers killed; %d -> %d KiB, %d -> %d descriptors, "
            "journal %d KiB, "
            "log %d KiB" % (len(self.accepted), took_s, len(self.done), len(self.dead), self.kills["worker"], self.kills["handler"],
                            first[0], last[0], first[1], last[1], journal_kb, log_bytes // 1024))

    def end(self):
        """Nothing of ours goes on: workers, and handlers that outlived a killed one."""
        for worker in self.workers.values():
            worker.kill()
            worker.wait()
        marker = os.fsencode(str(self.r))
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if int(path.name) != os.getpid() and marker in (path / "environ").read_bytes():
                    os.kill(int(path.name), signal.SIGKILL)
            except OSError:
                pass


def main(argv):
    parser = argparse.ArgumentParser(prog="soak.py", description="Many jobs, every kind of ending, random kills.")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--store", choices=["spool", "sqlite"], default="spool")
    parser.add_argument("--root", default=None, help="an empty folder; by default a fresh one in RAM")
    parser.add_argument("--growth-kb", type=int, default=GROWTH_KB, help="how much a worker that nobody killed may grow")
    parser.add_argument("--pyz", type=Path, default=PYZ)
    options = parser.parse_args(argv)
    print("SEED=%d" % options.seed)
    root = options.root or tempfile.mkdtemp(prefix="edgeq-soak-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    soak = Soak(root, options)
    try:
        soak.run()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        soak.findings.append(str(error))
        print(soak.log_path.read_text(errors="replace")[-3000:])
    finally:
        soak.end()
        if not options.root:
            shutil.rmtree(root, ignore_errors=True)
    for finding in soak.findings:
        print("soak: %s" % finding)
    return 1 if soak.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
