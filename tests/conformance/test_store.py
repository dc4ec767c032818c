"""The verbs of a Store and its promises P1 to P9 (edgeq/store/base.py). One suite for all stores."""

import pytest

from edgeq.errors import Busy, Duplicate, LeaseLost, NotFound, StoreDown
from edgeq.job import DLQ, DONE, FAILED, INCOMING, PROCESSING, Job
from edgeq.store.base import ALREADY_DEAD, ALREADY_DONE, ALREADY_QUEUED, QUEUED, VERBS
from tests.conformance.jobs import bury, drain, ids, put, reap, take, where
from tests.harness import WALL

LATER = 4000


def test_it_has_every_verb(store):
    assert [verb for verb in VERBS if not callable(getattr(store, verb, None))] == []


# --- one id, one job ----------------------------------------------------------------------------------------------------


def test_a_second_enqueue_of_a_waiting_id_is_the_same_job(bench, store):
    assert put(bench, store, "a").status == QUEUED
    assert put(bench, store, "a").status == ALREADY_QUEUED
    assert drain(bench, store) == ["a"]


def test_a_second_enqueue_of_a_claimed_id_is_the_same_job(bench, store):
    put(bench, store, "a")
    lease = take(bench, store)
    assert put(bench, store, "a").status == ALREADY_QUEUED
    store.ack(lease, bench.now)
    assert drain(bench, store) == []


def test_a_second_enqueue_of_a_failed_id_is_the_same_job(bench, store):
    put(bench, store, "a")
    store.retry(take(bench, store), 5, "exit 1", bench.now)
    assert put(bench, store, "a").status == ALREADY_QUEUED
    assert take(bench, store) is None, "the backoff was jumped"
    bench.clock.sleep(6)
    assert drain(bench, store) == ["a"]


def test_a_second_enqueue_of_a_dead_id_is_already_dead(bench, store):
    bury(bench, store, "a")
    assert put(bench, store, "a").status == ALREADY_DEAD
    assert drain(bench, store) == []


@pytest.mark.parametrize("flushed", (False, True))
def test_a_second_enqueue_of_a_done_id_does_not_run(bench, store, flushed):
    put(bench, store, "a")
    store.ack(take(bench, store), bench.now)
    if flushed:
        store.flush(bench.now)
    assert put(bench, store, "a").status in (ALREADY_DONE,) + (() if flushed else (ALREADY_QUEUED,))
    assert drain(bench, store) == []


def test_a_done_id_is_remembered_across_a_reboot(bench, store):
    put(bench, store, "a")
    drain(bench, store)
    bench.reboot()
    store = bench.open()
    assert put(bench, store, "a").status == ALREADY_DONE
    assert drain(bench, store) == []


def test_generated_ids_never_repeat_although_the_clock_does(bench, store):
    bench.clock.wall = 100.0
    first = {put(bench, store).id for _ in range(3)}
    bench.reboot(wall=100)
    second = {put(bench, bench.open()).id for _ in range(3)}
    assert len(first | second) == 6


def test_a_cancelled_id_may_be_used_again(bench, store):
    put(bench, store, "a")
    store.cancel("a", bench.now)
    assert put(bench, store, "a").status == QUEUED


# --- order ----------------------------------------------------------------------------------------------------------------


def test_first_in_first_out_within_a_priority(bench, store):
    for id in "abcde":
        put(bench, store, id)
    assert drain(bench, store) == list("abcde")


def test_a_lower_priority_number_goes_first(bench, store):
    for id, priority in (("a", 9), ("b", 5), ("c", 0), ("d", 5)):
        put(bench, store, id, priority=priority)
    assert drain(bench, store) == ["c", "b", "d", "a"]


