"""status: one line whatever happens, with a worker and without; and the exit code."""

import os
import re
import subprocess
import sys

import pytest

import edgeq
from tests.shell.board import BOOT_ID, journal_line, start_time, tool, uptime

ORDER = ("queue ready processing done dead oldest_ready_s retries_1m delayed failed corrupt held paused worker durable clock "
         "free_kb flushes written_kb last_error").split()


def status(board, *words, **more):
    """(exit code, fields) of a status that is one well-formed line."""
    result = board.edgeq(*words, "status", **more)
    assert result.err == "" and result.out.count("\n") == 1, result
    match = re.fullmatch(r'(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ([ -~]*) last_error="([ -~]*)"\n', result.out)
    assert match, result.out
    fields = dict(pair.split("=", 1) for pair in match.group(2).split(" "))
    assert list(fields) == ORDER[:-1]
    return result.code, {**fields, "at": match.group(1), "last_error": match.group(3)}


def test_an_empty_board_without_a_worker(any_board):
    code, line = status(any_board)
    free = line.pop("free_kb")
    assert code == 2 and int(free) > 0
    line.pop("at"), line.pop("durable")
    assert line == {"queue": "default", "ready": "0", "processing": "0", "done": "0", "dead": "0",
                    "oldest_ready_s": "0", "retries_1m": "0",
                    "delayed": "0", "failed": "0", "corrupt": "0", "held": "0", "paused": "0", "worker": "down", "clock": "ok",
                    "flushes": "0", "written_kb": "0", "last_error": ""}


def test_no_spool_at_all_is_still_one_line(bare_board):
    code, line = status(bare_board)
    assert code == 2 and line["worker"] == "down" and line["ready"] == "0"
    assert not bare_board.spool.exists() and not bare_board.run_dir.exists()


def test_counted_from_the_names(any_board, tmp_path):
    board, now = any_board, 1800000000
    clock(board, now)
    board.waiting("a", seq=(now - 100) * 1000000)
    board.waiting("b", seq=(now - 50) * 1000000, prio=2)
    board.waiting("c", seq=(now - 900) * 1000000, due=str(now - 500), prio=7)
    board.waiting("d", seq=(now - 900) * 1000000, due=str(now + 500))
    board.waiting("e", seq=(now - 900) * 1000000, due="%da" % (now + 5))
    board.waiting("f", seq=(now - 900) * 1000000, tail="v2.json")
    board.waiting("g", folder="failed", due=str(now + 5), att="1")
    board.waiting("h", folder="failed", due=str(now - 5), att="2r")
    board.waiting("h2", folder="failed", due=str(now - 5), att="2", tail="v2.json")
    (board.q / "failed/stranger").write_text("x")
    board.waiting("i", folder="processing", tail="abcd1234-1-1-1.json")
    board.waiting("j", folder="processing", tail="abcd1234-1-1-2.settling")
    for name in ("dlq/k.json", "dlq/l.json", "corrupt/m", "corrupt/m.why", "corrupt/n.json", "corrupt/n.json.why", "corrupt/o"):
        (board.q / name).write_text("{}\n")
    (board.q / "incoming/dropped.json").write_text('{"type":"t"}\n')
    (board.q / "incoming/.half").write_text("")
    board.segment([journal_line("p%d" % i, i) for i in range(1, 100)], seq=1)
    board.segment([journal_line("q%d" % i, i) for i in range(100, 205)] + [journal_line("torn", 999)[:-4] + "000\n",
                                                                           "+\n"], seq=2, count=99)
    code, line = status(board, env=clock(board, now))
    want = {"ready": "4", "processing": "1", "done": "204", "dead": "2", "delayed": "2", "failed": "2",
            "corrupt": "3", "held": "0",
            "oldest_ready_s": "500", "at": "2027-01-15T08:00:00Z", "clock": "ok", "worker": "down"}
    assert {key: line[key] for key in want} == want and code == 2


def clock(board, now):
    """An environment in which the wall clock reads `now`."""
    import time
    path = board.root / "clock"
    path.write_text("%d\n" % (now - int(time.time())))
    return {"EDGEQ_TEST_CLOCK": str(path)}


def test_done_of_a_new_segment_is_the_count_in_its_name(board):
    board.segment([], seq=7, count=1234, room=60000)
    assert status(board)[1]["done"] == "1234"


