"""The n-th call to the disk is the last one, or fails, for every n: the shipped zipapp and the wrapper, from outside.

strace kills the process as it enters its n-th rename, unlink, write, fsync, fdatasync or open, or answers EIO or ENOSPC there,
once. Then everything is started again and drained: no accepted job is lost, none is there twice, `edgeq check` finds nothing.
The calls are learnt from undisturbed runs: those that touch the spool or the folder in RAM. Opens that only read fail with EIO
(of the worker's every third); FULL=1 takes all of them, kills and ENOSPC included, and has faults that stay.
"""

import shutil

import pytest

from tests.fault.outside import FULL, Bench, each, points, read_trace, trace_argv

KILL, EIO, ENOSPC = "signal=KILL", "error=EIO", "error=ENOSPC"
HOWS = [KILL, EIO, ENOSPC]
READS = {KILL: 0, EIO: 1, ENOSPC: 0}  # a kill before an open that only reads is a kill before the next write
THREE = {"ok1": 1, "flaky1": 2, "bad1": 2}  # runs, undisturbed


def make_three(bench):
    bench.handler("ok", "exit 0")
    bench.handler("flaky", '[ "$EDGEQ_ATTEMPT" != 1 ]')
    bench.handler("bad", "echo no good; exit 1")
    return bench


def with_three_jobs(bench):
    bench.enqueue("ok", '{"n":1}', "--id", "ok1")
    bench.enqueue("flaky", "--id", "flaky1")
    bench.enqueue("bad", "--id", "bad1", "--max-attempts", "2")
    shutil.rmtree(bench.run_dir)
    return bench


@pytest.fixture(scope="module")
def three(tmp_path_factory, pyz):
    """A spool after a boot, nothing in RAM, with three jobs: one that works, one that fails once, one that dies."""
    return with_three_jobs(make_three(Bench(tmp_path_factory.mktemp("three"), pyz, CONCURRENCY=1)))


def learn(bench, trace, words_of, by="pyz", input_of=lambda at: b"", reads=1, roots=None):
    """[(call, n)] that a verb makes on the bench's folders: what two undisturbed runs showed.

    words_of("x"), words_of("y"): their arguments. reads: every how-manieth of the opens that only read; 0: none; FULL: all.
    """
    found, roots = {}, roots or [bench.spool, bench.run_dir]
    for at in ("x", "y"):
        result = bench.edgeq(*words_of(at), by=by, input=input_of(at), prefix=trace_argv(trace, follow=by == "wrapper"))
        assert result.code == 0, result
        calls = read_trace(trace)
        for name, ns in points(calls, roots, "write").items():
            found.setdefault(name, set()).update(ns)
        if reads or FULL:
            only_read = set(points(calls, roots, "all").get("openat", [])) - found.get("openat", set())
            found.setdefault("openat", set()).update(sorted(only_read)[::1 if FULL else reads])
    return [(name, n) for name in sorted(found) for n in sorted(found[name])]


def is_clear(result):
    """The end is told once: one line that is no log line, or the log's own last word."""
    lines = result.err.splitlines()
    said = [line for line in lines if not line.startswith("edgeq: 20")]
    if said:
        return len(said) == 1 and said[0].startswith("edgeq: ")
    return bool(lines) and " error " in lines[-1]


def report(name, n, record_property):
    record_property("points", n)
    record_property("what", name)
    assert n


# --- the worker ----------------------------------------------------------------------------------------------

