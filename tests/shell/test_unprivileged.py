"""Enqueue without being root: members of group edgeq on a board that runs, with the shipped init script and worker (B73)."""

import pytest

from tests.init.board import Board, wait_for

PASSWD = "bob:x:1002:1002::/:/bin/sh\neve:x:1003:1003::/:/bin/sh\n"
INCOMING = "/var/lib/edgeq/default/incoming"


@pytest.fixture
def live(tmp_path, device_bin):
    """A running board with ann and bob in the group, eve not."""
    board = Board(tmp_path / "live", device_bin)
    board.write("etc/passwd", (board.root / "etc/passwd").read_text() + PASSWD)
    board.write("etc/group", "root:x:0:\nedgeq:x:871:ann,bob\nann:x:1001:\nbob:x:1002:\neve:x:1003:\n")
    board.write("root/secret", "only root's\n", 0o600)
    board.configure(SAFETY_SCAN_S=1)
    board.boot()
    board.await_worker()
    yield board
    board.power_off()


def by(board, user, script):
    return board.sh('exec su -s /bin/sh -c "$1" "$2"', script, user)


def paused(board):
    assert board.sh("edgeq pause").code == 0
    return board


def job_file(board, id):
    return board.sh("echo %s/*.%s.json" % (INCOMING, id)).out.strip()


@pytest.mark.parametrize("umask", ["000", "022", "027", "077", "0777"])
def test_a_member_may_enqueue_under_any_umask(live, umask):
    paused(live)
    assert by(live, "ann", "umask %s; edgeq enqueue ok --id j1" % umask).code == 0
    listed = live.sh("ls -ln " + job_file(live, "j1")).out.split()
    assert (listed[0], listed[2], listed[3]) == ("-rw-r-----", "1001", "871")
    live.sh("edgeq resume")
    wait_for(lambda: live.ran() == ["j1"], "the job runs")


def test_a_worker_of_a_user_outside_the_group_runs_the_jobs_of_all(tmp_path, device_bin):
    """P1: what it cannot read it would set aside as corrupt, every accepted job. root gives it the group; else it leaves."""
    board = Board(tmp_path / "live", device_bin)
    board.write("etc/passwd", (board.root / "etc/passwd").read_text() + PASSWD)
    board.write("etc/group", "root:x:0:\nedgeq:x:871:ann,bob\nann:x:1001:\nbob:x:1002:\neve:x:1003:\n")
    board.write("etc/edgeq/handlers/yes", "#!/bin/sh\nexit 0\n", 0o755)
    board.configure(SAFETY_SCAN_S=1, USER="eve", SYNC_JOBS=1)
    board.boot()
    try:
        board.await_worker()
        assert board.sh("edgeq enqueue yes --id roots").code == 0
        assert by(board, "ann", "edgeq enqueue yes --id anns").code == 0
        result = board.sh("edgeq wait roots anns --timeout 30")
        assert result.code == 0, (result, board.log())
        board.s85("stop")
        assert by(board, "ann", "edgeq enqueue yes --id later").code == 0
        result = by(board, "eve", "edgeq work --once")
        assert result.code == 77 and "group 871" in result.err and result.err.count("\n") == 1, result
        assert job_file(board, "later").startswith(INCOMING)
    finally:
        board.power_off()


def test_who_is_not_in_the_group_gets_a_clear_no(live):
    result = by(live, "eve", "edgeq enqueue ok")
    assert result.code == 77 and result.out == "" and "not permitted" in result.err and result.err.count("\n") == 1, result
    assert live.sh("ls -A " + INCOMING).out == ""


def test_nobody_else_can_change_or_remove_a_job(live):
    paused(live)
    by(live, "ann", "edgeq enqueue ok --id j1")
    live.enqueue("ok", "--id", "roots")
    for id in ("j1", "roots"):
        path = job_file(live, id)
        before = live.sh("cat %s; ls -ln %s" % (path, path)).out
        for attempt in ("rm -f %s", "mv %s /tmp/mine", "mv %s " + INCOMING + "/5.0000000000000001.0.0.ok.stolen.json", "echo x >%s",
                        "echo x >>%s", "chmod 666 %s", "chgrp bob %s", "ln -sf /tmp/x %s", "cp /etc/passwd %s",
                        "echo x >/tmp/x && mv /tmp/x %s"):
            assert by(live, "bob", "(" + attempt % path + ") 2>/dev/null").code != 0, attempt
            live.sh("rm -f /tmp/x")
        assert live.sh("cat %s; ls -ln %s" % (path, path)).out == before
    assert by(live, "bob", "edgeq cancel j1").code != 0 and by(live, "bob", "edgeq purge incoming --force").code != 0
    live.sh("edgeq resume")
    wait_for(lambda: sorted(live.ran()) == ["j1", "roots"], "both run")


