"""Field reports about SQLite: locks, no shared memory, a log that grows, malformed files; in depth: tests/unit/test_sqlite.py."""

import os
import sqlite3
import subprocess
import sys
import time

import pytest

from tests.fault.outside import tool, trace_argv
from tests.field.bench import wait_for

HOLD = "import sqlite3, sys, time; db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)\n"


@pytest.fixture
def bench(make_bench):
    bench = make_bench(store="sqlite", SAFETY_SCAN_S=1, CONCURRENCY=2)
    bench.handler("ok", "exit 0")
    return bench


def beside(bench, script):
    return subprocess.Popen([sys.executable, "-c", HOLD + script, str(bench.db_path)], stdout=subprocess.PIPE)


def end(process):
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_locked_database_reaches_no_caller(bench):
    """B78: three workers, producers, and somebody who holds the lock for 2 s again and again: each job once, no lock error."""
    bench.once()
    other = beside(bench, "while True:\n db.execute('begin immediate'); time.sleep(2); db.execute('rollback'); time.sleep(1)")
    try:
        workers = [bench.worker() for _ in range(3)]
        for _ in range(4):
            bench.enqueue("ok")
            bench.enqueue("ok", by="wrapper")
            bench.enqueue_many([{"type": "ok"} for _ in range(20)])
        bench.wait_settled()
        assert [worker.stop() for worker in workers] == [0] * 3
    finally:
        end(other)
    assert bench.runs() == {id: 1 for id in bench.accepted}
    assert not [worker.log for worker in workers if "locked" in worker.log or " error " in worker.log]


def test_a_lock_beyond_the_limit_has_its_own_code(bench):
    """B78: held beyond the busy limit: 75, one line, nothing queued; the wrapper needs no lock; afterwards all is well."""
    bench.once()
    other = beside(bench, "db.execute('begin immediate'); print('held', flush=True); time.sleep(100)")
    try:
        assert other.stdout.readline() == b"held\n"
        refused = bench.edgeq("enqueue", "ok", "--id", "late")
        assert refused.code == 75 and refused.out == "" and len(refused.err.splitlines()) == 1, refused
        bench.enqueue("ok", by="wrapper")
    finally:
        end(other)
    bench.enqueue("ok", "--id", "late")
    bench.drain()
    assert set(bench.runs().values()) == {1} and len(bench.runs()) == 2


def test_without_shared_memory(bench, tmp_path):
    """B80: the -shm file cannot be mapped, as on 9p: a rollback journal is used and told, each verb works."""
    shm = "%s-shm" % bench.db_path

    def poor(n, error, *words):
        argv = [
            tool("strace"), "-f", "-qq", "-o",
            str(tmp_path / ("trace%d" % n)), "-P", shm, "-e", "trace=mmap,ftruncate,fallocate,pread64", "-e",
            "inject=mmap:error=%s" % error
        ]
        return bench.edgeq(*words, prefix=argv)

    for n, error in enumerate(("ENODEV", "EINVAL")):
        result = poor(n, error, "enqueue", "ok")
        assert result.code == 0, result
        bench.accepted.append(result.out.strip())
        assert poor(n + 10, error, "work", "--once").code == 0
        assert bench.accepted[-1] in poor(n + 20, error, "ls", "done").out
    assert "INJECTED" in (tmp_path / "trace0").read_text()
    bench.enqueue("ok")  # and on a file system that has it again
    bench.drain()
    assert set(bench.runs().values()) == {1}


def test_the_database_is_set_up_to_survive_a_cut(bench, tmp_path):
    """B82: a commit that is promised is flushed; journal mode and version as documented."""
    trace = tmp_path / "trace"
    result = bench.edgeq("enqueue", "ok", prefix=trace_argv(trace, ["fsync", "fdatasync"], follow=False))
    bench.accepted.append(result.out.strip())
    assert "queue.db-wal" in trace.read_text()
    db = sqlite3.connect(bench.db_path)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal", )
    db.close()
    bench.drain()


def zero_page(path):
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\0" * 4096)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def scribble(path):
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(os.urandom(4096))


def drop_log(path):
    path.with_name(path.name + "-wal").unlink(missing_ok=True)


@pytest.mark.parametrize("damage", [zero_page, cut, scribble, drop_log])
def test_a_malformed_database_is_set_aside(bench, damage):
    """B82: killed, then damaged: the next start begins a new one if it must, says so, and runs the job; no crash loop."""
    bench.enqueue_many([{"type": "ok", "payload": "x" * 500, "available_at": int(time.time()) + 4000} for _ in range(60)])
    worker = bench.worker()
    bench.wait_done(bench.enqueue("ok"))
    worker.kill()
    damage(bench.db_path)
    bench.accepted.clear()
    worker = bench.worker()
    id = bench.enqueue("ok", by="wrapper")
    bench.wait_done(id)
    again = bench.enqueue("ok")
    bench.wait_done(again)
    assert worker.stop() == 0
    if damage in (zero_page, cut):
        assert list(bench.spool.glob("queue.db.bad-*"))
        code, fields = bench.status()
        assert code != 0 and int(fields["corrupt"]) >= 1


def test_the_log_stays_bounded_beside_a_reader(bench):
    """B81: 600 jobs while a reader holds its snapshot open; when it leaves the log is cut; the worker itself holds none."""
    bench.once()
    bench.enqueue_many([{"type": "ok"} for _ in range(20)])
    log = bench.db_path.with_name("queue.db-wal")
    reader = beside(bench, "c = db.execute('select * from jobs'); c.fetchone(); print('held', flush=True); time.sleep(300)")
    try:
        assert reader.stdout.readline() == b"held\n"
        worker = bench.worker("--concurrency", 4)
        for _ in range(3):
            bench.enqueue_many([{"type": "ok", "payload": "x" * 1000} for _ in range(60)])
        bench.wait_settled()
        grown = log.stat().st_size
    finally:
        end(reader)
    wait_for(lambda: not log.exists() or log.stat().st_size <= 1 << 20, lambda: "cut: %d of %d" % (log.stat().st_size, grown), 30)
    db = sqlite3.connect(bench.db_path, timeout=10)
    try:  # nobody holds a snapshot; the worker may be reading for a moment
        wait_for(lambda: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, "a snapshot is held", 30)
    finally:
        db.close()
    assert worker.stop() == 0


def test_start_on_a_full_disk(make_bench):
    """B83: the database cannot grow when the worker starts: 75 or it waits, no traceback; with room it goes on by itself."""
    bench = make_bench(store="sqlite", SAFETY_SCAN_S=0.5, MIN_FREE_KB=16)
    bench.handler("ok", "exit 0")
    island = bench.on_island("size=1m")
    bench.once()
    id = bench.enqueue("ok")
    island.fill()
    for by in ("wrapper", "pyz"):
        refused = bench.edgeq("enqueue", "ok", '"%s"' % ("x" * 30000), by=by)
        assert refused.code == 75 and refused.out == "" and len(refused.err.splitlines()) == 1, refused
    code, _ = bench.status()
    assert code == 2
    worker = bench.worker(ready=False)
    wait_for(lambda: worker.log or worker.process.poll() is not None or bench.runs(), "it says so, or runs on what it has")
    bench.status()
    island.free()
    if worker.process.poll() is not None:
        assert worker.process.returncode == 75
        worker = bench.worker()
    bench.wait_done(id)
    wait_for(lambda: bench.edgeq("enqueue", "ok", "--id", "after", by="wrapper").code == 0, "room again", 30)
    bench.wait_done("after")
    assert worker.stop() == 0
