"""init.d/S85edgeq: start, stop, restart, reload, status, as a board's BusyBox runs it."""

import os
import subprocess
import time

import pytest

from tests.init.board import LIMIT_S, wait_for

PIDFILE = "/var/run/edgeq.pid"


def pid_in_file(board):
    return board.sh("cat " + PIDFILE).out.strip()


# --- start -------------------------------------------------------------------------------------------------


def test_boot_brings_one_guard_and_one_worker(board):
    (guard,), (worker,) = board.guards(), board.workers()
    assert "Starting edgeq: OK\n" in board.console_text()
    assert pid_in_file(board) == str(guard)
    result = board.s85("status")
    assert (result.code, result.out) == (0, "edgeq: default: running (guard %d, worker %d)\n" % (guard, worker))


def test_start_when_running_is_no_failure_and_makes_no_twin(board):
    before = board.guards() + board.workers()
    result = board.s85("start")
    assert (result.code, result.out) == (0, "Starting edgeq: OK (already running)\n")
    assert board.guards() + board.workers() == before


def test_b07_b31_a_pid_file_with_anything_in_it_hurts_nobody(board):
    decoy = board.start("exec sleep 601")
    wait_for(lambda: board.sleeps(601), "the stranger runs")
    stranger = board.sleeps(601)[0]
    board.s85("stop")
    for content in ("", "\\000", "abc", "-1", "0", "99999999", "1", str(stranger)):
        board.sh("printf '%s' >%s" % (content, PIDFILE))
        result = board.s85("start")
        assert (result.code, result.out) == (0, "Starting edgeq: OK\n"), (content, result)
        assert len(board.workers()) == 1 and pid_in_file(board) == str(board.guards()[0]), content
        board.sh("printf '%s' >%s" % (content, PIDFILE))
        result = board.s85("stop")
        assert (result.code, result.out) == (0, "Stopping edgeq: OK (stopped)\n"), (content, result)
        assert not board.workers() and not board.guards(), content
        assert board.sleeps(601) == [stranger] and decoy.poll() is None, content


def test_b31_a_wrong_or_missing_pid_file_makes_no_twin(board):
    decoy = board.start("exec sleep 602")
    stranger = wait_for(lambda: board.sleeps(602), "the stranger runs")[0]
    before = board.guards() + board.workers()
    board.sh("echo %d >%s" % (stranger, PIDFILE))
    assert board.s85("start").code == 0
    assert board.guards() + board.workers() == before
    assert pid_in_file(board) == str(before[0])  # put right
    board.sh("echo %d >%s" % (stranger, PIDFILE))
    assert board.s85("restart").code == 0
    assert len(board.workers()) == 1 and len(board.guards()) == 1
    board.sh("rm " + PIDFILE)
    assert board.s85("stop").code == 0
    assert not board.workers() and not board.guards()
    assert board.sleeps(602) == [stranger] and decoy.poll() is None


def test_b35_a_lock_file_that_nobody_holds_is_no_worker(cold_board):
    cold_board.configure()
    cold_board.write("etc/init.d/S84leftovers", "#!/bin/sh\n[ \"$1\" = start ] || exit 0\nmkdir -p /run/edgeq/default\n"
                     "echo 1 >/var/run/edgeq.pid\necho '1 1 1 1' >/run/edgeq/default.guard\n: >/run/edgeq/default/lock\n", 0o755)
    board = cold_board.boot()
    board.await_worker()
    assert "Starting edgeq: OK\n" in board.console_text()


def test_a_worker_that_no_guard_started_makes_no_twin_either(board):
    board.s85("stop")
    worker = board.start("exec edgeq work --queue default")
    pid = board.await_worker()
    result = board.s85("start")
    assert (result.code, result.out) == (0, "Starting edgeq: OK (already running)\n")
    assert board.workers() == [pid] and not board.guards()
    assert board.s85("stop").out == "Stopping edgeq: OK (stopped)\n"
    assert worker.wait(LIMIT_S) == 0 and not board.workers()


