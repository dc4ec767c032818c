"""When jobs run: conditions, per-type concurrency, fairness between new and retried jobs, expiry."""

import os
import subprocess

import pytest

from edgeq.job import Job
from tests.console.console import REPO, wait_for
from tests.harness import WALL, Board

HOOKS = REPO / "overlay/etc/network"


@pytest.fixture
def board(tmp_path):
    board = Board(tmp_path)
    yield board


def close(store):
    store._alive.drop()
    store.journal.close()


# --- conditions -------------------------------------------------------------------------------------------------


def hook(console, name, iface):
    subprocess.run(["busybox", "sh", str(HOOKS / name / "edgeq")], check=True, timeout=10,
                   env={"PATH": os.environ["PATH"], "IFACE": iface, "RUN_DIR": str(console.root / "run")})


def test_a_job_that_needs_the_net_runs_when_the_interface_is_up(console):
    """The safety scan is an hour away: the hook's poke it is that wakes the worker."""
    console.configure(SAFETY_SCAN_S=3600)
    console.type_conf("upload", NEEDS="net")
    console.gate("upload")
    console.start()
    id = console.ok("enqueue", "upload")
    wait_for(lambda: "held=1 " in console.edgeq("status").out, "it waits")
    assert "waits for net" in console.ok("why", id) and console.edgeq("status").code == 1
    hook(console, "if-up.d", "lo")
    assert not (console.root / "run/cond/net").exists()
    hook(console, "if-up.d", "eth0")
    wait_for(lambda: console.began("upload") == [id], "it runs")
    hook(console, "if-down.d", "eth0")
    second = console.ok("enqueue", "upload")
    console.open_gate("upload")
    console.ok("wait", id, "--timeout", "10")
    wait_for(lambda: "held=1 " in console.edgeq("status").out, "the next one waits again")
    assert "waits for net" in console.ok("why", second) and ", 0 of 5 tries" in console.ok("why", second)


def test_a_type_whose_destination_was_down_is_tried_when_the_interface_is_up(console):
    console.configure(SAFETY_SCAN_S=3600, BASE_DELAY_S=3000)
    console.handler("upload", "[ -e %s ] || exit 69" % (console.root / "server"))
    console.start()
    id = console.ok("enqueue", "upload")
    wait_for(lambda: "offline: exit 69" in console.ok("why", id), "it is offline")
    (console.root / "server").write_text("")
    hook(console, "if-up.d", "wlan0")
    console.ok("wait", id, "--timeout", "10")


# --- concurrency and fairness -------------------------------------------------------------------------------------


def test_a_type_keeps_to_its_own_concurrency(console):
    console.configure(CONCURRENCY=3)
    console.type_conf("one", CONCURRENCY=1)
    for type in ("one", "many"):
        console.gate(type)
    console.start()
    ones = [console.ok("enqueue", "one") for _ in range(2)]
    many = [console.ok("enqueue", "many") for _ in range(3)]
    wait_for(lambda: len(console.began("many")) == 2, "the other type uses the rest")
    assert console.began("one") == ones[:1]
    assert "1 of its type run already" in console.ok("why", ones[1])
    assert "1 before it" in console.ok("why", many[2])
    console.open_gate("one")
    wait_for(lambda: console.began("one") == ones, "the next of that type")
    console.open_gate("one")
    for _ in range(2):
        console.open_gate("many")
    wait_for(lambda: len(console.began("many")) == 3, "the last")
    console.open_gate("many")
    console.ok("wait", *ones, *many, "--timeout", "10")


def test_new_and_retried_jobs_take_turns_by_the_moment_they_became_ready(board):
    """A retried job stands behind what was queued before its backoff was over, and ahead of what came after: nobody starves."""
    store = board.open()
    store.enqueue(Job("t", id="fails"), board.now)
    store.retry(store.claim(board.now, fresh=True), 5, "exit 1", board.now)
    for n in range(3):
        board.clock.sleep(1)
        store.enqueue(Job("t", id="before%d" % n), board.now)
    board.clock.sleep(10)
    for n in range(3):
        store.enqueue(Job("t", id="after%d" % n), board.now)
        board.clock.sleep(1)
    order = [store.claim(board.now, fresh=True).entry.id for _ in range(7)]
    assert order == ["before0", "before1", "before2", "fails", "after0", "after1", "after2"]
    close(store)


