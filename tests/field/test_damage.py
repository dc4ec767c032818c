"""Field reports about what is found damaged, planted, newer or half-written: it is set aside, it never stops anybody."""

import hashlib
import os
import signal
import subprocess
import time

import pytest

from tests.fault.outside import tool
from tests.field.bench import cpu_s, tree, wait_for

GOOD = '{"id":"%s","type":"ok","payload":{"n":1}}\n'


def job_name(id, seq, type="ok", att="0", due="0"):
    return "5.%016d.%s.%s.%s.%s.json" % (seq, due, att, type, id)


def put_file(bench, name, data, folder="incoming"):
    path = bench.q / folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def damaged(n):
    """The n-th damaged record, forms in turn."""
    whole = (GOOD % ("bad%d" % n)).encode()
    forms = (b"", whole[:1], whole[:10], whole[:-1], whole + b"\xff" * 512, b"\0" * 300, whole.replace(b"1", b"NaN"),
             b"\xff\xfe" + whole, b'["no object"]\n', b'{"payload":1}\n')
    return forms[n % len(forms)]


@pytest.mark.parametrize("named", ["by edgeq", "by hand"])
def test_torn_records_block_nobody(make_any, named):
    """B02: cut-off records are set aside with a reason; the good ones behind them run."""
    bench = make_any(SAFETY_SCAN_S=0.5)
    bench.handler("ok", "exit 0")
    bench.once()
    whole = (GOOD % "torn").encode()
    forms = [b"", whole[:1], whole[:10], whole[:-1], whole + b"\xff" * 512]
    names = [job_name("torn%d" % n, 1700000000000000 + n) if named == "by edgeq" else "torn%d" % n for n in range(len(forms))]
    for name, data in zip(names, forms):
        put_file(bench, name, data)
    ids = [bench.enqueue("ok", by="wrapper") for _ in range(5)]
    result = bench.once()
    assert result.code == 0, result
    assert bench.runs() == {id: 1 for id in ids}
    assert bench.names("incoming") == []
    aside = bench.names("corrupt")
    assert len([name for name in aside if not name.endswith(".why")]) == len(forms), aside
    for name in aside:
        if name.endswith(".why"):
            assert (bench.q / "corrupt" / name).read_text().count("\n") == 1
    code, fields = bench.status()
    assert (fields["ready"], fields["corrupt"]) == ("0", "5")


STATE_FILES = ("r/status r/seq r/space r/suspect r/arrivals r/clock r/keys/index r/gone r/doubt r/lock r/alive r/id.lock r/due "
               "r/events r/leases/x-1-1-1 r/errors/some r/types/ok r/workers/1-1 r/cancel/x r/ctl/x q/running q/ballast").split()


@pytest.mark.parametrize("which", STATE_FILES)
def test_a_damaged_state_file_stops_nobody(make_bench, which):
    """B06: any file of ours that is no job, replaced by rubbish: the worker starts and the job runs."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    bench.once()
    path = (bench.q if which[0] == "q" else bench.r) / which[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(hashlib.sha512(which.encode()).digest() + b"\0\n\xff 1 -5")
    bench.enqueue("ok", by="wrapper")
    bench.enqueue("ok")
    bench.status()
    worker = bench.worker()
    bench.wait_settled()
    bench.status()
    assert worker.stop() == 0
    assert set(bench.runs().values()) == {1} and bench.findings() == []


def test_a_damaged_pause_is_a_pause_and_is_told(make_bench):
    """B06: a pause mark that cannot be read keeps its safe meaning until `resume`; status says paused."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    bench.once()
    (bench.q / "paused").write_bytes(os.urandom(100))
    id = bench.enqueue("ok", by="wrapper")
    bench.once()
    assert bench.runs() == {} and bench.status()[1]["paused"] == "1"
    assert bench.edgeq("resume", by="wrapper").code == 0
    bench.once()
    assert bench.runs() == {id: 1}