def test_held_types_are_counted(board):
    board.waiting("a", type="x")
    board.waiting("b", type="x", folder="failed")
    board.waiting("c", type="y")
    board.waiting("x", type="z")
    (board.r / "types").mkdir()
    board.waiting("d", type="x", tail="v2.json")
    (board.r / "types/x").write_text("held 999 no handler\n")
    (board.r / "types/y").write_text("offline 999 no net\n")
    assert status(board)[1]["held"] == "2"


@pytest.mark.parametrize("seconds, text", [(0, "1970-01-01T00:00:00Z"), (951782399, "2000-02-28T23:59:59Z"),
                                           (951782400, "2000-02-29T00:00:00Z"),
                                           (2147483648, "2038-01-19T03:14:08Z"), (4107542400, "2100-03-01T00:00:00Z")])
def test_the_date_is_right_for_ever(board, seconds, text):
    """B28."""
    got = status(board, env=clock(board, seconds))[1]["at"]
    assert got[:-3] == text[:-3]  # a second may pass meanwhile


def test_the_clock_is_judged(board):
    assert status(board, env=clock(board, edgeq.BUILD_DATE - 100))[1]["clock"] == "untrusted"
    assert status(board, env=clock(board, 1795990000))[1]["clock"] == "ok"
    board.waiting("a", seq=1795990100000000)
    assert status(board, env=clock(board, 1795990000))[1]["clock"] == "untrusted"  # before the newest job
    assert status(board, env=clock(board, 1795990096))[1]["clock"] == "ok"
    assert status(board, env=clock(board, 1795990096))[1]["oldest_ready_s"] == "0"
    board.waiting("b", seq=1795980000000000)
    assert status(board, env=clock(board, 1795990096))[1]["oldest_ready_s"][:3] == "100"
    assert status(board, env=clock(board, 1795990000))[1]["oldest_ready_s"] == "0"  # nobody knows
    board.configure(CLOCK="none")
    assert status(board, env=clock(board, 1000))[1]["clock"] == "ok"


def test_a_delay_counts_on_seqs_clock_and_a_time_waits_for_a_trusted_one(board):
    board.waiting("a", seq=1795990100000000, due="1795990090")
    board.waiting("b", seq=1795990000000000, due="1795990001a")
    _, line = status(board, env=clock(board, 1795990000))
    assert (line["ready"], line["delayed"], line["oldest_ready_s"]) == ("1", "1", "0")
    _, line = status(board, env=clock(board, 1795990100))
    assert (line["ready"], line["delayed"], line["oldest_ready_s"]) == ("2", "0", "99")


# --- with a worker -----------------------------------------------------------------------------------------------------


def test_a_workers_own_words(any_board):
    now = uptime()
    any_board.waiting("a")  # the folders are not looked at
    any_board.has_worker(ready=12, processing=1, done=204, dead=3, oldest=now - 48,
                         retries="%d:2,%d:3,%d:9" % (now - 5, now - 50, now - 70),
                         delayed=4, failed=2, corrupt=5, held=6, flushes=31, written_kb=188, exit=1,
                         last_error='exit 1: \\"x\\" \\x0a=')
    code, line = status(any_board)
    want = {"ready": "12", "processing": "1", "done": "204", "dead": "3", "retries_1m": "5", "delayed": "4",
            "failed": "2", "corrupt": "5",
            "held": "6", "flushes": "31", "written_kb": "188", "worker": "up", "durable": "yes", "clock": "ok", "paused": "0",
            "last_error": 'exit 1: \\"x\\" \\x0a='}
    assert {key: line[key] for key in want} == want
    assert 48 <= int(line["oldest_ready_s"]) <= 60 and code == 1


@pytest.mark.parametrize("exit", [0, 1, 2])
def test_the_exit_code_is_the_workers(board, exit):
    board.has_worker(exit=exit, clock="untrusted", durable="no")
    code, line = status(board)
    assert code == exit and line["clock"] == "untrusted" and line["durable"] == "no"


def test_a_stalled_worker_is_2(board):
    board.has_worker(stamp=uptime() - 130, scan_s=60)
    code, line = status(board)
    assert code == 2 and line["worker"] == "stalled"
    board.has_worker(stamp=uptime() - 100, scan_s=60)
    assert status(board)[0] == 0


@pytest.mark.parametrize("fields", [{"pid": 999999999}, {"start": 1},
                                    {"boot": "00000000-0000-0000-0000-000000000000"}, {"pid": ""},
                                    {"pid": "1/../self"}, {"start": "x"}])
def test_a_worker_that_is_gone_is_down(board, fields):
    board.has_worker(ready=77, **fields)
    code, line = status(board)
    assert code == 2 and line["worker"] == "down" and line["ready"] == "0"