def fault_work(three, root, how, call, n, stays=False):
    """One run of the worker with one fault, recovery, and the oracle; True when the fault was met."""
    bench = three.copy(root)
    rule = "%s:%s:when=%d%s" % (call, how, n, "+" if stays else "")
    result, where = bench.edgeq_with(rule, root / "trace", "work", "--once")
    try:
        if how == KILL:
            assert result.killed or result.code == 0, result
        else:
            assert result.code in ((0, 73, 74, 75) if where else (0,)), result
            assert result.code in (0, 75) or is_clear(result) or stays and call == "write", result
        bench.drain()
        done, dead = bench.audit(THREE)
        runs = bench.runs()
        assert {"ok1", "flaky1"} <= set(done) and set(dead) == {"bad1"}, (done, dead)
        # a full disk that stays full: the letter is the record as it was, by a rename that needs no byte
        assert dead["bad1"].get("attempts", 2 if stays and how == ENOSPC else 0) == 2 and runs["bad1"] <= 2, (dead, runs)
        slack = 0 if how != KILL and result.code == 0 else 2 if stays else 1
        assert all(1 <= runs[id] <= THREE[id] + slack for id in ("ok1", "flaky1")), runs
        if not slack:
            assert runs == THREE and done["ok1"].attempts == 1 and done["flaky1"].attempts == 2, runs
    except AssertionError as error:
        raise AssertionError("%s: %s\n%s" % (rule, error, result)) from error
    shutil.rmtree(root)
    return where == "ours"


def every_point(template, tmp_path, how, share=(0, 1), stays=False, below=None):
    """How many points were met. share: (which, of how many); below: only calls on that folder of the spool."""
    bench = template.copy(tmp_path / "learn")
    jobs = learn(bench, tmp_path / "trace", lambda at: ["work", "--once"], reads=3 if how == EIO else 0,
                 roots=below and [bench.q / below])[share[0]::share[1]]
    met = each(lambda point: fault_work(template, tmp_path / ("%s-%d" % point), how, *point, stays=stays), jobs)
    assert sum(met) >= 0.8 * len(jobs), "the runs differ too much: %d of %d points were met" % (sum(met), len(jobs))
    return sum(met)


@pytest.mark.fault
@pytest.mark.parametrize("share", [0, 1])
@pytest.mark.parametrize("how", HOWS)
def test_work_with_a_fault_at_every_call(three, tmp_path, how, share, record_property):
    report("work %s" % how, every_point(three, tmp_path, how, (share, 2)), record_property)


@pytest.fixture(scope="module")
def rolling(tmp_path_factory, pyz):
    """`three`, with a journal of small segments whose newest has no room for another line, and an old one to prune."""
    bench = make_three(Bench(tmp_path_factory.mktemp("rolling"), pyz, CONCURRENCY=1, DONE_KEEP_KB=16))
    bench.handler("fill", 'echo "result=%s" >"$EDGEQ_CTL"' % ("x" * 120))
    bench.enqueue_many([{"type": "fill", "id": "f%03d" % n} for n in range(80)])
    bench.drain()
    while True:  # up to the last line that fits
        (*_, newest) = bench.names("done")
        used = len((bench.q / "done" / newest).read_bytes().rstrip(b"\n"))
        if 4096 - used < 70:
            break
        bench.enqueue("fill" if 4096 - used > 300 else "ok")
        bench.drain()
    bench.ran_path.unlink()
    return with_three_jobs(bench)


@pytest.mark.fault
@pytest.mark.parametrize("how", HOWS)
def test_a_journal_that_goes_on_in_a_new_segment_with_a_fault_at_every_call(rolling, tmp_path, how, record_property):
    bench = rolling.copy(tmp_path / "look")
    before = bench.names("done")
    bench.drain()
    assert bench.names("done") != before, "this run was to begin a segment"
    report("rolling %s" % how, every_point(rolling, tmp_path, how, below=None if FULL else "done"), record_property)


if FULL:
    @pytest.mark.fault
    @pytest.mark.parametrize("share", range(8))
    @pytest.mark.parametrize("how", [EIO, ENOSPC])
    def test_work_with_a_fault_from_every_call_on(three, tmp_path, how, share, record_property):
        report("work %s for ever" % how, every_point(three, tmp_path, how, (share, 8), stays=True), record_property)


# --- the doors ---------------------------------------------------------------------------------------------------
# Each verb meets a fault at each of its calls, one after the other on the same spool, which gets rougher and rougher; at the
# end one worker drains it, and every id is accounted for.

def door(tmp_path, pyz):
    bench = Bench(tmp_path / "door", pyz)
    bench.handler("ok", "exit 0")
    bench.handler("perm", "echo for ever; exit 65")
    bench.enqueue("ok", "--id", "first")
    bench.drain()
    return bench


