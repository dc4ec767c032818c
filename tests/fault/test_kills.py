"""Two workers, 500 jobs, kill -9 at random, of workers and of handlers: nothing is lost, nothing is twice, nothing overlaps.

A kill stops the worker first, so that what it had in its hands can be read off `processing/`: only those jobs may run again.
20 seconds of kills, 60 with FULL=1; SEED=N repeats a choice of moments (not of interleavings).
"""

import os
import random
import re
import signal
import time

import pytest

from tests.fault.outside import FULL, children_of, state_of, wait_for

JOBS, WAVE, KILLS_S = 500, 25, 60 if FULL else 20
RUNS = {"ok": 1, "once": 2, "perm": 1, "slow": 1}  # how often a handler of the type begins, undisturbed
MAX_ATTEMPTS = 12
ALONE = 'exec 9>"{root}/locks/$EDGEQ_ID"; flock -n 9 || echo "$EDGEQ_ID" >>"{root}/overlaps"\n'


def make_queue(make_bench):
    bench = make_bench(CONCURRENCY=2, SAFETY_SCAN_S=1, SYNC_JOBS=8, SYNC_WINDOW_MS=500, MAX_ATTEMPTS=MAX_ATTEMPTS, GRACE_S=2,
                       DONE_KEEP_KB=64)  # three segments of the journal, none of them pruned
    (bench.root / "locks").mkdir()
    bench.handler("ok", ALONE + "exit 0")
    bench.handler("once", ALONE + '[ -e "{root}/failed-$EDGEQ_ID" ] || { : >"{root}/failed-$EDGEQ_ID"; exit 1; }')
    bench.handler("perm", ALONE + "exit 65")
    bench.handler("slow", ALONE + "sleep 0.05")
    return bench


class Killer:
    """Kills, notes whose jobs were hit (`hit`: id -> how often), starts again."""

    def __init__(self, bench, dice):
        self.bench, self.dice = bench, dice
        self.workers = [bench.worker(), bench.worker()]
        self.hit, self.worker_n, self.handler_n = {}, 0, 0

    def kill_worker(self):
        at = self.dice.randrange(2)
        worker = self.workers[at]
        worker.signal(signal.SIGSTOP)
        wait_for(lambda: state_of(worker.pid) == "T", "the worker stands still")
        for name in self.bench.names("processing"):
            if re.search(r"-%d-\d+-\d+\.(json|settling)$" % worker.pid, name):
                self.note(name.split(".")[5])
        worker.kill()
        self.worker_n += 1
        self.workers[at] = self.bench.worker(ready=self.dice.random() < 0.7)  # or killed as it starts

    def kill_handler(self):
        for pid in children_of(self.dice.choice(self.workers).pid):
            try:
                with open("/proc/%d/environ" % pid, "rb") as file:
                    found = re.search(rb"\0?EDGEQ_ID=([^\0]+)\0", file.read())
                if found:
                    self.note(found[1].decode())
                    os.kill(pid, signal.SIGKILL)
                    self.handler_n += 1
                    return
            except (FileNotFoundError, ProcessLookupError):
                pass

    def note(self, id):
        self.hit[id] = self.hit.get(id, 0) + 1


@pytest.mark.fault
def test_random_kills_lose_nothing_and_run_twice_only_what_was_in_flight(make_bench, record_property):
    """B05, B84, P1, P4, P5."""
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(10 ** 6)))
    print("SEED=%d" % seed)
    dice, bench = random.Random(seed), make_queue(make_bench)
    killer, ids = Killer(bench, dice), []
    ends_at = time.monotonic() + KILLS_S
    while time.monotonic() < ends_at or len(ids) < JOBS:
        share = min(1.0, 1 - (ends_at - time.monotonic()) / KILLS_S)
        if len(ids) < JOBS and len(ids) <= share * JOBS * 1.05:
            ids += bench.enqueue_many([{"type": dice.choice(sorted(RUNS)), "id": "j%d" % (len(ids) + n)} for n in range(WAVE)])
        if dice.random() < 0.7:
            killer.kill_worker()
        else:
            killer.kill_handler()
        time.sleep(dice.uniform(0, 0.3))  # the moment of the next kill, not a wait
    wait_for(lambda: not any(bench.names(folder) for folder in ("incoming", "processing", "failed")) or None,
             lambda: "drained: %s\n%s" % (bench.waiting(), [worker.log[-1500:] for worker in killer.workers]))
    assert [worker.wait_ready().stop() for worker in killer.workers] == [0, 0]
    for worker in bench.workers:
        assert worker.log is not None  # no traceback in any
    done, dead = bench.audit(ids)
    types = {**{id: line.type for id, line in done.items()}, **{id: record["type"] for id, record in dead.items()}}
    assert {types[id] for id in dead} <= {"perm"}, {id: record["last_error"] for id, record in dead.items() if types[id] != "perm"}
    runs = bench.runs()
    assert set(runs) == set(ids)
    again = {id: (n, killer.hit.get(id, 0)) for id, n in runs.items() if n > RUNS[types[id]] + killer.hit.get(id, 0)}
    assert not again, "ran again without a kill (runs, kills): %s" % again
    assert max(runs.values()) <= MAX_ATTEMPTS
    assert all(line.attempts <= MAX_ATTEMPTS for line in done.values())
    assert not (bench.root / "overlaps").exists(), "ran beside itself: %s" % (bench.root / "overlaps").read_text()
    ours = ["-%d-" % worker.pid for worker in killer.workers]  # what the dead left goes at the next safety scan
    left = [path.name for path in (bench.r / "leases").iterdir() if any(pid in path.name for pid in ours)]
    assert not [name for name in left if "~" not in name], "leases left over: %s" % left
    record_property("kills", killer.worker_n + killer.handler_n)
    print("%d workers and %d handlers killed, %d jobs hit, %d ran more than once for it" % (
        killer.worker_n, killer.handler_n, len(killer.hit), sum(n > RUNS[types[id]] for id, n in runs.items())))
    assert killer.worker_n > KILLS_S / 2
