"""What the conformance suite does not ask of a store: coalescing, pauses of the fleet, NODE, a full server. On a real one."""

import pytest

from edgeq.errors import BadJob, StoreDown
from edgeq.job import FAILED, INCOMING, Job
from edgeq.store.base import ALREADY_QUEUED, QUEUED
from edgeq.store.fleet.element import job_of
from tests.conformance.jobs import drain, ids, put, take, where
from tests.conformance.stores import FACTORIES


@pytest.fixture
def bench(tmp_path):
    bench = FACTORIES["redis"](tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def store(bench):
    return bench.open()


def test_a_key_that_waits_is_one_job(bench, store):
    assert put(bench, store, "a", key="k").status == QUEUED
    receipt = put(bench, store, "b", key="k")
    assert (receipt.id, receipt.status) == ("a", ALREADY_QUEUED)
    assert drain(bench, store) == ["a"]
    assert put(bench, store, "c", key="k").status == QUEUED


def test_a_key_runs_once_at_a_time(bench, store):
    put(bench, store, "a", key="k")
    lease = take(bench, store)
    assert put(bench, store, "b", key="k").status == QUEUED
    put(bench, store, "other")
    assert take(bench, store).entry.id == "other" and take(bench, store) is None
    store.ack(lease, bench.now)
    assert take(bench, store).entry.id == "b"


def test_latest_takes_the_place_of_those_that_wait(bench, store):
    put(bench, store, "a", key="k", latest=True)
    put(bench, store, "b", key="k", latest=True)
    assert ids(store, INCOMING) == ["b"] and bench.log.said("superseded")
    assert drain(bench, store) == ["b"]


def test_an_older_try_that_fails_gives_way_to_the_latest(bench, store):
    put(bench, store, "a", key="k", latest=True)
    lease = take(bench, store)
    put(bench, store, "b", key="k", latest=True)
    store.retry(lease, 0, "exit 1", bench.now)
    assert ids(store, FAILED) == [] and where(store, "a") is None
    assert drain(bench, store) == ["b"]


def test_a_pause_is_the_fleets_and_a_drain_its_nodes(bench, store):
    other = bench.open()
    store.pauses.set("mail", 100, bench.now)
    bench.clock.sleep(2)
    assert other.pauses.is_paused("mail", bench.now) and not other.pauses.is_paused("else", bench.now)
    store.pauses.clear("mail")
    bench.clock.sleep(2)
    assert not other.pauses.is_paused("mail", bench.now)
    store.pauses.set("", 100, bench.now, this_boot=True)
    assert store.pauses.is_paused("mail", bench.now)
    assert not store.link.call("EXISTS", store.key + ":pauses")


def test_a_claim_of_another_host_is_left_until_its_deadline(bench, store):
    put(bench, store, "a")
    other = bench.open()
    other._node = "elsewhere", "1"
    take(bench, other, lease_s=10)
    assert store.stale(bench.now) == []
    bench.clock.sleep(11)
    (entry, holder), = store.stale(bench.now)
    assert entry.id == "a" and holder is None


def test_a_claim_in_another_pid_namespace_is_left_until_its_deadline(bench, store):
    """Containers of one host share its boot id, not its pids."""
    put(bench, store, "a")
    mortal, kill = bench.open_mortal()
    mortal._node = store._home_text()[0], "1"
    take(bench, mortal, lease_s=10)
    kill()
    assert store.stale(bench.now) == []
    bench.clock.sleep(11)
    assert len(store.stale(bench.now)) == 1


def test_a_finished_job_can_be_settled_on_a_full_server(bench, store):
    """P7: enqueue fails early, ack and bury do not."""
    for id in "ab":
        put(bench, store, id)
    first, second = take(bench, store), take(bench, store)
    store.link.call("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(StoreDown, match="OOM"):
            put(bench, store, "c")
        store.ack(first, bench.now)
        store.bury(second, "exit 65", bench.now)
    finally:
        store.link.call("CONFIG", "SET", "maxmemory", 0)
    assert (where(store, "a"), where(store, "b"), where(store, "c")) == ("done", "dlq", None)


def test_what_a_hand_removed_from_a_list_is_found_by_check(bench, store):
    put(bench, store, "a")
    store.link.call("DEL", store.key)
    sentence, = store.check(bench.now)
    assert "job a" in sentence
    store.check(bench.now, True)
    assert store.check(bench.now) == [] and drain(bench, store) == ["a"]


def test_the_same_job_pushed_twice_runs_once(bench, store):
    for _ in range(2):
        store.link.call("LPUSH", store.key, b'{"id":7,"task":"mail"}')
    assert drain(bench, store) == ["7"]
    store.link.call("LPUSH", store.key, b'{"id":7,"task":"mail"}')
    assert drain(bench, store) == [] and store.counts(bench.now).ready == 0


def test_foreign_jobs_keep_their_order_among_ours(bench, store):
    put(bench, store, "a")
    store.link.call("LPUSH", store.key, b'{"id":"b","task":"mail"}')
    put(bench, store, "c")
    store.link.call("LPUSH", store.key, b'{"id":"d","type":"mail","priority":0}')
    found = drain(bench, store)
    assert sorted(found) == ["a", "b", "c", "d"] and [id for id in found if id != "d"] == ["a", "b", "c"]


@pytest.mark.parametrize("text", (b"", b"[]", b"nonsense", b'{"id":1}', b'{"task":"../x"}', b'{"task":"t","id":"a b"}', b"\xff",
                                  b'{"task":"t","x":[' + b"[" * 200 + b"]" * 200 + b"]}"))
def test_what_is_no_job_is_said_to_be_none(text):
    with pytest.raises(BadJob):
        job_of(text, 65536)


def test_a_rest_is_the_payload_as_it_came():
    job = job_of(b'{"id":101,"task":"send","n":1e999,"s":"\\u00e4"}', 65536)
    assert (job.id, job.type, job.payload) == ("101", "send", b'{"n":1e999,"s":"\\u00e4"}')
    assert isinstance(job, Job)
