"""Two hosts in network namespaces, one Redis, the link of one of them cut in the middle. Needs root, as the other namespaces do."""

import os
import subprocess

import pytest

from tests.redis.bench import QUEUE, Bench
from tests.redis_server import Server, wait_until

JOBS = 60
SLOW = """#!/bin/sh
sleep 0.1
: >"$OUT/$EDGEQ_ID.$$.ran"
"""


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL)


class Host:
    """A namespace with one link to the server's side. No Redis but through that link."""

    def __init__(self, number):
        self.name = "eq%d-%d" % (os.getpid(), number)
        self.near, self.far = "eqn%d%d" % (os.getpid() % 10 ** 7, number), "eqf%d%d" % (os.getpid() % 10 ** 7, number)
        net = "10.%d.%d" % (os.getpid() // 256 % 128 + 100, os.getpid() % 256)
        self.server, self.address = "%s.%d" % (net, 4 * number + 1), "%s.%d" % (net, 4 * number + 2)
        ip("netns", "add", self.name)
        ip("link", "add", self.near, "type", "veth", "peer", "name", self.far)
        ip("link", "set", self.far, "netns", self.name)
        ip("addr", "add", self.server + "/30", "dev", self.near)
        ip("link", "set", self.near, "up")
        ip("-n", self.name, "addr", "add", self.address + "/30", "dev", self.far)
        ip("-n", self.name, "link", "set", self.far, "up")

    def cut(self):
        """Both ways swallowed: no reset, no refusal."""
        ip("link", "set", self.near, "down")

    def mend(self):
        ip("link", "set", self.near, "up")

    def close(self):
        ip("netns", "del", self.name)


@pytest.fixture
def hosts():
    made = []
    for number in range(2):
        made.append(Host(number))
    yield made
    for host in made:
        host.close()


def test_a_link_cut_in_the_middle_loses_no_job(hosts, tmp_path):
    server = Server("--bind", "127.0.0.1", hosts[0].server, hosts[1].server, "--protected-mode", "no")
    benches = []
    try:
        for number, host in enumerate(hosts):
            root = tmp_path / ("host%d" % number)
            root.mkdir()
            bench = Bench(root, server)
            conf = bench.conf.read_text()
            bench.conf.write_text(conf.replace("127.0.0.1", host.server))
            bench.handler("mail", SLOW)
            plain = bench.argv
            bench.argv = lambda *words, plain=plain, host=host: ["ip", "netns", "exec", host.name, *plain(*words)]
            benches.append(bench)
        for n in range(JOBS):
            benches[0].push("j%02d" % n)
        for bench in benches:
            bench.work()
        wait_until(lambda: all(len(bench.ran()) >= 4 for bench in benches), 60, "both at work")
        hosts[0].cut()
        wait_until(lambda: "store" in benches[0].log(), 20, "the silence noticed")
        with benches[0].client as client:
            wait_until(lambda: client.zcard(QUEUE + ":doneorder") == JOBS, 60, "all done by the other host")
            assert client.hget(QUEUE + ":meta", "done_n") == str(JOBS)
        hosts[0].mend()
        benches[0].push("after")
        benches[1].workers[0].terminate()
        benches[1].workers[0].wait(30)
        wait_until(lambda: "after" in benches[0].ran() + benches[1].ran(), 40, "the job after")
        assert {id for bench in benches for id in bench.ran()} == {"j%02d" % n for n in range(JOBS)} | {"after"}
        assert sum(len(bench.ran()) for bench in benches) <= JOBS + 1 + 4, "only what ran behind the cut may run again (P9)"
        wait_until(lambda: benches[0].lengths() == (0, 0, 0), 40)
    finally:
        for bench in benches:
            bench.server = None
            bench.close()
        server.close()
