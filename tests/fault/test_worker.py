"""What the real worker process does: signals, waking, retries, limits, leases, trouble with its disk, idleness, order of calls."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.fault.outside import (BOOT_ID, DISK_CALLS, Bench, Island, children_of, each, is_alive, read_trace, start_time,
                                 state_of, tool, trace_argv, wait_for)

UNTIL = 'while [ ! -e "{root}/go" ]; do sleep 0.02; done\n'  # a handler that waits for `release`


def release(bench):
    (bench.root / "go").touch()


def is_running(bench, id):
    return lambda: bench.runs().get(id) and bench.waiting().get(id, "").startswith("processing/")


def name_of(bench, id):
    """(folder, tries) where the id waits; tries with its `r`."""
    folder, _, name = bench.waiting()[id].partition("/")
    return folder, name.split(".")[3]


def leases(bench):
    return [name for name in os.listdir(bench.r / "leases") if "~" not in name]


def elected(bench):
    """Pids of the workers that say they are elected."""
    found = []
    for path in (bench.r / "workers").glob("*-*"):
        if "~" not in path.name and path.read_text().startswith("1 ") and is_alive(int(path.name.split("-")[0])):
            found.append(int(path.name.split("-")[0]))
    return found


def wait_done(bench, *ids, limit_s=30):
    """Until the ids have their line, written though not yet flushed."""
    wait_for(lambda: set(ids) <= set(bench.done()), lambda: "done: %s; %s" % (ids, [w.log for w in bench.workers]), limit_s)


# --- signals -------------------------------------------------------------------------------------------------

def test_term_lets_a_handler_finish_within_the_grace(make_bench):
    bench = make_bench(GRACE_S=30)
    bench.handler("slow", UNTIL + "exit 0")
    worker = bench.worker()
    id = bench.enqueue("slow")
    wait_for(is_running(bench, id), "it runs")
    worker.signal(signal.SIGTERM)
    wait_for(lambda: "stopping" in worker.log, "it heard")
    waiting = bench.enqueue("slow")  # nothing new is started
    release(bench)
    assert worker.wait() == 0
    assert set(bench.done()) == {id} and bench.names("processing") == []
    assert name_of(bench, waiting) == ("incoming", "0")
    assert not (bench.q / "running").exists()


def test_beyond_the_grace_it_goes_back_refunded_once(make_bench):
    """P4: a clean stop refunds the try, but not to a name that has been back before."""
    bench = make_bench(GRACE_S=0.2)
    bench.handler("deaf", "trap '' TERM\n" + UNTIL + "exit 0")
    id = bench.enqueue("deaf")
    for tries in ("0r", "1r", "2r"):
        worker = bench.worker()
        wait_for(is_running(bench, id), "it runs")
        assert worker.stop(10) == 0
        assert name_of(bench, id) == ("incoming", tries)
        assert bench.names("processing") == []
        assert not (bench.q / "running").exists()
    release(bench)
    assert bench.once().code == 0
    assert bench.done()[id].attempts == 3
    assert bench.runs() == {id: 4}


def test_a_second_term_does_not_wait(make_bench):
    bench = make_bench(GRACE_S=300)
    bench.handler("slow", UNTIL)
    id = bench.enqueue("slow")
    worker = bench.worker()
    wait_for(is_running(bench, id), "it runs")
    worker.signal(signal.SIGTERM)
    wait_for(lambda: "stopping" in worker.log, "it heard")
    assert worker.stop(10) == 0
    assert name_of(bench, id) == ("incoming", "0r")


def test_hup_takes_a_good_file_and_keeps_running_on_a_bad_one(make_bench):
    bench = make_bench(CONCURRENCY=1, SAFETY_SCAN_S=60)
    bench.handler("slow", UNTIL)
    worker = bench.worker()
    ids = [bench.enqueue("slow") for _ in range(4)]
    wait_for(lambda: len(bench.runs()) == 1, "one runs")
    bench.configure(CONCURRENCY="many")
    worker.signal(signal.SIGHUP)
    wait_for(lambda: "CONCURRENCY=many" in worker.log, lambda: "it says no: " + worker.log)
    assert len(bench.names("processing")) == 1
    bench.configure(CONCURRENCY=3)
    worker.signal(signal.SIGHUP)
    wait_for(lambda: len(bench.runs()) == 3, lambda: "three run: " + worker.log, 10)
    release(bench)
    wait_done(bench, *ids)
    assert worker.stop() == 0


def test_once_says_whether_something_ready_could_not_run(make_bench):
    bench = make_bench()
    assert bench.once().code == 0
    bench.handler("ok", "exit 0")
    bench.enqueue("ok")
    bench.enqueue("ok", "--delay", 3600)
    assert bench.once().code == 0
    held = bench.enqueue("nobody")
    assert bench.once().code == 75
    assert name_of(bench, held) == ("incoming", "0")
    bench.edgeq("cancel", held)
    bench.edgeq("pause", "ok")
    bench.enqueue("ok")
    assert bench.once().code == 75


# --- waking and order ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("by", ["wrapper", "pyz"])
def test_an_idle_worker_wakes_at_once(make_bench, by):
    bench = make_bench(SAFETY_SCAN_S=60)
    bench.handler("ok", "exit 0")
    worker = bench.worker().wait_asleep()
    for _ in range(5):
        id = bench.enqueue("ok", by=by)
        wait_done(bench, id, limit_s=5)
        worker.wait_asleep()
    assert worker.stop() == 0


def test_a_more_urgent_arrival_goes_next(make_bench):
    """The head of the queue is cached, yet an arrival of a higher priority is seen by a busy worker."""
    bench = make_bench(CONCURRENCY=1, SAFETY_SCAN_S=60)
    bench.handler("turn", 'while [ ! -e "{root}/over" ] && ! rmdir "{root}/turn" 2>/dev/null; do sleep 0.01; done')
    bench.worker()
    slow = [bench.enqueue("turn") for _ in range(10)]
    wait_for(lambda: len(bench.runs()) == 1, "one runs")
    for n, by in enumerate(("wrapper", "pyz"), 1):
        urgent = bench.enqueue("turn", "--priority", 0, by=by)
        (bench.root / "turn").mkdir()
        wait_for(lambda: len(bench.runs()) == 2 * n, "the next runs")
        assert bench.ran_path.read_text().split()[-1] == urgent
        (bench.root / "turn").mkdir()
        wait_for(lambda: len(bench.runs()) == 2 * n + 1, "and one of the others")
        assert bench.ran_path.read_text().split()[-1] == slow[n]
    (bench.root / "over").touch()


def test_a_retry_comes_when_it_is_due(make_bench):
    bench = make_bench(BASE_DELAY_S=1, JITTER=0, SAFETY_SCAN_S=60)
    bench.handler("flaky", 'date +%s.%N >>"{root}/times"; [ "$EDGEQ_ATTEMPT" = 3 ]')
    worker = bench.worker()
    id = bench.enqueue("flaky")
    wait_for(lambda: bench.waiting().get(id, "").startswith("failed/"), "it failed")
    due = int(bench.waiting()[id].split("/")[1].split(".")[2])
    assert -1 <= due - time.time() <= 2.1
    wait_done(bench, id)
    times = [float(line) for line in (bench.root / "times").read_text().split()]
    waits = [later - sooner for sooner, later in zip(times, times[1:])]
    assert 0.95 <= waits[0] < 2.2 and 1.95 <= waits[1] < 3.5, waits
    assert worker.stop() == 0


# --- handlers --------------------------------------------------------------------------------------------------

def test_timeout_is_term_grace_kill(make_bench):
    bench = make_bench(GRACE_S=0.5)
    bench.type_conf("deaf", TIMEOUT_S="0.5", MAX_ATTEMPTS=1)
    bench.type_conf("polite", TIMEOUT_S="0.5", MAX_ATTEMPTS=1)
    bench.handler("deaf", "trap 'echo heard' TERM\nwhile :; do sleep 0.05; done")
    bench.handler("polite", "trap 'exit 0' TERM\nwhile :; do sleep 0.05; done")
    worker = bench.worker()
    ids = [bench.enqueue("deaf"), bench.enqueue("polite")]
    begun = time.monotonic()
    wait_for(lambda: set(bench.dead()) == set(ids), lambda: "both dead: " + worker.log)
    assert time.monotonic() - begun < 10
    for record in bench.dead().values():
        assert record["last_error"].startswith("timeout after 0.5 s") and record["attempts"] == 1
    assert "handler-ignores-term" in worker.log


def test_a_grandchild_that_holds_the_pipe_blocks_nothing(make_bench):
    bench = make_bench(CONCURRENCY=1, SYNC_WINDOW_MS=0)
    bench.handler("daemon", 'sleep 333 & echo $! >"{root}/group"; exit 0')
    bench.handler("escape", 'setsid sleep 333 & echo $! >"{root}/session"; exit 0')
    bench.handler("ok", "exit 0")
    worker = bench.worker()
    ids = [bench.enqueue(type) for type in ("daemon", "escape", "ok")]
    wait_done(bench, *ids)
    wait_for(lambda: not is_alive(int((bench.root / "group").read_text())), "what is left of the group is ended")
    escaped = int((bench.root / "session").read_text())
    if is_alive(escaped):
        os.kill(escaped, signal.SIGKILL)
    assert worker.stop() == 0


def test_exit_codes(make_bench):
    """DESIGN 5, the table; B12 for what cannot be started at all."""
    bench = make_bench(SYNC_WINDOW_MS=0, BASE_DELAY_S=60, MAX_DELAY_S=600, CONCURRENCY=4)
    codes = [0, 1, 2, 64, 65, 66, 69, 73, 75, 76, 77, 78, 100, 111, 125, 126, 127, 128, 255]
    for code in codes:
        bench.handler("x%d" % code, 'echo "words of %s"; exit %d' % (code, code))
    bench.handler("sig", "kill -9 $$")
    (bench.handlers / "empty").touch(0o755)
    (bench.handlers / "plain").write_text("echo hi\n")
    (bench.handlers / "plain").chmod(0o755)
    (bench.handlers / "noexec").write_text("#!/bin/sh\nexit 0\n")
    (bench.handlers / "lost").write_text("#!/no/such/shell\n")
    (bench.handlers / "lost").chmod(0o755)
    (bench.handlers / "folder").mkdir()
    (bench.handlers / "dangling").symlink_to("/no/such/file")
    held = ["empty", "plain", "noexec", "lost", "folder", "dangling", "missing", "x126", "x127"]
    ids = {type: bench.enqueue(type) for type in ["x%d" % code for code in codes] + ["sig"] + held[:-2]}
    second = {type: bench.enqueue(type) for type in ("x69", "missing", "x126")}
    result = bench.once()
    assert result.code == 75, result
    assert set(bench.done()) == {ids["x0"]}
    assert {record["type"] for record in bench.dead().values()} == {"x64", "x65", "x66", "x76", "x77", "x78", "x100"}
    assert bench.dead()[ids["x65"]]["last_error"] == "exit 65: words of 65"
    for type in ("x1", "x2", "x73", "x75", "x111", "x125", "x128", "x255", "sig"):
        assert name_of(bench, ids[type]) == ("failed", "1"), type
    assert (bench.r / "errors" / ids["sig"]).read_text() == "signal 9\n"
    for type in held + ["x69"]:
        folder, tries = name_of(bench, ids[type])
        assert (folder, tries.rstrip("r")) == ("incoming", "0"), (type, folder, tries)
        assert (bench.r / "types" / type).read_text().split()[0] == ("offline" if type == "x69" else "held")
    for type, id in second.items():
        assert name_of(bench, id) == ("incoming", "0") and id not in bench.runs(), type  # the whole type waits
    assert "edgeq why" or bench.findings() == []


def test_a_held_type_is_freed_when_its_handler_appears(make_bench):
    bench = make_bench(SAFETY_SCAN_S=0.3, MAX_DELAY_S=600)
    worker = bench.worker()
    id = bench.enqueue("later")
    wait_for(lambda: "held" in worker.log, "it is held")
    assert name_of(bench, id) == ("incoming", "0")
    wait_for(lambda: bench.edgeq("status", by="wrapper").code == 1, "status says degraded", 10)
    bench.handler("later", "exit 0")
    wait_done(bench, id, limit_s=10)
    assert bench.done()[id].attempts == 1
    assert worker.stop() == 0


def test_a_type_whose_destination_is_down_costs_no_try(make_bench):
    """Exit 69, five rounds of it, and max_attempts is 2."""
    bench = make_bench(BASE_DELAY_S=1, MAX_DELAY_S=1, JITTER=0, MAX_ATTEMPTS=2)
    bench.handler("net", '[ -e "{root}/up" ] || exit 69')
    worker = bench.worker()
    ids = [bench.enqueue("net") for _ in range(3)]
    wait_for(lambda: sum(bench.runs().values()) >= 5, lambda: "five rounds: " + worker.log)
    (bench.root / "up").touch()
    wait_done(bench, *ids)
    assert {line.attempts for line in bench.done().values()} == {1}
    assert worker.stop() == 0


def test_what_a_handler_gets(make_bench):
    bench = make_bench(MAX_ATTEMPTS=7)
    bench.handler("env", 'env >"{root}/env"; cat >"{root}/stdin"; ls -l /proc/self/fd >"{root}/fds"; pwd >"{root}/pwd"\n'
                         'cat /proc/self/oom_score_adj >"{root}/oom"; cat /proc/$$/stat >"{root}/stat"\n'
                         'echo result=well >>"$EDGEQ_CTL"; [ "$EDGEQ_ATTEMPT" = 2 ]')
    id = bench.enqueue("env", '{"a": [1, 2.50, "\\u00e9"]}', "--id", "job-1")
    bench.once(env={"SECRET": "x"})
    env = dict(line.split("=", 1) for line in (bench.root / "env").read_text().splitlines())
    ctl = env.pop("EDGEQ_CTL")
    assert ctl.startswith(str(bench.r / "ctl/")) and not os.path.exists(ctl)
    for shells_own in ("PWD", "_", "SHLVL", "OLDPWD"):
        env.pop(shells_own, None)
    assert env == {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/", "EDGEQ_ID": id, "EDGEQ_TYPE": "env",
                   "EDGEQ_QUEUE": "default", "EDGEQ_ATTEMPT": "2", "EDGEQ_MAX_ATTEMPTS": "7", "EDGEQ_REDELIVERED": "1"}
    assert (bench.root / "stdin").read_text() == '{"a": [1, 2.50, "\\u00e9"]}'
    assert (bench.root / "pwd").read_text() == "/\n"
    assert (bench.root / "oom").read_text() == "1000\n"
    fds = re.findall(r" (\d+) -> (\S+)", (bench.root / "fds").read_text())
    assert {fd for fd, target in fds if not target.startswith("/proc/")} - {"1"} <= {"0", "2"}, fds
    fields = (bench.root / "stat").read_text().rpartition(")")[2].split()
    pid = (bench.root / "stat").read_text().split()[0]
    assert fields[2] == fields[3] == pid  # its own group and session
    assert bench.done()[id].note == "well"


# --- leases, death and succession --------------------------------------------------------------------------------

def test_a_late_worker_changes_nothing(make_bench):
    """P5: its lease ran out while it stood still; another took the job over, ended its handler, ran it; it comes back too late."""
    bench = make_bench(CONCURRENCY=1, LEASE_S=1, SAFETY_SCAN_S=0.3)
    bench.handler("busy", UNTIL)
    bench.handler("job", '[ -e "{root}/second" ] && exit 0; : >"{root}/second"; exec sleep 333')
    chief = bench.worker()
    busy = bench.enqueue("busy")
    wait_for(is_running(bench, busy), "the elected worker has its hands full")
    late = bench.worker()
    id = bench.enqueue("job")
    wait_for(is_running(bench, id), "the other runs the job")
    (handler,) = children_of(late.pid)
    late.signal(signal.SIGSTOP)
    wait_for(lambda: "reaped" in chief.log, lambda: "taken over: " + chief.log, 20)
    wait_for(lambda: state_of(handler) in ("", "Z"), "its handler is ended")
    release(bench)
    wait_done(bench, id, busy)
    late.signal(signal.SIGCONT)
    wait_for(lambda: "lease lost" in late.log or "late" in late.log, lambda: "it notices: " + late.log)
    assert [late.stop(), chief.stop()] == [0, 0]
    assert bench.done()[id].attempts == 2 and bench.runs() == {id: 2, busy: 1}
    bench.audit([id, busy])


def test_a_dead_workers_handler_is_ended_before_the_job_runs_again(make_bench):
    bench = make_bench(SAFETY_SCAN_S=60)
    bench.handler("job", 'if read p 2>/dev/null <"{root}/pid"; then\n'
                         '  grep -qs "^State:.[^ZX]" /proc/$p/status && touch "{root}/both"; exit 0\n'
                         'fi\n'
                         'echo $$ >"{root}/pid"; exec sleep 333')
    id = bench.enqueue("job")
    worker = bench.worker()
    wait_for(lambda: (bench.root / "pid").exists(), "it runs")
    survivor = int((bench.root / "pid").read_text())
    worker.kill()
    assert is_alive(survivor)
    bench.worker()
    wait_done(bench, id)
    assert not is_alive(survivor) and not (bench.root / "both").exists()
    assert bench.done()[id].attempts == 2


def test_a_number_that_is_somebody_elses_now_is_left_alone(make_bench):
    """The lease names a group and its start time; the number alone is not enough to kill."""
    bench = make_bench()
    bench.handler("job", '[ -e "{root}/seen" ] && exit 0; : >"{root}/seen"; exec sleep 333')
    id = bench.enqueue("job")
    worker = bench.worker()
    wait_for(is_running(bench, id), "it runs")
    wait_for(lambda: (bench.root / "seen").exists(), "it runs")
    handlers = children_of(worker.pid)
    worker.kill()
    bystander = subprocess.Popen([tool("sleep"), "333"], start_new_session=True)
    try:
        (lease,) = [bench.r / "leases" / name for name in leases(bench)]
        fields = lease.read_text().split()
        fields[3:5] = [str(bystander.pid), str(start_time(bystander.pid) - 1)]
        lease.write_text(" ".join(fields) + "\n")
        bench.worker()
        wait_done(bench, id)
        assert bystander.poll() is None
        assert not any(is_alive(pid) for pid in handlers)  # found by its environment all the same
    finally:
        bystander.kill()
        bystander.wait()


def test_when_the_elected_worker_dies_another_takes_over(make_bench):
    bench = make_bench(CONCURRENCY=1, SAFETY_SCAN_S=0.3)
    bench.handler("job", '[ -e "{root}/seen" ] && exit 0; : >"{root}/seen"; exec sleep 333')
    bench.handler("ok", "exit 0")
    first = bench.worker()
    wait_for(lambda: elected(bench) == [first.pid], "elected")
    id = bench.enqueue("job")
    wait_for(is_running(bench, id), "it runs")
    second = bench.worker()
    other = bench.enqueue("ok")
    wait_done(bench, other)
    assert elected(bench) == [first.pid]
    first.kill()
    wait_done(bench, id)
    wait_for(lambda: elected(bench) == [second.pid], lambda: "the other is elected: %s" % second.log, 10)
    assert second.stop() == 0
    bench.audit([id, other])


def test_while_the_elected_worker_is_frozen_the_others_reap(make_bench):
    """It holds the election's lock and stands still, and no guard is there to kill it. It comes back to no harm."""
    bench = make_bench(CONCURRENCY=1, SAFETY_SCAN_S=0.3)
    bench.handler("job", '[ -e "{root}/seen" ] && exit 0; : >"{root}/seen"; exec sleep 333')
    bench.handler("busy", UNTIL)
    chief = bench.worker()
    wait_for(lambda: elected(bench) == [chief.pid], "elected")
    busy = bench.enqueue("busy")
    wait_for(is_running(bench, busy), "it has its hands full")
    victim = bench.worker()
    id = bench.enqueue("job")
    wait_for(is_running(bench, id), "the other runs the job")
    other = bench.worker()
    chief.signal(signal.SIGSTOP)
    victim.kill()
    wait_for(lambda: "reaped" in other.log, lambda: "the third reaps: " + other.log, 20)
    wait_done(bench, id)
    assert elected(bench) == [chief.pid] and "reaped" not in chief.log
    chief.signal(signal.SIGCONT)
    release(bench)
    wait_done(bench, busy)
    assert [chief.stop(), other.stop()] == [0, 0]
    assert bench.runs() == {id: 2, busy: 1} and bench.done()[id].attempts == 2
    bench.audit([id, busy])


