"""`edgeq guard`: one worker of one queue, kept alive; and LINGER_S, where only the guard stays."""

import re
import time
from pathlib import Path

from tests.init.board import wait_for


def dirty_kb(proc):
    """RAM that a process costs for good. Anonymous and not Private_Dirty: that counts clean text whose file is not on disk yet."""
    return int(re.search(r"^Anonymous: +(\d+)", (proc / "smaps_rollup").read_text(), re.M)[1])


def crash_lines(board):
    return re.findall(r"worker ended: (.*): starts again in (\d+) s", board.log())


def lingering(board):
    """The guard, once no worker is left and its FIFO waits for a poke."""
    def found():
        if board.workers() or len(board.guards()) != 1:
            return None
        guard = board.guards()[0]
        return guard if board.sh("ls /run/edgeq/default/wake/%d-*.asleep" % guard).code == 0 else None
    return wait_for(found, "the worker leaves and the guard waits")


def linger_board(board, **keys):
    board.configure(LINGER_S=1, SAFETY_SCAN_S=keys.pop("SAFETY_SCAN_S", 600), **keys)
    assert board.s85("restart").code == 0
    return lingering(board)


# --- a worker that ends ----------------------------------------------------------------------------------------


def test_a_killed_worker_comes_back_and_says_so(board):
    (guard,), (worker,) = board.guards(), board.workers()
    board.sh("kill -KILL %d" % worker)
    assert wait_for(lambda: [pid for pid in board.workers() if pid != worker], "a new worker")
    assert board.guards() == [guard]
    assert crash_lines(board) == [("signal 9", "1")]
    board.enqueue("ok", "--id", "j1")
    wait_for(lambda: board.ran() == ["j1"], "the job runs")


def test_the_end_of_a_worker_is_noticed_at_once(board):
    """The guard's next look would come in ten minutes: the end itself wakes it."""
    board.configure(SAFETY_SCAN_S=600)
    board.s85("restart")
    board.await_worker()
    time.sleep(0.5)  # deep in its read, whatever it did before
    worker = board.workers()[0]
    begun = time.monotonic()
    board.sh("kill -KILL %d" % worker)
    wait_for(lambda: [pid for pid in board.workers() if pid != worker], "a new worker", 60)
    assert time.monotonic() - begun < 60


def test_a_crash_loop_is_paced_and_reported(board):
    board.s85("stop")
    board.sh("cp /usr/lib/edgeq/edgeq.pyz /usr/lib/edgeq/good; "
             "printf '#!/bin/sh\\necho x >>/tmp/starts\\nexit 3\\n' >/usr/lib/edgeq/edgeq.pyz")
    board.start("exec edgeq guard")
    wait_for(lambda: len(crash_lines(board)) >= 4, "four crashes")
    assert [pair for pair in crash_lines(board)][:4] == [("exit 3", "1"), ("exit 3", "2"), ("exit 3", "4"), ("exit 3", "8")]
    result = board.sh("edgeq guard --check")
    assert result.code == 4 and "crashed" in result.out
    starts = len(board.sh("cat /tmp/starts").out.split())
    assert starts <= len(crash_lines(board)) + 1
    begun = time.monotonic()
    assert board.s85("start").code == 4  # no second guard on top
    assert board.s85("stop").code == 0
    assert time.monotonic() - begun < 20  # it does not sit the pause out
    assert not board.guards()


def test_a_crash_loop_heals_when_the_cause_goes(board):
    board.sh("mv /usr/lib/edgeq/edgeq.pyz /usr/lib/edgeq/away; kill -KILL %d" % board.workers()[0])
    wait_for(lambda: len(crash_lines(board)) >= 2, "a start that fails")
    board.sh("mv /usr/lib/edgeq/away /usr/lib/edgeq/edgeq.pyz")
    board.await_worker()
    assert board.s85("status").code == 0


def test_a_worker_that_hangs_is_killed_after_three_scans_and_replaced(board):
    board.configure(SAFETY_SCAN_S=1)
    board.s85("restart")
    worker = board.await_worker()
    board.sh("kill -STOP %d" % worker)
    begun = time.monotonic()
    wait_for(lambda: [pid for pid in board.workers() if pid != worker], "a new worker")
    assert time.monotonic() - begun >= 2
    assert "gave no sign of life for" in board.log()
    board.enqueue("ok", "--id", "j1")
    wait_for(lambda: board.ran() == ["j1"], "the job runs")


def test_a_stamp_that_is_old_once_is_a_doubt_and_no_death(board):
    """A board that slept wakes up with an old stamp. The first look wakes the worker, only the next one would kill it."""
    board.configure(SAFETY_SCAN_S=4)
    board.s85("restart")
    worker = board.await_worker()
    for _ in range(2):
        # the guard looks every 4 s, just before the worker would: when it sees more than 8 s, and 4 s later it would kill
        result = board.sh("set -u; kill -STOP $1; age=0; set -- $1 /run/edgeq/default/workers/$1-*; while [ $age -lt 12 ]; do"
                          " sleep 0.2; read -r up _ </proc/uptime; read -r _ stamp _ <$2; age=$((${up%%.*} - stamp)); done;"
                          " kill -CONT $1; echo $age", str(worker))
        assert result.out in ("12\n", "13\n"), result
        wait_for(lambda: board.s85("status").code == 0, "it runs again")
        assert board.workers() == [worker] and "sign of life" not in board.log()