def test_a_damaged_journal_is_kept_and_work_goes_on(make_bench):
    """B06: rubbish in the place of a journal segment, and lines in it that are still good."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    first = bench.enqueue("ok")
    bench.once()
    segment = bench.q / "done" / bench.names("done")[-1]
    data = bytearray(segment.read_bytes())
    at = data.index(b"\n") + 1
    data[at:at + 100] = os.urandom(100)
    segment.write_bytes(bytes(data))
    bench.enqueue("ok", by="wrapper")
    bench.once()
    assert set(bench.runs()) == set(bench.accepted) and first in bench.done()
    assert bench.enqueue("ok", "--id", first, by="wrapper") == first  # the good line is still believed
    bench.accepted.pop()
    bench.once()
    assert bench.runs()[first] == 1


def test_a_damaged_database_is_set_aside(make_bench):
    """B06, B82, B95: 100 random bytes for a database, again and again: a few copies kept, status says so, jobs run."""
    bench = make_bench(store="sqlite")
    bench.handler("ok", "exit 0")
    for n in range(6):
        bench.spool.mkdir(exist_ok=True)
        for path in bench.spool.glob("queue.db*"):
            if "bad" not in path.name:
                path.unlink()
        bench.db_path.write_bytes(os.urandom(50_000 if n % 2 else 100))
        (bench.spool / "default/incoming").mkdir(parents=True, exist_ok=True)
        id = bench.enqueue("ok", by="wrapper")
        worker = bench.worker()
        bench.wait_done(id)
        bench.status()
        assert worker.stop() == 0
        bench.accepted.clear()  # the next round breaks the database again, done jobs with it
    assert 1 <= len(list(bench.spool.glob("queue.db.bad-*"))) <= 3
    assert int(bench.status()[1]["corrupt"]) >= 1


def test_damaged_ones_are_reported_once(make_any):
    """B08: 200 good and 20 damaged, by name in between: 200 run, 20 set aside; the second start says nothing of them."""
    bench = make_any(CONCURRENCY=4)
    bench.handler("ok", "exit 0")
    bench.once()
    for n in range(220):
        seq = 1700000000000000 + n
        if n % 11 == 5:
            put_file(bench, job_name("bad%d" % n, seq), damaged(n))
        else:
            put_file(bench, job_name("good%03d" % n, seq), GOOD % ("good%03d" % n))
            bench.accepted.append("good%03d" % n)
    first, second = bench.once(), bench.once()
    assert (first.code, second.code) == (0, 0)
    assert bench.runs() == {id: 1 for id in bench.accepted}
    assert len([name for name in bench.names("corrupt") if not name.endswith(".why")]) == 20
    assert first.err.count("\n") <= 22 and "bad" not in second.err, (first.err, second.err)
    assert len(second.err.splitlines()) <= 1


def test_a_file_that_is_gone_is_nobodys_trouble(make_bench):
    """B10: half of the jobs are removed by hand beside the worker: it goes on, silently, and the rest runs once."""
    bench = make_bench(CONCURRENCY=1)
    bench.handler("ok", "exit 0")
    ids = bench.enqueue_many([{"type": "ok"} for _ in range(300)])
    bench.accepted.clear()
    worker = bench.worker()
    removed = set()
    for id in reversed(ids):
        for name in bench.names("incoming"):
            if len(removed) < 150 and name.split(".")[5] == id:
                try:
                    os.unlink(bench.q / "incoming" / name)
                    removed.add(id)
                except FileNotFoundError:
                    pass
        if len(removed) == 150:
            break
    bench.wait_done(*set(ids) - removed)
    assert worker.stop() == 0
    assert bench.runs() == {id: 1 for id in set(ids) - removed}
    assert " error " not in worker.log and " warning " not in worker.log, worker.log


def test_term_is_heard_amid_rubbish(make_bench):
    """B11: 1,200 damaged files; TERM ends it in time, the next start goes on, and then it is idle."""
    bench = make_bench(CORRUPT_KEEP=50, SAFETY_SCAN_S=1)
    bench.handler("ok", "exit 0")
    bench.once()
    for n in range(1200):
        put_file(bench, job_name("bad%d" % n, 1700000000000000 + n), damaged(n))
    id = bench.enqueue("ok", by="wrapper")
    worker = bench.worker(ready=False)
    wait_for(lambda: bench.names("corrupt"), "it has begun")
    begun = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - begun < 5
    worker = bench.worker()
    bench.wait_done(id)
    wait_for(lambda: not bench.names("incoming"), "all set aside")
    bench.configure(SAFETY_SCAN_S=60)
    worker.signal(signal.SIGHUP)
    wait_for(lambda: len([n for n in bench.names("corrupt") if not n.endswith(".why")]) <= 50 or None, "bounded")
    worker.wait_asleep()
    used = cpu_s(worker.pid)
    time.sleep(3)  # a span to count in, not a wait
    assert cpu_s(worker.pid) - used < 0.06
    assert worker.stop() == 0
    assert sum(len(worker.log) for worker in bench.workers) < 16384


NUMBERS = ["2147483648", "4102444800", "1e18", "1000000000000000000", "-1", '"NaN"', "NaN", '""', "null", "1.5", "true"]


def test_instants_beyond_2038(make_any):
    """B28: every such number is taken, or set aside with a reason; ls, show, why, status say something and nobody trips."""
    bench = make_any()
    bench.handler("ok", "exit 0")
    bench.once()
    for n, number in enumerate(NUMBERS):
        for field in ("available_at", "created_at"):
            put_file(bench, "%s%d" % (field, n), '{"id":"%s%d","type":"ok","%s":%s}\n' % (field[:2], n, field, number))
    for n, due in enumerate(("2147483648", "4102444800", "8999999999", "8999999999a", "99999999999999999999")):
        put_file(bench, job_name("due%d" % n, 1700000000000000 + n, due=due), GOOD % ("due%d" % n))
    for n, mtime in enumerate((2177452800, -2177452800)):
        os.utime(put_file(bench, "old%d" % n, GOOD % ("old%d" % n)), (mtime, mtime))
    result = bench.once()
    assert result.code == 0, result
    assert {"old0", "old1"} <= set(bench.runs())
    assert all((bench.q / "corrupt" / name).exists() for name in bench.names("corrupt"))
    for verb in (["ls"], ["ls", "delayed"], ["ls", "done"], ["ls", "corrupt"], ["status",
                                                                                "-v"], ["status",
                                                                                        "--json"], ["check"], ["top",
                                                                                                               "--once"], ["log"]):
        assert bench.edgeq(*verb).code in (0, 1, 2, 64), verb
    left = bench.where()
    for id in left:
        assert bench.edgeq("show", id).code == 0, id
        assert bench.edgeq("why", id).code == 0, id
    assert {"due0", "due2", "old0"} <= set(left)
    assert len(left) + len([n for n in bench.names("corrupt") if not n.endswith(".why")]) == 2 * len(NUMBERS) + 5 + 2


HOSTILE = ["../x", "/etc/passwd", ".", "..", "a/b", "a\\b", "x" * 300, "a\nb", "-rf", ".hidden", "con*?", "$(touch x)", "`id`", "ü"]


def test_an_id_never_becomes_a_path(make_any, tmp_path):
    """B68: through the wrapper, the zipapp and crafted records; nothing outside the spool changes."""
    bench = make_any()
    bench.handler("ok", "exit 0")
    bench.once()
    before = tree(tmp_path, (bench.spool, bench.run_dir))
    for by in ("wrapper", "pyz"):
        for word in HOSTILE + [""]:
            for words in ([word], ["ok", "--id", word], ["ok", "--key", word]):
                result = bench.edgeq("enqueue", *words, by=by)
                assert result.code in (64, 65) and result.out == "" and result.err, (by, words, result)
                assert result.err.count("\n") == 1 or "usage" in result.err
    for n, word in enumerate(HOSTILE + ["", "a\0b"]):
        text = word.replace("\\", "\\\\").replace("\n", "\\n").replace("\0", "\\u0000")
        put_file(bench, "id%d" % n, '{"id":"%s","type":"ok"}\n' % text)
        put_file(bench, "type%d" % n, '{"id":"t%d","type":"%s"}\n' % (n, text))
        put_file(bench, "key%d" % n, '{"id":"k%d","type":"ok","key":"%s"}\n' % (n, text))
    assert bench.once().code == 0
    assert bench.runs() == {} and bench.where() == {}
    assert len([name for name in bench.names("corrupt") if not name.endswith(".why")]) == 3 * (len(HOSTILE) + 2)
    for verb in ("show", "cancel"):
        for word in HOSTILE:
            assert bench.edgeq(verb, "--", word).code in (1, 64, 65), (verb, word)
    bench.ran_path.unlink(missing_ok=True)
    assert tree(tmp_path, (bench.spool, bench.run_dir)) == before


def test_planted_names_lead_nowhere(make_any):
    """B71: links, hard links, FIFOs and folders under a job's name: the target is unchanged and its content shows up nowhere."""
    bench = make_any(SAFETY_SCAN_S=0.5)
    bench.handler("ok", 'cat >>"{root}/stdin"')
    bench.once()
    secret = bench.root / "secret"
    text = '{"id":"secret","type":"ok","payload":"hush"}\n'
    secret.write_text(text)
    secret.chmod(0o600)
    incoming = bench.q / "incoming"
    for n, plant in enumerate((lambda path: os.symlink(secret, path), lambda path: os.link(secret, path), os.mkfifo, os.mkdir,
                               lambda path: os.symlink("/dev/zero", path), lambda path: os.symlink(path, path))):
        plant(incoming / ("hand%d" % n))
        plant(incoming / job_name("named%d" % n, 1700000000000000 + n))
    id = bench.enqueue("ok", by="wrapper")
    assert bench.once().code == 0
    assert bench.runs() == {id: 1}
    assert secret.read_text() == text and secret.stat().st_mode & 0o777 == 0o600
    assert (bench.root / "stdin").read_text() == "{}"
    for path in [*bench.q.rglob("*"), *bench.r.rglob("*"), *bench.spool.glob("queue.db*")]:
        if path.is_file() and not path.is_symlink() and not path.samefile(secret):
            assert b"hush" not in path.read_bytes(), path
    assert bench.names("incoming") == []
    out = bench.edgeq("ls", "corrupt")
    assert out.code == 0 and "hush" not in out.out
    assert bench.edgeq("purge", "corrupt").code == 0
    assert secret.read_text() == text and bench.names("corrupt") == []