def test_an_idle_worker(board):
    """It left under LINGER_S: healthy, and the folders say what waits."""
    board.has_worker(pid=999999999, worker="idle", durable="yes")
    board.configure(MIN_FREE_KB=0)
    board.waiting("a")
    code, line = status(board)
    assert line["worker"] == "idle" and line["ready"] == "1"
    assert code == (0 if line["durable"] == "yes" else 1)
    (board.q / "dlq/x.json").write_text("{}\n")
    assert status(board)[0] == 1


def test_a_full_disk_is_2(board):
    board.has_worker()
    assert status(board)[0] == 0
    board.configure(MIN_FREE_KB=999999999999)
    assert status(board)[0] == 2


@pytest.mark.parametrize("rubbish", [b"", b"\0" * 100, b"\xff" * 300, b"pid=$(id) start=`id`\n", b"\n",
                                     b"pid= ready=-1 x\n", b"a" * 5000])
def test_a_damaged_status_file(board, rubbish):
    """B06, P11."""
    (board.r / "status").write_bytes(rubbish)
    code, line = status(board)
    assert code == 2 and line["worker"] == "down"


def test_hostile_fields_of_a_living_worker_stay_on_the_line(board):
    """B77."""
    board.has_worker(last_error="x\x1b[2J\x07", ready="$((1+1))", oldest="a[$(id)]", retries="1:x,:,9:9:9,$(id)", flushes="08")
    code, line = status(board)
    assert (line["last_error"], line["ready"], line["oldest_ready_s"], line["flushes"]) == ("(not printable)", "0", "0", "8")


BRIEF = dict(pid=0, start=0, boot=BOOT_ID[:8], stamp=0, scan_s=60, exit=1, ready=12, processing=1, done=204, dead=3, oldest=0,
             retries="-", delayed=4, failed=2, corrupt=5, held=6, durable="yes", clock="ok", free_kb=777, flushes=31,
             written_kb=188, last_error='exit 1: \\"x\\" = \\x0a')


def write_brief(board, pid=None, **fields):
    pid = pid or os.getpid()
    line = {**BRIEF, "pid": pid, "start": start_time(pid), "stamp": uptime(), **fields}
    (board.r / "brief").write_text(" ".join(map(str, line.values())) + "\n")


def test_a_workers_brief_words_say_the_same_without_a_fork(any_board):
    board, now = any_board, uptime()
    retries = "%d:2,%d:3,%d:9" % (now - 5, now - 50, now - 70)
    board.has_worker(**{**{key: BRIEF[key] for key in BRIEF if key not in ("pid", "start", "boot", "stamp", "free_kb")},
                        "oldest": now - 48, "retries": retries})
    at_length = status(board)
    write_brief(board, oldest=now - 48, retries=retries)
    log = board.root / "strace"
    code, line = status(board, prefix=[tool("strace"), "-f", "-qq", "-o", str(log), "-e", "trace=clone,clone3,fork,vfork"])
    forks_n = len(re.findall(r"(?:clone3?|v?fork)\(.*= \d", log.read_text()))
    assert forks_n == (0 if board.shell == "ash" else 1)  # dash asks date
    assert line["free_kb"] == "777" and line["retries_1m"] == "5" and line["last_error"] == BRIEF["last_error"]
    for key in ("at", "oldest_ready_s", "free_kb"):
        del line[key], at_length[1][key]
    assert (code, line) == at_length and code == 1


@pytest.mark.parametrize("fields", [
    {"boot": "00000000"}, {"ready": "08"}, {"ready": "-1"}, {"ready": "$(id)"}, {"ready": "9" * 30}, {"exit": 3}, {"clock": "x"},
    {"durable": ""}, {"last_error": "\x1b[2J"}, {"ready": "1 2"}, {"free_kb": ""}, {"retries": ""}])
def test_damaged_brief_words_are_not_believed(board, fields):
    board.has_worker(ready=3)
    write_brief(board, **fields)
    assert status(board)[1]["ready"] == "3"


def test_brief_words_of_a_full_disk_a_stalled_worker_and_a_pause(board):
    write_brief(board, exit=0)
    (board.q / "paused").write_text("60 1 %s %d\n" % (BOOT_ID, uptime() + 60))
    assert status(board)[0] == 0 and status(board)[1]["paused"] == "1"
    board.configure(MIN_FREE_KB=389)  # more than half of what it saw: one looks
    board.has_worker()
    assert status(board)[1]["free_kb"] != "777"
    board.configure()
    write_brief(board, exit=0, stamp=uptime() - 130)
    assert status(board)[0] == 2 and status(board)[1]["worker"] == "stalled"


