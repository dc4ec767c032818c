"""Field reports about the medium: order of flushes, full, read-only, other mounts, bounds, wear, what a listing costs."""

import json
import os
import random
import re
import signal
import subprocess
import time

import pytest

from tests.fault.outside import WRAPPER, DISK_CALLS, children_of, read_trace, tool, trace_argv
from tests.field.bench import cpu_s, rss_kb, run_in, tree, wait_for

UNTIL = 'while [ ! -e "{root}/go" ]; do sleep 0.02; done\n'


def find(calls, name, pattern, after=-1):
    """Index of the first call of that name whose line matches, after index `after`."""
    for at, call in enumerate(calls):
        if at > after and call.name in name.split("|") and re.search(pattern, call.text) and " E" not in call.text[-40:]:
            return at
    raise AssertionError("no %s of %s after call %d in\n%s" %
                         (name, pattern, after, "\n".join(call.text for call in calls if call.is_write)[-6000:]))


@pytest.mark.parametrize("by", ["pyz", "wrapper"])
def test_nothing_is_told_before_it_is_flushed(make_any, tmp_path, by):
    """B03: write, rename, flush through that descriptor, then the id; a row: the log is flushed, then the id."""
    bench = make_any()
    bench.handler("ok", "exit 0")
    bench.enqueue("ok")
    result = bench.edgeq("enqueue", "ok", '{"mark":1}', by=by, prefix=trace_argv(tmp_path / "trace"))
    assert result.code == 0, result
    bench.accepted.append(result.out.strip())
    calls = read_trace(tmp_path / "trace")
    if bench.store == "sqlite" and by == "pyz":
        flushed = find(calls, "fsync|fdatasync", r"queue\.db-wal>")
    else:
        written = find(calls, "write", r"/incoming/\.[0-9a-f-]+>.*mark")
        renamed = find(calls, "rename|renameat2", r"/incoming/\.[0-9a-f-]+\".*/incoming/5\..*\.json\"", written)
        flushed = find(calls, "fsync", r"/incoming/5\..*\.json>", renamed)
    find(calls, "write", r"write\(1<pipe:.*%s" % result.out.strip(), flushed)
    assert not any("write(1<pipe" in call.text and result.out.strip() in call.text for call in calls[:flushed])


def test_the_old_copy_goes_last(make_bench, tmp_path):
    """B04: done, dead letter, kick and what retention drops: the new one is flushed before the old one is unlinked."""
    bench = make_bench(CONCURRENCY=1, DLQ_KEEP=1)
    bench.handler("ok", "exit 0")
    bench.handler("bad", "exit 65")
    for type in ("ok", "bad"):
        bench.enqueue(type, "--id", type + "1")
    assert bench.once(prefix=trace_argv(tmp_path / "trace", follow=False)).code == 0
    calls = read_trace(tmp_path / "trace")
    line = find(calls, "pwrite64", r'/done/.*"ok1 ')
    find(calls, "unlink", r"\.ok1\..*settling", find(calls, "fdatasync", r"/done/", line))
    letter = find(calls, "fsync", r"/dlq/\.")
    renamed = find(calls, "rename", r"/dlq/\..*/dlq/bad1\.json", letter)
    find(calls, "unlink", r"\.bad1\..*settling", find(calls, "fsync", r"/dlq>", renamed))
    assert bench.edgeq("kick", "bad1", prefix=trace_argv(tmp_path / "kick", follow=False)).code == 0
    kicked = read_trace(tmp_path / "kick")
    find(kicked, "fsync", r"/incoming/5.*bad1", find(kicked, "rename", r"/dlq/bad1\.json.*/incoming/"))
    assert not any(call.name == "unlink" and "bad1" in call.text and call.touches(bench.spool) for call in kicked)
    bench.drain()


