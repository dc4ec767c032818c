"""Field reports about the worker and its handlers: signals, leases, output, descriptors, clocks, retries, locale, permissions."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.fault.outside import WRAPPER, children_of, each, is_alive, state_of, tool
from tests.field.bench import cpu_s, named, private_kb, wait_for, zombies

UNTIL = 'while [ ! -e "{root}/go" ]; do sleep 0.02; done\n'


def sleeps(seconds):
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if read(path) == b"sleep\0%d\0" % seconds]


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


# --- liveness, exec errors -------------------------------------------------------------------------------------------


def test_it_says_so_when_it_cannot_see_its_jobs(make_bench):
    """B09: incoming/ cannot be listed: status is not ok and does not exit 0; afterwards it goes on without a restart."""
    bench = make_bench(SAFETY_SCAN_S=0.3)
    bench.handler("ok", "exit 0")
    worker = bench.worker().wait_asleep()
    id = bench.enqueue("ok", "--delay", 2)
    other = bench.q / "elsewhere"
    os.rename(bench.q / "incoming", other)
    (bench.q / "incoming").write_text("in the way")
    wait_for(lambda: 'last_error=""' not in bench.edgeq("status", by="wrapper").out, lambda: "status names it: " + worker.log, 30)
    code, fields = bench.status()
    assert code == 2 and fields["worker"] == "up", fields
    (bench.q / "incoming").unlink()
    if (bench.q / "incoming").is_dir():
        (bench.q / "incoming").rmdir()
    os.rename(other, bench.q / "incoming")
    bench.wait_done(id)
    wait_for(lambda: bench.edgeq("status", by="wrapper").code in (0, 1), "status is well again", 30)
    assert worker.stop() == 0 and len(worker.log) < 4096


def test_handlers_that_cannot_be_started(make_any):
    """B12: empty, no shebang, no x bit, no interpreter, a folder, a dangling link, none: held with the errno's words."""
    bench = make_any()
    bench.handler("good", "exit 0")
    (bench.handlers / "e0").touch(0o755)
    (bench.handlers / "e1").write_text("echo hi\n")
    (bench.handlers / "e1").chmod(0o755)
    (bench.handlers / "e2").write_text("#!/bin/sh\n")
    (bench.handlers / "e3").write_text("#!/no/such/shell\n")
    (bench.handlers / "e3").chmod(0o755)
    (bench.handlers / "e4").mkdir()
    (bench.handlers / "e5").symlink_to("/no/such/file")
    ids = {type: bench.enqueue(type, by="wrapper") for type in ("e0", "e1", "e2", "e3", "e4", "e5", "e6", "good")}
    result = bench.once()
    assert result.code == 75 and bench.ids_in("done") == {ids["good"]}, result
    for type in sorted(set(ids) - {"good"}):
        why = bench.edgeq("why", ids[type])
        assert why.code == 0 and why.out.count("\n") == 1 and "held" in why.out, why
        assert re.search("empty|exec|ermission|No such|not executable|directory|folder|handler|format", why.out), why
    assert bench.ids_in("dlq", "failed") == set()
    assert bench.status()[1]["held"] == "7"


@pytest.mark.parametrize("new", (b"", b"\x7fELF" * 300_000), ids=("cut", "other"))
def test_the_program_may_be_replaced_under_its_workers(make_any, new):
    """B12: an update takes the zipapp away; what comes later is done all the same, by a second worker that is elected later too."""
    bench = make_any(SAFETY_SCAN_S=0.3, DLQ_KEEP=1)
    bench.handler("ok", "exit 0")
    bench.handler("bad", "exit 65")
    whole, bench.pyz = bench.pyz, Path(shutil.copy(bench.pyz, bench.root / "edgeq.pyz"))
    first, second = bench.worker().wait_asleep(), bench.worker().wait_asleep()
    bench.pyz.write_bytes(new)
    bench.pyz = whole
    assert first.stop() == 0
    ids = [bench.edgeq("enqueue", "bad", by="wrapper").out.strip() for _ in range(3)]
    (bench.q / "incoming" / "by hand").write_text('{"type":"ok","id":"dropped"}\n')
    (bench.q / "incoming" / "torn").write_text('{"type"')
    bench.accepted.append(bench.edgeq("enqueue", "ok", "--key", "k", by="wrapper").out.strip())
    bench.wait_done("dropped", *bench.accepted)
    wait_for(lambda: bench.ids_in("dlq") == {ids[-1]} and "torn" in bench.names("corrupt"), lambda: second.log, 30)
    assert second.stop() == 0, second.log


# --- signals, groups ---------------------------------------------------------------------------------------------------