def test_one_workers_death_leaves_the_others_working(make_bench):
    bench = make_bench(CONCURRENCY=2)
    bench.handler("ok", "sleep 0.02")
    workers = [bench.worker(), bench.worker(), bench.worker()]
    ids = bench.enqueue_many([{"type": "ok"} for _ in range(60)])
    wait_for(lambda: len(bench.runs()) > 10, "they work")
    workers[0].kill()
    workers[1].kill()
    wait_for(lambda: set(bench.runs()) == set(ids), lambda: "all ran: " + workers[2].log)
    wait_for(lambda: len(bench.done()) >= 56, "but for what the dead ones held all is done")
    assert workers[2].stop() == 0
    bench.drain()
    bench.audit(ids)


def test_two_workers_two_queues(make_bench):
    bench = make_bench()
    bench.handler("ok", 'echo "$EDGEQ_QUEUE" >>"{root}/queues"')
    workers = [bench.worker("--queue", "default"), bench.worker("--queue", "urgent", ready=False)]
    wait_for(lambda: (bench.run_dir / "urgent/workers").is_dir() and os.listdir(bench.run_dir / "urgent/workers"), "both up")
    ids = [bench.enqueue("ok", "--id", "same"), bench.enqueue("ok", "--id", "same", "--queue", "urgent", by="wrapper")]
    assert ids == ["same", "same"]
    queues = bench.root / "queues"
    wait_for(lambda: queues.exists() and sorted(queues.read_text().split()) == ["default", "urgent"], "each queue ran its own")
    assert [worker.stop() for worker in workers] == [0, 0]
    assert bench.edgeq("ls", "done", "--queue", "urgent").out.startswith("same ok done")