def kill_everything(bench, processes):
    for worker in bench.workers:
        children = children_of(worker.pid)
        worker.kill()
        for pid in children:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def test_power_cycles_lose_nothing(make_any):
    """B05: worker and producers killed at random, again and again: every id that somebody was told is there, once."""
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(10**6)))
    print("SEED=%d" % seed)
    dice = random.Random(seed)
    bench = make_any(MAX_ATTEMPTS=99, SAFETY_SCAN_S=1, SYNC_JOBS=4, SYNC_WINDOW_MS=300)
    bench.lets_dots = True  # of a killed producer: swept after a day of uptime, never run (B72)
    bench.handler("ok", "exit 0")
    bench.once()
    acked = bench.root / "acked"
    acked.touch()
    loops = {
        "wrapper": [str(bench.bin / "sh"), str(WRAPPER)], "pyz": [str(bench.pyz)]
    }
    script = 'while :; do id=$("$@" enqueue ok) && echo "$id" >>"$ACKED"; done'
    for _ in range(12):
        worker = bench.worker(ready=False)
        putters = [
            subprocess.Popen([tool("setsid"), "sh", "-c", script, "sh", *loops[by]], env=bench.env(ACKED=str(acked)),
                             stderr=subprocess.DEVNULL) for by in ("wrapper", "wrapper", "pyz", "pyz")
        ]
        time.sleep(dice.uniform(0.05, 1.2))  # the moment of the cut, not a wait
        kill_everything(bench, putters)
        assert worker.process.returncode == -9
    bench.accepted = acked.read_text().split()
    assert len(bench.accepted) > 10
    bench.drain()
    where = bench.where()
    lost = [id for id in bench.accepted if where.get(id) != ["done"]]
    assert not lost, lost
    assert bench.names("corrupt") == []
    assert bench.findings() == [] or all("half-written" in line or "leftover" in line
                                         for line in bench.findings()), bench.findings()


def test_a_full_disk_is_no_corruption_and_costs_no_try(make_any):
    """B14, B16, B83: refused with 75 and nothing left; no job is buried, charged or set aside; all run when there is room."""
    bench = make_any(SAFETY_SCAN_S=0.5, MIN_FREE_KB=16, CONCURRENCY=1)
    bench.handler("ok", UNTIL + "exit 0")
    bench.handler("flaky", UNTIL + '[ "$EDGEQ_ATTEMPT" != 1 ]')
    island = bench.on_island("size=1m,nr_inodes=300")
    worker = bench.worker()
    for type in ("ok", "flaky", "ok", "ok", "ok"):
        bench.enqueue(type)
    wait_for(lambda: bench.runs(), "one runs")
    island.fill()
    before = bench.names("incoming", dots=True)
    for by in ("wrapper", "pyz"):
        refused = bench.edgeq("enqueue", "ok", '{"x":"%s"}' % ("y" * 20000), by=by)
        assert refused.code == 75 and refused.out == "" and len(refused.err.splitlines()) == 1, refused
        assert "bytes" in refused.err or "room" in refused.err
        assert bench.names("incoming", dots=True) == before
    (bench.root / "go").touch()
    wait_for(lambda: bench.edgeq("status", by="wrapper").code == 2, lambda: "status says so: " + worker.log, 30)
    bench.status()
    assert bench.names("corrupt") == [] and bench.ids_in("dlq") == set()
    island.free()
    bench.wait_settled()
    wait_for(lambda: bench.edgeq("enqueue", "ok", "--id", "after", by="wrapper").code == 0, "room again", 30)
    bench.accepted.append("after")
    bench.wait_done("after")
    assert worker.stop() == 0
    assert bench.names("corrupt") == [] and bench.ids_in("dlq") == set() and len(worker.log.splitlines()) < 30
    assert all(bench.runs()[id] <= 2 for id in bench.accepted)


def test_a_read_only_medium(make_bench):
    """B17: put fails fast with its own code, status still speaks and says 2, nothing spins, nothing runs twice, and back."""
    bench = make_bench(SAFETY_SCAN_S=0.5, CONCURRENCY=1)
    bench.handler("ok", UNTIL + "exit 0")
    island = bench.on_island("size=2m")
    worker = bench.worker()
    first, second = bench.enqueue("ok"), bench.enqueue("ok")
    wait_for(lambda: bench.runs(), "one runs")
    island.remount("ro")
    for by in ("wrapper", "pyz"):
        refused = bench.edgeq("enqueue", "ok", by=by)
        assert refused.code == 74 and refused.out == "" and len(refused.err.splitlines()) == 1, refused
    (bench.root / "go").touch()
    wait_for(lambda: bench.edgeq("status", by="wrapper").code == 2, lambda: "status says broken: " + worker.log, 30)
    code, fields = bench.status()
    assert "ead-only" in fields["last_error"] or "readonly" in fields["last_error"], fields
    used = cpu_s(worker.pid)
    time.sleep(3)  # a span to count in, not a wait
    assert cpu_s(worker.pid) - used < 0.3
    island.remount("rw")
    bench.wait_settled()
    assert worker.stop() == 0
    assert bench.runs() == {first: 1, second: 1} and len(worker.log.splitlines()) < 20, worker.log