def test_time_out_ends_the_whole_group(make_any):
    """B47: 20 handlers with a child each, some deaf to TERM: TERM to the group, grace, KILL; no sleep is left."""
    bench = make_any(CONCURRENCY=8, GRACE_S=0.5, MAX_ATTEMPTS=1)
    bench.type_conf("fork", TIMEOUT_S="0.5")
    bench.type_conf("deaf", TIMEOUT_S="0.5")
    bench.handler("fork", "sh -c 'sleep 4747; :'")
    bench.handler("deaf", "trap 'echo heard' TERM; sh -c 'trap \"\" TERM; sleep 4747; :' & wait; wait; sleep 4747")
    ids = [bench.enqueue("deaf" if n % 4 == 0 else "fork") for n in range(20)]
    assert bench.once().code == 0
    assert bench.ids_in("dlq") == set(ids)
    wait_for(lambda: not sleeps(4747), "no sleep is left", 5)
    assert "timeout after 0.5 s" in bench.edgeq("why", ids[0]).out


def test_term_puts_the_running_job_back(make_any):
    """B50, B38: handler far longer than the grace: processing/ is empty at exit, the group gone, the job waits; one rerun."""
    bench = make_any(GRACE_S=0.3)
    bench.handler("long", '[ -e "{root}/go" ] || exec sleep 5050')
    bench.handler("ok", "exit 0")
    worker = bench.worker()
    first = bench.enqueue("long")
    wait_for(lambda: bench.runs().get(first) and sleeps(5050), "it runs")
    rest = bench.enqueue_many([{"type": "ok", "available_at": int(time.time()) + 4000} for _ in range(50)])
    begun = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - begun < 10
    assert bench.ids_in("processing") == set() and bench.ids_in("incoming") == {first, *rest}
    assert not sleeps(5050)
    why = bench.edgeq("why", first).out
    assert first in why and ("stop" in why or "again" in why or "redeliver" in why or "ready" in why), why
    (bench.root / "go").touch()
    assert bench.once().code == 0
    assert bench.runs() == {first: 2}


def test_killed_two_seconds_after_term(make_any):
    """B38: KILL follows TERM at once: nothing is lost, the running job is repeated once with its try counted."""
    bench = make_any(GRACE_S=30)
    bench.handler("ok", '[ -e "{root}/go" ] || exec sleep 3838')
    ids = bench.enqueue_many([{"type": "ok"} for _ in range(40)])
    worker = bench.worker("--concurrency", 1)
    wait_for(lambda: sleeps(3838), "one runs")
    worker.signal(signal.SIGTERM)
    wait_for(lambda: "stopping" in worker.log, "it heard")
    worker.kill()
    (bench.root / "go").touch()
    bench.drain()
    assert bench.ids_in("done") == set(ids) and sorted(bench.runs().values()) == [1] * 39 + [2]
    assert not sleeps(3838)


def test_a_kill_repeats_only_what_was_in_flight(make_any):
    """B84: killed at half of job 1 while job 2 was done meanwhile: 1 runs again, 2 does not."""
    bench = make_any(SYNC_JOBS=1)
    bench.handler("slow", '[ -e "{root}/go" ] || exec sleep 8484')
    bench.handler("ok", "exit 0")
    worker = bench.worker()
    first = bench.enqueue("slow")
    wait_for(lambda: sleeps(8484), "it runs")
    second = bench.enqueue("ok")
    bench.wait_done(second)
    worker.kill()
    (bench.root / "go").touch()
    bench.drain()
    assert bench.runs() == {first: 2, second: 1} and not sleeps(8484)


def test_a_long_job_is_not_a_dead_one(make_any):
    """B52: the lease is a sixth of the run; a second worker takes nothing. A worker that stood still changes nothing later."""
    bench = make_any(LEASE_S=1, SAFETY_SCAN_S=0.3, CONCURRENCY=1)
    bench.handler("long", "sleep 4")
    bench.handler("once", '[ -e "{root}/seen" ] && exit 0; : >"{root}/seen"; exec sleep 5252')
    bench.handler("busy", UNTIL)
    other = bench.worker()  # the first one reaps; it must be the one that lives
    busy = bench.enqueue("busy")
    wait_for(lambda: children_of(other.pid), "its hands are full")
    holder = bench.worker()
    id = bench.enqueue("long")
    bench.wait_done(id)
    assert bench.runs() == {busy: 1, id: 1}
    late = bench.enqueue("once")
    wait_for(lambda: sleeps(5252), "the other runs it")
    holder.signal(signal.SIGSTOP)
    wait_for(lambda: not sleeps(5252), lambda: "taken over: " + other.log, 30)
    (bench.root / "go").touch()
    bench.wait_done(late)
    holder.signal(signal.SIGCONT)
    wait_for(lambda: "lease lost" in holder.log or "late" in holder.log, lambda: "it notices: " + holder.log)
    bench.wait_settled()
    assert [holder.stop(), other.stop()] == [0, 0]
    assert bench.runs() == {id: 1, busy: 1, late: 2} and not sleeps(5252)