@pytest.mark.parametrize("spoil, code, words", [
    ("echo 'MAX_ATTEMPTS=lots' >>/etc/edgeq.conf", 78, "MAX_ATTEMPTS"),
    ("echo 'no such line' >>/etc/edgeq.conf", 78, "edgeq.conf line"),
    ("echo 'STORE=nonsense:/x' >>/etc/edgeq.conf", 78, "unknown kind of store"),
    ("echo 'USER=nobody_here' >>/etc/edgeq.conf", 78, "no such user"),
    ("rm -r /var/lib/edgeq; : >/var/lib/edgeq", 73, "/var/lib/edgeq"),
    ("rm -r /var/lib/edgeq/default/failed; : >/var/lib/edgeq/default/failed", 73, "failed"),
    ("mount -t tmpfs -o ro tmpfs /data; echo SPOOL=/data/edgeq >>/etc/edgeq.conf", 74, "ead-only file system"),
    ("rm /usr/lib/edgeq/edgeq.pyz", 69, "edgeq.pyz"),
    ("ln -sf /nowhere /usr/bin/python3", 69, "Python 3.11 or newer"),
], ids="value line store user file-as-spool file-as-folder read-only no-zipapp no-python".split())
def test_b34_b45_a_start_that_cannot_work_fails_and_says_why(board, spoil, code, words):
    board.s85("stop")
    assert board.sh(spoil).code == 0
    result = board.s85("start")
    assert result.code == code, result
    assert result.out == "Starting edgeq: FAIL\n"
    assert words in result.err and result.err.count("\n") == 1 and "Traceback" not in result.err
    assert not board.workers() and not board.guards()
    assert board.s85("status").code == 3


def test_b34_a_python_that_is_too_old_fails_the_start(board):
    board.s85("stop")
    # an interpreter that takes itself for an old one: it runs what the zipapp hands it with another sys.version_info
    board.write("usr/bin/old", "#!/bin/sh\nshift 2\ncode=$1\nshift\nexec /usr/bin/python3 -IS -c \"import sys; "
                "sys.version_info = (3, 9, 2); exec(r'''$code''')\" \"$@\"\n", 0o755)
    result = board.sh("EDGEQ_PYTHON=/usr/bin/old /etc/init.d/S85edgeq start")
    assert result.code == 69 and result.out == "Starting edgeq: FAIL\n", result
    assert "3.9" in result.err and "3.11" in result.err


@pytest.mark.parametrize("gone", ["/var/lib/edgeq", "/run/edgeq"] + ["/var/lib/edgeq/default/" + folder for folder in (
    "incoming", "processing", "failed", "dlq", "corrupt", "done")])
def test_b45_what_is_missing_is_made(board, gone):
    board.s85("stop")
    board.sh("rm -r " + gone)
    assert board.s85("start").out == "Starting edgeq: OK\n"
    assert board.sh("cd /var/lib/edgeq/default && ls -dln incoming | cut -c1-10; ls -dln failed | awk '{ print $1, $4 }'").out == (
        "drwxrws--T\ndrwxr-s--- 871\n")
    board.enqueue("ok", "--id", "j1")
    wait_for(lambda: board.ran() == ["j1"], "the job runs")


def test_b45_folders_that_go_while_it_runs_come_back_within_a_scan(board):
    board.sh("rm -r /var/lib/edgeq/default/incoming /run/edgeq")
    wait_for(lambda: board.sh("[ -d /var/lib/edgeq/default/incoming ] && ls /run/edgeq/default/wake/*.asleep").code == 0,
             "the folders come back")
    board.enqueue("ok", "--id", "j1")
    wait_for(lambda: board.ran() == ["j1"], "the job runs")
    wait_for(lambda: board.s85("status").code == 0, "the guard has its lock again")


def test_b43_a_spool_in_ram_is_said_aloud(board):
    board.s85("stop")
    board.configure(SPOOL="/var/spool/edgeq")
    result = board.s85("start")
    assert result.code == 0 and "NOT DURABLE" in result.err and "tmpfs" in result.err, result
    board.await_worker()
    assert board.status()["durable"] == "no" and board.sh("edgeq status").code == 1


