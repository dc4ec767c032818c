"""Field reports about the init script, the guard and the boot, on a board of namespaces; in depth: tests/init/."""

import pytest

from tests.init.board import wait_for

PIDFILE = "/var/run/edgeq.pid"
ONE_EACH = "exactly one guard and one worker"


def has_one(board):
    return len(board.workers()) == 1 and len(board.guards()) == 1


def standing(board, ids):
    """Every id ran to its end and is in one state; no traceback on console or in the log; status is one line."""
    wait_for(lambda: set(ids) <= set(board.ran()), "all ran")
    wait_for(lambda: board.status()["processing"] == "0", "all settled")
    assert "Traceback" not in board.console_text() + board.log()
    assert board.sh("edgeq status").out.count("\n") == 1
    assert not [line for line in board.sh("edgeq check").out.splitlines() if line.startswith("store:")]


def test_a_pid_file_is_believed_by_nobody(board):
    """B07, B31, B35: rubbish, 0, -1, 1, a stranger in the pid file: it starts, makes no twin, stops its own, signals nobody."""
    board.start("exec sleep 631")
    stranger = wait_for(lambda: board.sleeps(631), "the stranger runs")[0]
    ids = []
    for content in ("", "\\000", "abc", "-1", "0", "99999999", "1", str(stranger)):
        assert board.s85("stop").code == 0 and not board.workers() and not board.guards(), content
        board.sh("printf '%s' >%s" % (content, PIDFILE))
        board.sh(": >/run/edgeq/default.guard; : >/run/edgeq/default/lock")  # a lock file that nobody holds (B35)
        assert board.s85("start").code == 0, content
        assert has_one(board) and board.sh("cat " + PIDFILE).out.strip() == str(board.guards()[0]), content
    before = board.workers() + board.guards()
    board.sh("echo %d >%s" % (stranger, PIDFILE))
    assert board.s85("start").code == 0 and board.workers() + board.guards() == before, ONE_EACH
    board.sh("echo %d >%s" % (stranger, PIDFILE))
    assert board.s85("restart").code == 0 and has_one(board)
    ids.append(board.enqueue("ok"))
    standing(board, ids)
    board.sh("rm " + PIDFILE)
    assert board.s85("stop").code == 0 and not board.workers() and not board.guards()
    assert board.sleeps(631) == [stranger]


def test_status_tells_the_truth(board):
    """B37: 0 running, 4 frozen beyond its stamp, 1 dead with a pid file, 3 stopped; one line each."""
    assert board.s85("status").code == 0
    (guard, ), (worker, ) = board.guards(), board.workers()
    board.sh("kill -KILL %d; kill -STOP %d" % (guard, worker))
    for code, act in ((4, ":"), (1, "kill -KILL %d" % worker), (3, "/etc/init.d/S85edgeq stop")):
        board.sh(act)
        result = wait_for(lambda: (lambda r: r.code == code and r)(board.s85("status")), "status is %d" % code)
        assert result.out.count("\n") == 1 and result.err == ""


@pytest.mark.parametrize("spoil, code", [("echo 'MAX_ATTEMPTS=many' >>/etc/edgeq.conf", 78),
                                         ("head -c 300 /dev/zero >/etc/edgeq.conf", 78),
                                         ("echo SPOOL=/dev/null/edgeq >>/etc/edgeq.conf", 73),
                                         ("rm -r /var/lib/edgeq/default/failed; : >/var/lib/edgeq/default/failed", 73)],
                         ids="value nuls parent file".split())
def test_a_start_that_cannot_work_says_fail(board, spoil, code):
    """B34, B45, B94: the exit code and the reason on the console; nothing is left running; mended, it starts and runs the job."""
    id = board.enqueue("ok")
    standing(board, [id])
    board.s85("stop")
    waiting = board.enqueue("ok")
    board.sh("cp /etc/edgeq.conf /etc/kept")
    before = board.sh("find /var/lib/edgeq -type f | xargs md5sum | sort").out
    assert board.sh(spoil).code == 0
    result = board.s85("start")
    assert result.code == code and result.out == "Starting edgeq: FAIL\n" and result.err.count("\n") == 1, result
    assert not board.workers() and not board.guards() and board.s85("status").code == 3
    if code == 78:
        assert board.sh("find /var/lib/edgeq -type f | xargs md5sum | sort").out == before
    board.sh("cp /etc/kept /etc/edgeq.conf; [ -d /var/lib/edgeq/default/failed ] || rm /var/lib/edgeq/default/failed")
    assert board.s85("start").code == 0
    standing(board, [id, waiting])


def test_stop_waits_and_leaves_nobody(board):
    """B33, B41: handlers deaf to TERM and with grandchildren: restart waits, one new worker, none is left, the job again."""
    board.handler(
        "deaf", "trap '' TERM; [ $EDGEQ_REDELIVERED = 1 ] || sh -c 'trap \"\" TERM; sleep 633 & sleep 633 & wait';"
        " echo $EDGEQ_ID >>/tmp/ran")
    id = board.enqueue("deaf")
    wait_for(lambda: len(board.sleeps(633)) == 2, "grandchildren run")
    old = board.workers() + board.guards()
    assert board.s85("restart").code == 0
    assert has_one(board) and not set(board.workers() + board.guards()) & set(old)
    assert not board.sleeps(633)
    standing(board, [id])
    assert board.ran().count(id) == 1