def test_half_written_is_not_run(make_any):
    """B72: (a) a dot-name while it grows, (b) the final name while it grows, (c) what a killed producer left, a day old."""
    bench = make_any(SAFETY_SCAN_S=0.3)
    bench.handler("ok", 'cat >>"{root}/stdin"')
    bench.once()
    whole = '{"id":"%s","type":"ok","payload":"' + "x" * 5000 + '"}\n'
    slow, naive = whole % "dot", whole % "naive"
    put_file(bench, ".half", slow[:2000])
    put_file(bench, "naive", naive[:2000])
    put_file(bench, ".left", slow[:100])
    worker = bench.worker()
    fence = bench.enqueue("ok", by="wrapper")
    bench.wait_done(fence)
    assert bench.runs() == {fence: 1}
    with open(bench.q / "incoming/.half", "a") as file:
        file.write(slow[2000:])
    os.rename(bench.q / "incoming/.half", bench.q / "incoming/whole")
    with open(bench.q / "incoming/naive", "a") as file:
        file.write(naive[2000:])
    bench.wait_done("dot")
    wait_for(lambda: "naive" in bench.ids_in("done") or "naive" in bench.names("corrupt"), "run whole, or set aside whole")
    assert worker.stop() == 0
    assert set((bench.root / "stdin").read_text().replace("x" * 5000, "W")) <= set("W{}")
    assert (bench.q / "incoming/.left").exists()
    old = time.time() - 10
    os.utime(bench.q / "incoming/.left", (old, old))
    boots = bench.write_ahead(90000, "11111111-0000-4000-8000-000000000000", 90000)
    bench.once(env=boots)
    bench.accepted = [fence, "dot"]
    assert bench.dots() == []


