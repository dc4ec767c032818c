"""How a job comes to an idle worker: BLMOVE on a real server, its lost answers, its fallback for servers before 6.2."""

import os
import signal
import time

import pytest

from edgeq import disk as seam
from tests.conformance.jobs import put, take, where
from tests.conformance.stores import FACTORIES
from tests.redis.bench import QUEUE
from tests.redis.proxies import Swallower
from tests.redis_server import wait_until

OLD = [word for name in ("BLMOVE", "LMOVE", "LPOS") for word in ("--rename-command", name, "")]
SERVERS = {"new": ([], "BLMOVE"), "old": (OLD, "BRPOPLPUSH")}
AT_ONCE_S = 0.1  # twice in five tries: a loaded machine is slow, a worker that looks twice a second is never twice so fast
REMOVING = ("LPOP", "RPOP", "BLPOP", "BRPOP", "LMPOP", "BLMPOP")


@pytest.fixture(params=sorted(SERVERS))
def fleet(request, make_bench):
    """A bench, and how its server calls a sleep."""
    options, word = SERVERS[request.param]
    return make_bench(*options), word


def asleep_n(bench):
    """How many workers wait on the server."""
    with bench.client as client:
        return sum(line["name"].startswith("edgeq") and "b" in line["flags"] for line in client.client_list())


def wait_asleep(bench, n=1):
    wait_until(lambda: asleep_n(bench) == n, what="%d asleep (%d; %s)" % (n, asleep_n(bench), bench.log()[-800:]))


def seconds_until_claimed(bench, id, ask):
    began = time.monotonic()
    ask()
    with bench.client as client:
        job = "%s:job:%s" % (QUEUE, id)
        wait_until(lambda: client.hget(job, "st") == "processing" or client.hexists(QUEUE + ":done", id), what="claimed")
    return time.monotonic() - began


# --- latency ---------------------------------------------------------------------------------------------------------------


def test_an_idle_pool_has_a_job_at_once(fleet):
    bench, word = fleet
    far = bench.elsewhere()
    for _ in range(2):
        bench.work()
    asks = {"raw": lambda id: bench.push(id), "ours": lambda id: far.put("mail", id=id),
            "urgent": lambda id: far.put("mail", id=id, priority=0), "unhurried": lambda id: far.put("mail", id=id, priority=9)}
    for name, ask in asks.items():
        spent = []
        for n in range(5):
            wait_asleep(bench, 2)
            id = "%s%d" % (name, n)
            spent.append(seconds_until_claimed(bench, id, lambda: ask(id)))
        assert sorted(spent)[1] < AT_ONCE_S, (name, spent)
    bench.wait_empty()
    assert len(bench.ran()) == len(set(bench.ran())) == 20
    with bench.client as client:
        assert client.info("commandstats")["cmdstat_%s" % word.lower()]["calls"] > 5


def test_a_delay_set_elsewhere_is_known_to_those_who_sleep(bench):
    bench.append_conf(SAFETY_SCAN_S=30)
    far = bench.elsewhere()
    bench.work()
    wait_asleep(bench)
    assert 0.9 < seconds_until_claimed(bench, "soon", lambda: far.put("mail", id="soon", delay_s=1)) < 3


def test_idle_is_one_connection_and_a_look_each_few_seconds(bench):
    """B85: three block periods without an error line, on one connection; then a job runs at once."""
    bench.work()
    with bench.client as client:
        def calls(word):
            return client.info("commandstats").get("cmdstat_" + word, {}).get("calls", 0)
        wait_asleep(bench)
        began, blocks, scripts = time.monotonic(), calls("blmove"), calls("evalsha")
        wait_until(lambda: calls("blmove") >= blocks + 3, what="three periods")  # of a second: SAFETY_SCAN_S=1 ends them
        assert time.monotonic() - began > 2 and calls("evalsha") - scripts < 30
        wait_asleep(bench)
        assert len([line for line in client.client_list() if line["name"].startswith("edgeq")]) == 1
    bench.push("a")
    bench.wait_ran(1, 1)
    assert bench.warned(" warning ") + bench.warned(" error ") == 0


# --- what may not run here ---------------------------------------------------------------------------------------------------


def test_a_paused_backlog_is_no_reason_to_poll_and_resume_wakes(bench):
    bench.append_conf(SAFETY_SCAN_S=30)
    far = bench.elsewhere()
    far.store.pauses.set("", 600, far.clock.read())
    bench.push("a")
    bench.work()
    wait_asleep(bench)
    with bench.client as client:
        looks = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        asleep = [line for line in client.client_list() if "b" in line["flags"]]
        wait_until(lambda: int(client.client_list(client_id=[asleep[0]["id"]])[0]["idle"]) >= 2, what="two seconds of sleep")
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == looks and bench.ran() == []
        assert client.lrange(QUEUE, 0, -1)
    began = time.monotonic()
    far.store.pauses.clear("")
    bench.wait_ran(1)
    assert time.monotonic() - began < 2