def test_after_rck_the_partition_is_free(cold_board):
    """B39, B38: rcK, then the data partition is unmounted at once: it can be, no job is lost, recovery is clean."""
    cold_board.handler("slow", "[ -e /tmp/again ] || sleep 639; echo $EDGEQ_ID >>/tmp/ran")
    cold_board.configure(SPOOL="/data/edgeq", REQUIRE_MOUNT="/data")
    cold_board.write("etc/init.d/S02data", "#!/bin/sh\n[ \"$1\" != start ] || mount -t tmpfs data /data\n", 0o755)
    board = cold_board.boot()
    board.await_worker()
    ids = [board.enqueue("slow") for _ in range(3)]
    wait_for(lambda: len(board.sleeps(639)) == 2, "two run")
    assert board.sh("/etc/init.d/rcK && cp -a /data /tmp/kept && umount /data && mount -t tmpfs data /data && "
                    "cp -a /tmp/kept/. /data/ && : >/tmp/again").code == 0
    assert not board.sleeps(639)
    assert board.s85("start").code == 0
    standing(board, ids)


def test_a_partition_that_comes_late(board):
    """B44: waits and refuses with REQUIRE_MOUNT; without it the worker notices what was mounted over its folder and serves that."""
    board.s85("stop")
    board.configure(SPOOL="/data/edgeq", REQUIRE_MOUNT="/data")
    assert board.s85("start").code == 0
    assert board.sh("edgeq enqueue ok").code == 75 and board.sh("ls -A /data").out == ""
    board.sh("mount -t tmpfs data /data")
    id = wait_for(lambda: board.sh("edgeq enqueue ok").out.strip(), "accepted")
    standing(board, [id])
    board.s85("stop")
    board.sh("mkdir /tmp/kept && cp -a /data/. /tmp/kept && umount /data")
    board.configure(SPOOL="/data/edgeq")
    assert board.s85("start").code == 0
    hidden = board.enqueue("ok")
    standing(board, [hidden])
    board.sh("cd /tmp/kept/edgeq/default/incoming && for n in 1 2 3; do echo '{\"id\":\"late'$n'\",\"type\":\"ok\"}' >late$n; done")
    board.sh("mount -t tmpfs data /data && cp -a /tmp/kept/. /data/")
    standing(board, ["late1", "late2", "late3"])
    wait_for(lambda: board.sh("ls /data/edgeq/default/processing").out == "", "settled there")
    assert board.sh("cat /data/edgeq/default/done/*.log | grep -c '^late'").out.strip() == "3"
    after = board.enqueue("ok")
    standing(board, [after])
    assert board.s85("stop").code == 0


def test_what_it_needs_comes_later(board):
    """B40: the spool's parent is read-only at first: guard and worker neither give up nor spin, and serve it when it is ready."""
    board.s85("stop")
    board.sh("mount -t tmpfs -o ro data /data")
    board.configure(SPOOL="/data/edgeq", LOG="stderr")
    board.start("exec edgeq guard 2>/tmp/guard.log")
    wait_for(lambda: board.sh("grep -c . /tmp/guard.log").out.strip() not in ("", "0"), "it says why")
    board.sh("mount -o remount,rw /data")
    id = wait_for(lambda: board.sh("edgeq enqueue ok").out.strip(), "accepted")
    wait_for(lambda: board.ran() == [id], "it runs")
    log = board.sh("cat /tmp/guard.log").out
    assert "Traceback" not in log and log.count("\n") < 40, log
    assert len(board.guards()) == 1
    board.sh("edgeq guard --stop")


def test_a_spool_in_ram_is_called_so(board):
    """B43: /var/spool is a link into a tmpfs: start warns, status says durable=no and exits 1; the default path is elsewhere."""
    assert board.sh("ls -d /var/lib/edgeq/default/incoming").code == 0
    board.s85("stop")
    board.configure(SPOOL="/var/spool/edgeq")
    result = board.s85("start")
    assert result.code == 0 and "NOT DURABLE" in result.err and result.err.count("\n") == 1, result
    board.await_worker()
    assert board.status()["durable"] == "no" and board.sh("edgeq status").code == 1
    id = board.enqueue("ok")
    standing(board, [id])


def test_what_is_missing_is_made_again(board):
    """B45: the root, each folder, /run: missing at the start or removed under the worker; made with their modes within a scan."""
    board.s85("stop")
    board.sh("rm -r /var/lib/edgeq /run/edgeq")
    assert board.s85("start").code == 0
    ids = [board.enqueue("ok")]
    standing(board, ids)
    board.sh("cd /var/lib/edgeq/default && rm -r incoming failed dlq corrupt /run/edgeq")
    wait_for(lambda: board.sh("cd /var/lib/edgeq/default && ls -d incoming failed dlq corrupt /run/edgeq/default/wake").code == 0,
             "made again")
    assert board.sh("ls -dl /var/lib/edgeq/default/incoming | cut -c1-10").out == "drwxrws--T\n"
    ids.append(board.enqueue("ok"))
    standing(board, ids)


def test_the_plug_is_pulled(cold_board):
    """B05, B35, B43: five waiting jobs with the default path, everything dies at once, the next boot runs them in order."""
    board = cold_board.boot()
    board.await_worker()
    board.sh("edgeq pause")
    ids = [board.enqueue("ok") for _ in range(5)]
    board.power_off()
    board.boot()
    board.await_worker()
    assert board.ran() == []
    board.sh("edgeq resume")
    standing(board, ids)
    assert sorted(board.ran()) == sorted(ids)