def test_b44_nothing_happens_below_a_mount_point_without_its_partition(board):
    board.s85("stop")
    board.sh("mount -t tmpfs tmpfs /mnt 2>/dev/null || { mkdir /mnt && mount -t tmpfs tmpfs /mnt; }")
    board.configure(SPOOL="/mnt/edgeq")
    for number in "123":
        board.enqueue("ok", "--id", "waits" + number)
    board.sh("mkdir /tmp/kept && cp -a /mnt/edgeq /tmp/kept && umount /mnt")
    board.configure(SPOOL="/data/edgeq", REQUIRE_MOUNT="/data")
    result = board.s85("start")
    assert result.code == 0 and "REQUIRE_MOUNT=/data" in result.err, result
    assert "waits for /data" in board.s85("status").out and board.s85("status").code == 0
    assert board.sh("edgeq enqueue ok").code == 75
    assert board.sh("ls -A /data").out == ""
    board.sh("mount --bind /tmp/kept /data")
    wait_for(lambda: sorted(board.ran()) == ["waits1", "waits2", "waits3"], "the jobs of the partition run")
    assert board.s85("stop").code == 0


def test_b44_a_waiting_worker_can_be_stopped(board):
    board.configure(SPOOL="/data/edgeq", REQUIRE_MOUNT="/data")
    assert board.s85("restart").code == 0
    assert board.s85("stop").out == "Stopping edgeq: OK (stopped)\n"
    assert not board.workers() and board.sh("ls -A /data").out == ""


def test_jobs_queued_before_s85_run_after_it(cold_board):
    cold_board.write("etc/init.d/S20early", "#!/bin/sh\n[ \"$1\" != start ] || edgeq enqueue ok --id early\n", 0o755)
    board = cold_board.boot()
    wait_for(lambda: board.ran() == ["early"], "the early job runs")


def test_one_guard_and_one_worker_for_each_of_queues(cold_board):
    cold_board.write("etc/default/edgeq", 'QUEUES="default urgent"\n')
    board = cold_board.boot()
    for queue in ("default", "urgent"):
        board.await_worker(queue)
        assert len(board.guards(queue)) == 1
    board.sh("edgeq enqueue --queue urgent ok --id u1")
    wait_for(lambda: board.ran() == ["u1"], "the job of the other queue runs")
    assert "Starting edgeq (urgent): OK" in board.console_text()
    assert board.sh("ls /var/run/edgeq*.pid").out.split() == ["/var/run/edgeq.pid", "/var/run/edgeq.urgent.pid"]
    assert board.sh("edgeq guard --queue urgent --stop").code == 0
    result = board.s85("status")
    assert result.code == 1 and result.out.count("\n") == 2, result  # its pid file is left
    assert board.s85("stop").code == 0 and not board.workers("default")


def test_without_default_file_the_queue_of_the_configuration_is_served(cold_board):
    cold_board.configure(QUEUE="main")
    board = cold_board.boot()
    board.await_worker("main")
    board.enqueue("ok", "--id", "m1")
    wait_for(lambda: board.ran() == ["m1"], "the job runs")


def test_a_database_instead_of_a_spool(board):
    """Started, checked, left and started again by the same scripts."""
    board.s85("stop")
    board.sh("mkdir /data/db")
    board.configure(STORE="sqlite:/data/db/queue.db", LINGER_S=1, SAFETY_SCAN_S=600)
    assert board.s85("start").out == "Starting edgeq: OK\n"
    for id in ("j1", "j2"):
        board.enqueue("ok", "--id", id)
        wait_for(lambda: board.ran()[-1:] == [id], "the job runs")
        wait_for(lambda: not board.workers(), "the worker leaves")
    assert board.s85("status").code == 0
    assert board.s85("stop").code == 0
    board.sh("mv /data/db /data/away; mount -t tmpfs -o ro tmpfs /data")
    result = board.s85("start")
    assert result.code in (73, 74) and result.out == "Starting edgeq: FAIL\n" and "/data" in result.err, result


# --- status ---------------------------------------------------------------------------------------------------