class Power:
    """A board whose power can be cut: renames after the last flush never were, /run is gone, the next boot has another id.

    Its worker is traced, so it is known what came after the last flush. A flush takes with it what came before: one journal.
    """

    def __init__(self, bench):
        self.bench, self.boots_n = bench, 0
        self.clock, self.trace, self.kept = bench.root / "clock", bench.root / "trace", bench.root / "kept"
        self.env = {"EDGEQ_TEST_CLOCK": str(self.clock)}
        self._begin_boot()

    def _begin_boot(self):
        self.clock.write_text("0 %08x-0000-4000-8000-000000000000\n" % self.boots_n)

    def worker(self):
        """A worker that is traced; what is there now is on the disk."""
        shutil.rmtree(self.kept, ignore_errors=True)
        shutil.copytree(self.bench.q, self.kept)
        return self.bench.worker(env=self.env, prefix=trace_argv(self.trace, LASTING, follow=False))

    def cut(self, worker):
        """Everything dies. True: something was undone. Renames only: what else a worker leaves unflushed is harmless to undo."""
        (pid, *_) = worker.children()
        handlers = children_of(pid)
        worker.kill()
        for handler in handlers:
            os.killpg(handler, signal.SIGKILL)
        flushed = [n for n, call in enumerate(read_trace(self.trace)) if call.name in FLUSHES and call.touches(self.bench.q)]
        before = self.bench.waiting()
        if not flushed:
            shutil.rmtree(self.bench.q)
            shutil.copytree(self.kept, self.bench.q)
        else:
            self._undo(read_trace(self.trace)[flushed[-1] + 1:])
        shutil.rmtree(self.bench.run_dir)
        self.boots_n += 1
        self._begin_boot()
        return self.bench.waiting() != before

    def _undo(self, calls):
        """Renames after the last flush, the last one first."""
        for call in reversed(calls):
            if call.name == "rename" and call.touches(self.bench.q) and "-1 E" not in call.text:
                source, target = call.paths[:2]
                os.rename(target, source)


