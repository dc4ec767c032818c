"""The write budget (issue 5.1), read from /sys/block/loopN/stat. KiB and flushes repeat within a few per cent on any machine."""

import os
import subprocess
import time

import pytest

from bench.ours import PAYLOAD, Queue


def cost(flash, work, n):
    before = flash.start()
    work()
    return flash.since(before).per(n)


def test_a_lone_job_costs_one_publish(flash, make_queue):
    """Enqueue, claim, run, done; completions ride on the next ones' commits, ten in a window."""
    queue = make_queue(SYNC_WINDOW_MS=3_600_000, SYNC_JOBS=10).open()

    def live(n=30):
        for _ in range(n):
            queue.put(1)
            queue.step()
    found = cost(flash, live, 30)
    assert found.is_within(42, 2.3), found  # aim: 40 and 2.2


def test_shell_to_done_under_a_worker(flash, make_queue):
    """The shipped parts; time runs ten times as fast as at one job a second, and the window with it."""
    queue = make_queue(SYNC_WINDOW_MS=1000)
    queue.start_worker()
    queue.shell("enqueue", "job", "{}")
    queue.await_("the first job's end", queue.is_drained)

    def live():
        for _ in range(20):
            begin = time.monotonic()
            queue.shell("enqueue", "job", PAYLOAD.decode())
            time.sleep(max(begin + 0.1 - time.monotonic(), 0))
        queue.await_("the last job's end", queue.is_drained)
    found = cost(flash, live, 20)
    assert found.is_within(48, 2.8), found  # a slow machine has more windows than jobs / 10


def test_a_burst_is_drained_for_next_to_nothing(flash, make_queue):
    queue = make_queue().open()
    queue.put_many(1000, 1000)
    found = cost(flash, lambda: queue.drain(1000), 1000)
    assert found.is_within(1.5, 0.06), found  # 1.0, unless the file system committed by itself meanwhile


def put_batches(flash, queue):
    """(what its commit wrote, what that left to be written in place as well) of a batch, again and again.

    A machine-wide sync by somebody else may fall into one of them: most are undisturbed.
    """
    for _ in range(12):
        before = flash.start()
        queue.put_many(32, 32)
        yield flash.seen(before).per(32), flash.since_quiet(before).per(32)
        queue.drain(32)


def test_a_batch_shares_one_flush(flash, make_queue):
    costs = put_batches(flash, make_queue().open())
    assert any(own.is_within(5.5, 0.07) and whole.is_within(6.2, 0.07) for own, whole in costs)


def test_a_batch_into_a_folder_that_held_a_thousand(flash, make_queue):
    """Its names fall upon nearly all blocks of the folder: ext4 sorts them by their hash, and never makes a folder smaller."""
    queue = make_queue().open()
    queue.put_many(1000, 250)
    queue.drain(1000)
    assert any(own.is_within(9, 0.07) for own, _ in put_batches(flash, queue))


@pytest.mark.parametrize("words, calls, most", [
    ((), {"fsync"}, 2), (("-O", "fast_commit"), {"syncfs"}, 3), (("-O", "^has_journal"), {"syncfs"}, 1),
    (("-t", "ext3"), {"syncfs"}, 3)])
def test_the_way_of_a_batch_on_real_file_systems(make_flash, words, calls, most):
    """ext4 with its own journal: one commit. Where an fsync may write less than a commit, or there is no journal: syncfs.

    most: flush requests; a commit is two of them, and syncfs may send a third.
    """
    flash = make_flash(64, *words)
    queue = Queue(flash.path).open()
    disk, seen = queue.store.disk, set()
    for name in ("fsync", "syncfs"):
        setattr(disk, name, lambda fd, name=name, call=getattr(disk, name): (seen.add(name), call(fd)))
    seen.clear()
    counted, costs = disk.flushes_n, put_batches(flash, queue)
    own, _ = next(costs)
    assert seen == calls and disk.flushes_n == counted + 1
    assert own.is_within(8, most / 32) or any(own.is_within(8, most / 32) for own, _ in costs)
    queue.close()


def test_heartbeats_leases_status_and_last_errors_stay_in_ram(flash, make_queue):
    queue = make_queue().open()
    queue.put(4)
    store, now = queue.store, queue.clock.read()
    leases = [store.claim(now, None, 60) for _ in range(3)]
    store.retry(leases[0], 60, "exit 1: no", now)
    store.flush(now)

    def look():  # with no worker it is counted from the folders; the first look after a change moves their access times
        subprocess.run(queue.shell_command("status"), env=queue.environ, stdout=subprocess.DEVNULL)
    look()
    before = flash.start()
    for _ in range(20):
        assert store.heartbeat(leases[1:], queue.clock.read(), 60) == []
        store.note_handler(leases[1])
        store._save_error("somebody", "exit 1: no")
    look()
    found = flash.since_quiet(before)
    assert found.kib == 0 and found.flushes <= found.syncs, found


def test_a_held_job_goes_back_and_forth_without_a_flush(flash, make_queue):
    """A type that is offline for a week costs no flush."""
    queue = make_queue().open()
    queue.put(1)
    before = flash.read()
    for _ in range(20):
        now = queue.clock.read()
        queue.store.hold(queue.store.claim(now, None, 60, True), "exit 69", True, now)
    after = flash.read()
    assert after[1] - before[1] <= 2 * (after[2] - before[2])


def test_idle_writes_nothing(flash, make_queue):
    """P10: two safety scans, their reports and status files included."""
    queue = make_queue(SAFETY_SCAN_S=0.3, SYNC_WINDOW_MS=50, REPORT_S=1)
    queue.start_worker()
    queue.shell("enqueue", "job", "{}")
    queue.await_("the job's end", queue.is_drained)
    stamp = queue.run + "/status"
    scans = []

    def scanned(times):
        def look():
            changed = os.stat(stamp).st_mtime_ns
            if not scans or changed != scans[-1]:
                scans.append(changed)
            return len(scans) > times
        scans.clear()
        return look
    queue.await_("a scan", scanned(2))  # the first one after a change moves the folders' access times
    before = flash.start()
    queue.await_("two scans", scanned(3))
    found = flash.since_quiet(before)
    assert found.kib == 0 and found.flushes <= found.syncs, found


def test_status_tells_what_was_written(flash, make_queue):
    queue = make_queue(SYNC_WINDOW_MS=50)
    queue.start_worker()
    queue.shell("enqueue", "job", "{}")
    queue.await_("the job's end", queue.is_drained)

    def fields():
        out = subprocess.run(queue.shell_command("status"), env=queue.environ, stdout=subprocess.PIPE, text=True).stdout
        return dict(pair.split("=", 1) for pair in out.split(" ")[1:20])
    queue.await_("its count", lambda: int(fields()["done"]) == 1)
    assert 3 <= int(fields()["flushes"]) <= 20 and 64 <= int(fields()["written_kb"]) <= 400