def test_term_to_the_guard_ends_both_and_hup_reloads(board):
    (guard,) = board.guards()
    board.configure(CONCURRENCY=4)
    board.sh("kill -HUP %d" % guard)
    wait_for(lambda: "reloaded" in board.log(), "the worker has read its configuration")
    board.sh("kill -TERM %d" % guard)
    wait_for(lambda: not board.guards() and not board.workers(), "both end")
    assert "killed" not in board.log()
    assert board.sh("ls /var/lib/edgeq/default/running").code == 1  # a clean stop


def test_a_worker_told_to_end_by_somebody_else_is_started_again(board):
    worker = board.workers()[0]
    board.sh("kill -TERM %d" % worker)
    wait_for(lambda: [pid for pid in board.workers() if pid != worker], "a new worker")


# --- who guards ---------------------------------------------------------------------------------------------------


def test_there_is_no_second_guard(board):
    before = board.guards() + board.workers()
    result = board.sh("edgeq guard")
    assert result.code == 75 and "another guard" in result.err and result.err.count("\n") == 1
    assert board.guards() + board.workers() == before


def test_a_killed_guard_is_replaced_and_its_worker_too(board):
    (guard,), (worker,) = board.guards(), board.workers()
    board.sh("kill -KILL %d" % guard)
    result = wait_for(lambda: (lambda r: "without its guard" in r.out and r)(board.s85("status")), "the orphan is seen")
    assert result.code == 0
    assert board.s85("start").out == "Starting edgeq: OK\n"
    assert len(board.guards()) == 1 and len(board.workers()) == 1
    assert board.workers() != [worker] and board.guards() != [guard]


def test_stop_finds_the_worker_of_a_killed_guard(board):
    board.sh("kill -KILL %d; rm /var/run/edgeq.pid" % board.guards()[0])
    assert board.s85("stop").out == "Stopping edgeq: OK (stopped)\n"
    assert not board.workers()


def test_inittab_respawn_is_the_other_way(cold_board):
    """The documented line, instead of S85."""
    (cold_board.root / "etc/init.d/S85edgeq").unlink()
    with open(cold_board.root / "etc/inittab", "a") as inittab:
        inittab.write("::respawn:/usr/bin/edgeq guard\n")
    board = cold_board.boot()
    board.await_worker()
    (guard,) = board.guards()
    board.sh("kill -KILL %d" % guard)
    wait_for(lambda: [pid for pid in board.guards() if pid != guard] and len(board.workers()) == 1, "init starts another guard")
    board.enqueue("ok", "--id", "j1")
    wait_for(lambda: board.ran() == ["j1"], "the job runs")


def test_an_update_in_place_derails_nothing(board):
    (guard,), (worker,) = board.guards(), board.workers()
    for path in ("/usr/bin/edgeq", "/usr/lib/edgeq/edgeq.pyz"):
        board.sh("cp %s /tmp/kept && yes 'exit 99' | head -c 200000 >%s" % (path, path))
        board.sh("kill -HUP %d" % guard)
        time.sleep(2.5)  # more than a safety scan: whatever would be read would be read now
        assert board.guards() == [guard] and board.workers() == [worker]
        board.sh("cat /tmp/kept >" + path)
    board.enqueue("ok", "--id", "j1")
    wait_for(lambda: board.ran() == ["j1"], "the job runs")


def test_run_emptied_under_the_guard_makes_no_twin(board):
    board.sh("rm -r /run/edgeq")
    wait_for(lambda: board.s85("status").code == 0, "guard and worker are known again")
    assert board.s85("start").out == "Starting edgeq: OK (already running)\n"
    assert len(board.guards()) == 1 and len(board.workers()) == 1


def test_a_handler_does_not_hold_the_guards_line_or_lock(board):
    board.handler("stays", "exec sleep 609")
    board.enqueue("stays")
    handler = wait_for(lambda: board.sleeps(609), "the handler runs")[0]
    fds = Path("/proc/%d/fd" % board.host_pid(handler))
    assert sorted(fd.name for fd in fds.iterdir()) == ["0", "1", "2"]


# --- LINGER_S -------------------------------------------------------------------------------------------------------


def test_linger_leaves_only_a_small_shell_that_sleeps(board):
    guard = linger_board(board)
    assert board.s85("status").out == "edgeq: default: running (guard %d, no worker: nothing to do)\n" % guard
    status = board.status()
    assert status["worker"] == "idle" and board.sh("edgeq status").code == 0
    proc = Path("/proc/%d" % board.host_pid(guard))
    assert dirty_kb(proc) <= 100
    switches = re.compile(r"ctxt_switches:\s+(\d+)")
    before = switches.findall((proc / "status").read_text())
    time.sleep(3)  # the window itself
    assert switches.findall((proc / "status").read_text()) == before
    assert list((proc / "task" / proc.name / "children").read_text().split()) == []