LASTING = ("rename", "unlink", "fsync", "fdatasync", "sync", "syncfs")
FLUSHES = ("fsync", "fdatasync", "sync", "syncfs")


def test_a_job_that_takes_the_board_down_ends_in_the_dlq(make_bench):
    """P4: at most max_attempts + 1 runs over as many boots; every run after the first knows that it is one (P9); others go on.

    The first boot's claim is not flushed: the cut undoes it, and the run is charged to nobody. From the second boot on the job is
    suspect, its claim is flushed before it runs.
    """
    bench = make_bench(MAX_ATTEMPTS=3, CONCURRENCY=1)
    power = Power(bench)
    bench.handler("reboot", 'echo "$EDGEQ_REDELIVERED" >>"{root}/again"; exec sleep 333')
    bench.handler("ok", 'echo "$EDGEQ_REDELIVERED" >>"{root}/ok-again"')
    bench.once(env=power.env)  # the spool is there
    id = bench.enqueue("reboot", env=power.env)
    after = bench.enqueue("ok", env=power.env)
    undone = []
    for _ in range(10):
        runs = bench.runs().get(id, 0)
        worker = power.worker()
        wait_for(lambda: bench.runs().get(id, 0) > runs or bench.names("dlq"), lambda: "it runs or is dead: " + worker.log)
        assert (bench.q / "running").exists()
        if bench.names("dlq"):
            break
        wait_for(lambda: children_of(worker.pid), "it runs")
        undone.append(power.cut(worker))
    assert undone == [True, False, False, False], undone
    assert bench.runs()[id] == 4 == len(undone)
    assert (bench.root / "again").read_text().split() == ["0", "1", "1", "1"]
    wait_done(bench, after)
    assert (bench.root / "ok-again").read_text() == "1\n"  # in the spool at a cut: suspect
    assert worker.stop() == 0
    assert bench.dead()[id]["attempts"] == 3 and not (bench.q / "running").exists()
    bench.audit([id, after])