def test_read_only_from_the_start(make_any):
    """B17: the medium is read-only before the worker begins: one clear line, status speaks, and rw makes all well."""
    bench = make_any()
    bench.handler("ok", "exit 0")
    island = bench.on_island("size=2m")
    bench.once()
    id = bench.enqueue("ok")
    island.remount("ro")
    code, fields = bench.status()
    assert code == 2
    for by in ("wrapper", "pyz"):
        refused = bench.edgeq("enqueue", "ok", by=by)
        assert refused.code == 74 and refused.out == "" and len(refused.err.splitlines()) == 1, refused
    result = bench.edgeq("work", "--once")
    assert result.code in (73, 74, 75) and len(result.err.splitlines()) < 10, result
    for verb in (["ls"], ["show", id], ["why", id], ["check"], ["status", "-v"]):
        result = bench.edgeq(*verb)
        assert result.code in (0, 1, 2, 74) and (result.code != 74 or bench.store == "sqlite"), (verb, result)
        assert len(result.err.splitlines()) <= 1, (verb, result)
    island.remount("rw")
    assert bench.once().code == 0
    assert bench.runs() == {id: 1}


@pytest.mark.parametrize("by", ["pyz", "wrapper"])
def test_a_failed_flush_is_no_success(make_any, tmp_path, by):
    """B18: EIO is told, and the id may be repeated; `not supported` is no error, and is told once."""
    bench = make_any()
    bench.handler("ok", "exit 0")
    bench.once()
    call = "fdatasync" if by == "pyz" and bench.store == "sqlite" else "fsync"
    result = bench.edgeq("enqueue", "ok", "--id", "eio", by=by, prefix=trace_argv(tmp_path / "t1", ["fsync", "fdatasync"],
                                                                                  "fsync,fdatasync:error=EIO:when=1+"))
    assert result.code == 74 and result.out == "", (call, result)
    assert bench.enqueue("ok", "--id", "eio", by=by) == "eio"
    result = bench.edgeq("enqueue", "ok", "--id", "einval", by=by, prefix=trace_argv(tmp_path / "t2", ["fsync"],
                                                                                     "fsync:error=EINVAL:when=1+"))
    assert result.code == 0 and result.out == "einval\n", result
    bench.accepted.append("einval")
    bench.drain()
    assert bench.ids_in("done") == {"eio", "einval"} and bench.runs() == {"eio": 1, "einval": 1}


def test_what_is_kept_is_bounded_everywhere(make_any):
    """B19: journal, dead letters and what was set aside keep to their limits, old files too, and lowered limits."""
    bench = make_any(DONE_KEEP_KB=16, DLQ_KEEP=10, CORRUPT_KEEP=10, SAFETY_SCAN_S=0.2, CONCURRENCY=4)
    bench.handler("ok", "exit 0")
    bench.handler("bad", "exit 65")
    bench.once()
    for n in range(40):
        path = bench.q / "incoming" / ("rubbish%d" % n)
        path.write_text("rubbish")
        os.utime(path, (1000000 + n, 1000000 + n))
    worker = bench.worker()
    bench.enqueue_many([{"type": "bad" if n % 5 == 0 else "ok"} for n in range(250)])
    waiting = bench.enqueue("ok", "--delay", 3600)

    def is_within(keep):
        return (len([n for n in bench.names("corrupt") if not n.endswith(".why")]) <= keep and len(bench.ids_in("dlq")) <= keep)

    wait_for(lambda: len(bench.runs()) == 250 and not bench.ids_in("processing"), "all ran")
    wait_for(lambda: not [n for n in bench.names("incoming") if n.startswith("rubbish")], "set aside")
    wait_for(lambda: is_within(10), "within the limits")
    bench.configure(DLQ_KEEP=5, CORRUPT_KEEP=5)
    worker.signal(signal.SIGHUP)
    wait_for(lambda: is_within(5), "within the lowered limits")
    size = sum((bench.q / "done" / name).stat().st_size for name in bench.names("done"))
    assert size <= 2 * 16 * 1024 + 8192
    assert worker.stop() == 0
    bench.accepted = [waiting]
    assert bench.ids_in("incoming") == {waiting}