@pytest.mark.parametrize("folder", ["", "processing", "failed", "dlq", "corrupt", "done"])
def test_the_other_folders_are_not_writable(live, folder):
    here = "/var/lib/edgeq/default/" + folder
    assert by(live, "ann", "(: >%s/x) 2>/dev/null" % here).code != 0
    assert live.sh("ls -A %s | grep -x x" % here).code == 1


@pytest.mark.parametrize("folder", ["", "wake", "leases", "ctl", "errors", "types", "workers", "keys"])
def test_nor_is_what_lies_in_run(live, folder):
    here = "/run/edgeq/default/" + folder
    assert by(live, "ann", "(: >%s/x || mkfifo %s/x || ln -s / %s/x) 2>/dev/null" % (here, here, here)).code != 0


@pytest.mark.parametrize("plant", ["ln -s /root/secret %s", "ln -s /dev/zero %s", "ln -s %s %s", "mkfifo %s", "mkdir %s",
                                   "ln -s /nowhere %s", "ln -s .. %s"],
                         ids="secret device loop fifo folder dangling parent".split())
def test_planted_names_change_nothing_and_stop_nobody(live, plant):
    names = ["5.1753000000000000.0.0.ok.planted.json", "dropped", ".hidden", "5.1753000000000000.0.0.ok.planted.v2.json"]
    for name in names:
        by(live, "ann", "cd %s && %s" % (INCOMING, plant.replace("%s", name)))
    assert by(live, "bob", "edgeq enqueue ok --id j1").code == 0
    wait_for(lambda: live.ran() == ["j1"], "the job of somebody else runs")
    wait_for(lambda: live.sh("ls " + INCOMING).out.split() in ([], [names[3]]), "what is no job is set aside")
    live.enqueue("ok", "--id", "j2")
    wait_for(lambda: live.ran() == ["j1", "j2"], "and so does the next")
    assert live.sh("cat /root/secret; ls -ln /root/secret | cut -d' ' -f1").out == "only root's\n-rw-------\n"
    assert live.s85("restart").code == 0  # the preflight goes through the folders
    assert live.sh("ls -ln /root/secret | cut -d' ' -f1").out == "-rw-------\n"
    assert len(live.workers()) == 1 and "planted" not in live.ran()


def test_a_second_name_of_somebody_elses_file_is_no_job(live):
    live.write("root/shared", '{"type":"ok","id":"linked"}\n', 0o644)
    result = by(live, "ann", "ln /root/shared %s/dropped" % INCOMING)
    if result.code != 0:  # a kernel with protected_hardlinks: root does it for her
        live.sh("ln /root/shared %s/dropped" % INCOMING)
    live.enqueue("ok", "--id", "j1")
    wait_for(lambda: live.ran() == ["j1"], "the job runs")
    wait_for(lambda: live.sh("ls " + INCOMING).out == "", "the link is set aside")
    assert live.ran() == ["j1"]
    assert live.sh("cat /root/shared; ls -ln /root/shared | awk '{ print $1, $3, $4 }'").out == (
        '{"type":"ok","id":"linked"}\n-rw-r--r-- 0 0\n')


def test_members_of_one_id_do_not_run_twice(live):
    paused(live)
    for user in ("ann", "bob", "ann"):
        result = by(live, user, "edgeq enqueue ok --id same")
        assert result.code == 0, result
    live.sh("edgeq resume")
    wait_for(lambda: live.status()["done"] == "1", "it is done")
    assert live.ran() == ["same"]


def test_rubbish_in_the_files_that_members_share_costs_no_job(live):
    for rubbish in ("x", "", "-1", "99999999999999999999", "$(reboot)", "\\0\\0\\0"):
        by(live, "ann", "printf '%s\\n' >/run/edgeq/default/seq; printf '%s\\n' >>/run/edgeq/default/arrivals" % (rubbish, rubbish))
        assert by(live, "bob", "edgeq enqueue ok").code == 0, rubbish
    wait_for(lambda: len(live.ran()) == 6, "all run")