def meet_all(bench, found, how, words_of, by="pyz", input_of=lambda at: b""):
    """[(at, Result)] of the verb for each point; words_of(at): its arguments."""
    met, met_n = [], 0
    for at, (call, n) in enumerate(found):
        before = set(bench.dots())
        result, where = bench.edgeq_with("%s:%s:when=%d" % (call, how, n), bench.root / "trace", *words_of(at), by=by,
                                         input=input_of(at))
        said = "%s %d %s: %r" % (call, n, how, result)
        if how == KILL:
            assert result.code in (-9, 137, 0) or by == "wrapper", said  # the wrapper outlives a `dd` or a `mv`
        else:
            assert where or result.code == 0, said
            assert set(bench.dots()) == before, "left behind: %s" % said
        if not (how == KILL and by == "wrapper") and where != "elsewhere":
            assert result.code == 0 or result.killed or is_clear(result), said
        assert result.code == 0 or not result.out, said
        met.append((at, result))
        met_n += where == "ours"
    assert by == "wrapper" or met_n >= 0.7 * len(found), (met_n, met)
    return met


def is_maybe(result):
    """It says itself that the job may run all the same."""
    return "may still run" in result.err or result.killed


@pytest.mark.fault
@pytest.mark.parametrize("by", ["pyz", "wrapper"])
@pytest.mark.parametrize("how", HOWS)
def test_enqueue_with_a_fault_at_every_call(tmp_path, pyz, how, by, record_property):
    """B14, B18: refused means nothing is left; accepted means it runs, once; after a doubt, the same id again is the same job."""
    bench = door(tmp_path, pyz)

    def words_of(at):
        return ["enqueue", "ok", '{"a":1}', "--id", "id%s" % at]
    found = learn(bench, tmp_path / "trace", words_of, by, reads=READS[how])
    accepted = {"first", "idx", "idy"}
    for at, result in meet_all(bench, found, how, words_of, by):
        id, is_there = "id%d" % at, "id%d" % at in bench.waiting()
        if result.code == 0:
            assert result.out == id + "\n" and is_there, result
        elif how != KILL and not is_maybe(result):
            assert not is_there, result
        if at % 2 or result.code == 0:  # every other doubt stays one
            assert bench.enqueue("ok", '{"a":1}', "--id", id, by="wrapper" if by == "pyz" and at % 3 == 0 else by) == id
            accepted.add(id)
    # no id given: nothing to look up, nothing to lock
    found = learn(bench, tmp_path / "trace", lambda at: ["enqueue", "ok"], by, reads=READS[how])
    for at, result in meet_all(bench, found, how, lambda at: ["enqueue", "ok", "--priority", "3"], by):
        if result.code == 0:
            accepted.add(result.out.strip())
    bench.drain()
    bench.audit(accepted)
    assert set(bench.runs().values()) == {1}
    report("enqueue by %s, %s" % (by, how), 2 * len(found), record_property)


@pytest.mark.fault
@pytest.mark.parametrize("by", ["pyz", "wrapper"])
@pytest.mark.parametrize("how", HOWS)
def test_the_first_enqueue_of_a_spools_life_with_a_fault_at_every_call(tmp_path, pyz, how, by, record_property):
    """No spool, nothing in RAM yet."""
    template = Bench(tmp_path / "template", pyz)
    template.handler("ok", "exit 0")
    bench = template.copy(tmp_path / "learn")
    prefix = trace_argv(tmp_path / "trace", follow=by == "wrapper")
    assert bench.edgeq("enqueue", "ok", "--id", "a", by=by, prefix=prefix).code == 0
    found = points(read_trace(tmp_path / "trace"), [bench.spool, bench.run_dir], "all" if FULL or by == "wrapper" else "write")

    def meet(point):
        bench = template.copy(tmp_path / ("%s-%d" % point))
        result, where = bench.edgeq_with("%s:%s:when=%d" % (point[0], how, point[1]), bench.root / "trace", "enqueue", "ok",
                                         "--id", "a", by=by)
        assert result.code == 0 or not result.out, result
        if result.code != 0 and how != KILL and not is_maybe(result):
            assert bench.waiting() == {}, result
        bench.enqueue("ok", "--id", "a", by=by)
        bench.drain()
        bench.audit(["a"])
        assert bench.runs() == {"a": 1}
        return where == "ours"
    met = each(meet, [(name, n) for name in sorted(found) for n in found[name]])
    report("first enqueue by %s, %s" % (by, how), sum(met), record_property)