def test_a_surplus_goes_soon_and_work_goes_on(make_bench):
    """B19: 2,000 dead letters too many: gone in bounded passes that follow each other, while a fresh job is served."""
    bench = make_bench(DLQ_KEEP=10, SAFETY_SCAN_S=60)
    bench.handler("ok", "exit 0")
    bench.once()
    for n in range(2000):
        (bench.q / "dlq" / ("old%d.json" % n)).write_text('{"id":"old%d","type":"ok","attempts":1,"payload":{}}\n' % n)
    bench.enqueue("ok", "--id", "next", "--delay", 3600)
    worker = bench.worker()
    id = bench.enqueue("ok", by="wrapper")
    bench.wait_done(id, limit_s=20)
    wait_for(lambda: len(bench.names("dlq")) <= 10, lambda: "%d left" % len(bench.names("dlq")), 60)
    assert bench.ids_in("incoming") == {"next"}
    assert worker.stop() == 0 and len(worker.log) < 8192


def test_a_busy_minute_stays_within_the_bounds(make_any):
    """B19: thousands of jobs between two safety scans: the journal is cut back meanwhile, not a minute later."""
    bench = make_any(DONE_KEEP_KB=16, SAFETY_SCAN_S=3600, CONCURRENCY=4, REPORT_S=0)
    (bench.handlers / "noop").symlink_to("/bin/true")
    worker = bench.worker()
    ids = bench.enqueue_many([{"type": "noop", "payload": n} for n in range(3500)])
    wait_for(lambda: not bench.names("incoming") and bench.status()[1]["done"] == str(len(ids)), "all are done", 120)
    kept = bench.done()
    assert set(kept) < set(ids) and len(kept) < 2500, "%d of %d" % (len(kept), len(ids))
    bench.accepted.clear()  # most of them are remembered no more, as asked
    assert worker.stop() == 0


def test_a_lasting_trouble_is_told_and_not_shouted(make_any):
    """B20: no handlers folder, a done/ that is no folder: 5 s of it are a few lines, the first at once, repeats counted."""
    bench = make_any(SAFETY_SCAN_S=0.2, MAX_DELAY_S=1)
    bench.configure(HANDLERS="/no/such/folder")
    worker = bench.worker()
    for _ in range(20):
        bench.enqueue("ok")
    wait_for(lambda: "held" in worker.log, lambda: "it is named: " + worker.log)
    time.sleep(4)  # a span to count in, not a wait
    assert len(worker.log) < 4096, worker.log
    code, fields = bench.status()
    assert code == 1 and fields["held"] == "20"
    assert worker.stop() == 0
    bench.handler("ok", "exit 0")
    bench.configure(HANDLERS=bench.handlers)
    if bench.store == "spool":
        os.rename(bench.q / "done", bench.root / "done")
        (bench.q / "done").write_text("in the way")
        result = bench.once()
        assert result.code == 73 or result.code in (74, 75, 78), result
        assert len(result.err) < 4096
        (bench.q / "done").unlink()
        os.rename(bench.root / "done", bench.q / "done")
    bench.drain()
    assert bench.ids_in("done") == set(bench.accepted)


def written_below(bench, worker, trace):
    """What the worker writes or flushes below the spool in two seconds."""
    strace = subprocess.Popen([
        tool("strace"), "-qq", "-f", "-y", "-p",
        str(worker.pid), "-o",
        str(trace), "-e", "signal=none", "-e", "trace=" + ",".join(DISK_CALLS + ("utimensat", ))
    ])
    time.sleep(2)  # a span to count in, not a wait
    strace.terminate()
    strace.wait()
    return [call for call in read_trace(trace) if call.touches(bench.spool) and call.is_write and "EEXIST" not in call.text]


def test_idle_and_busy_write_nothing_to_flash(make_any, tmp_path):
    """B21: an idle worker and one with a long job: not one call that writes or flushes below the spool."""
    bench = make_any(SAFETY_SCAN_S=0.5, LEASE_S=1, REPORT_S=0, SYNC_WINDOW_MS=0)
    bench.handler("ok", "exit 0")
    bench.handler("slow", UNTIL)
    worker = bench.worker()
    bench.wait_done(bench.enqueue("ok"))
    wait_for(lambda: bench.names("processing") == [], "flushed")
    worker.wait_asleep()
    for what in ("idle", "busy"):
        if what == "busy":
            id = bench.enqueue("slow")
            wait_for(lambda: bench.runs().get(id), "it runs")
            time.sleep(0.3)  # past the claim: a span, not a wait
        wait_for(lambda: written_below(bench, worker, tmp_path / what) == [], "a span without a write", 30)
        wrote = written_below(bench, worker, tmp_path / what)
        assert wrote == [], (what, wrote)
    (bench.root / "go").touch()
    bench.wait_settled()
    assert worker.stop() == 0