def test_a_worker_that_stays_costs_a_small_guard(board):
    assert dirty_kb(Path("/proc/%d" % board.host_pid(board.guards()[0]))) <= 140


def test_a_poke_brings_the_worker_back_and_it_leaves_again(board):
    guard = linger_board(board)
    for id in ("j1", "j2", "j3"):
        board.enqueue("ok", "--id", id)
        wait_for(lambda: board.ran()[-1:] == [id], "the job runs")
        assert lingering(board) == guard
    assert not crash_lines(board)
    told = board.sh("grep -c ' info status ' /run/edgeq/default/events").out
    assert int(told) == 2, "at the boot, and by the first one under LINGER_S: REPORT_S is not over"


def test_members_of_the_group_may_poke(board):
    linger_board(board)
    assert board.sh("su -s /bin/sh -c 'edgeq enqueue ok --id j1' ann").code == 0
    wait_for(lambda: board.ran() == ["j1"], "the job runs")


def test_a_delayed_job_brings_the_worker_back_in_time(board):
    linger_board(board)
    board.enqueue("ok", "--id", "later", "--delay", "6")
    begun = time.monotonic()
    lingering(board)
    assert board.ran() == []
    wait_for(lambda: board.ran() == ["later"], "the job runs", 60)
    assert time.monotonic() - begun < 30


def test_a_file_dropped_by_hand_is_found_at_the_next_look(board):
    linger_board(board, SAFETY_SCAN_S=1)
    board.sh("echo '{\"type\":\"ok\"}' >/var/lib/edgeq/default/incoming/.new && "
             "mv /var/lib/edgeq/default/incoming/.new /var/lib/edgeq/default/incoming/by-hand")
    wait_for(lambda: len(board.ran()) == 1, "the job runs")


def test_jobs_that_come_while_the_worker_leaves_are_not_lost(board):
    """RACE: its FIFO is gone, the guard's is not there yet. The next look would come in ten minutes."""
    linger_board(board)
    board.sh("i=0; while [ $i -lt 60 ]; do edgeq enqueue ok --id r$i >/dev/null || exit; i=$((i + 1));"
             " while [ -n \"$(ls -A /var/lib/edgeq/default/incoming)\" ]; do sleep 0.05; done;"
             " [ $((i % 6)) -ne 0 ] || sleep 1.$((i / 6)); done")
    wait_for(lambda: len(set(board.ran())) == 60, "every job ran")


def test_a_job_in_the_gap_is_found_by_the_first_look(board):
    """The gap, made wide: the worker is replaced by one that queues a job after its last look and pokes nobody."""
    board.s85("stop")
    board.write("usr/lib/edgeq/gap", """#!/bin/sh
case $1 in
work)
    [ -e /tmp/gone ] || {
        : >/tmp/gone
        /bin/sh /usr/lib/edgeq/edgeq.pyz "$@"
        echo '{"type":"ok"}' >/var/lib/edgeq/default/incoming/.new
        mv /var/lib/edgeq/default/incoming/.new /var/lib/edgeq/default/incoming/in-the-gap
        exit 0
    }
    ;;
esac
exec /bin/sh /usr/lib/edgeq/edgeq.pyz "$@"
""", 0o755)
    board.configure(LINGER_S=1, SAFETY_SCAN_S=600)
    board.start("EDGEQ_PYZ=/usr/lib/edgeq/gap exec edgeq guard")
    wait_for(lambda: len(board.ran()) == 1, "the job of the gap runs", 60)


def test_resume_wakes_a_lingering_board(board):
    linger_board(board)
    board.sh("edgeq pause")
    board.enqueue("ok", "--id", "j1")
    lingering(board)
    assert board.ran() == []
    board.sh("edgeq resume")
    wait_for(lambda: board.ran() == ["j1"], "the job runs")


def test_stop_and_restart_while_nothing_but_the_guard_is_there(board):
    linger_board(board)
    assert board.s85("stop").out == "Stopping edgeq: OK (stopped)\n"
    assert not board.guards()
    assert board.sh("ls /run/edgeq/default/wake").out == ""
    assert board.s85("start").code == 0
    lingering(board)
    assert board.s85("start").out == "Starting edgeq: OK (already running)\n"


def test_a_full_run_does_not_cost_a_worker_its_life(board):
    """Its stamp cannot be written then: that is no sign of death."""
    board.configure(SAFETY_SCAN_S=1)
    board.s85("restart")
    worker = board.await_worker()
    board.sh("mount -o remount,size=256k /run; dd if=/dev/zero of=/run/fill bs=4k 2>/dev/null")
    words = "is full: whether worker %d lives cannot be seen" % worker
    wait_for(lambda: words in board.log(), "the guard says why it does nothing")
    assert board.workers() == [worker]
    board.sh("rm /run/fill")
    wait_for(lambda: board.s85("status").code == 0, "it is seen to live again")
    assert board.workers() == [worker] and not crash_lines(board)