def test_a_flood_of_retries_does_not_starve_a_new_job(board):
    store = board.open()
    for n in range(50):
        store.enqueue(Job("t", id="old%d" % n), board.now)
    for n in range(50):
        store.retry(store.claim(board.now, fresh=True), 5, "exit 1", board.now)
    board.clock.sleep(5.5)
    store.enqueue(Job("t", id="new"), board.now)
    board.clock.sleep(0.1)
    for turn in range(51):
        lease = store.claim(board.now, fresh=True)
        if lease.entry.id == "new":
            break
        store.retry(lease, 5, "exit 1", board.now)
        board.clock.sleep(0.01)
    assert turn <= 50
    close(store)


# --- expiry -----------------------------------------------------------------------------------------------------


def enqueue(store, board, id, expires_s):
    store.enqueue(Job("t", id=id, expires_s=expires_s), board.now)


def test_what_expired_goes_counted_and_logged(board):
    store = board.open()
    enqueue(store, board, "short", 10)
    enqueue(store, board, "long", 100)
    board.clock.sleep(11)
    assert store.claim(board.now, fresh=True).entry.id == "long"
    assert store.claim(board.now, fresh=True) is None
    assert store.gone() == (1, 0) and board.log.said("expired") == [{"id": "short", "type": "t"}]
    assert board.ls("incoming") == []
    close(store)


@pytest.mark.parametrize("step_s", [400, 86_400, 30 * 86_400])
def test_a_step_of_the_clock_expires_nothing(board, step_s):
    store = board.open()
    enqueue(store, board, "x", 300)
    board.clock.sleep(10)
    board.clock.step(step_s)
    board.clock.sleep(1)
    assert store.claim(board.now, fresh=True).entry.id == "x"
    close(store)


def test_after_a_step_a_job_still_expires_in_its_own_time_and_a_new_one_too(board):
    store = board.open()
    enqueue(store, board, "old", 300)
    board.clock.sleep(100)
    board.clock.step(86_400)
    store.prune(board.now)  # a safety scan
    board.clock.sleep(100)
    enqueue(store, board, "new", 300)
    board.clock.sleep(110)
    assert store.claim(board.now, fresh=True).entry.id == "new"
    assert [fields["id"] for fields in board.log.said("expired")] == ["old"]
    enqueue(store, board, "newer", 300)
    board.clock.sleep(310)
    assert store.claim(board.now, fresh=True) is None
    assert store.gone() == (2, 0)
    close(store)


def test_a_board_without_a_battery_is_told_the_time(board):
    """It boots in 1970, queues a job for an hour, and then it is a week later than the newest job of its last life."""
    store = board.open()
    enqueue(store, board, "of-the-last-life", 3600)
    close(store)
    board.reboot(wall=60)
    store = board.open()
    enqueue(store, board, "of-this-life", 3600)
    board.clock.sleep(30)
    assert store.claim(board.now, may_run=lambda type: False, fresh=True) is None
    board.clock.step(WALL + 7 * 86_400 - 90)
    board.clock.sleep(5)
    got = {store.claim(board.now, fresh=True).entry.id for _ in range(2)}
    assert got == {"of-this-life", "of-the-last-life"}, "not knowing how long it was off, it lets live"
    assert store.gone() == (0, 0)
    close(store)


def test_an_untrusted_clock_expires_nothing(board):
    store = board.open()
    enqueue(store, board, "x", 1)
    board.clock.sleep(100)
    board.clock.step(-10_000)
    assert store.claim(board.now, fresh=True).entry.id == "x"
    close(store)