def test_a_long_queue_is_not_listed_for_each_job(make_bench, tmp_path):
    """B22: 5,000 waiting: the folder is read a few hundred entries a job at most; put and status stay cheap; oldest first."""
    bench = make_bench(CONCURRENCY=1, SYNC_JOBS=1000, REPORT_S=0)
    bench.handler("ok", "exit 0")
    bench.handler("stop", 'kill -TERM $PPID')
    bench.once()
    for n in range(5000):
        name = "5.%016d.0.0.ok.job%04d.json" % (1700000000000000 + n, n)
        (bench.q / "incoming" / name).write_text('{"id":"job%04d","type":"ok","payload":{}}\n' % n)
    (bench.q / "incoming/5.1700000000000299.0.0.stop.stop.json").write_text('{"id":"stop","type":"stop","payload":{}}\n')
    trace, begin = tmp_path / "trace", time.monotonic()
    result = bench.once(prefix=[tool("strace"), "-qq", "-f", "-y", "-o", str(trace), "-e", "trace=getdents64", "-e", "signal=none"])
    seconds = time.monotonic() - begin
    assert result.code == 0, result
    ran = list(bench.runs())
    assert ran == sorted(ran, key=lambda id: (id == "stop", id)) or ran[:299] == ["job%04d" % n for n in range(299)]
    reads = [call for call in read_trace(trace) if "/incoming>" in call.text]
    bytes_n = sum(int(re.search(r"= (\d+)", call.text)[1]) for call in reads if "= -" not in call.text)
    # a listing is about 5000 * 80 bytes: 20 of them for 300 jobs, and two a second, for the status, on a slow machine
    assert bytes_n < 5000 * 90 * (20 + 2 * seconds), (bytes_n, len(reads), seconds)
    worker = bench.worker()
    assert rss_kb(worker.pid) < 30 * 1024
    worker.stop()
    used = os.times()
    code, fields = bench.status()
    assert int(fields["ready"]) > 4000
    bench.edgeq("enqueue", "ok", by="wrapper")
    now = os.times()
    assert now.children_user + now.children_system - used.children_user - used.children_system < 2