@pytest.mark.fault
@pytest.mark.parametrize("how, call, words", [(how, "sync_file_range", ()) for how in HOWS] + [
    (EIO, "syncfs", ("-O", "^has_journal"))])
def test_a_batch_with_a_fault_at_every_call(make_ext4, tmp_path, pyz, how, call, words, record_property):
    """All of it, or an error; without a kill or a failed flush an error means nothing of it."""
    bench = door(make_ext4(*words), pyz)

    def lines(at):
        return b"".join(b'{"type":"ok","id":"b%s-%d"}\n' % (str(at).encode(), n) for n in range(3))
    found = learn(bench, tmp_path / "trace", lambda at: ["enqueue", "--batch"], input_of=lines, reads=READS[how])
    assert {name for name, _ in found if name.startswith("sync")} == {call}
    accepted = {"first"} | {"b%s-%d" % (at, n) for at in "xy" for n in range(3)}
    for at, result in meet_all(bench, found, how, lambda at: ["enqueue", "--batch"], input_of=lines):
        ids = {"b%d-%d" % (at, n) for n in range(3)}
        if result.code == 0:
            assert result.out.split() == sorted(ids)
            accepted |= ids
        elif not is_maybe(result):
            assert not ids & set(bench.waiting()), result
        if at % 2:
            assert bench.edgeq("enqueue", "--batch", input=lines(at)).code == 0
            accepted |= ids
    bench.drain()
    bench.audit(accepted)
    assert set(bench.runs().values()) == {1}
    report("batch %s" % how, len(found), record_property)


@pytest.mark.fault
@pytest.mark.parametrize("how", HOWS)
def test_kick_with_a_fault_at_every_call(tmp_path, pyz, how, record_property):
    bench = door(tmp_path, pyz)
    ids = bench.enqueue_many([{"type": "perm", "id": "k%d" % n} for n in range(150)])
    bench.drain()
    assert set(bench.dead()) == set(ids)
    found = learn(bench, tmp_path / "trace", lambda at: ["kick", ids[-1 if at == "x" else -2]], reads=READS[how])
    kicked = set(ids[-2:])
    for at, result in meet_all(bench, found, how, lambda at: ["kick", ids[at]]):
        where = [ids[at] in bench.dead(), ids[at] in bench.waiting()]
        assert sum(where) == 1, (where, result)
        assert where[1] or result.code != 0, result
        if where[1]:
            kicked.add(ids[at])
    bench.drain()
    bench.audit(ids)
    assert bench.runs() == {"first": 1, **{id: 2 if id in kicked else 1 for id in ids}}
    report("kick %s" % how, len(found), record_property)


@pytest.mark.fault
@pytest.mark.parametrize("how", HOWS)
def test_cancel_with_a_fault_at_every_call(tmp_path, pyz, how, record_property):
    bench = door(tmp_path, pyz)
    ids = bench.enqueue_many([{"type": "ok", "id": "c%d" % n} for n in range(60)])
    found = learn(bench, tmp_path / "trace", lambda at: ["cancel", ids[-1 if at == "x" else -2]], reads=READS[how])
    gone = set(ids[-2:])
    for at, result in meet_all(bench, found, how, lambda at: ["cancel", ids[at]]):
        is_there = ids[at] in bench.waiting()
        assert not is_there or result.code != 0, result
        if not is_there:
            gone.add(ids[at])
    bench.drain()
    bench.audit(set(ids) - gone, gone)
    assert set(bench.runs()) == {"first"} | set(ids) - gone
    report("cancel %s" % how, len(found), record_property)