def test_a_type_at_its_limit_holds_up_no_other(bench):
    types = bench.root / "edgeq.conf.d"
    types.mkdir()
    (types / "slow.conf").write_text("CONCURRENCY=1\n")
    bench.handler("slow", "#!/bin/sh\n: >$OUT/slow.started\nwhile [ ! -e $OUT/go ]; do sleep 0.05; done\n"
                          ": >$OUT/$EDGEQ_ID.$$.ran\n")
    far = bench.elsewhere()
    for id in ("s1", "s2"):
        far.put("slow", id=id)
    bench.work()
    wait_until(lambda: (bench.out / "slow.started").exists())
    wait_asleep(bench)
    spent = []
    for n in range(5):
        spent.append(seconds_until_claimed(bench, "m%d" % n, lambda: far.put("mail", id="m%d" % n, priority=n)))
        bench.wait_ran(n + 2)  # with slow.started
        wait_asleep(bench)
    assert sorted(spent)[1] < AT_ONCE_S, spent
    bench.push("raw")
    wait_until(lambda: "raw" in bench.ran(), 5)
    assert bench.client.hget("%s:job:s2" % QUEUE, "st") == "incoming"
    (bench.out / "go").touch()
    wait_until(lambda: {"s1", "s2"} <= set(bench.ran()))


# --- answers that are lost, workers that stop -----------------------------------------------------------------------------


def test_a_job_whose_BLMOVE_was_not_answered_runs_once(fleet):
    """B88: a proxy swallows the answer: the job stands in processing without a claim, is found there and runs once."""
    bench, word = fleet
    proxy = Swallower(bench.server.port, b'"once"')
    conf = bench.conf.read_text()
    bench.conf.write_text(conf.replace(":%d/" % bench.server.port, ":%d/" % proxy.port))
    bench.work()
    wait_asleep(bench)
    bench.push("once")
    wait_until(lambda: proxy.swallowed, what="a swallowed answer")
    assert bench.lengths() == (0, 1, 0) and bench.client.zcard(QUEUE + ":leases") == 0
    bench.wait_ran(1)
    bench.wait_empty()
    assert bench.ran() == ["once"] and "rescued" in bench.log()
    proxy.close()


def test_what_a_stopped_worker_was_given_is_found_by_another(bench):
    bench.append_conf(SAFETY_SCAN_S=60)
    first = bench.work()
    wait_asleep(bench)
    first.send_signal(signal.SIGSTOP)
    bench.push("a")
    assert bench.lengths() == (0, 1, 0)
    bench.work()
    bench.wait_ran(1)
    first.send_signal(signal.SIGCONT)
    bench.push("b")
    bench.wait_ran(2)
    bench.wait_empty()
    assert bench.ran() == ["a", "b"]


def test_a_worker_that_was_told_to_stop_is_given_nothing(fleet):
    bench, _ = fleet
    bench.work()
    wait_asleep(bench)
    bench.workers[0].send_signal(signal.SIGTERM)
    assert bench.workers[0].wait(20) == 0
    bench.push("a")
    assert bench.lengths() == (1, 0, 0) and asleep_n(bench) == 0


def test_one_that_may_not_unblock_hangs_up_and_loses_nothing(make_bench):
    bench = make_bench()
    with bench.client as client:
        client.execute_command("ACL", "SETUSER", "worker", "on", ">word", "~*", "&*", "+@all", "-client|unblock")
    bench.conf.write_text(bench.conf.read_text().replace("redis://", "redis://worker@"))
    bench.work(EDGEQ_REDIS_PASSWORD="word")
    for n in range(3):
        wait_asleep(bench)
        result = bench.edgeq("enqueue", "mail", "{}", "--id", "j%d" % n, EDGEQ_REDIS_PASSWORD="word")  # pokes: an interruption
        assert result.returncode == 0, result.stderr
        bench.wait_ran(n + 1)
    bench.wait_empty()
    assert bench.ran() == ["j0", "j1", "j2"] and bench.warned(" error ") == 0


def test_each_worker_reaps_on_the_servers_clock(bench):
    """The elected one of this host is out of order; a worker of another host died with a claim of two seconds."""
    bench.append_conf(SAFETY_SCAN_S=60)
    os.makedirs(bench.root / "run" / "default")
    lock = seam.Lock(str(bench.root / "run" / "default" / "lock"))
    assert lock.take(wait=False)
    far = bench.elsewhere()
    far.put("mail", id="a")
    assert far.store.claim(far.clock.read(), None, 2, True)
    bench.work()
    wait_asleep(bench)
    bench.wait_ran(1, 15)
    bench.wait_empty()
    assert "reaped" in bench.log() and bench.ran() == ["a"]
    lock.drop()