def test_a_worker_is_known_by_its_name_and_a_zombie_is_none(board):
    script = ("import sys; start = open('/proc/self/stat').read().rpartition(')')[2].split()[19]\n"
              "open('/proc/self/comm', 'w').write('edgeq' + start); print('here', flush=True); sys.stdin.read()")
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        write_brief(board, process.pid)
        log = board.root / "strace"
        _, line = status(board, prefix=[tool("strace"), "-qq", "-o", str(log), "-e", "trace=openat"])
        assert line["worker"] == "up" and "/proc/%d/comm" % process.pid in log.read_text()
        assert "/proc/%d/stat" % process.pid not in log.read_text()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert status(board)[1]["worker"] == "down"
    finally:
        process.kill()
        process.communicate()


def test_five_lines_of_shell_read_the_counts_back(board):
    board.has_worker(ready=3, dead=2, last_error="ready=99 dead=98")
    script = 'line=$("$@"); rest=${line#* ready=}; echo ${rest%% *}; rest=${line#* dead=}; echo ${rest%% *}'
    assert board.sh(script, *map(os.fsdecode, board.argv("status"))).out == "3\n2\n"


def test_closed_and_full_stdout(board):
    """B59."""
    for where in (">&-", ">/dev/full"):
        for ready in (None, write_brief, board.has_worker):  # nobody, a worker's brief words, its long ones
            (board.r / "brief").unlink(missing_ok=True)
            if ready:
                ready(board) if ready is write_brief else ready()
            result = board.sh('"$@" %s' % where, *map(os.fsdecode, board.argv("status")))
            assert (result.code, result.err) == (74, "edgeq: status: stdout: cannot be written\n"), (where, ready, result)


def test_status_writes_nothing(board):
    board.waiting("a")
    log = board.root / "strace"
    before = board.tree()
    board.edgeq("status", prefix=[tool("strace"), "-f", "-qq", "-o", "/dev/null"])
    assert board.tree() == before
    assert not log.exists()


def test_another_queue_has_its_own_line(board):
    assert status(board, "--queue", "urgent")[1]["queue"] == "urgent"