def test_newer_items_are_left_alone(make_bench):
    """B93: a format of tomorrow is neither run, failed nor removed; today's jobs go on; check counts what it is."""
    bench = make_bench()
    bench.handler("ok", "exit 0")
    bench.once()
    record = b'{"v":2,"id":"new","type":"ok","payload":{},"later":[1]}\n'
    path = put_file(bench, "5.1795000000000000.0.0.ok.new.v2.json", record)
    segment = bench.q / "done/1795000000000000.0.v2.log"
    ids = [bench.enqueue("ok", by="wrapper") for _ in range(3)]
    assert bench.once().code == 0
    segment.write_bytes(b"tomorrow\n")
    ids.append(bench.enqueue("ok"))
    assert bench.once().code == 0
    assert path.read_bytes() == record and segment.read_bytes() == b"tomorrow\n"
    assert bench.runs() == {id: 1 for id in ids} and bench.names("corrupt") == [] and bench.names("dlq") == []
    assert "newer" in bench.edgeq("check").out
    path.unlink()
    segment.unlink()


def test_a_newer_database_is_left_alone(make_bench):
    """B93: user_version + 1: clearly refused, not a byte changed."""
    bench = make_bench(store="sqlite")
    bench.handler("ok", "exit 0")
    bench.enqueue("ok", "--id", "a")
    import sqlite3
    db = sqlite3.connect(bench.db_path)
    (version, ), = db.execute("PRAGMA user_version")
    db.execute("PRAGMA user_version=%d" % (version + 1))
    db.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    before = bench.db_path.read_bytes()
    result = bench.once()
    assert result.code == 78 and len(result.err.splitlines()) == 1, result
    for verb in (["ls"], ["show", "a"], ["enqueue", "ok"]):
        result = bench.edgeq(*verb)
        assert result.code == 78 and len(result.err.splitlines()) == 1, result
    assert bench.db_path.read_bytes() == before and not list(bench.spool.glob("*.bad-*"))
    db = sqlite3.connect(bench.db_path)
    db.execute("PRAGMA user_version=%d" % version)
    db.commit()
    db.close()
    assert bench.once().code == 0