def test_the_programs_leave_nothing_where_they_stand(make_bench, tmp_path, pyz):
    """B23, B92: TMPDIR tiny, noexec, missing or read-only, HOME nowhere, a cwd that is gone, the zipapp dated 1970 and 2107."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    here = tmp_path / "here"
    here.mkdir()
    copy = tmp_path / "copy.pyz"
    before = tree(here)
    for stamp in (0, 4323196800):
        copy.write_bytes(pyz.read_bytes())
        copy.chmod(0o755)
        os.utime(copy, (stamp, stamp))
        for tmpdir in ("/no/such/folder", str(here), "/proc"):
            env = {
                "PATH": "/usr/bin:/bin", "EDGEQ_CONF": str(bench.conf), "EDGEQ_PYZ": str(copy), "TMPDIR": tmpdir,
                "HOME": "/nonexistent"
            }
            trace = tmp_path / "trace"
            for words in (["enqueue", "ok"], ["work", "--once"], ["status"]):
                done = run_in(bench,
                              trace_argv(trace, ["openat", "mkdir", "mkdirat", "creat", "mknod", "mknodat"]) + [str(copy), *words],
                              env=env, cwd=str(here))
                assert done.code in (0, 2), done
                if words[0] == "enqueue":
                    bench.accepted.append(done.out.strip())
                made = [
                    call for call in read_trace(trace) if ("O_CREAT" in call.text or call.name != "openat") and
                    " = -1 " not in call.text and not call.touches(bench.spool, bench.run_dir)
                ]
                made = [call for call in made if str(bench.ran_path) not in call.text and "/dev/null" not in call.text]
                assert made == [], made
    assert tree(here) == before
    for number in (signal.SIGTERM, signal.SIGKILL) * 5:
        worker = bench.worker(env={"TMPDIR": str(here), "HOME": str(here)})
        worker.signal(number)
        worker.process.wait(30)
    assert tree(here) == before
    assert bench.ids_in("done") == set(bench.accepted)


def test_a_chatty_job_does_not_fill_the_spool(make_any):
    """B58, B55: 20 MB of output each on a spool of 2 MB: all end, the letter holds a tail, the fine one runs."""
    bench = make_any(MIN_FREE_KB=16)
    bench.handler("chatty", "head -c 20000000 /dev/zero | tr '\\0' x; exit 65")
    bench.handler("ok", "exit 0")
    island = bench.on_island("size=2m")
    ids = [bench.enqueue("chatty") for _ in range(3)] + [bench.enqueue("ok")]
    assert bench.once().code == 0
    assert bench.ids_in("dlq") == set(ids[:3]) and bench.ids_in("done") == {ids[3]}
    used = sum(path.stat().st_size for path in island.spool.rglob("*") if path.is_file())
    assert used < 1_000_000
    record = json.loads(bench.edgeq("show", ids[0]).out.splitlines()[0])
    assert record["last_error"].startswith("exit 65") and len(record["last_error"]) < 4200


def test_the_configured_folders_may_be_links(make_any, tmp_path):
    """B43: /var/lib/edgeq is a link to the data partition. What the wrapper accepts there, the worker runs."""
    bench = make_any()
    bench.handler("ok", "exit 0")
    for path in (bench.spool, bench.run_dir, bench.q, bench.r):
        real = tmp_path / "data" / path.relative_to(bench.root)
        real = real.with_name(real.name + ".real")
        real.mkdir(parents=True)
        path.symlink_to(real)
    bench.enqueue("ok", by="wrapper")
    bench.enqueue("ok")
    assert bench.edgeq("work", "--preflight").code == 0 and bench.once().code == 0
    assert bench.ids_in("done") == set(bench.accepted)
    worker = bench.worker().wait_asleep()
    bench.wait_done(bench.enqueue("ok", "--key", "k", by="wrapper"))
    assert worker.stop() == 0
    (bench.q / "failed").exists() and (bench.q / "failed").rmdir()
    (bench.q / "failed").symlink_to(tmp_path)
    assert bench.once().code == (74 if bench.store == "spool" else 0)  # what lies in them may be no link
    (bench.q / "failed").unlink()


def test_temp_files_lie_beside_their_target(make_bench):
    """B74: TMPDIR on another file system changes nothing; a folder of the spool on a mount of its own is refused at the start."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    for by in ("wrapper", "pyz"):
        result = bench.edgeq("enqueue", "ok", by=by, env={"TMPDIR": "/dev/shm"})
        assert result.code == 0, result
        bench.accepted.append(result.out.strip())
    assert bench.once(env={"TMPDIR": "/dev/shm"}).code == 0
    for folder in ("incoming", "processing", "done"):
        script = 'mount -t tmpfs tmpfs "$1" && shift && exec "$@"'
        done = run_in(bench,
                      [tool("unshare"), "-m", "sh", "-c", script, "sh",
                       str(bench.q / folder),
                       str(bench.pyz), "work", "--once"], env=bench.env())
        assert done.code == 78 and "different file systems" in done.err and len(done.err.splitlines()) == 1, done


def test_on_an_overlay_with_files_of_the_lower_layer(make_bench, tmp_path):
    """B74, F8: jobs that the image brought along are claimed, run and settled on the writable layer."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    for by in ("wrapper", "pyz"):
        bench.enqueue("ok", by=by)
    ids, bench.accepted = bench.accepted, []
    layers = tmp_path / "layers"
    layers.mkdir()
    script = ('mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" && '
              'mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" overlay "$2" && shift 2 && '
              '"$@" work --once && "$@" enqueue ok && "$@" work --once && "$@" ls done && "$@" check')
    done = run_in(bench,
                  [tool("unshare"), "-m", "sh", "-c", script, "sh",
                   str(layers), str(bench.spool),
                   str(bench.pyz)], env=bench.env())
    assert done.code in (0, 1), done
    assert set(ids) <= set(bench.runs()) and set(bench.runs().values()) == {1} and len(bench.runs()) == 3
    assert not [line for line in done.out.splitlines() if line.startswith("store:")], done