def test_a_delay_longer_than_the_lease_is_one_run(make_any):
    """B53: three workers, a lease of 1 s, a delay of 4 s: run once, at its time, and never shown as processing before."""
    bench = make_any(LEASE_S=1, SAFETY_SCAN_S=0.3)
    bench.handler("ok", 'date +%s >>"{root}/at"')
    workers = [bench.worker() for _ in range(3)]
    begun = time.time()
    id = bench.enqueue("ok", "--delay", 4, by="wrapper")
    while time.time() - begun < 3.5:
        assert bench.where()[id] == ["incoming"]
        time.sleep(0.1)  # looking all the while
    bench.wait_done(id)
    assert 4 <= int((bench.root / "at").read_text()) + 1 - begun < 12
    assert [worker.stop() for worker in workers] == [0] * 3 and bench.runs() == {id: 1}


def test_many_at_once_are_all_taken_and_cost_no_polling(make_any):
    """B64: 60 wrapper enqueues at once beside two workers; 300 waiting jobs that may not run cost a worker nothing."""
    bench = make_any(SAFETY_SCAN_S=60)
    bench.handler("ok", "exit 0")
    workers = [bench.worker(), bench.worker()]
    ids = each(lambda _: bench.enqueue("ok", by="wrapper"), range(60), threads=20)
    assert len(set(ids)) == 60
    bench.wait_settled(*ids)
    assert bench.runs() == {id: 1 for id in ids}
    bench.edgeq("pause", "off", by="wrapper")
    bench.enqueue_many([{"type": "off"} for _ in range(300)])
    for worker in workers:
        worker.wait_asleep()
    used = [cpu_s(worker.pid) for worker in workers]
    time.sleep(4)  # a span to count in, not a wait
    assert all(cpu_s(worker.pid) - was < 0.08 for worker, was in zip(workers, used))
    assert [worker.stop() for worker in workers] == [0, 0]


def test_retries_are_spread_and_starve_nobody(make_any):
    """B65: 60 jobs that fail together come back spread over the jitter, within floor and cap; a fresh job goes at once."""
    bench = make_any(BASE_DELAY_S=2, MAX_DELAY_S=4, JITTER=0.5, CONCURRENCY=8, MAX_ATTEMPTS=3)
    bench.handler("bad", 'echo "$EDGEQ_ID $EDGEQ_ATTEMPT $(date +%s.%N)" >>"{root}/times"; exit 1')
    bench.handler("ok", 'date +%s.%N >>"{root}/fresh"')
    worker = bench.worker()
    ids = bench.enqueue_many([{"type": "bad"} for _ in range(60)])
    wait_for(lambda: len(bench.runs()) == 60, "all failed once")
    begun = time.time()
    bench.wait_done(bench.enqueue("ok", by="wrapper"))
    assert float((bench.root / "fresh").read_text()) - begun < 10
    bench.wait_settled(*ids)
    times = {}
    for line in (bench.root / "times").read_text().splitlines():
        id, attempt, at = line.split()
        times.setdefault(id, {})[int(attempt)] = float(at)
    waits = [found[2] - found[1] for found in times.values()]
    assert min(waits) >= 0.9 and len({round(found[2]) for found in times.values()}) >= 2, sorted(waits)
    assert all(len(found) == 3 for found in times.values())
    assert worker.stop() == 0


def test_the_sixtieth_try_overflows_nothing(make_bench):
    """B65: a job at try 60 of 999 fails again: due within the cap."""
    bench = make_bench(MAX_DELAY_S=10, BASE_DELAY_S=2, MAX_ATTEMPTS=999)
    bench.handler("bad", "exit 1")
    bench.once()
    (bench.q / "failed/5.1700000000000000.1700000000.998.bad.old.json").write_text('{"id":"old","type":"bad","payload":{}}\n')
    (bench.q / "failed/5.1700000000000001.1700000000.60.bad.mid.json").write_text('{"id":"mid","type":"bad","payload":{}}\n')
    assert bench.once().code == 0
    (name, ) = [name for name in bench.names("failed") if ".mid." in name]
    assert time.time() < int(name.split(".")[2]) + 11 < time.time() + 22
    assert "old" in bench.ids_in("dlq", "failed")


def test_the_last_failure_is_the_end_of_it(make_any):
    """B66: dead once, one line in the log, and several scans later nothing more of it."""
    bench = make_any(MAX_ATTEMPTS=2, SAFETY_SCAN_S=0.2, BASE_DELAY_S=0)
    bench.handler("bad", "exit 1")
    worker = bench.worker()
    id = bench.enqueue("bad", by="wrapper")
    wait_for(lambda: bench.ids_in("dlq") == {id}, lambda: "dead: " + worker.log)
    said = worker.log
    stamp = (bench.r / "status").read_text()
    wait_for(lambda: (bench.r / "status").read_text() != stamp, "it scanned again")
    time.sleep(1)  # five scans: a span, not a wait
    assert [line for line in worker.log[len(said):].splitlines() if id in line and " dead " not in line] == []
    assert worker.log.count(" dead ") == 1
    assert worker.stop() == 0 and bench.runs() == {id: 2}