def test_a_job_that_fills_the_memory_ends_in_the_dlq(make_bench):
    """MEM_MB bounds it; the worker does not grow with it."""
    bench = make_bench(CONCURRENCY=1, BASE_DELAY_S=0, SYNC_WINDOW_MS=0)
    bench.type_conf("hog", MEM_MB=96, MAX_ATTEMPTS=3)
    bench.handler("hog", """exec python3 -I -S -c '
import posix
held = []
try:
    while True:
        held.append(bytearray(1 << 20))
except MemoryError:
    posix.write(posix.open("{root}/hogs", posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT), b"%d\\n" % len(held))
    raise SystemExit("no memory left")
'""")
    bench.handler("ok", "exit 0")
    worker = bench.worker()
    ids = [bench.enqueue(type) for type in ("ok", "hog", "ok")]
    wait_for(lambda: bench.names("dlq"), lambda: "it is dead: " + worker.log)
    wait_done(bench, ids[0], ids[2])
    held = [int(line) for line in (bench.root / "hogs").read_text().split()]
    assert len(held) == 3 and all(32 < mib < 96 for mib in held), held
    letter = bench.dead()[ids[1]]
    assert letter["attempts"] == 3 and letter["last_error"] == "exit 1: no memory left", letter
    peak_kb = int(re.search(r"^VmHWM:\s+(\d+)", Path("/proc/%d/status" % worker.pid).read_text(), re.M)[1])
    assert peak_kb < 32768, peak_kb
    assert worker.stop() == 0
    bench.audit(ids)


def test_a_job_that_kills_its_worker_ends_in_the_dlq(make_bench):
    """P4: at most max_attempts runs."""
    bench = make_bench(MAX_ATTEMPTS=3, CONCURRENCY=1, SAFETY_SCAN_S=60)
    bench.handler("murder", "kill -9 $PPID; exec sleep 333")
    bench.handler("ok", "exit 0")
    ids = [bench.enqueue("murder"), bench.enqueue("ok")]
    for _ in range(10):
        worker = bench.worker(ready=False)
        wait_for(lambda: worker.process.poll() is not None or bench.names("dlq"), "it is dead, or the job is")
        if bench.names("dlq"):
            break
    wait_done(bench, ids[1])
    assert bench.runs()[ids[0]] == 3 and bench.dead()[ids[0]]["last_error"] == "worker died"
    assert worker.stop() == 0
    bench.audit(ids)


# --- one id, one job ---------------------------------------------------------------------------------------------------

def test_the_same_id_from_all_sides_at_once_is_one_job(make_bench):
    bench = make_bench(CONCURRENCY=2)
    bench.handler("ok", "sleep 0.05")
    bench.handler("flaky", '[ "$EDGEQ_ATTEMPT" != 1 ]')
    workers = [bench.worker(), bench.worker()]
    for n in range(6):
        type, id = ("ok", "flaky")[n % 2], "same%d" % n
        results = each(lambda at: bench.edgeq("enqueue", type, "--id", id, by=("pyz", "wrapper")[at % 2]), range(8), threads=8)
        assert {result.code for result in results} == {0}, results
        assert {result.out for result in results} == {id + "\n"}
    wait_done(bench, *["same%d" % n for n in range(6)])
    assert [worker.stop() for worker in workers] == [0, 0]
    assert bench.runs() == {"same%d" % n: 1 + n % 2 for n in range(6)}
    bench.audit(["same%d" % n for n in range(6)])


def test_files_dropped_by_hand(make_bench):
    """Adopted when whole, left alone while it grows, set aside when it is none; `mv dlq/ID.json incoming/` is a kick."""
    bench = make_bench(SAFETY_SCAN_S=0.5)
    bench.handler("ok", 'echo "$EDGEQ_REDELIVERED" >>"{root}/again"; cat >>"{root}/payloads"')
    bench.handler("bad", '[ -e "{root}/mended" ] || exit 65')
    worker = bench.worker()
    whole = '{"id":"hand1","type":"ok","payload":{"n": 1.50}}\n'
    (bench.q / "incoming/by-hand").write_text(whole)
    wait_done(bench, "hand1", limit_s=10)
    assert (bench.root / "payloads").read_text() == '{"n": 1.50}'
    (bench.q / "incoming/rubbish").write_text("no job")
    with open(bench.q / "incoming/slow", "w") as file:
        for piece in ('{"id":"hand2",', '"type":"ok",', '"payload":{}', "}\n"):
            file.write(piece)
            file.flush()
            time.sleep(1)  # a slow writer, not a wait
    wait_done(bench, "hand2", limit_s=10)
    wait_for(lambda: bench.names("corrupt") == ["rubbish", "rubbish.why"], lambda: "set aside: %s" % bench.names("corrupt"))
    id = bench.enqueue("bad")
    wait_for(lambda: bench.names("dlq"), "dead")
    (bench.root / "mended").touch()
    os.rename(bench.q / "dlq" / (id + ".json"), bench.q / "incoming" / (id + ".json"))
    wait_done(bench, id, limit_s=10)
    assert bench.done()[id].attempts == 1 and bench.runs()[id] == 2
    assert worker.stop() == 0


def remove(path):
    """rm -rf, while somebody may be making it again."""
    def is_gone():
        try:
            shutil.rmtree(path)
            return True
        except OSError:
            return False
    wait_for(is_gone, "%s is removed" % path, 10)


# --- what others do to our folders ------------------------------------------------------------------------------------

def test_folders_that_went_are_made_again(make_bench):
    """B45. Emptied or removed by hand, all of them at once."""
    bench = make_bench(SAFETY_SCAN_S=0.3)
    bench.handler("ok", "exit 0")
    bench.handler("bad", "exit 65")
    worker = bench.worker().wait_asleep()
    for folder in ("failed", "dlq", "corrupt", "incoming"):
        remove(bench.q / folder)
    wait_for(lambda: (bench.q / "incoming").is_dir() and (bench.q / "dlq").is_dir() and (bench.q / "corrupt").is_dir(),
             lambda: "made again: " + worker.log, 10)
    ids = [bench.enqueue("ok"), bench.enqueue("bad")]
    wait_for(lambda: ids[0] in bench.done() and ids[1] in bench.dead(), lambda: "they run: " + worker.log, 20)
    remove(bench.q)
    wait_for(lambda: (bench.q / "incoming").is_dir() and (bench.q / "done").is_dir(), lambda: "made again: " + worker.log, 20)
    ids = [bench.enqueue("ok"), bench.enqueue("bad")]
    wait_for(lambda: ids[0] in bench.done() and ids[1] in bench.dead(), lambda: "they run: " + worker.log, 20)
    assert worker.stop() == 0