def test_b37_status_says_what_is(board):
    assert board.s85("status").code == 0
    (guard,), (worker,) = board.guards(), board.workers()
    board.sh("kill -KILL %d; kill -STOP %d" % (guard, worker))
    result = wait_for(lambda: (lambda r: r.code == 4 and r)(board.s85("status")), "it is called stalled")
    assert result.out == "edgeq: default: stalled: worker %d gives no sign of life\n" % worker
    board.sh("kill -KILL %d" % worker)
    result = wait_for(lambda: (lambda r: r.code == 1 and r)(board.s85("status")), "it is called dead")
    assert result.out == "edgeq: default: stopped, but left /var/run/edgeq.pid behind: it died\n"
    assert board.s85("stop").out == "Stopping edgeq: OK (was not running)\n"
    result = board.s85("status")
    assert (result.code, result.out) == (3, "edgeq: default: stopped\n")
    assert board.s85("fly").code == 1


# --- stop and restart -------------------------------------------------------------------------------------------


def test_stop_when_stopped_says_so(board):
    assert board.s85("stop").out == "Stopping edgeq: OK (stopped)\n"
    result = board.s85("stop")
    assert (result.code, result.out) == (0, "Stopping edgeq: OK (was not running)\n")


def test_stop_works_when_the_configuration_went_bad(board):
    board.sh("echo 'GRACE_S=soon' >>/etc/edgeq.conf; echo rubbish >>/etc/edgeq.conf")
    assert board.s85("stop").code == 0
    assert not board.workers() and not board.guards()


def test_b33_restart_waits_for_a_handler_that_ignores_term(board):
    board.handler("deaf", "trap '' TERM; echo \"$EDGEQ_ID $EDGEQ_ATTEMPT $EDGEQ_REDELIVERED\" >>/tmp/ran;"
                          " [ $EDGEQ_REDELIVERED = 1 ] || sleep 603")
    board.enqueue("deaf", "--id", "j1")
    wait_for(lambda: board.ran() == ["j1"], "the job runs")
    old = board.workers() + board.guards()
    result = board.s85("restart")
    assert result.code == 0, result
    assert len(board.workers()) == 1 and len(board.guards()) == 1
    assert not set(board.workers() + board.guards()) & set(old)
    assert not board.sleeps(603)
    wait_for(lambda: board.ran() == ["j1", "j1"], "the job runs again")
    wait_for(lambda: board.status()["done"] == "1", "the job is done")


def test_b38_a_board_that_kills_after_2_s_loses_nothing(board):
    board.handler("long", "echo \"$EDGEQ_ID\" >>/tmp/began; [ $EDGEQ_REDELIVERED = 1 ] || sleep 604; echo $EDGEQ_ID >>/tmp/ran")
    board.configure(GRACE_S=30)
    board.s85("restart")
    board.enqueue("long", "--id", "long1", "--priority", "0")
    board.sh("i=0; while [ $i -lt 100 ]; do echo '{\"type\":\"ok\",\"id\":\"q'$i'\"}'; i=$((i + 1)); done >/tmp/batch")
    wait_for(lambda: board.sh("cat /tmp/began").out.split() == ["long1"], "the long job runs")
    board.sh("edgeq pause ok; edgeq enqueue --batch </tmp/batch")
    (guard,), (worker,) = board.guards(), board.workers()
    board.sh("kill -TERM %d; sleep 2; kill -KILL %d %d" % (guard, guard, worker))  # 2 s: what such a board gives
    wait_for(lambda: not board.workers() and not board.guards(), "they are gone")
    board.sh("edgeq resume ok")
    assert board.s85("start").code == 0
    wait_for(lambda: len(board.ran()) >= 101, "everything ran")
    wait_for(lambda: board.status()["done"] == "101", "everything is done")
    assert sorted(set(board.ran())) == sorted(["long1"] + ["q%d" % n for n in range(100)])
    assert board.sh("cat /tmp/began").out.split() == ["long1", "long1"]


