"""drain and cancel: the two verbs that wait for something to end; purge all, which goes with them."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.console.console import REPO, wait_for
from tests.harness import Board, FaultyDisk, Killed
from edgeq.job import Job

STATES = ["incoming", "failed", "dlq", "corrupt", "done"]


# --- drain ----------------------------------------------------------------------------------------------------


def test_an_idle_queue_is_drained_at_once_with_and_without_a_worker(console):
    console.ok("drain")
    assert console.edgeq("status").out.count("paused=1") == 1
    console.ok("resume")
    console.start()
    console.ok("drain", "--timeout", "5")


def test_what_runs_is_named_and_waited_for(console):
    console.gate("slow")
    console.start()
    id = console.ok("enqueue", "slow")
    wait_for(lambda: console.began("slow"), "it runs")
    busy = console.edgeq("drain", "--timeout", "0")
    assert busy.code == 75 and id in busy.err
    console.open_gate("slow")
    console.ok("drain", "--timeout", "10")
    assert console.names("processing") == []


def test_nothing_starts_after_a_drain_said_idle(console):
    """Producers and a busy worker, five drains: from its 0 on, the list of starts stands still, though jobs go on coming in."""
    ran = console.root / "ran"
    console.handler("quick", 'echo "$EDGEQ_ID" >>%s' % ran)
    console.configure(CONCURRENCY=4)
    console.start()
    producer = subprocess.Popen(
        ["busybox", "sh", "-c", 'while :; do %s enqueue quick --fast || exit; done' % shlex.join(console.argv(by="wrapper"))],
        env=console.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        for _ in range(5):
            at = ran.stat().st_size if ran.exists() else 0
            wait_for(lambda: ran.exists() and ran.stat().st_size > at + 60, "jobs run")
            console.ok("drain", "--timeout", "10")
            started = ran.read_bytes()
            come = set(console.ids("incoming"))
            wait_for(lambda: len(set(console.ids("incoming")) - come) >= 2, "more jobs come in")
            last = int(re.search(r"stamp=(\d+)", console.run_text("status"))[1])
            console.ok("pause", "other")  # wakes the worker: it looks, and says so
            wait_for(lambda: int(re.search(r"stamp=(\d+)", console.run_text("status"))[1]) > last, "the worker has looked")
            assert ran.read_bytes() == started
            assert console.names("processing") == []
            console.ok("resume")
    finally:
        os.killpg(producer.pid, 9)
        producer.wait()


def test_a_drain_makes_what_was_done_safe_at_once(console):
    console.configure(SYNC_WINDOW_MS=3_600_000, SYNC_JOBS=10_000)
    console.handler("quick", ":")
    console.start()
    console.ok("enqueue", "quick")
    wait_for(lambda: any(name.endswith(".settling") for name in console.names("processing")), "it is done and waits for its flush")
    console.ok("drain", "--timeout", "10")
    assert console.names("processing") == []


def test_a_reboot_ends_a_drain_and_not_a_pause(tmp_path):
    board = Board(tmp_path)
    store = board.open()
    store.pauses.set("", 3600, board.now, this_boot=True)
    store.pauses.set("t", 3600, board.now)
    assert store.pauses.is_paused("x", board.now)
    board.reboot()
    again = board.open()
    assert not again.pauses.is_paused("x", board.now) and again.pauses.is_paused("t", board.now)
    for each in (store, again):
        each._alive.drop()


def test_the_wrapper_knows_a_drain_of_another_boot(console):
    console.ok("drain")
    mark = console.q / "paused"
    for_s, set_at, boot_id, until = mark.read_text().split()
    assert set_at == "0"
    assert "paused=1 " in console.edgeq("status", by="wrapper").out
    mark.write_text("%s %s %s %s\n" % (for_s, set_at, "another-boot", until))
    assert "paused=0 " in console.edgeq("status", by="wrapper").out
    assert "paused=0 " in console.edgeq("status").out


def test_a_longer_pause_of_somebody_elses_stays(console):
    console.ok("pause", "--for", "ever")
    before = (console.q / "paused").read_text()
    console.ok("drain")
    assert (console.q / "paused").read_text() == before


def test_a_dead_workers_claim_is_no_work_but_its_handler_is(console):
    console.gate("slow")
    worker = console.start()
    console.ok("enqueue", "slow")
    wait_for(lambda: console.began("slow"), "it runs")
    worker.kill()
    worker.wait()
    assert console.edgeq("drain", "--timeout", "0").code == 75
    console.open_gate("slow")
    console.ok("drain", "--timeout", "10")
    assert len(console.names("processing")) == 1, "the next worker puts it back"


def blocks(doc):
    """The indented blocks of a page of docs/ that are shell scripts."""
    text = (REPO / "docs" / doc).read_text()
    found = [re.sub(r"^    ", "", block, flags=re.M) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, flags=re.M)]
    return [block for block in found if block.lstrip().startswith("#!/bin/sh")]


def test_the_state_scripts_of_the_manual(console):
    """docs/ota.md as it stands: Mender's gives 21 while a job runs and 0 afterwards; a failed update resumes."""
    bin = console.root / "path"
    bin.mkdir()
    (bin / "edgeq").write_text('#!/bin/sh\n[ "$1" != drain ] || set -- drain --timeout "${LIMIT:-10}"\nexec %s "$@"\n' % (
        shlex.join(console.argv())))
    (bin / "edgeq").chmod(0o755)
    enter, failure, swupdate = blocks("ota.md")
    assert "exit 21" in enter and "resume" in failure and "preinst" in swupdate

    def run(script, *words, limit=10):
        return subprocess.run(["busybox", "sh", "-c", script, "script", *words], timeout=60,
                              env=console.env(PATH="%s:%s" % (bin, os.environ["PATH"]), LIMIT=str(limit)), capture_output=True)
    console.gate("slow")
    console.start()
    console.ok("enqueue", "slow")
    wait_for(lambda: console.began("slow"), "it runs")
    assert run(enter, limit=0).returncode == 21
    assert run(swupdate, "preinst", limit=0).returncode == 75
    console.open_gate("slow")
    assert run(enter).returncode == 0
    assert run(swupdate, "preinst").returncode == 0 and run(swupdate, "postinst").returncode == 0
    assert run(failure).returncode == 0 and run(failure).returncode == 0
    assert "paused=0 " in console.edgeq("status").out