def test_overlapping_runs_share(make_any):
    """B67: five `work --once` of a cron that is too eager, one of them killed: each job once but the killed one's."""
    bench = make_any(CONCURRENCY=1)
    bench.handler("ok", "sleep 0.3")
    ids = bench.enqueue_many([{"type": "ok"} for _ in range(10)])
    runs = [bench.worker("--once", ready=False) for _ in range(5)]
    assert [run.wait() for run in runs] == [0] * 5
    bench.drain()
    assert bench.runs() == {id: 1 for id in ids}
    hit = bench.enqueue("ok")
    killed = bench.worker("--once")
    wait_for(lambda: bench.runs().get(hit), "it runs")
    killed.kill()
    bench.drain()
    assert bench.ids_in("done") == {*ids, hit}


# --- output, stdin, descriptors, zombies ---------------------------------------------------------------------------------


def test_400_mb_of_output_cost_no_memory(make_bench):
    """B55: 200 MB on each stream without a newline: bounded memory, the tail kept, the exit code kept."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    bench.handler("flood", "head -c 200M /dev/zero | tr '\\0' x & head -c 200M /dev/zero | tr '\\0' y >&2; wait; exit 65")
    worker = bench.worker()
    bench.wait_done(bench.enqueue("ok"))
    before = private_kb(worker.pid)
    id = bench.enqueue("flood")
    wait_for(lambda: bench.ids_in("dlq") == {id}, "dead", 120)
    assert private_kb(worker.pid) - before < 2048
    record = json.loads(bench.edgeq("show", id).out.splitlines()[0])
    assert record["last_error"].startswith("exit 65") and len(record["last_error"]) <= 4200
    assert worker.stop() == 0


def test_odd_bytes_change_nothing(make_any):
    """B56, B77: bytes that are no text, and lines made to look like ours: exit code decides, log and status stay one line each."""
    bench = make_any(MAX_ATTEMPTS=1)
    bench.handler("zero", "printf '\\377\\300\\n'; head -c 1000000 /dev/urandom; head -c 1000000 /dev/urandom >&2; exit 0")
    bench.handler("three", "head -c 1000000 /dev/urandom; printf '\\377\\300 \\033[2J\\r\\nedgeq: fake ready=9 dead=7'; exit 3")
    worker = bench.worker()
    ids = [bench.enqueue("zero"), bench.enqueue("three"), bench.enqueue("zero")]
    bench.wait_settled()
    assert bench.ids_in("done") == {ids[0], ids[2]} and bench.ids_in("dlq") == {ids[1]}
    assert worker.stop() == 0
    for line in worker.log_path.read_bytes().splitlines():
        assert line.startswith(b"edgeq: 2") and all(32 <= byte < 127 for byte in line), line
    for verb in (["ls", "dlq"], ["why", ids[1]], ["status", "-v"], ["log"]):
        for line in bench.edgeq(*verb).out.splitlines():
            assert line.isprintable() and not line.startswith("edgeq: fake"), (verb, line)
    code, fields = bench.status()
    assert (fields["dead"], fields["ready"], fields["done"]) == ("1", "0", "2")


def test_newlines_forge_nothing(make_any):
    """B77: payload, error text and file names with line breaks and escapes; five lines of shell read the right counts."""
    bench = make_any(MAX_ATTEMPTS=1)
    bench.handler("bad", "cat; echo; echo 'x\" ready=99 last_error='; exit 65")
    bench.once()
    for n in range(3):
        bench.enqueue("bad", json.dumps("one\ntwo\r\x1b[2J ready=9 \x00"[:-1]), by="wrapper")
    for name in (b"new\nline", b"esc\x1b[2J", b"ready=9 dead=9", b"\xff\xfe"):
        Path(os.fsdecode(os.fsencode(bench.q / "incoming") + b"/" + name)).write_text("rubbish")
    result = bench.once()
    assert result.code == 0
    assert all(line.startswith("edgeq: 2") and line.isprintable() for line in result.err.splitlines()), result.err
    status = bench.edgeq("status", by="wrapper").out
    script = ('read -r when rest; for word in $rest; do case $word in ready=*|dead=*|corrupt=*) echo "$word";; '
              'last_error=*) break;; esac; done')
    done = subprocess.run([str(bench.bin / "sh"), "-c", script], input=status, capture_output=True, text=True,
                          env={"PATH": str(bench.bin)})
    assert done.stdout.split() == ["ready=0", "dead=3", "corrupt=4"], (status, done)
    for verb in (["ls"], ["ls", "dlq"], ["ls", "corrupt"], ["status", "-v"], ["log"]):
        out = bench.edgeq(*verb).out
        assert all(line.isprintable() for line in out.splitlines()), (verb, out)
        if verb == ["status", "-v"]:
            assert all(len(line) <= 80 for line in out.splitlines()[1:]), (verb, out)  # below the status line a table


def test_the_handlers_stdin_is_the_payload_alone(make_any):
    """B57: worker with an open FIFO as stdin, with none at all, on a terminal: payload, then the end."""
    bench = make_any()
    bench.handler("cat", 'cat >>"{root}/in"; echo "rc=$?" >>"{root}/in"')
    script = {
        "fifo": 'mkfifo "$0"; sleep 5757 >"$0" & p=$!; "$@" work --once <"$0"; r=$?; kill $p; exit $r',
        "closed": '"$@" work --once <&-', "all closed": '"$@" work --once <&- >&- 2>&-',
        "terminal": 'script -qec "$1 work --once" /dev/null </dev/null'
    }
    for name, text in script.items():
        bench.enqueue("cat", '"payload"')
        done = subprocess.run(
            [tool("sh"), "-c", text, str(bench.root / "fifo"), str(bench.pyz)], env=bench.env(), capture_output=True, timeout=60)
        assert done.returncode == 0, (name, done)
    assert (bench.root / "in").read_text() == "payloadrc=0\n" * len(script)
    assert not sleeps(5757)


def test_a_reader_that_goes_away_stops_nobody(make_any):
    """B59: the log's reader leaves after a line; ls | head; closed and full standard outputs."""
    bench = make_any(SAFETY_SCAN_S=0.2, REPORT_S=0)
    bench.handler("bad", "exit 65")
    bench.enqueue_many([{"type": "bad"} for _ in range(20)])
    done = subprocess.run(["bash", "-c", '"$0" work --once 2>&1 | head -n1; exit ${PIPESTATUS[0]}',
                           str(bench.pyz)], env=bench.env(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.count("\n") == 1, done
    assert bench.ids_in("dlq") == set(bench.accepted) and "Traceback" not in done.stderr
    for words in ("ls dlq", "status", "status --json", "show " + bench.accepted[0], "log", "check", "--help"):
        for how, is_bad in (("| head -n1", False), (">&-", True), (">/dev/full", True)):
            done = subprocess.run(["bash", "-c", '"$0" %s %s; exit ${PIPESTATUS[0]}' %
                                   (words, how), str(bench.pyz)], env=bench.env(), capture_output=True, text=True, timeout=60)
            assert "Traceback" not in done.stderr and "Error" not in done.stderr.replace("I/O error", ""), (words, how, done)
            assert not is_bad or done.returncode != 0, (words, how, done)
    done = subprocess.run(["bash", "-c", '"$0" work --once >/dev/full 2>&1', str(bench.pyz)], env=bench.env(), timeout=60)
    assert done.returncode == 0
    done = subprocess.run(
        [str(bench.bin / "sh"), "-c", 'sh "$0" status >&-', str(WRAPPER)], env={**bench.env(), "PATH": str(bench.bin)},
        capture_output=True, timeout=60)
    assert done.returncode != 0


ODD = ["ü", "温", b"\xff", b"a\xc3"]


@pytest.mark.parametrize("env",
                         [{"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
                          {"PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}])
def test_text_beyond_ascii_without_a_locale(make_any, env):
    """B60: ids, types, payloads, output, file names with such bytes: refused or carried, escaped where shown, no traceback."""
    bench = make_any(MAX_ATTEMPTS=1)
    bench.handler("ok", 'cat >>"{root}/in"')
    bench.handler("bad", "printf 'grad \\303\\274 \\346\\270\\251 \\377'; exit 65")
    for by in ("wrapper", "pyz"):
        for word in ODD:
            for words in ([word], ["ok", "--id", word], ["ok", "--key", word], ["ok", "--queue", word]):
                assert bench.edgeq("enqueue", *words, by=by, env=env).code in (64, 65), (by, words)
        assert bench.edgeq("enqueue", "ok", b'"\xff"', by=by, env=env).code == 65
        result = bench.edgeq("enqueue", "ok", '"ü温"', by=by, env=env)
        assert result.code == 0, result
        bench.accepted.append(result.out.strip())
    bench.enqueue("bad")
    incoming = os.fsencode(bench.q / "incoming")
    for name in ("ü".encode(), b"\xff.json", b"5.1700000000000000.0.0.ok.\xff.json"):
        with open(incoming + b"/" + name, "wb") as file:
            file.write('{"id":"ü","type":"ok"}\n'.encode())
    result = bench.once(env=env)
    assert result.code == 0 and result.err.isascii(), result
    assert (bench.root / "in").read_text() == "ü温" * 2
    for verb in (["ls"], ["ls", "dlq"], ["ls", "corrupt"], ["status"], ["status", "-v"], ["status", "--json"], ["log"], ["check"],
                 ["show", bench.accepted[-1]], ["why", bench.accepted[-1]]):
        result = bench.edgeq(*verb, env=env)
        assert result.code in (0, 1, 2), (verb, result)
        assert result.out.isascii(), (verb, result.out)


def test_an_odd_spool_path(make_bench, tmp_path, pyz, device_bin):
    """B60: a path with a letter beyond ASCII and a blank, no locale."""
    from tests.field.bench import FieldBench
    bench = FieldBench(tmp_path / "spöol dir", pyz, device_bin)
    bench.handler("ok", "exit 0")
    env = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for by in ("wrapper", "pyz"):
        assert bench.edgeq("enqueue", "ok", by=by, env=env).code == 0
        assert bench.edgeq("status", by=by, env=env).code in (0, 1, 2)
    assert bench.once(env=env).code == 0
    assert len(bench.done()) == 2


def test_descriptors_zombies_and_memory_stay_flat(make_any):
    """B61, B62: 40 descriptors allowed; every kind of ending, double forks too: as many open as before, no zombie, no growth."""
    bench = make_any(CONCURRENCY=2, MAX_ATTEMPTS=1, SYNC_JOBS=8, MAX_DELAY_S=1, SAFETY_SCAN_S=1)
    bench.type_conf("slow", TIMEOUT_S="0.1")
    bench.handler("ok", "exit 0")
    bench.handler("bad", "exit 1")
    bench.handler("fork", "(true & true &) & exit 0")
    bench.handler("slow", "exec sleep 6161")
    worker = bench.worker(prefix=[tool("prlimit"), "--nofile=40"], ready=False)
    worker.has_prefix = False  # prlimit becomes the worker
    worker.wait_ready()
    bench.enqueue_many([{"type": ("ok", "bad", "fork", "ok")[n % 4]} for n in range(60)])
    bench.wait_settled()
    worker.wait_asleep()
    fds, memory = len(os.listdir("/proc/%d/fd" % worker.pid)), private_kb(worker.pid)
    types = ("ok", "bad", "fork", "slow", "ok", "ok", "bad", "fork", "ok", "ok")
    bench.enqueue_many([{"type": types[n % 10]} for n in range(200)])
    for n in range(20):
        (bench.q / "incoming" / ("rubbish%d" % n)).write_text("rubbish")
    held = bench.enqueue_many([{"type": "nobody"} for _ in range(10)])
    bench.wait_settled(*set(bench.accepted) - set(held))
    wait_for(lambda: bench.ids_in("processing") == set(), "nothing runs")
    worker.wait_asleep()
    assert abs(len(os.listdir("/proc/%d/fd" % worker.pid)) - fds) <= 1
    assert private_kb(worker.pid) - memory < 1024
    assert zombies(worker.pid) == [] and not sleeps(6161)
    assert worker.stop() == 0


def test_eight_descriptors_burn_no_tries(make_bench):
    """B61: so few that a handler cannot be started: it backs off or leaves with a code; nothing is charged."""
    bench = make_bench(MAX_ATTEMPTS=2)
    bench.handler("ok", "exit 0")
    ids = [bench.enqueue("ok") for _ in range(3)]
    for limit in (5, 6, 7, 8, 9, 10, 11, 12):
        result = bench.edgeq("work", "--once", prefix=[tool("prlimit"), "--nofile=%d" % limit])
        assert "Traceback" not in result.err, (limit, result)
        assert result.code != 0 or set(bench.runs()) == set(ids), (limit, result)
    bench.drain()
    assert bench.runs() == {id: 1 for id in ids}


def test_as_process_1_it_reaps_what_is_given_to_it(make_bench):
    """B62: first process of a pid namespace, handlers that fork twice: no zombie stays."""
    bench = make_bench(CONCURRENCY=4)
    bench.handler("fork", "(true & (true &) ) & exit 0")
    bench.enqueue_many([{"type": "fork"} for _ in range(60)])
    worker = bench.worker(prefix=[tool("unshare"), "-fp", "--mount-proc", "--kill-child"], ready=False)
    bench.wait_settled()
    pid = wait_for(lambda: (children_of(worker.process.pid) or [0])[0], "it is there")
    wait_for(lambda: zombies(pid) == [], lambda: "no zombies: %s" % zombies(pid), 10)
    os.kill(pid, signal.SIGTERM)
    worker.process.wait(30)


def test_the_submitter_may_go(make_any):
    """B63: its whole session killed right after exit 0, with and without a worker: the job runs without a tie to it."""
    bench = make_any()
    bench.handler("ok", 'env >"{root}/env"; pwd >>"{root}/env"')
    script = 'cd "$1"; export SECRET=token; id=$(sh "$0" enqueue ok) && echo "$id" && kill -9 0'
    for with_worker in (False, True):
        worker = bench.worker() if with_worker else None
        done = subprocess.run(
            [tool("setsid"), "-w", str(bench.bin / "sh"), "-c", script,
             str(WRAPPER), str(bench.root)], env={**bench.env(), "PATH": str(bench.bin)}, stdout=subprocess.PIPE, timeout=60)
        id = done.stdout.decode().strip()
        bench.accepted.append(id)
        if not with_worker:
            assert bench.once().code == 0
    bench.wait_settled()
    assert worker.stop() == 0
    assert set(bench.runs().values()) == {1} and "SECRET" not in (bench.root / "env").read_text()
    assert (bench.root / "env").read_text().splitlines()[-1] == "/"


# --- clocks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_step_of_the_clock_moves_no_retry(make_any, step):
    """B26: a retry and a delayed job of 3 s; the clock steps an hour: both run 3 s later, not sooner and not an hour later."""
    bench = make_any(BASE_DELAY_S=3, MAX_DELAY_S=3, JITTER=0, SAFETY_SCAN_S=0.5)
    bench.handler("flaky", 'echo "$EDGEQ_ID $(cut -d" " -f1 /proc/uptime)" >>"{root}/times"; [ "$EDGEQ_ATTEMPT" != 1 ]')
    env = bench.write_ahead(0)
    worker = bench.worker(env=env)
    failed = bench.enqueue("flaky", env=env)
    wait_for(lambda: bench.ids_in("failed") == {failed}, "it failed")
    delayed = bench.enqueue("flaky", "--delay", 3, "--max-attempts", 1, by="wrapper", env=env)
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    wait_for(lambda: " delayed=1 " in bench.edgeq("status", by="wrapper", env=env).out, "the worker has seen it")
    bench.write_ahead(step)
    bench.wait_settled(failed, delayed)
    assert worker.stop() == 0
    times = [line.split() for line in (bench.root / "times").read_text().splitlines()]
    later = {id: float(at) for id, at in times[1:]}
    for id in (failed, delayed):
        assert 1.5 <= later[id] - uptime < 15, (id, later, uptime)


def test_summer_time_moves_nothing(make_any):
    """B27: the nights of both changes, TZ of a place that has them: a retry in 2 s comes in 2 s, stamps are UTC."""
    bench = make_any(BASE_DELAY_S=2, JITTER=0, SAFETY_SCAN_S=0.5)
    bench.handler("flaky", 'cut -d" " -f1 /proc/uptime >>"{root}/times"; [ "$EDGEQ_ATTEMPT" != 1 ]')
    for instant in (1792889988, 1806195588):  # seconds before the change, in October 2026 and in March 2027
        (bench.root / "times").unlink(missing_ok=True)
        env = {**bench.write_ahead(int(instant - time.time())), "TZ": "Europe/Berlin"}
        worker = bench.worker(env=env)
        id = bench.enqueue("flaky", env=env)
        bench.wait_done(id)
        first, second = (float(line) for line in (bench.root / "times").read_text().split())
        assert 1.5 < second - first < 8
        assert worker.stop() == 0
        stamps = re.findall(r"^edgeq: (\S+Z) ", worker.log, re.M)
        assert stamps == sorted(stamps) and len(stamps) > 1
        line = bench.edgeq("status", env=env).out
        assert re.match(r"20(26-10-2[45]|27-03-2[78])T\d\d:\d\d:\d\dZ ", line), line


def test_a_clock_that_was_years_ahead(make_any):
    """B30: jobs done in 2099, then 2026: nothing that waits is lost or out of order, the bounds by count still hold."""
    bench = make_any(DLQ_KEEP=5, KEEP_DAYS=1, SAFETY_SCAN_S=0.3)
    bench.handler("ok", "exit 0")
    bench.handler("bad", "exit 65")
    env = bench.write_ahead(int(4_070_908_800 - time.time()))
    ran = [bench.enqueue("ok", env=env) for _ in range(5)] + [bench.enqueue("bad", env=env) for _ in range(5)]
    bench.once(env=env)
    waiting = [bench.enqueue("ok", by="wrapper", env=env) for _ in range(5)]
    bench.write_ahead(0)
    waiting += [bench.enqueue("ok", by="wrapper", env=env) for _ in range(5)]
    code, fields = bench.status()
    bench.enqueue("bad", env=env)
    worker = bench.worker("--concurrency", 1, env=env)
    bench.wait_done(*waiting)
    wait_for(lambda: len(bench.ids_in("dlq")) <= 5, "bounded")
    assert worker.stop() == 0
    order = [id for id in bench.ran_path.read_text().split() if id in waiting]
    assert order == waiting
    bench.accepted = ran[:5] + waiting
    assert bench.ids_in("done") == set(bench.accepted)


def test_a_clock_that_began_in_1970(make_any):
    """B30: 30 jobs wait since 1970, then the time arrives: KEEP_DAYS=1 takes none of them."""
    bench = make_any(KEEP_DAYS=1, SAFETY_SCAN_S=0.3)
    bench.handler("ok", "exit 0")
    env = bench.write_ahead(int(10 - time.time()))
    ids = [bench.enqueue("ok", by="wrapper", env=env) for _ in range(10)]
    bench.edgeq("pause", by="wrapper", env=env)
    ids += bench.enqueue_many([{"type": "ok"} for _ in range(20)])
    worker = bench.worker("--concurrency", 1, env=env)
    bench.write_ahead(0)
    wait_for(lambda: bench.edgeq("status", by="wrapper", env=env).code != 2, "it is up")
    bench.edgeq("resume", by="wrapper", env=env)
    bench.wait_done(*ids)
    assert worker.stop() == 0
    assert bench.ran_path.read_text().split()[:10] == ids[:10]


# --- permissions and the device's shell --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", ["000", "022", "027", "077", "0777"])
def test_any_umask_gives_a_runnable_job(make_bench, mask):
    """B73: root, a member of the group, and a stranger put under every umask; a stranger is told 77."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    bench.once()
    for folder in (bench.root, bench.bin, *bench.root.parents, *bench.bin.parents):
        if "pytest" in str(folder):
            folder.chmod(folder.stat().st_mode | 0o055)
    for path, mode in ((bench.q, 0o2750), (bench.q / "incoming", 0o3770)):
        os.chown(path, 0, 65000)
        path.chmod(mode)
    for path in (bench.r / "seq", bench.r / "id.lock", bench.r / "arrivals"):
        os.chown(path, 0, 65000)
    script = 'umask %s; sh "$0" enqueue ok' % mask
    for who, code in ((None, 0), ("65000", 0), ("65001", 77)):
        prefix = [] if who is None else [tool("setpriv"), "--reuid", "65534", "--regid", who, "--clear-groups"]
        done = subprocess.run(
            [*prefix, str(bench.bin / "sh"), "-c", script, str(WRAPPER)], env={**bench.env(), "PATH": str(bench.bin)},
            capture_output=True, text=True, timeout=60, cwd="/")
        assert done.returncode == code and len(done.stderr.splitlines()) == (code != 0), (who, done)
        if code == 0:
            bench.accepted.append(done.stdout.strip())
            (name, ) = [name for name in bench.names("incoming") if bench.accepted[-1] in name]
            assert (bench.q / "incoming" / name).stat().st_mode & 0o777 == 0o640
    assert bench.once().code == 0
    assert bench.ids_in("done") == set(bench.accepted) and len(bench.accepted) == 2


def test_the_wrapper_on_a_poor_device(make_bench, tmp_path):
    """B75: applets of the device only, a `date` without %N, HOME and TMPDIR unset, no stdin, a folder nobody may read."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    bin = tmp_path / "bin"
    bin.mkdir()
    for path in bench.bin.iterdir():
        if path.name != "date":
            (bin / path.name).symlink_to(path.resolve() if path.name == "flock" else bench.bin.parent / "busybox")
    (bin / "date").write_text('#!%s\ncase "$*" in *N*) echo %%N;; *) exec %s date "$@";; esac\n' %
                              (bench.bin / "sh", bench.bin.parent / "busybox"))
    (bin / "date").chmod(0o755)
    closed = tmp_path / "closed"
    closed.mkdir(0o000)
    env = {"PATH": str(bin), "EDGEQ_CONF": str(bench.conf), "EDGEQ_PYZ": str(bench.pyz)}

    def run(*words):
        done = subprocess.run([str(bin / "sh"), "-eu", str(WRAPPER), *words], env=env, stdin=subprocess.DEVNULL, cwd=str(closed),
                              capture_output=True, text=True, timeout=60)
        assert "not found" not in done.stderr, done
        return done

    ids = [run("enqueue", "ok").stdout.strip() for _ in range(10)]
    assert len(set(ids)) == 10 and "" not in ids
    bench.accepted += ids
    for words, code in ((["status"], 2), (["pause", "ok"], 0), (["resume", "ok"], 0), (["wait", ids[0], "--timeout",
                                                                                        "1"], 75), (["guard", "--check"], 3)):
        done = run(*words)
        assert done.returncode == code, (words, done)
    assert bench.once().code == 0
    assert run("wait", *ids).returncode == 0


def test_nothing_survives_a_test_of_ours(make_bench):
    """B47: what a killed worker leaves is found by its environment; the benches' own broom sees it too."""
    bench = make_bench()
    bench.handler("long", "exec sleep 4848")
    bench.enqueue("long")
    worker = bench.worker()
    wait_for(lambda: sleeps(4848), "it runs")
    (pid, ) = children_of(worker.pid)
    worker.kill()
    assert is_alive(pid) and pid in named(bench.root)
    bench.handler("long", "exit 0")
    bench.drain()
    assert state_of(pid) in ("", "Z") and bench.runs()[bench.accepted[0]] == 2