def test_stop_is_bounded_when_the_worker_hangs(board):
    board.handler("hangs", "exec sleep 605")
    board.enqueue("hangs", "--id", "j1")
    wait_for(lambda: board.sleeps(605), "the handler runs")
    (worker,) = board.workers()
    board.configure(SAFETY_SCAN_S=600, GRACE_S=2)  # the guard shall not be first
    board.sh("kill -STOP %d" % worker)
    begun = time.monotonic()
    result = board.s85("stop")
    took_s = time.monotonic() - begun
    assert result.code == 0, result
    assert took_s < 2 + 5 + 5, took_s  # GRACE_S + 5 s, and a busy machine's delay
    assert not board.workers() and not board.guards() and not board.sleeps(605)


def test_stop_is_bounded_when_guard_and_worker_hang(board):
    board.sh("kill -STOP %d %d" % (board.workers()[0], board.guards()[0]))
    begun = time.monotonic()
    result = board.s85("stop")
    assert result.code == 0 and "killed after" in result.out, result
    assert time.monotonic() - begun < 2 + 5 + 5
    assert not board.workers() and not board.guards()


def test_b41_stop_leaves_no_grandchildren(board):
    board.handler("parent", "sh -c 'sleep 606 & sleep 606 & wait'")
    board.enqueue("parent")
    wait_for(lambda: len(board.sleeps(606)) == 2, "the grandchildren run")
    assert board.s85("stop").code == 0
    assert not board.sleeps(606)


def test_b39_after_rck_the_partition_can_be_unmounted_and_nothing_is_lost(cold_board):
    cold_board.handler("slow", "echo $EDGEQ_ID >>/tmp/began; [ -e /tmp/again ] || sleep 607; echo $EDGEQ_ID >>/tmp/ran")
    cold_board.configure(SPOOL="/data/edgeq")
    cold_board.write("etc/init.d/S02data", "#!/bin/sh\n[ \"$1\" != start ] || mount -t tmpfs data /data\n", 0o755)
    board = cold_board.boot()
    board.await_worker()
    for id in ("j1", "j2", "j3"):
        board.enqueue("slow", "--id", id)
    wait_for(lambda: len(board.sh("cat /tmp/began").out.split()) == 2, "two jobs run")
    assert board.sh("/etc/init.d/rcK && mount -o remount,ro /data && mount -o remount,rw /data").code == 0
    assert board.sh(": >/tmp/again; ls /data/edgeq/default/incoming | wc -l").out.strip() == "3"
    assert board.s85("start").code == 0
    wait_for(lambda: sorted(board.ran()) == ["j1", "j2", "j3"], "every job ran")


def test_poweroff_stops_edgeq_cleanly(board):
    board.enqueue("ok")
    wait_for(lambda: board.status()["done"] == "1", "the job is done")
    assert (board.root / "var/lib/edgeq/default/running").exists()
    board.sh("poweroff")
    wait_for(lambda: board.unshare.poll() is not None, "the board is off")
    assert "Stopping edgeq: OK (stopped)" in board.console_text()
    assert not (board.root / "var/lib/edgeq/default/running").exists()
    assert not os.listdir(board.root / "var/lib/edgeq/default/processing")


def test_the_plug_is_pulled_and_every_job_runs(cold_board):
    cold_board.configure(CONCURRENCY=1)
    board = cold_board.boot()
    board.await_worker()
    board.sh("edgeq pause")
    ids = [board.enqueue("ok") for _ in range(5)]
    board.power_off()
    board.boot()
    board.await_worker()
    assert board.ran() == []
    board.sh("edgeq resume")
    wait_for(lambda: board.ran() == ids, "the jobs of the last boot run, in order")


# --- reload ------------------------------------------------------------------------------------------------------


def test_reload_takes_a_new_configuration_without_a_restart(board):
    before = board.guards() + board.workers()
    board.configure(CONCURRENCY=5)
    assert board.s85("reload").out == "Reloading edgeq: OK\n"
    wait_for(lambda: "reloaded file=/etc/edgeq.conf" in board.log(), "the worker has read it")
    assert board.guards() + board.workers() == before