@pytest.mark.parametrize("line, code", [("MAX_ATTEMPTS=many\n", 78), ("\0" * 200, 78), ("no key at all\n", 78),
                                        ("FROM_TOMORROW=1\n", 0), ("HANDLERS=/no/such/folder\n", 75)])
def test_a_bad_configuration_touches_no_job(make_any, line, code):
    """B94: what waits, and what a dead worker left in its hands, is as before."""
    bench = make_any()
    bench.handler("ok", 'while [ ! -e "{root}/go" ]; do sleep 0.02; done')
    bench.enqueue_many([{"type": "ok"} for _ in range(30)])
    worker = bench.worker()
    wait_for(lambda: len(bench.runs()) == 2, "two run")
    worker.kill()
    good = bench.conf.read_text()
    bench.conf.write_bytes((line if line[0] == "\0" else good + line).encode())
    before = tree(bench.spool)
    result = bench.once(prefix=()) if code != 0 else None
    if code == 78:
        assert result.code == 78 and len(result.err.splitlines()) == 1, result
        assert str(bench.conf) in result.err
        assert tree(bench.spool) == before
        bench.conf.write_text(good)
    if code == 75:
        assert result.code == 75, result
        assert bench.ids_in("incoming", "failed", "processing") == set(bench.accepted)
        bench.conf.write_text(good)
    (bench.root / "go").touch()
    result = bench.edgeq("resume")
    bench.drain()
    assert bench.ids_in("done") == set(bench.accepted)
    if code == 0:
        assert "FROM_TOMORROW" in bench.once().err


def test_what_is_set_aside_is_bounded(make_any):
    """B95: 10 starts, each with six fresh damaged jobs of 50 KiB and a damaged state file, on 4 MiB: bounded, newest kept."""
    bench = make_any(CORRUPT_KEEP=8, CORRUPT_KEEP_KB=256, SAFETY_SCAN_S=60)
    bench.handler("ok", "exit 0")
    bench.on_island("size=4m")
    bench.once()
    old = time.time() - 100
    for n in range(0, 60, 6):
        (bench.q / "running").write_bytes(os.urandom(50000))
        for k in range(n, n + 6):
            path = bench.q / "incoming" / ("rubbish%d" % k)
            path.write_bytes(b"%02d" % k * 25000)
            os.utime(path, (old + k, old + k))
        bench.enqueue("ok", by="wrapper")
        assert bench.once().code == 0
    assert bench.once().code == 0  # a start looks at the bounds before it takes new ones in
    names = [name for name in bench.names("corrupt") if not name.endswith(".why")]
    sizes = sum((bench.q / "corrupt" / name).stat().st_size for name in names)
    assert 1 <= len(names) <= 9 and sizes <= 320 * 1024, (names, sizes)
    assert "rubbish59" in names and "rubbish0" not in names
    assert bench.ids_in("done") == set(bench.accepted)


def test_an_unprivileged_member_may_plant_but_not_reach(make_bench, tmp_path):
    """B71: as nobody, who may write into incoming/ alone: links there lead nowhere, other folders are closed."""
    bench = make_bench()
    bench.handler("ok", "cat >/dev/null")
    bench.once()
    for folder in (bench.root, *bench.root.parents):
        if "pytest" in str(folder):
            folder.chmod(folder.stat().st_mode | 0o055)
    os.chown(bench.q / "incoming", 0, 65534)
    os.chmod(bench.q / "incoming", 0o3770)
    os.chown(bench.q, 0, 65534)
    secret = bench.root / "secret"
    secret.write_text('{"id":"s","type":"ok","payload":"hush"}\n')
    secret.chmod(0o600)
    root_job = bench.enqueue("ok")
    script = ('cd "$1/incoming" && ln -s "$2" planted; ln "$2" hard 2>&1; rm -f *.json 2>&1; '
              'for f in processing failed dlq corrupt done; do (: >"$1/$f/x"); done 2>&1; echo end')
    done = subprocess.run([
        tool("setpriv"), "--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", script, "sh",
        str(bench.q),
        str(secret)
    ], capture_output=True, text=True)
    assert "end" in done.stdout
    assert (bench.q / "incoming/planted").is_symlink()
    assert any(root_job in name for name in bench.names("incoming"))  # sticky: nobody else's job can be removed
    assert not any("x" in bench.names(folder) for folder in ("processing", "failed", "dlq", "corrupt", "done"))
    assert bench.once().code == 0
    assert bench.runs() == {root_job: 1} and "hush" not in bench.edgeq("ls", "corrupt").out
