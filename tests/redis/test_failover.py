"""A replica takes over: REPLICAOF NO ONE there, the old primary read-only, its name given to the new one. Two real servers."""

import time

import pytest

from tests.redis.bench import QUEUE, Bench
from tests.redis.proxies import Proxy
from tests.redis_server import Server, wait_until


class Name(Proxy):
    """What a fleet calls its primary; `target` is who that is now."""

    def serve(self, client):
        self.relay(client)


def times_of_refusal(bench, n):
    """When the server's count of READONLY answers rose, n times."""
    seen, known = [], None

    def look():
        nonlocal known
        refused_n = client.info("errorstats").get("errorstat_READONLY", {}).get("count", 0)
        if known is not None and refused_n > known:
            seen.append(time.monotonic())
        known = refused_n
        return len(seen) >= n
    with bench.client as client:
        wait_until(look, what="%d refusals" % n)
    return seen


@pytest.fixture
def fleet(tmp_path):
    """(bench on the name, primary, replica, name)"""
    primary = Server("--repl-diskless-sync-delay", "0")
    replica = Server("--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", str(primary.port))
    name = Name(primary.port)
    bench = Bench(tmp_path, port=name.port, LEASE_S=60)  # no heartbeat comes between
    bench.server = primary
    bench.handler("mail")
    yield bench, primary, replica, name
    bench.server = None
    bench.close()
    name.close()
    primary.close(), replica.close()


def is_copied(bench):
    with bench.client as client:
        client.set("tests:mark", 1)  # WAIT is for what its own connection wrote, and so for all that came before
        return client.execute_command("WAIT", 1, 1000) == 1


def test_a_worker_waits_out_a_failover_and_goes_on(fleet):
    """B87: READONLY is said and waited out, and no restart is needed."""
    bench, primary, replica, name = fleet
    bench.handler("slow", "#!/bin/sh\n: >$OUT/slow.started\nwhile [ ! -e $OUT/go ]; do sleep 0.05; done\n"
                          ": >$OUT/$EDGEQ_ID.$$.ran\n")
    bench.push("s", "slow")
    worker = bench.work()
    wait_until(lambda: (bench.out / "slow.started").exists())
    bench.push("a")
    wait_until(lambda: "a" in bench.ran())
    wait_until(lambda: is_copied(bench), what="a replica that has it all")
    bench.server = replica
    with bench.client as client:
        client.replicaof("no", "one")
    bench.server = primary
    with bench.client as client:
        client.replicaof("127.0.0.1", replica.port)
    first, second = times_of_refusal(bench, 2)
    assert second - first > 0.45, "a pause of a second, at most halved by chance"
    (bench.out / "go").touch()
    times_of_refusal(bench, 1)  # of the running job's end
    assert "READONLY" in bench.log() and "replica" in bench.log() and worker.poll() is None
    wait_until(lambda: "replica" in bench.status().partition("last_error=")[2], what="a reason in the status")
    result = bench.edgeq("enqueue", "mail", "{}")
    assert result.returncode == 74 and result.stdout == "" and "READONLY" in result.stderr

    name.target, bench.server = replica.port, replica
    bench.push("b")
    wait_until(lambda: {"s", "b"} <= set(bench.ran()), what="work on the new primary")
    bench.wait_empty()
    with bench.client as client:
        assert set(client.zrange(QUEUE + ":doneorder", 0, -1)) == {"a", "b", "s"}
    assert len(list(bench.out.glob("*.ran"))) == 3 and worker.poll() is None


def test_a_sleeper_is_woken_by_the_change_of_roles(fleet):
    bench, primary, replica, name = fleet
    bench.work()
    with bench.client as client:
        wait_until(lambda: any("b" in line["flags"] and line["name"].startswith("edgeq") for line in client.client_list()))
        client.replicaof("127.0.0.1", replica.port)
        wait_until(lambda: "replica" in bench.log(), 5, "the change said")
        client.replicaof("no", "one")
    bench.push("a")
    bench.wait_ran(1)
    bench.wait_empty()