# --- cancel ---------------------------------------------------------------------------------------------------


def test_a_running_job_is_ended_by_term_and_gone(console):
    console.handler("slow", 'trap "echo term >>%s; exit 1" TERM; echo up >%s; read -r _ <%s' % (
        console.root / "told", console.root / "up", console.root / "never"))
    os.mkfifo(console.root / "never")
    console.start()
    id = console.ok("enqueue", "slow")
    wait_for((console.root / "up").exists, "it runs")
    refused = console.edgeq("cancel", id)
    assert refused.code == 75 and "--running" in refused.err
    console.ok("cancel", "--running", id)
    assert (console.root / "told").read_text() == "term\n"
    assert console.names("processing") + console.names("failed") + console.names("dlq") == []
    assert console.edgeq("why", id).code == 1
    assert os.listdir(console.r / "cancel") == []
    assert "cancelled id=%s" % id in console.log()


def test_a_handler_that_ignores_term_is_killed_after_its_grace(console):
    console.configure(GRACE_S=0.3)
    console.handler("stubborn", 'trap "" TERM; echo up >%s; while :; do read -r _ <%s; done' % (
        console.root / "up", console.root / "never"))
    os.mkfifo(console.root / "never")
    console.start()
    id = console.ok("enqueue", "stubborn")
    wait_for((console.root / "up").exists, "it runs")
    console.ok("cancel", "--running", id)
    assert console.names("processing") == [] and "handler-ignores-term" in console.log()