def test_an_emptied_run_folder_costs_no_second_run(make_bench):
    """B45: leases, FIFO, seq and locks are gone while a job runs. Nobody reaps what its owner still holds."""
    bench = make_bench(SAFETY_SCAN_S=0.3, CONCURRENCY=1)
    bench.handler("slow", UNTIL)
    bench.handler("ok", "exit 0")
    workers = [bench.worker()]
    first = bench.enqueue("slow")
    wait_for(is_running(bench, first), "it runs")
    workers.append(bench.worker())
    remove(bench.run_dir)
    wait_for(lambda: len(list((bench.r / "wake").glob("*-*"))) >= 2 if (bench.r / "wake").is_dir() else False,
             lambda: "both made their FIFO again: %s" % [worker.log for worker in workers], 10)
    second = bench.enqueue("ok", by="wrapper")
    wait_done(bench, second, limit_s=10)
    wait_for(lambda: len(elected(bench)) == 1, "one is elected")
    release(bench)
    wait_done(bench, first, limit_s=10)
    assert [worker.stop() for worker in workers] == [0, 0]
    assert bench.runs() == {first: 1, second: 1}
    assert bench.done()[first].attempts == 1
    bench.audit([first, second])


def test_a_newer_format_is_left_alone(make_bench):
    """B93."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    bench.once()
    record = b'{"v":2,"id":"new","type":"ok","payload":{},"later":[1]}\n'
    newer = [bench.q / path for path in (
        "incoming/5.1795000000000000.0.0.ok.new.v2.json", "failed/5.1795000000000001.0.1.ok.new1.v3.json",
        "dlq/new2.v2.json", "processing/5.1795000000000002.0.1.ok.new3.aaaaaaaa-1-1-1.v2.json")]
    for path in newer:
        path.write_bytes(record)
    ids = [bench.enqueue("ok") for _ in range(3)]
    assert bench.once().code == 0
    assert all(path.read_bytes() == record for path in newer), bench.waiting()
    assert set(bench.done()) == set(ids) and bench.names("corrupt") == []
    assert bench.findings() == []


# --- trouble with our own disk ------------------------------------------------------------------------------------------

@pytest.fixture
def island(make_bench):
    """A bench whose spool is a small tmpfs in a namespace of its own."""
    bench = make_bench(SAFETY_SCAN_S=0.5, CONCURRENCY=1)
    bench.handler("slow", UNTIL)
    bench.handler("ok", "exit 0")
    bench.handler("flaky", '[ "$EDGEQ_ATTEMPT" != 1 ]')
    found = Island(bench, "size=512k,nr_inodes=200")
    yield found
    bench.stop_all()
    found.close()


def test_read_only_and_back(island):
    """B17, F2: a finished handler is not run again, no try is charged, nothing spins, and it goes on by itself."""
    bench = island.bench
    worker = bench.worker()
    running = bench.enqueue("slow")
    waiting = [bench.enqueue("ok"), bench.enqueue("flaky")]
    wait_for(is_running(bench, running), "it runs")
    island.remount("ro")
    refused = bench.edgeq("enqueue", "ok", by="wrapper")
    assert refused.code in (73, 74, 75) and refused.out == "" and len(refused.err.splitlines()) == 1, refused
    refused = bench.edgeq("enqueue", "ok")
    assert refused.code in (73, 74, 75) and refused.out == "" and len(refused.err.splitlines()) == 1, refused
    release(bench)
    wait_for(lambda: "Read-only" in worker.log, lambda: "it notices: " + worker.log)
    wait_for(lambda: bench.edgeq("status", by="wrapper").code == 2, "status says broken", 10)
    status = bench.edgeq("status", by="wrapper")
    assert status.out.count("\n") == 1 and "Read-only" in status.out, status
    switches, ticks = voluntary(worker.pid), cpu_ticks(worker.pid)
    time.sleep(3)  # a span to count in, not a wait
    assert voluntary(worker.pid) - switches < 45 and cpu_ticks(worker.pid) - ticks < 20
    island.remount("rw")
    wait_done(bench, running, *waiting)
    assert len(worker.log.splitlines()) < 25, worker.log
    assert bench.runs() == {running: 1, waiting[0]: 1, waiting[1]: 2}
    assert {id: line.attempts for id, line in bench.done().items()} == {running: 1, waiting[0]: 1, waiting[1]: 2}
    assert bench.names("dlq") == bench.names("corrupt") == []
    assert worker.stop() == 0


def test_full_disk_and_back(island):
    """B14, B16, F1: refused clearly, nothing left behind, no job lost or charged, all run when there is room."""
    bench = island.bench
    worker = bench.worker()
    running = bench.enqueue("slow")
    waiting = [bench.enqueue(type) for type in ("ok", "flaky", "ok", "ok", "ok")]
    wait_for(is_running(bench, running), "it runs")
    island.fill()
    before = bench.names("incoming", dots=True)
    for by in ("wrapper", "pyz"):
        refused = bench.edgeq("enqueue", "ok", '{"x":"%s"}' % ("y" * 20000), by=by)
        assert refused.code == 75 and refused.out == "" and len(refused.err.splitlines()) == 1, refused
        assert bench.names("incoming", dots=True) == before
    release(bench)
    wait_for(lambda: "No space" in worker.log or len(bench.done()) == 6, lambda: "it notices, or the ballast did: " + worker.log)
    assert bench.names("dlq") == bench.names("corrupt") == []
    island.free()
    wait_done(bench, running, *waiting)
    assert {id: line.attempts for id, line in bench.done().items()} == {
        id: 2 if id == waiting[1] else 1 for id in [running] + waiting}
    assert bench.names("dlq") == bench.names("corrupt") == []
    after = bench.enqueue("ok", by="wrapper")
    wait_done(bench, after)
    assert worker.stop() == 0
    assert not (bench.q / "running").exists() and bench.waiting() == {}


def test_a_dead_letter_on_a_full_disk(island):
    """P7: finishing fits, with the ballast or by a rename that needs no byte."""
    bench = island.bench
    bench.handler("doomed", UNTIL + "echo at the end; exit 65")
    bench.once()
    worker = bench.worker()
    id = bench.enqueue("doomed")
    wait_for(is_running(bench, id), "it runs")
    island.fill()
    release(bench)
    wait_for(lambda: bench.names("dlq") == [id + ".json"], lambda: "dead: " + worker.log)
    assert bench.dead()[id]["id"] == id
    wait_for(lambda: bench.names("processing") == [], "and its claim is gone")
    island.free()
    assert worker.stop() == 0


# --- costs ---------------------------------------------------------------------------------------------------------------

def voluntary(pid):
    """How often it went to sleep by itself."""
    return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", Path("/proc/%d/status" % pid).read_text(), re.M)[1])


def cpu_ticks(pid):
    fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_descriptors_and_zombies_stay_flat(make_bench):
    """B57: 300 jobs of every kind."""
    bench = make_bench(CONCURRENCY=4, MAX_ATTEMPTS=2, SYNC_JOBS=8)
    bench.handler("ok", "echo out; exit 0")
    bench.handler("bad", "echo no; exit 65")
    bench.handler("flaky", '[ "$EDGEQ_ATTEMPT" != 1 ]')
    bench.handler("sig", "kill -9 $$")
    worker = bench.worker().wait_asleep()
    before = sorted(os.listdir("/proc/%d/fd" % worker.pid))
    types = ["ok", "bad", "flaky", "sig", "ok"]
    ids = bench.enqueue_many([{"type": types[n % 5]} for n in range(300)])
    wait_for(lambda: len(bench.done()) + len(bench.dead()) == 300, lambda: "all settled: " + worker.log[-3000:])
    wait_for(lambda: not bench.names("incoming") and not bench.names("failed"), "nothing waits")
    worker.wait_asleep()
    assert children_of(worker.pid) == []
    assert len(os.listdir("/proc/%d/fd" % worker.pid)) <= len(before) + 1  # the journal's segment
    assert worker.stop() == 0
    assert os.listdir(bench.r / "ctl") == leases(bench) == []
    bench.audit(ids)


def test_idle_means_idle(make_bench, tmp_path):
    """P10: over several safety scans no write, no flush and no change below the spool, and no waking in between."""
    bench = make_bench(SAFETY_SCAN_S=1, REPORT_S=0)
    bench.handler("ok", "exit 0")
    worker = bench.worker()
    for type in ("ok", "nobody"):
        bench.enqueue(type)
    bench.enqueue("ok", "--delay", 3600)
    wait_for(lambda: len(bench.done()) == 1 and "held" in worker.log, "it has seen all kinds")
    bench.configure(SYNC_WINDOW_MS=0)
    worker.signal(signal.SIGHUP)
    wait_for(lambda: bench.names("processing") == [], "all flushed")
    worker.wait_asleep()
    switches = voluntary(worker.pid)
    time.sleep(3.2)  # a span to count in, not a wait
    assert voluntary(worker.pid) - switches <= 18  # three scans; a rename may sleep where /run is no tmpfs, as here
    strace = subprocess.Popen([tool("strace"), "-qq", "-f", "-y", "-p", str(worker.pid), "-o", str(tmp_path / "trace"),
                               "-e", "signal=none"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(3.2)  # a span to count in, not a wait
    strace.terminate()
    strace.wait()
    calls = read_trace(tmp_path / "trace")
    polls = [call for call in calls if call.name in ("poll", "ppoll", "restart_syscall")]
    assert 2 <= len(polls) <= 6, polls
    writes = [call for call in calls if call.touches(bench.spool) and (
        call.name in DISK_CALLS and call.is_write and "EEXIST" not in call.text)]
    assert writes == [], writes
    assert worker.stop() == 0


def test_idle_sleeps_the_whole_safety_scan(make_bench):
    bench = make_bench(SAFETY_SCAN_S=60)
    worker = bench.worker().wait_asleep()
    switches = voluntary(worker.pid)
    time.sleep(3)  # a span to count in, not a wait
    assert voluntary(worker.pid) == switches
    assert worker.stop() == 0


# --- batches and order ---------------------------------------------------------------------------------------------------

def shape_of(bench, trace):
    """F for each fdatasync below the spool, u for each unlink."""
    return "".join("F" if call.name == "fdatasync" else "u" for call in read_trace(trace) if call.touches(bench.spool))


def test_completions_are_flushed_after_sync_jobs(make_bench, tmp_path):
    bench = make_bench(CONCURRENCY=1, SYNC_JOBS=4, SYNC_WINDOW_MS=60000)
    bench.handler("ok", "exit 0")
    bench.enqueue_many([{"type": "ok"} for _ in range(10)])
    assert bench.once(prefix=trace_argv(tmp_path / "trace", ["fdatasync", "unlink"], follow=False)).code == 0
    shape = shape_of(bench, tmp_path / "trace")
    assert shape == "FuuuuFuuuuFuu" + shape[13:] and shape[13:] in ("", "u"), shape  # the last unlink: the running mark


def test_a_type_may_settle_each_job_at_once(make_bench, tmp_path):
    bench = make_bench(CONCURRENCY=1, SYNC_JOBS=100, SYNC_WINDOW_MS=60000)
    bench.type_conf("ok", SYNC_JOBS=1)
    bench.handler("ok", "exit 0")
    bench.enqueue_many([{"type": "ok"} for _ in range(3)])
    assert bench.once(prefix=trace_argv(tmp_path / "trace", ["fdatasync", "unlink"], follow=False)).code == 0
    shape = shape_of(bench, tmp_path / "trace")
    assert shape.startswith("FuFuFu"), shape


def test_completions_are_flushed_after_the_window(make_bench):
    bench = make_bench(SYNC_JOBS=100, SYNC_WINDOW_MS=700, SAFETY_SCAN_S=60)
    bench.handler("ok", "exit 0")
    worker = bench.worker()
    id = bench.enqueue("ok")
    wait_done(bench, id)
    assert bench.waiting()[id].endswith(".settling")
    wait_for(lambda: bench.names("processing") == [], "flushed and gone", 5)
    bench.configure(SYNC_WINDOW_MS=60000)
    worker.signal(signal.SIGHUP)
    wait_for(lambda: "reloaded" in worker.log, "reloaded")
    ids = [bench.enqueue("ok") for _ in range(3)]
    wait_done(bench, *ids)
    worker.wait_asleep()
    assert len(bench.names("processing")) == 3
    assert worker.stop() == 0  # at once on stop
    assert bench.names("processing") == []


def find(calls, name, pattern, after=-1):
    """Index of the first call of that name whose line matches, after index `after`."""
    for at, call in enumerate(calls):
        if at > after and call.name == name and re.search(pattern, call.text):
            return at
    rest = [call.text for call in calls[max(after, 0):] if "/default" in call.text and call.is_write]
    raise AssertionError("no %s of %s after call %d; there are\n%s" % (name, pattern, after, "\n".join(rest[:40])))


def test_order_of_a_job_that_works_is_retried_or_dies(make_bench, tmp_path):
    """B03, B04: the table of DESIGN 3, file by file."""
    bench = make_bench(CONCURRENCY=1)
    bench.handler("ok", "exit 0")
    bench.handler("flaky", '[ "$EDGEQ_ATTEMPT" != 1 ]')
    bench.handler("bad", "exit 65")
    for type in ("ok", "flaky", "bad"):
        bench.enqueue(type, "--id", type + "1")
    assert bench.once(prefix=trace_argv(tmp_path / "trace", follow=False)).code == 0
    calls = [call for call in read_trace(tmp_path / "trace")
             if call.touches(bench.spool, bench.run_dir) and "-1 E" not in call.text]

    mark = find(calls, "rename", r'"[^"]*/default/running"\)')
    find(calls[:mark], "fsync", r"default/\.[0-9a-f-]+>")
    claim = find(calls, "rename", r"incoming/.*processing/.*ok1")
    assert find(calls, "fsync", r"spool/default>", mark) < claim, "the mark is safe before the first claim"
    for id in ("ok1", "flaky1", "bad1"):
        claimed = find(calls, "rename", r"processing/[^/]*\.%s\.[0-9a-z-]+\.json\"\)" % id)
        token = re.search(r"\.%s\.([0-9a-z-]+)\.json" % id, calls[claimed].text)[1]
        lease = [at for at, call in enumerate(calls) if "leases/" + token in call.text and call.is_write]
        assert lease and lease[0] < claimed, "lease before claim"
    settling = find(calls, "rename", r"\.ok1\..*\.settling\"\)")
    line = find(calls, "pwrite64", r'"ok1 ', settling)
    flush = find(calls, "fdatasync", r"/done/", line)
    find(calls, "unlink", r"\.ok1\..*\.settling", flush)
    assert not any(call.name == "unlink" and ".ok1." in call.text for call in calls[:flush])

    retried = find(calls, "rename", r"processing/.*\.flaky1\..*failed/")
    find(calls, "fsync", r"/failed>", retried)

    settling = find(calls, "rename", r"\.bad1\..*\.settling\"\)")
    written = find(calls, "write", r"/dlq/\..*bad1", settling)
    flushed = find(calls, "fsync", r"/dlq/\.", written)
    renamed = find(calls, "rename", r"/dlq/\..*/dlq/bad1\.json", flushed)
    folder = find(calls, "fsync", r"/dlq>", renamed)
    find(calls, "unlink", r"\.bad1\..*\.settling", folder)
    assert not any(call.name == "unlink" and ".bad1." in call.text for call in calls[:folder])


@pytest.mark.parametrize("by", ["pyz", "wrapper"])
@pytest.mark.parametrize("words", [["--id", "x1"], []])
def test_order_of_an_enqueue(make_bench, tmp_path, by, words):
    """P2, P3: written under a dot-name, renamed, flushed once through the descriptor, and only then the id."""
    bench = make_bench()
    bench.enqueue("ok")
    result = bench.edgeq("enqueue", "ok", '{"mark":1}', *words, by=by, prefix=trace_argv(tmp_path / "trace"))
    assert result.code == 0
    calls = read_trace(tmp_path / "trace")
    written = find(calls, "write", r"/incoming/\.[0-9a-f-]+>.*mark")
    renamed = find(calls, "rename", r"/incoming/\.[0-9a-f-]+\".*/incoming/5\..*\.json\"", written)
    flushed = find(calls, "fsync", r"/incoming/5\..*\.json>", renamed)
    told = r'write\(1<pipe:.*"%s' % result.out.strip()
    find(calls, "write", told, flushed)
    assert not any(re.search(told, call.text) for call in calls[:flushed])
    flushes = [call for call in calls if call.name in ("fsync", "fdatasync", "sync", "syncfs")]
    assert len(flushes) == 1, flushes


def test_order_of_kick_and_cancel(make_bench, tmp_path):
    bench = make_bench()
    bench.handler("bad", "exit 65")
    bench.enqueue("bad", "--id", "d1")
    bench.once()

    def calls_of(*words, **more):
        result = bench.edgeq(*words, prefix=trace_argv(tmp_path / "trace", follow=False), **more)
        assert result.code == 0, result
        return read_trace(tmp_path / "trace")
    calls = calls_of("kick", "d1")
    renamed = find(calls, "rename", r"/dlq/d1\.json.*/incoming/5\.\d+\.0\.0r\.bad\.d1\.json")
    find(calls, "write", r'1<pipe:.*"d1', find(calls, "fsync", r"/incoming/5.*d1\.json>", renamed))
    calls = calls_of("cancel", "d1")
    find(calls, "fsync", r"/incoming>", find(calls, "unlink", r"\.d1\.json"))


@pytest.mark.parametrize("words", [(), ("-O", "^has_journal")])
def test_order_of_a_batch(make_ext4, pyz, tmp_path, words):
    """All are written before the first is visible, all are safe before the ids are told; nothing else is flushed.

    With a journal: the bytes of each are sent, then waited for, then all renamed, then the last one flushed. Without: syncfs.
    """
    bench = Bench(make_ext4(*words), pyz)
    bench.enqueue("ok")
    ids = ["b%02d" % n for n in range(40)]  # more than are open at once
    result = bench.edgeq("enqueue", "--batch", input="".join('{"type":"ok","id":"%s"}\n' % id for id in ids).encode(),
                         prefix=trace_argv(tmp_path / "trace", follow=False))
    assert result.code == 0 and result.out.split() == ids, result
    calls = read_trace(tmp_path / "trace")
    renamed = [find(calls, "rename", r"\.ok\.%s\.json" % id) for id in ids]
    assert renamed == sorted(renamed)
    written = [find(calls, "write", r"incoming/\..*\b%s\b" % id) for id in ids]
    assert max(written) < renamed[0]
    flushes = [call for call in calls if call.name in ("fsync", "fdatasync", "sync", "syncfs")]
    assert len(flushes) == 1
    if words:
        flushed = find(calls, "syncfs", "incoming", renamed[-1])
    else:
        for write in written:
            dot = re.escape(re.search(r"incoming/(\.[0-9a-f-]+)>", calls[write].text)[1])
            sent = find(calls, "sync_file_range", dot + r">, 0, 0, SYNC_FILE_RANGE_WRITE\) += 0", write)
            waited = find(calls, "sync_file_range", dot + r">, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE\|SYNC_FILE_RANGE_WRITE\|"
                          r"SYNC_FILE_RANGE_WAIT_AFTER\) += 0", sent)
            assert waited < renamed[0]
        flushed = find(calls, "fsync", r"incoming/5.*\.b39\.json>", renamed[-1])
    find(calls, "write", r'1<pipe:.*"b00', flushed)


def test_bench_is_honest(make_bench):
    """The oracle itself: it sees a lost job, a doubled one and a torn line."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    id = bench.enqueue("ok")
    bench.drain()
    bench.audit([id])
    with pytest.raises(AssertionError):
        bench.audit([id, "never"])
    (segment,) = [bench.q / "done" / name for name in bench.names("done")]
    data = segment.read_bytes()
    segment.write_bytes(data.replace(id.encode(), id.encode()[:-1] + b"x", 1))
    with pytest.raises(AssertionError):
        bench.audit([id])
    segment.write_bytes(data)
    (bench.q / "dlq" / (id + ".json")).write_text("{}\n")
    with pytest.raises(AssertionError):
        bench.audit([id])
    assert isinstance(bench, Bench) and len(BOOT_ID) == 36