def test_ten_thousand_jobs_are_counted_fast(board):
    """B22: CPU, against the bare shell, so that a busy machine does not matter much."""
    import resource
    for i in range(10000):
        os.close(os.open(board.q / ("incoming/5.%016d.0.0.t.j%d.json" % (1752999990000000 + i, i)), os.O_CREAT, 0o640))
    (board.r / "seq").write_text("%016d\n" % 1752999990010000)

    def cpu(argv):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for _ in range(5):
            subprocess.run(argv, env=board.env(), capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 5
    assert status(board)[1]["ready"] == "10000"
    assert cpu(board.argv("status")) < 0.2
    assert cpu(board.argv("enqueue", "t", "--fast")) < 0.2


def test_durable_is_no_in_ram(board):
    """B43."""
    script = "mount -t tmpfs spool %s && mkdir -p %s/incoming && exec \"$@\"" % (board.spool, board.q)
    done = subprocess.run([tool("unshare"), "-Urm", "sh", "-c", script, "sh", *map(os.fsdecode, board.argv("status"))],
                          env={**board.env(), "PATH": "%s:/usr/bin:/bin" % board.bin}, capture_output=True, text=True)
    assert " durable=no " in done.stdout, done


# --- pauses ------------------------------------------------------------------------------------------------------------


def test_pause_and_resume(any_board):
    board = any_board
    assert board.edgeq("pause").code == 0
    assert board.edgeq("pause", "t", "--for", "60").code == 0
    assert board.edgeq("pause", "u", "--for=ever").code == 0
    for name, for_s in (("paused", 3600), ("paused.t", 60), ("paused.u", 0)):
        words = (board.q / name).read_text()
        match = re.fullmatch(r"(\d+) (\d+) (\S+) (\d+)\n", words)
        assert match and int(match.group(1)) == for_s and match.group(3) == BOOT_ID
        assert abs(int(match.group(4)) - for_s - uptime()) <= 2
    assert status(board)[1]["paused"] == "3"
    assert board.enqueue("t")  # a paused queue accepts
    for words in ((), ("t",), ("u",)):
        assert board.edgeq("resume", *words).code == 0
        result = board.edgeq("resume", *words)
        assert result.code == 1 and "is not paused" in result.err
    assert status(board)[1]["paused"] == "0"
    assert [name for name in os.listdir(board.q) if "paused" in name or name[0] == "."] == []


def test_a_pause_ends(board):
    now, other = uptime(), "00000000-0000-0000-0000-000000000000"
    wall = 1800000000
    cases = [("60 1 %s %d" % (BOOT_ID, now + 60), 1), ("60 1 %s %d" % (BOOT_ID, now - 1), 0),
             ("60 %d %s 5" % (wall - 30, other), 1), ("60 %d %s 5" % (wall - 90, other), 0), ("0 1 %s 1" % other, 1),
             ("rubbish", 1), ("", 1), ("60 x y z", 1)]
    for text, count in cases:
        (board.q / "paused").write_text(text + "\n")
        assert status(board, env=clock(board, wall))[1]["paused"] == str(count), text
    for for_s, count in ((now + 600, 1), (1, 0)):  # another boot, and no clock to believe: from the boot on, as the worker counts
        (board.q / "paused").write_text("%d 1 %s 5\n" % (for_s, other))
        assert status(board, env=clock(board, 1000))[1]["paused"] == str(count), for_s
    board.configure(CLOCK="none")
    assert status(board, env=clock(board, 1800000000))[1]["paused"] == "0"


def test_resume_frees_held_types(board):
    (board.r / "types").mkdir()
    for name in ("x", "y"):
        (board.r / "types" / name).write_text("held 999 no handler\n")
    assert board.edgeq("resume", "x").code == 0
    assert os.listdir(board.r / "types") == ["y"]
    assert board.edgeq("resume").code == 0
    assert os.listdir(board.r / "types") == []


@pytest.mark.parametrize("words", [["pause", "../x"], ["pause", "-x"], ["pause", "a", "b"], ["pause", "--for", "0"],
                                   ["pause", "--for", "x"],
                                   ["pause", "--for"], ["resume", "a/b"], ["resume", "a", "b"], ["resume", "--for",
                                   "1"], ["pause", ""],
                                   ["status", "x"], ["status", "--nonsense"], ["wait"], ["wait", "../x"], ["wait",
                                   "a", "--timeout", "x"]])
def test_bad_usage_is_64(board, words):
    before = board.tree()
    result = board.edgeq(*words)
    assert result.code == 64 and result.out == "" and re.fullmatch(r"edgeq: [ -~]+\n", result.err), result
    assert board.tree() == before


# --- wait ------------------------------------------------------------------------------------------------------------------


def test_wait_for_what_is_over(any_board):
    board = any_board
    board.segment([journal_line("a", 1), journal_line("b", 2)])
    (board.q / "dlq/d.json").write_text("{}\n")
    assert board.edgeq("wait", "a", "b").code == 0
    result = board.edgeq("wait", "a", "d")
    assert result.code == 1 and "d: is dead" in result.err
    result = board.edgeq("wait", "nobody")
    assert result.code == 1 and "nobody: is unknown" in result.err
    (board.q / "dlq/b.json").write_text("{}\n")  # a leftover: the journal ranks first
    assert board.edgeq("wait", "b").code == 0


def test_wait_gives_up(board):
    board.waiting("a")
    result = board.edgeq("wait", "a", "--timeout", "0")
    assert result.code == 75 and result.err.startswith("edgeq: wait: a: not done after 0 s")
    assert board.edgeq("wait", "a", "--timeout", "1").code == 75


@pytest.mark.parametrize("end, code", [("done", 0), ("dead", 1), ("cancelled", 1)])
def test_wait_waits(board, end, code):
    path = board.waiting("a")
    nap = board.root / "naps"
    fake = board.root / "fake"
    fake.mkdir()
    os.mkfifo(nap)
    # each nap is told to the test, which then ends the job: no sleep decides anything here
    (fake / "sleep").write_text("#!/bin/sh\necho nap >%s\n" % nap)
    os.chmod(fake / "sleep", 0o755)
    board.shell = "dash"  # Debian's ash would use its own sleep
    process = subprocess.Popen(board.argv("wait", "a"), env=board.env(PATH="%s:/usr/bin:/bin" % fake), stderr=subprocess.PIPE)
    with open(nap) as naps:  # open to the end, so that no nap blocks
        assert naps.readline() == "nap\n"
        if end == "done":
            board.segment([journal_line("a", 1)])
        elif end == "dead":
            (board.q / "dlq/a.json").write_text("{}\n")
        os.unlink(path)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