@pytest.mark.parametrize("step", (-10 ** 9, -3600, 3600, 10 ** 8))
def test_order_survives_a_clock_step(bench, store, step):
    put(bench, store, "a")
    bench.clock.step(step)
    put(bench, store, "b")
    bench.clock.step(-step // 2)
    put(bench, store, "c")
    assert drain(bench, store) == ["a", "b", "c"]


def test_order_survives_a_reboot_into_1970(bench, store):
    put(bench, store, "a")
    bench.reboot(wall=5)
    store = bench.open()
    put(bench, store, "b")
    bench.clock.wall = 1.8e9 + 50
    put(bench, store, "c")
    assert drain(bench, store) == ["a", "b", "c"]


def test_order_survives_a_reboot_after_all_was_done(bench, store):
    """The journal alone knows the newest SEQ."""
    put(bench, store, "a")
    drain(bench, store)
    bench.reboot(wall=5)
    store = bench.open()
    put(bench, store, "b")
    first = next(store.entries(INCOMING)).seq
    assert first > 1.8e9 * 1e6


def test_more_jobs_than_the_view_holds_keep_their_order(make_bench):
    bench = make_bench(SCAN_CACHE=3)
    store = bench.open()
    names = ["j%02d" % n for n in range(20)]
    for name in names:
        put(bench, store, name)
    assert drain(bench, store) == names


def test_an_urgent_arrival_overtakes_a_filled_view(bench, store):
    for id in "abc":
        put(bench, store, id)
    store.ack(store.claim(bench.now), bench.now)
    put(bench, store, "urgent", priority=0)
    assert store.claim(bench.now).entry.id == "urgent"


def test_a_blocked_type_does_not_block_the_others(bench, store):
    put(bench, store, "a", type="held")
    put(bench, store, "b")
    assert take(bench, store, lambda type: type != "held").entry.id == "b"
    assert take(bench, store, lambda type: type != "held") is None


# --- delays and clocks (P8) -------------------------------------------------------------------------------------------------


def test_a_delay_is_waited_for_and_no_longer(bench, store):
    put(bench, store, "a", delay_s=10)
    assert take(bench, store) is None
    bench.clock.sleep(9)
    assert take(bench, store) is None
    bench.clock.sleep(1.1)
    assert take(bench, store).entry.id == "a"


def test_next_due_names_the_end_of_the_nearest_wait(bench, store):
    put(bench, store, "a", delay_s=100)
    put(bench, store, "b", delay_s=10)
    take(bench, store)
    assert 9 <= store.next_due(bench.now) - bench.clock.boot <= 11


def test_nothing_is_due_on_an_empty_queue(bench, store):
    assert take(bench, store) is None and store.next_due(bench.now) is None


@pytest.mark.parametrize("step", (-10 ** 8, -60, 60, 10 ** 8))
def test_a_clock_step_neither_shortens_nor_lengthens_a_wait(bench, store, step):
    put(bench, store, "a", delay_s=100)
    assert take(bench, store) is None
    bench.clock.step(step)
    assert take(bench, store) is None
    bench.clock.sleep(98)
    assert take(bench, store) is None
    bench.clock.sleep(3)
    assert take(bench, store).entry.id == "a"


def test_a_wait_after_a_reboot_is_never_longer_than_the_own_delay(bench, store):
    put(bench, store, "a", delay_s=100)
    bench.reboot(wall=5)
    store = bench.open()
    assert take(bench, store) is None
    bench.clock.sleep(101)
    assert take(bench, store).entry.id == "a"


def test_at_waits_for_its_instant(bench, store):
    put(bench, store, "a", at=int(bench.clock.wall) + 50)
    assert take(bench, store) is None
    bench.clock.sleep(51)
    assert take(bench, store).entry.id == "a"


def test_at_is_reached_when_the_clock_is_set_forward(bench, store):
    put(bench, store, "a", at=int(bench.clock.wall) + 5000)
    assert take(bench, store) is None
    bench.clock.step(6000)
    assert take(bench, store).entry.id == "a"


def test_at_waits_for_a_trusted_clock(bench, store):
    bench.clock.wall = 1000.0  # before the program was built
    put(bench, store, "a", at=2000)
    bench.clock.sleep(5000)
    assert take(bench, store) is None
    bench.clock.wall = 1.8e9
    assert take(bench, store).entry.id == "a"


def test_a_retry_waits_by_the_boot_clock(bench, store):
    put(bench, store, "a")
    store.retry(take(bench, store), 30, "exit 1", bench.now)
    bench.clock.step(10 ** 6)
    assert take(bench, store) is None
    bench.clock.step(-2 * 10 ** 6)
    assert take(bench, store) is None
    bench.clock.sleep(31)
    assert take(bench, store).entry.id == "a"


def test_a_retry_wait_survives_a_reboot_into_1970(bench, store):
    put(bench, store, "a")
    store.retry(take(bench, store), 30, "exit 1", bench.now)
    store.flush(bench.now)
    bench.reboot(wall=5)
    store = bench.open()
    assert take(bench, store) is None
    bench.clock.sleep(32)
    assert take(bench, store).entry.id == "a"


def test_a_job_expires_by_its_own_wish_and_is_counted_nowhere(bench, store):
    put(bench, store, "a", expires_s=10)
    put(bench, store, "b", expires_s=1000)
    bench.clock.sleep(11)
    assert drain(bench, store) == ["b"]
    assert where(store, "a") is None and bench.log.said("expired")


def test_nothing_expires_while_the_clock_is_untrusted(bench, store):
    put(bench, store, "a", expires_s=10)
    bench.clock.step(-10 ** 6)
    bench.clock.sleep(100)
    assert drain(bench, store) == ["a"]


def test_a_job_of_before_the_clock_was_set_does_not_expire_by_that(bench, store):
    """A board without a battery: a script queues a job, the network tells the time, and only then the worker comes up."""
    put(bench, store, "first")
    drain(bench, store)
    bench.reboot(wall=1000)
    early = bench.open_producer()
    put(bench, early, "a", expires_s=600)  # its SEQ is later than `first`, and hours behind the time to come
    bench.clock.step(WALL + 86400 - 1000)
    store = bench.open()
    put(bench, store, "b", expires_s=600)
    bench.clock.sleep(300)
    assert drain(bench, store) == ["a", "b"]


def test_jobs_of_a_boot_that_never_knew_the_time_age_with_this_one(bench, store):
    bench.reboot(wall=1000)
    early = bench.open()
    put(bench, early, "a", expires_s=600)
    put(bench, early, "b", expires_s=6000)
    bench.reboot(wall=WALL)
    store = bench.open()
    bench.clock.sleep(590)
    assert [lease.entry.id for lease in [take(bench, store)]] == ["a"]
    bench.clock.sleep(6000)
    assert take(bench, store) is None and bench.log.said("expired")


def test_a_job_queued_after_a_step_that_nobody_noticed_expires_in_time(bench, store):
    bench.clock.step(86400)
    put(bench, store, "a", expires_s=600)
    bench.clock.sleep(3600)  # no safety scan in between
    assert take(bench, store) is None and bench.log.said("expired")


# --- claim and charge (P4) ---------------------------------------------------------------------------------------------------


def test_a_claim_charges_a_try(bench, store):
    put(bench, store, "a")
    lease = take(bench, store)
    assert lease.entry.attempts == 1 and not lease.redelivered
    assert [entry.attempts for entry in store.entries(PROCESSING)] == [1]


def test_a_second_try_is_redelivered_and_knows_the_last_error(bench, store):
    put(bench, store, "a")
    store.retry(take(bench, store), 0, "exit 1: no route", bench.now)
    bench.clock.sleep(2)
    lease = take(bench, store)
    assert lease.redelivered and lease.entry.attempts == 2 and lease.last_error == "exit 1: no route"


def test_two_workers_never_get_one_job(bench, store):
    other = bench.open()
    for n in range(12):
        put(bench, store, "j%d" % n)
    for worker in (store, other):
        worker.claim(bench.now, lambda type: False, 60, True)  # both views are filled and equal
    claimed = []
    for n in range(8):
        for worker in (store, other):
            lease = worker.claim(bench.now)
            claimed += [lease.entry.id] if lease else []
    assert sorted(claimed) == sorted("j%d" % n for n in range(12))


def test_a_given_back_job_is_refunded_once(bench, store):
    put(bench, store, "a")
    store.give_back(take(bench, store), "stopped", bench.now)
    lease = take(bench, store)
    assert lease.entry.attempts == 1 and lease.redelivered
    store.give_back(lease, "stopped", bench.now)
    lease = take(bench, store)
    assert lease.entry.attempts == 2, "a job that stops the worker each time must run out of tries"
    store.give_back(lease, "stopped", bench.now)
    assert take(bench, store).entry.attempts == 3


def test_a_held_job_is_not_charged(bench, store):
    put(bench, store, "a")
    store.hold(take(bench, store), "no handler", False, bench.now)
    lease = take(bench, store)
    assert lease.entry.attempts == 1 and not lease.redelivered


def test_a_job_held_after_it_ran_is_redelivered_uncharged(bench, store):
    put(bench, store, "a")
    store.hold(take(bench, store), "exit 69", True, bench.now)
    lease = take(bench, store)
    assert lease.entry.attempts == 1 and lease.redelivered


def test_a_held_job_keeps_its_place(bench, store):
    for id in "ab":
        put(bench, store, id)
    store.hold(take(bench, store), "no handler", False, bench.now)
    assert drain(bench, store) == ["a", "b"]


def test_a_held_retry_stays_a_retry(bench, store):
    put(bench, store, "a")
    store.retry(take(bench, store), 0, "exit 1", bench.now)
    bench.clock.sleep(1)
    store.hold(take(bench, store), "exit 69", True, bench.now)
    assert ids(store, FAILED) == ["a"]
    assert take(bench, store).entry.attempts == 2


def test_after_an_unclean_end_waiting_jobs_are_suspect(bench, store):
    for id in "ab":
        put(bench, store, id)
    take(bench, store)
    bench.reboot()
    store = bench.open()
    lease = take(bench, store)
    assert lease.entry.id == "b" and lease.is_suspect and lease.redelivered
    put(bench, store, "new")
    lease = take(bench, store)
    assert lease.entry.id == "new" and not lease.is_suspect and not lease.redelivered


def test_after_a_clean_stop_nothing_is_suspect(bench, store):
    for id in "ab":
        put(bench, store, id)
    store.ack(take(bench, store), bench.now)
    store.close(bench.now)
    bench.reboot()
    assert not take(bench, bench.open()).is_suspect


def test_suspects_stay_suspect_for_a_worker_that_comes_later_in_the_boot(bench, store):
    for id in "abc":
        put(bench, store, id)
    take(bench, store)
    bench.reboot()
    bench.open()
    assert take(bench, bench.open()).is_suspect


def test_the_last_worker_out_makes_the_stop_clean(bench, store):
    other = bench.open()
    for id in "ab":
        put(bench, store, id)
    store.ack(take(bench, store), bench.now)
    store.close(bench.now)
    bench.reboot()  # the other one was still up
    assert take(bench, bench.open()).is_suspect
    assert other


# --- settle by token (P5) -----------------------------------------------------------------------------------------------------


def settles(bench):
    """Each way to settle, as functions of (store, lease)."""
    now = bench.now
    return {"ack": lambda store, lease: store.ack(lease, now), "retry": lambda store, lease: store.retry(lease, 1, "exit 1", now),
            "bury": lambda store, lease: store.bury(lease, "exit 65", now),
            "hold": lambda store, lease: store.hold(lease, "held", True, now),
            "give_back": lambda store, lease: store.give_back(lease, "stopped", now),
            "drop": lambda store, lease: store.drop(lease, "cancelled", now)}


@pytest.mark.parametrize("verb", ("ack", "retry", "bury", "hold", "give_back", "drop"))
def test_a_late_settle_is_refused_and_changes_nothing(bench, store, verb):
    put(bench, store, "a")
    late = take(bench, store, lease_s=10)
    other = bench.open()
    bench.clock.sleep(11)
    lease, = reap(bench, other)
    with pytest.raises(LeaseLost):
        settles(bench)[verb](store, late)
    store.flush(bench.now)
    assert where(store, "a") == PROCESSING
    other.ack(lease, bench.now)
    other.flush(bench.now)
    assert where(store, "a") == DONE


@pytest.mark.parametrize("verb", ("retry", "hold", "give_back", "drop", "bury"))
def test_a_claim_is_settled_once(bench, store, verb):
    put(bench, store, "a")
    lease = take(bench, store)
    settles(bench)[verb](store, lease)
    states = {INCOMING: ids(store, INCOMING), FAILED: ids(store, FAILED), DLQ: ids(store, DLQ)}
    if verb not in ("drop", "bury"):
        with pytest.raises(LeaseLost):
            settles(bench)[verb](store, lease)
    assert {INCOMING: ids(store, INCOMING), FAILED: ids(store, FAILED), DLQ: ids(store, DLQ)} == states


def test_a_heartbeat_keeps_the_claim(bench, store):
    put(bench, store, "a")
    lease = take(bench, store, lease_s=10)
    other = bench.open()
    for _ in range(5):
        bench.clock.sleep(8)
        assert store.heartbeat([lease], bench.now, 10) == []
        assert other.stale(bench.now) == []


def test_a_heartbeat_says_which_claims_are_lost(bench, store):
    for id in "ab":
        put(bench, store, id)
    lost, kept = take(bench, store, lease_s=10), take(bench, store, lease_s=100)
    other = bench.open()
    bench.clock.sleep(20)
    assert [lease.entry.id for lease in reap(bench, other)] == ["a"]
    assert store.heartbeat([lost, kept], bench.now, 10) == [lost]


def test_a_heartbeat_survives_an_emptied_run_folder(bench, store):
    """P8, B45: somebody removed the leases; the claim is still ours."""
    put(bench, store, "a")
    lease = take(bench, store)
    other = bench.open()
    bench.board.reboot(boot=bench.clock.boot)  # empties /run ...
    bench.clock.boots_n -= 1                   # ... in the same boot
    store.make_folders()
    other = bench.open()
    assert store.heartbeat([lease], bench.now, 60) == []
    assert other.stale(bench.now) == []
    store.ack(lease, bench.now)
    store.flush(bench.now)
    assert where(store, "a") == DONE


def test_own_claims_are_not_stale_to_their_worker(bench, store):
    put(bench, store, "a")
    take(bench, store, lease_s=1)
    bench.clock.sleep(100)
    assert store.stale(bench.now) == []


def test_a_claim_of_another_boot_is_stale_at_once(bench, store):
    put(bench, store, "a")
    take(bench, store, lease_s=10 ** 6)
    bench.reboot()
    store = bench.open()
    (entry, holder), = store.stale(bench.now)
    assert entry.id == "a" and holder is None


def test_a_claim_of_a_dead_worker_is_stale_at_once(bench, store):
    put(bench, store, "a")
    mortal, kill = bench.open_mortal()
    take(bench, mortal, lease_s=10 ** 6)
    assert store.stale(bench.now) == []
    kill()
    assert [lease.entry.id for lease in reap(bench, store)] == ["a"]


def test_a_reaped_claim_names_the_handler_that_may_still_run(bench, store):
    put(bench, store, "a")
    mortal, kill = bench.open_mortal()
    lease = take(bench, mortal)
    lease.handler = (4242, 99)
    mortal.note_handler(lease)
    kill()
    (_, holder), = store.stale(bench.now)
    assert (holder.group, holder.group_start) == (4242, 99)


def test_a_settling_claim_is_never_stale_by_its_deadline(bench, store):
    put(bench, store, "a")
    mortal, kill = bench.open_mortal()
    mortal.ack(take(bench, mortal, lease_s=1), bench.now)
    bench.clock.sleep(1000)
    assert store.stale(bench.now) == []
    kill()
    assert reap(bench, store) == [] and where(store, "a") == DONE


def test_a_settled_claim_with_a_line_is_dropped_not_run(bench, store):
    """The worker died between its line and the unlink."""
    put(bench, store, "a")
    mortal, kill = bench.open_mortal()
    mortal.ack(take(bench, mortal), bench.now)
    kill()
    assert reap(bench, store) == []
    assert drain(bench, store) == [] and where(store, "a") == DONE and ids(store, PROCESSING) == []


def test_only_one_of_two_reapers_gets_a_claim(bench, store):
    put(bench, store, "a")
    other, (mortal, kill) = bench.open(), bench.open_mortal()
    take(bench, mortal)
    kill()
    (entry, holder), = store.stale(bench.now)
    assert other.take_over(entry, holder, bench.now, 60)
    assert store.take_over(entry, holder, bench.now, 60) is None


def test_a_reaped_job_keeps_its_charge_and_is_redelivered(bench, store):
    put(bench, store, "a")
    mortal, kill = bench.open_mortal()
    take(bench, mortal)
    kill()
    lease, = reap(bench, store)
    store.retry(lease, 0, "worker died", bench.now)
    bench.clock.sleep(1)
    lease = take(bench, store)
    assert lease.entry.attempts == 2 and lease.redelivered and lease.last_error == "worker died"


def test_a_drop_is_gone(bench, store):
    put(bench, store, "a")
    store.drop(take(bench, store), "cancelled", bench.now)
    assert where(store, "a") is None and ids(store, PROCESSING) == []


# --- dead letters --------------------------------------------------------------------------------------------------------------


PAYLOADS = (b'{"n":1e999}', b'{"a":1,"a":2}', b"123456789012345678901234567890", b'[1,  2 ,\t3]',
            '"\u00e4\u20ac\U0001f600"'.encode(),
            rb'"\ud83d\ude00 \u0000 \/"', b'""', b"null", b"-0.0E+5", b"[" * 64 + b"]" * 64)


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_a_payload_is_never_touched(bench, store, payload):
    put(bench, store, "a", payload=payload)
    lease = take(bench, store)
    assert lease.record.payload == payload
    store.retry(lease, 0, "exit 1", bench.now)
    bench.clock.sleep(1)
    lease = take(bench, store)
    assert lease.record.payload == payload
    store.bury(lease, "exit 65", bench.now)
    assert store.find("a")[2].payload == payload
    store.kick("a", bench.now)
    assert take(bench, store).record.payload == payload


def test_a_payload_of_the_largest_size_goes_all_the_way(bench, store):
    payload = b'"%s"' % (b"x" * (bench.config.max_payload_bytes - 2))
    put(bench, store, "a", payload=payload)
    store.bury(take(bench, store), "e" * 200, bench.now)
    assert store.find("a")[2].payload == payload
    store.kick("a", bench.now)
    assert take(bench, store).record.payload == payload


def test_a_dead_letter_says_how_it_died(bench, store):
    put(bench, store, "a", priority=2, max_attempts=7)
    store.bury(take(bench, store), 'exit 65: "bad"\n', bench.now)
    _, _, record, _ = store.find("a")
    assert (record.attempts, record.priority, record.max_attempts) == (1, 2, 7)
    assert record.raw["failed_at"] == "%d" % bench.clock.wall
    assert record.raw["last_error"] == r'"exit 65: \"bad\"\n"'


def test_a_dead_letter_does_not_run_and_survives_a_reboot(bench, store):
    bury(bench, store, "a")
    bench.reboot()
    store = bench.open()
    assert drain(bench, store) == [] and ids(store, DLQ) == ["a"]


def test_a_kicked_letter_starts_anew_and_is_redelivered(bench, store):
    put(bench, store, "a", priority=1)
    store.retry(take(bench, store), 0, "exit 1", bench.now)
    bench.clock.sleep(1)
    store.bury(take(bench, store), "exit 1", bench.now)
    store.kick("a", bench.now)
    assert ids(store, DLQ) == []
    lease = take(bench, store)
    assert lease.entry.attempts == 1 and lease.redelivered and lease.entry.priority == 1


def test_a_kicked_letter_can_die_again(bench, store):
    bury(bench, store, "a")
    store.kick("a", bench.now)
    store.bury(take(bench, store), "exit 78", bench.now)
    record = store.find("a")[2]
    assert record.raw["last_error"] == '"exit 78"' and record.attempts == 1


def test_kick_knows_who_is_not_dead(bench, store):
    put(bench, store, "waiting")
    with pytest.raises(Duplicate):
        store.kick("waiting", bench.now)
    drain(bench, store)
    with pytest.raises(Duplicate):
        store.kick("waiting", bench.now)
    with pytest.raises(NotFound):
        store.kick("nobody", bench.now)


def test_cancel_removes_what_does_not_run(bench, store):
    put(bench, store, "waiting")
    assert store.cancel("waiting", bench.now) == INCOMING
    bury(bench, store, "dead")
    assert store.cancel("dead", bench.now) == DLQ
    put(bench, store, "failed")
    store.retry(take(bench, store), 50, "exit 1", bench.now)
    assert store.cancel("failed", bench.now) == FAILED
    bench.clock.sleep(100)
    assert drain(bench, store) == []
    for id in ("waiting", "dead", "failed"):
        assert where(store, id) is None


def test_cancel_refuses_what_runs_and_what_is_done(bench, store):
    put(bench, store, "a")
    take(bench, store)
    with pytest.raises(Busy):
        store.cancel("a", bench.now)
    put(bench, store, "b")
    drain(bench, store)
    for id in ("b", "nobody"):
        with pytest.raises(NotFound):
            store.cancel(id, bench.now)


# --- batches, purge, bounds, counts ---------------------------------------------------------------------------------------------


def test_a_batch_is_accepted_in_order(bench, store):
    put(bench, store, "b")
    receipts = store.enqueue_many([Job("mail", id=id) for id in ("a", "b", "c", "a")] + [Job("mail")], bench.now)
    assert [receipt.status for receipt in receipts] == [QUEUED, ALREADY_QUEUED, QUEUED, ALREADY_QUEUED, QUEUED]
    assert receipts[4].id
    assert drain(bench, store) == ["b", "a", "c", receipts[4].id]


def test_purge_empties_only_what_was_asked_for(bench, store):
    bury(bench, store, "dead")
    put(bench, store, "waiting")
    assert store.purge([DLQ], bench.now) == 1
    assert ids(store, DLQ) == [] and drain(bench, store) == ["waiting"]


def test_a_purged_journal_forgets_ids_but_not_the_count_and_the_order(bench, store):
    put(bench, store, "a")
    drain(bench, store)
    store.purge([DONE], bench.now)
    assert put(bench, store, "a").status == QUEUED
    assert drain(bench, store) == ["a"]
    assert store.counts(bench.now).done == 2
    store.purge([DONE], bench.now)
    bench.reboot(wall=5)
    store = bench.open()
    put(bench, store, "b")
    assert next(store.entries(INCOMING)).seq > 1.8e15


def test_purge_of_the_journal_keeps_the_lines_of_live_ids(bench, store):
    """[M]: a claim whose line goes would run again."""
    put(bench, store, "a")
    mortal, kill = bench.open_mortal()
    mortal.ack(take(bench, mortal), bench.now)
    store.purge([DONE], bench.now)
    kill()
    assert reap(bench, store) == [] and drain(bench, store) == []


def test_old_dead_letters_go_beyond_the_limit(make_bench):
    bench = make_bench(DLQ_KEEP=3)
    store = bench.open()
    for n in range(5):
        bury(bench, store, "d%d" % n)
    store.prune(bench.now)
    assert len(ids(store, DLQ)) == 3
    store.prune(bench.now)
    assert len(ids(store, DLQ)) == 3
    assert drain(bench, store) == []


def test_the_journal_stays_within_its_bytes(make_bench):
    bench = make_bench(DONE_KEEP_KB=16)
    store = bench.open()
    for n in range(200):
        put(bench, store, "j%03d" % n)
        store.ack(take(bench, store), bench.now, "n" * 120)
    store.flush(bench.now)
    for _ in range(20):
        store.prune(bench.now)
    assert store.counts(bench.now).done == 200
    assert where(store, "j199") == DONE and where(store, "j000") is None


def test_prune_keeps_the_line_of_an_id_that_has_a_file(make_bench):
    """[M]: the settled claim of a batch that was not flushed, the letter of a job that was done."""
    bench = make_bench(DONE_KEEP_KB=16)
    store = bench.open()
    mortal, kill = bench.open_mortal()
    put(bench, store, "live")
    mortal.ack(take(bench, mortal), bench.now, "n" * 120)
    for n in range(200):
        put(bench, store, "j%03d" % n)
        store.ack(take(bench, store), bench.now, "n" * 120)
    store.flush(bench.now)
    for _ in range(20):
        store.prune(bench.now)
    kill()
    assert reap(bench, store) == [] and drain(bench, store) == []
    for _ in range(20):
        store.prune(bench.now)
    assert where(store, "live") is None


def test_counts_tell_every_state(bench, store):
    bury(bench, store, "dead")
    put(bench, store, "done")
    drain(bench, store)
    put(bench, store, "failed")
    store.retry(take(bench, store), 100, "exit 1", bench.now)
    put(bench, store, "running")
    take(bench, store)
    put(bench, store, "ready")
    bench.clock.sleep(7)
    put(bench, store, "delayed", delay_s=50)
    counts = store.counts(bench.now)
    assert (counts.ready, counts.delayed, counts.failed, counts.processing, counts.dead, counts.done, counts.corrupt) == (
        1, 1, 1, 1, 1, 1, 0)
    assert 6.9 <= bench.clock.boot - counts.oldest_at <= 7.1


def test_jobs_are_jobs_when_the_clock_reaches_its_last_instant(bench, store):
    """The year 2255, or a group member who wrote nonsense into R/seq: numbers count on from there."""
    bench.clock.wall = 8_999_999_999.99999
    wanted = [put(bench, store, id).id for id in [None] * 20 + ["x"]]
    assert drain(bench, store) == wanted


def test_a_due_retry_is_not_the_oldest_of_what_is_ready(bench, store):
    put(bench, store, "failed")
    store.retry(take(bench, store), 1, "exit 1", bench.now)
    bench.clock.sleep(60)
    counts = store.counts(bench.now)
    assert (counts.ready, counts.failed, counts.oldest_at) == (0, 1, 0)


def test_the_age_of_the_oldest_job_does_not_step_with_the_clock(bench, store):
    put(bench, store, "a")
    store.counts(bench.now)
    bench.clock.sleep(5)
    bench.clock.step(-10 ** 8)
    assert 4.9 <= bench.clock.boot - store.counts(bench.now).oldest_at <= 5.1


def test_the_entries_of_a_state(bench, store):
    for id in "ab":
        put(bench, store, id)
    assert ids(store, INCOMING) == ["a", "b"] and ids(store, PROCESSING) == []


def test_find_knows_every_state(bench, store):
    assert store.find("nobody") == (None, None, None, None)
    put(bench, store, "a", payload=b'"x"')
    folder, entry, record, line = store.find("a")
    assert (folder, entry.id, record.payload, line) == (INCOMING, "a", b'"x"', None)
    lease = take(bench, store)
    assert store.find("a")[0] == PROCESSING
    store.ack(lease, bench.now, "a result", 42)
    store.flush(bench.now)
    folder, entry, record, line = store.find("a")
    assert folder == DONE and (line.id, line.attempts, line.ms, line.note) == ("a", 1, 42, r"a\x20result")


def test_a_healthy_store_has_no_findings(bench, store):
    bury(bench, store, "dead")
    put(bench, store, "failed")
    store.retry(take(bench, store), 100, "exit 1", bench.now)
    put(bench, store, "settling")
    store.ack(take(bench, store), bench.now)
    put(bench, store, "running")
    take(bench, store)
    put(bench, store, "waiting")
    assert store.check(bench.now) == []
    assert bench.open().check(bench.now) == [], "another process must not blame a living worker"


def test_check_finds_and_repairs_a_claim_of_a_dead_worker(bench, store):
    put(bench, store, "a")
    mortal, kill = bench.open_mortal()
    take(bench, mortal)
    kill()
    sentence, = store.check(bench.now)
    assert "a" in sentence.split() and "claimed" in sentence
    store.check(bench.now, True)
    assert store.check(bench.now) == []
    bench.clock.sleep(1)
    assert drain(bench, store) == ["a"]


# --- flushes (P3, P9) ------------------------------------------------------------------------------------------------------------


def test_a_flush_is_due_only_while_something_waits_for_it(bench, store):
    assert store.flush_due_at() is None
    put(bench, store, "a")
    assert store.flush_due_at() is None
    store.ack(take(bench, store), bench.now)
    assert store.flush_due_at() is not None
    store.flush(bench.now)
    assert store.flush_due_at() is None


def failing(bench):
    store, disk = bench.open_failing(True)
    for id in "abc":
        put(bench, store, id)
    return store, disk


def test_after_a_failed_flush_the_store_refuses_until_reopened(bench):
    store, disk = failing(bench)
    lease, other = take(bench, store), take(bench, store)
    store.ack(lease, bench.now)
    disk.fail_next_flush()
    with pytest.raises(OSError):
        store.flush(bench.now)
    assert store.is_broken
    for call in (lambda: store.flush(bench.now), lambda: put(bench, store, "d"), lambda: take(bench, store),
                 lambda: store.ack(other, bench.now), lambda: store.retry(other, 1, "", bench.now),
                 lambda: store.bury(other, "", bench.now), lambda: store.kick("a", bench.now),
                 lambda: store.cancel("c", bench.now)):
        with pytest.raises(StoreDown):
            call()
    store.reopen(bench.now)
    assert not store.is_broken
    store.ack(other, bench.now)
    assert drain(bench, store) == ["c"]
    assert all(where(store, id) == DONE for id in "abc") and store.check(bench.now) == []


def test_an_enqueue_whose_flush_failed_is_not_acknowledged_and_may_be_repeated(bench):
    store, disk = failing(bench)
    disk.fail_next_flush()
    with pytest.raises(StoreDown, match="may still run"):
        put(bench, store, "x")
    store.reopen(bench.now)
    put(bench, store, "x")
    assert drain(bench, store) == ["a", "b", "c", "x"]


@pytest.mark.parametrize("state", ("waiting", "dead", "done"))
def test_already_queued_is_said_only_after_a_flush(bench, state):
    """B3: a second enqueue that could not flush what it found promises nothing, nor does the next."""
    store, disk = bench.open_failing(True)
    if state == "dead":
        bury(bench, store, "a")
    else:
        put(bench, store, "a")
    if state == "done":
        drain(bench, store)
    disk.fail_next_flush()
    for _ in range(2):
        with pytest.raises((OSError, StoreDown)):
            put(bench, store, "a")
    store.reopen(bench.now)
    assert put(bench, store, "a").status in (ALREADY_QUEUED, ALREADY_DEAD, ALREADY_DONE)


def test_a_cancel_whose_flush_failed_promises_nothing(bench):
    store, disk = failing(bench)
    disk.fail_next_flush()
    with pytest.raises(OSError):
        store.cancel("a", bench.now)
    with pytest.raises(StoreDown):
        store.cancel("b", bench.now)


def test_a_bury_whose_flush_failed_can_be_repeated(bench):
    store, disk = failing(bench)
    lease = take(bench, store)
    disk.fail_next_flush()
    with pytest.raises(OSError):
        store.bury(lease, "exit 65", bench.now)
    store.reopen(bench.now)
    store.bury(lease, "exit 65", bench.now)
    assert ids(store, DLQ) == ["a"] and ids(store, PROCESSING) == [] and store.check(bench.now) == []


def test_a_suspect_whose_claim_cannot_be_flushed_is_not_lost(bench, store):
    put(bench, store, "x")
    take(bench, store)
    put(bench, store, "a")
    bench.reboot()
    store, disk = bench.open_failing(True)
    store.claim(bench.now, lambda type: False)
    disk.fail_next_flush()
    with pytest.raises(OSError):
        for _ in range(3):
            take(bench, store)
    store.reopen(bench.now)
    for lease in reap(bench, store):
        store.retry(lease, 0, "worker died", bench.now)
    bench.clock.sleep(2)
    assert sorted(drain(bench, store)) == ["a", "x"]


def test_unflushed_completions_ride_together(bench, store):
    for n in range(5):
        put(bench, store, "j%d" % n)
    before = store.gauges().flushes_n
    for _ in range(5):
        store.ack(take(bench, store), bench.now)
    acked = store.gauges().flushes_n
    store.flush(bench.now)
    assert store.gauges().flushes_n - acked == 1 and acked - before <= 3


def test_an_idle_store_writes_nothing(bench, store):
    """P10."""
    put(bench, store, "a")
    drain(bench, store)
    gauges = store.gauges()
    before = gauges.flushes_n, gauges.written_kb
    for _ in range(3):
        bench.clock.sleep(60)
        take(bench, store)
        store.sweep_dead(bench.now), store.stale(bench.now), store.prune(bench.now), store.flush(bench.now), store.counts(bench.now)
    gauges = store.gauges()
    assert (gauges.flushes_n, gauges.written_kb) == before