def test_never_a_pop_that_removes(fleet):
    """B88: MONITOR during 20 jobs and an idle time: moves and scripts, and no other way out of a list."""
    bench, word = fleet
    with bench.client as watcher, watcher.monitor() as lines:
        bench.work()
        wait_asleep(bench)
        for n in range(20):
            bench.push("j%d" % n)
        bench.wait_ran(20)
        bench.wait_empty()
        with bench.client as client:
            client.echo("the end")
        seen = []
        while not seen or seen[-1] != "ECHO the end":
            seen.append(lines.next_command()["command"])
    words = {command.split(" ")[0].upper() for command in seen}
    assert word in words and not words & set(REMOVING)
    sleeps = [command for command in seen if command.startswith(word + " ")]
    assert all(command.startswith("%s %s %s_processing" % (word, QUEUE, QUEUE)) for command in sleeps)
    assert word != "BLMOVE" or all("RIGHT LEFT" in command for command in sleeps)


# --- between BLMOVE and the claim's script, on the test's clock -------------------------------------------------------------


@pytest.fixture
def pair(tmp_path):
    """(bench, a worker's store asleep on the server, another host's)."""
    bench = FACTORIES["redis"](tmp_path)
    store, other = bench.open(), bench.open()
    store.is_resident = True

    def is_asleep():
        if store.link.is_asleep and store.link.has_answer():
            store.hear(bench.now)  # a server before 6.2, which knows no BLMOVE
        if not store.link.is_asleep:
            assert take(bench, store) is None
            assert store.doze(bench.now, bench.now.boot + 5, True)
        clients = other.link.call("CLIENT", "LIST").decode().splitlines()
        return any(" flags=b " in line and " id=%d " % store.link._asleep.id in " " + line for line in clients)
    wait_until(is_asleep)
    yield bench, store, other
    bench.close()


def moved(bench, store):
    """BLMOVE has been answered; nothing else was done."""
    wait_until(store.link.has_answer, what="an answer")
    store.hear(bench.now)
    assert store.link.call("LLEN", store.key + "_processing") == 1 and not store.link.call("LLEN", store.key)


def test_what_is_more_urgent_comes_first_even_then(pair):
    bench, store, other = pair
    put(bench, other, "a")
    moved(bench, store)
    put(bench, other, "b", priority=0)
    assert [take(bench, store).entry.id for _ in range(2)] == ["b", "a"] and take(bench, store) is None


def test_what_may_not_run_here_goes_back_to_its_place(pair):
    bench, store, other = pair
    put(bench, other, "a")
    moved(bench, store)
    put(bench, other, "b")
    assert store.claim(bench.now, lambda type: False, 60, True) is None
    assert [take(bench, other).entry.id for _ in range(2)] == ["a", "b"]
    assert store.check(bench.now) == []


def test_cancelled_between_the_two_it_is_gone(pair):
    bench, store, other = pair
    put(bench, other, "a")
    moved(bench, store)
    other.cancel("a", bench.now)
    assert take(bench, store) is None and where(store, "a") is None
    assert not store.link.call("EXISTS", store.key, store.key + "_processing")


def test_claimed_by_another_between_the_two_it_stays_theirs(pair):
    """We were stopped for so long that it was rescued and claimed."""
    bench, store, other = pair
    put(bench, other, "a")
    moved(bench, store)
    other.stale(bench.now)
    bench.clock.sleep(3)
    other.stale(bench.now)
    lease = take(bench, other)
    assert lease.entry.id == "a" and take(bench, store) is None
    assert store.link.call("LLEN", store.key + "_processing") == 1
    other.ack(lease, bench.now)
    assert where(store, "a") == "done" and not store.link.call("LLEN", store.key + "_processing")


def test_a_mark_that_nobody_heard_is_no_job(pair):
    bench, store, other = pair
    store.link.close()  # hung up, and still on the list of those who sleep
    put(bench, other, "a", priority=0)
    assert store.link.call("LLEN", store.key) == 1
    assert take(bench, other).entry.id == "a" and take(bench, other) is None
    assert not store.link.call("LLEN", store.key) and other.set_aside_n == 0


def test_wake_gives_back_what_came(pair):
    bench, store, other = pair
    put(bench, other, "a")
    wait_until(store.link.has_answer)
    store.wake()
    assert take(bench, other).entry.id == "a" and not store.link.call("ZCARD", store.key + ":asleep")