def test_while_all_slots_are_busy_a_cancel_is_heard(console):
    console.configure(CONCURRENCY=1)
    console.gate("slow")
    console.start()
    first, second = console.ok("enqueue", "slow"), console.ok("enqueue", "slow")
    wait_for(lambda: console.began("slow") == [first], "the first runs")
    console.ok("cancel", "--running", first)
    wait_for(lambda: console.began("slow") == [first, second], "the second runs")
    console.ok("cancel", "--running", second)


def test_a_dead_workers_job_is_cancelled_with_its_handler(console):
    console.gate("slow")
    worker = console.start()
    id = console.ok("enqueue", "slow")
    wait_for(lambda: console.began("slow"), "it runs")
    worker.kill()
    worker.wait()
    console.ok("cancel", "--running", id)
    assert console.names("processing") == []
    assert [pid for pid in os.listdir("/proc") if pid.isdigit() and environ_has(pid, b"EDGEQ_ID=" + id.encode())] == []


def environ_has(pid, text):
    try:
        return text in Path("/proc/%s/environ" % pid).read_bytes()
    except OSError:
        return False


def test_cancel_of_what_waits_is_dead_done_or_unknown(console):
    console.handler("quick", ":")
    console.handler("bad", "exit 65")
    waits = console.ok("enqueue", "quick", "--delay", "3600")
    console.ok("cancel", waits)
    assert console.edgeq("cancel", waits).code == 1
    dead, done = console.ok("enqueue", "bad"), console.ok("enqueue", "quick")
    assert console.edgeq("work", "--once").code == 0
    console.ok("cancel", "--running", dead)
    assert console.names("dlq") == []
    gone = console.edgeq("cancel", "--running", done)
    assert gone.code == 1 and "done already" in gone.err


# --- purge all ------------------------------------------------------------------------------------------------


def full_board(root):
    board = Board(root)
    store = board.open()
    for n in range(2):
        store.enqueue(Job("done", id="done%d" % n), board.now)
    for n in range(2):
        store.ack(store.claim(board.now, fresh=True), board.now)
    store.flush(board.now)
    store.enqueue(Job("bad", id="dead"), board.now)
    store.bury(store.claim(board.now, fresh=True), "exit 65", board.now)
    store.enqueue(Job("bad", id="failed"), board.now)
    store.retry(store.claim(board.now, fresh=True), 5, "exit 1", board.now)
    store.flush(board.now)
    store.enqueue(Job("t", id="waits"), board.now)
    (board.spool / "corrupt/x").write_text("?")
    store._alive.drop()
    store.journal.close()
    return board


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_purge_all_may_be_cut_anywhere(tmp_path, after):
    """A kill at each of its calls: whole jobs are left or gone, the store is sound, a second purge ends it."""
    model = full_board(tmp_path / "model") if (tmp_path / "model").mkdir() is None else None
    at, died = 0, True
    while died:
        at += 1
        copy = tmp_path / str(at)
        shutil.copytree(model.root, copy)
        board = Board(copy)
        disk, died = FaultyDisk(at, after=after), False
        store = board.open(disk, start=False)
        try:
            store.purge(STATES, board.now)
        except Killed:
            died = True
        disk.is_dead = False
        disk.bury()
        again = board.open()
        assert again.check(board.now) == [], "call %d" % at
        again.purge(STATES, board.now)
        assert [name for folder in STATES[:-1] for name in board.ls(folder)] == []
        assert again.counts(board.now).done == 2, "the count of jobs done goes on"
        again._alive.drop()
        again.journal.close()
    assert at > 10


def test_purge_all_is_a_factory_reset(console):
    console.gate("slow")
    console.start()
    console.ok("enqueue", "slow")
    wait_for(lambda: console.began("slow"), "it runs")
    assert console.edgeq("purge", "all").code == 64
    assert console.edgeq("purge", "all", "--force").code == 75
    console.ok("enqueue", "slow", "--delay", "60")
    console.open_gate("slow")
    console.ok("drain")
    assert console.ok("purge", "all", "--force").startswith("purged ")
    console.ok("resume")
    assert console.edgeq("ls").code == 1 and console.edgeq("ls", "done").code == 1