def test_a_bad_reload_changes_nothing(board):
    before = board.guards() + board.workers()
    board.configure(CONCURRENCY="many")
    result = board.s85("reload")
    assert result.code == 78 and result.out == "Reloading edgeq: FAIL\n" and "CONCURRENCY" in result.err
    board.configure()
    board.enqueue("ok", "--id", "j1")
    wait_for(lambda: board.ran() == ["j1"], "the worker works")
    assert board.guards() + board.workers() == before


def test_reload_when_stopped_fails(board):
    board.s85("stop")
    assert board.s85("reload").code == 3


# --- preflight: owners --------------------------------------------------------------------------------------------


def test_a_new_image_with_another_group_number_gets_the_spool_back(board):
    board.sh("edgeq pause")
    enqueue = "su -s /bin/sh -c 'edgeq enqueue ok --id \"$0\"' ann -- "
    assert board.sh(enqueue + "j1").code == 0
    board.s85("stop")
    board.write("root/secret", "root's\n", 0o640)
    board.sh("cd /var/lib/edgeq/default/incoming && ln -s /root/secret 5.link && ln /root/secret 5.hard && mkfifo 5.fifo")
    before = board.sh("ls -ln /root/secret").out
    board.write("etc/group", "root:x:0:\nedgeq:x:872:ann\nann:x:1001:\n")  # 871 belongs to nobody now
    result = board.s85("start")
    assert result.code == 0 and "their owner, group or mode again" in result.err, result
    assert board.sh("cd /var/lib/edgeq/default && ls -dln . incoming processing failed dlq corrupt done | "
                    "awk '{ print $1, $4 }' | sort | uniq -c | sed 's/^ *//'").out == "6 drwxr-s--- 872\n1 drwxrws--T 872\n"
    assert board.sh("ls -ln /var/lib/edgeq/default/incoming/*.j1.json | awk '{ print $1, $3, $4 }'").out == "-rw-r----- 1001 872\n"
    assert board.sh("ls -ln /root/secret").out == before
    assert board.sh(enqueue + "j2").code == 0
    assert board.sh(enqueue + "j1").code == 0  # the same job: its file can be read and flushed by the group
    board.sh("edgeq resume")
    wait_for(lambda: sorted(board.ran()) == ["j1", "j2"], "both run")


def test_folder_modes_that_an_overlay_normalised_are_put_right(board):
    board.s85("stop")
    board.sh("chmod 0755 /var/lib/edgeq/default /var/lib/edgeq/default/*/")
    assert board.s85("start").code == 0
    assert board.sh("ls -dl /var/lib/edgeq/default/incoming | cut -c1-10").out == "drwxrws--T\n"
    assert board.sh("ls -dl /var/lib/edgeq/default/dlq | cut -c1-10").out == "drwxr-s---\n"


# --- B67: runs that overlap ------------------------------------------------------------------------------------------


def test_b67_overlapping_runs_of_work_once_share_the_jobs(board):
    board.s85("stop")
    board.handler("slow", "echo $EDGEQ_ID >>/tmp/ran; sleep 1")
    ids = [board.enqueue("slow") for _ in range(8)]
    runs = [subprocess.Popen(board.argv("exec edgeq work --once"), env={"PATH": "/bin:/usr/bin"}, stdin=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL) for _ in range(5)]
    codes = {run.wait(LIMIT_S) for run in runs}
    assert codes <= {0, 75}, codes
    assert sorted(board.ran()) == sorted(ids)


def test_b67_the_lock_of_a_killed_run_blocks_nobody(board):
    board.s85("stop")
    board.handler("slow", "echo $EDGEQ_ID >>/tmp/ran; [ $EDGEQ_REDELIVERED = 1 ] || sleep 608")
    board.enqueue("slow", "--id", "j1")
    run = board.start("exec edgeq work --once")
    wait_for(lambda: board.ran() == ["j1"], "the job runs")
    board.sh("kill -KILL $(ls /run/edgeq/default/workers | cut -d- -f1)")
    run.wait(LIMIT_S)
    assert board.sh("edgeq work --once").code == 0
    wait_for(lambda: board.ran() == ["j1", "j1"], "the job ran again")
