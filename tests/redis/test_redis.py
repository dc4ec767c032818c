"""The Redis edition as a fleet meets it: a real server, real workers, and the field reports B40 B85 B87 B88 B89 B90."""

import json
import os
import random
import signal
import subprocess
import threading
import time

import pytest
from tests.redis.bench import QUEUE
from tests.redis.proxies import Fake, Swallower
from tests.redis_server import Server, free_port, wait_until


# --- lists as any redis-cli user expects them ------------------------------------------------------------------------------


def test_what_is_pushed_by_hand_runs_with_the_rest_as_payload(bench):
    bench.handler("send_welcome_email")
    bench.work()
    with bench.client as client:
        client.lpush(QUEUE, '{"id":101,"task":"send_welcome_email","email":"user@example.com"}')
    bench.wait_ran(1)
    path, = bench.out.glob("101.*")
    id, attempt, payload = path.read_text().split(" ", 2)
    assert (id, attempt, json.loads(payload)) == ("101", "1", {"email": "user@example.com"})
    bench.wait_empty()


def test_what_cannot_be_read_is_set_aside_and_the_next_one_runs(bench):
    with bench.client as client:
        client.lpush(QUEUE, "not json")
        bench.push("good")
        bench.work()
        bench.wait_ran(1)
        wait_until(lambda: client.llen(QUEUE + "_corrupt") == 1)
    assert bench.ran() == ["good"]


def test_a_dead_letter_stands_in_its_list_with_the_reason(bench):
    bench.handler("bad", "#!/bin/sh\nexit 65\n")
    bench.push("d", "bad")
    bench.work()
    wait_until(lambda: bench.lengths() == (0, 0, 1))
    with bench.client as client:
        letter = json.loads(client.lindex(QUEUE + "_dlq", 0))
    assert letter["id"] == "d" and letter["attempts"] == 1 and "65" in letter["last_error"]
    bench.handler("bad")
    with bench.client as client:
        client.rpoplpush(QUEUE + "_dlq", QUEUE)  # by hand: a kick
    bench.wait_ran(1)
    bench.wait_empty()


def test_rpoplpush_by_hand_does_no_harm(bench):
    bench.handler("slow", "#!/bin/sh\necho >>$OUT/started\nwhile [ ! -e $OUT/go ]; do sleep 0.05; done\necho >>$OUT/ended\n")
    bench.push("s", "slow")
    bench.work()
    wait_until(lambda: (bench.out / "started").exists())
    with bench.client as client:
        for _ in range(3):
            assert client.rpoplpush(QUEUE + "_processing", QUEUE)
            wait_until(lambda: bench.lengths() == (0, 1, 0), what="back in processing")
    (bench.out / "go").touch()
    bench.wait_empty()
    assert (bench.out / "started").read_text() == (bench.out / "ended").read_text() == "\n"


def test_what_stands_in_processing_without_a_claim_is_found(bench):
    """The answer to somebody's BLMOVE was lost."""
    bench.push("lost")
    with bench.client as client:
        client.blmove(QUEUE, QUEUE + "_processing", 1, "RIGHT", "LEFT")
    bench.work()
    bench.wait_ran(1)
    bench.wait_empty()
    assert bench.ran() == ["lost"]


def test_a_claim_whose_answer_was_lost_is_found_and_run_once(bench):
    """A proxy swallows the answer to the claim."""
    bench.push("once")
    proxy = Swallower(bench.server.port, b"$3\r\njob\r\n")
    conf = bench.conf.read_text()
    bench.conf.write_text(conf.replace(":%d/" % bench.server.port, ":%d/" % proxy.port))
    bench.work()
    wait_until(lambda: proxy.swallowed, what="a swallowed answer")
    bench.wait_ran(1, 40)
    bench.wait_empty()
    assert bench.ran() == ["once"]
    proxy.close()


# --- the server's troubles -----------------------------------------------------------------------------------------------


def test_B40_redis_away_at_boot_is_waited_for(make_faked):
    """B40: Redis is stopped when the worker starts: it stays up, tries again, and runs a job soon after Redis came."""
    port = free_port()
    bench = make_faked(port)
    worker = bench.work()
    wait_until(lambda: bench.log().count("store") >= 2, what="two tries")
    assert worker.poll() is None
    bench.server = Server(port=port)
    bench.push("a")
    began = time.monotonic()
    bench.wait_ran(1, 15)
    assert time.monotonic() - began < 15


TROUBLES = {"LOADING": "-LOADING Redis is loading the dataset in memory", "MISCONF": "-MISCONF Errors writing to the AOF file",
            "READONLY": "-READONLY You can't write against a read only replica.", "OOM": "-OOM command not allowed",
            "BUSY": "-BUSY Redis is busy running a script.", "NOSCRIPT": "-NOSCRIPT No matching script.",
            "garbage": "\x00\x01garbage"}


@pytest.mark.parametrize("word", sorted(TROUBLES))
def test_B87_trouble_that_passes_is_waited_for(make_faked, word):
    """B87: a server that says LOADING, MISCONF, READONLY, OOM, BUSY, NOSCRIPT, nonsense is waited for; the status says why."""
    real = Server()
    fake = Fake(real.port, TROUBLES[word])
    bench = make_faked(fake.port)
    bench.server = real
    bench.push("a")
    worker = bench.work()
    wait_until(lambda: fake.said >= 3 and "store" in bench.log(), what="its troubles met")
    assert worker.poll() is None
    wait_until(lambda: "redis" in bench.status().partition("last_error=")[2], what="a reason in the status")
    if word not in ("garbage", "NOSCRIPT"):
        assert word in bench.log()
    fake.is_well = True
    bench.wait_ran(1)
    fake.close()


def test_B87_no_password_and_a_wrong_one_exit_78(make_bench):
    """B87: waiting does not help against a wrong password."""
    bench = make_bench("--requirepass", "s3cret-word")
    assert bench.work().wait(20) == 78
    assert bench.work(EDGEQ_REDIS_PASSWORD="wrong-word").wait(20) == 78
    assert "wrong-word" not in bench.log()


def test_a_right_password_is_used_and_told_nobody(make_bench):
    bench = make_bench("--requirepass", "s3cret-word", "--loglevel", "verbose")
    bench.handler("env", "#!/bin/sh\nenv >$OUT/env.ran\n")
    assert bench.edgeq("enqueue", "env", EDGEQ_REDIS_PASSWORD="s3cret-word").returncode == 0
    (bench.root / "password").write_text("s3cret-word\n")
    with bench.conf.open("a") as f:
        f.write("REDIS_PASSWORD_FILE=%s\n" % (bench.root / "password"))
    bench.work()
    bench.wait_ran(1)
    assert "s3cret" not in (bench.out / "env.ran").read_text() + bench.log() + bench.status()


def test_rediss_speaks_tls_and_trusts_whom_it_was_told(make_bench, tmp_path):
    key, cert, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert),
                    "-days", "2", "-subj", "/CN=localhost", "-addext", names], check=True, capture_output=True)
    bench = make_bench("--tls-port", str(port), "--tls-cert-file", str(cert), "--tls-key-file", str(key),
                       "--tls-auth-clients", "no")
    conf = bench.conf.read_text()
    secure = conf.replace(bench.url, "rediss://127.0.0.1:%d/0?queue=%s" % (port, QUEUE))
    bench.conf.write_text(secure)
    result = bench.edgeq("enqueue", "mail", "{}")
    assert result.returncode == 74 and result.stdout == "" and bench.lengths() == (0, 0, 0)
    bench.conf.write_text(secure.replace("queue=%s" % QUEUE, "queue=%s&ca=%s" % (QUEUE, cert)))
    assert bench.edgeq("enqueue", "mail", "{}").returncode == 0
    bench.work()
    bench.wait_ran(1)


def test_B88_kill_at_random_points_loses_nothing(bench):
    """B88: each accepted job is done; a job whose worker was killed may have run twice (P9)."""
    rounds = 100 if os.environ.get("FULL") else 12
    rng = random.Random(88)
    for n in range(rounds):
        for m in range(4):
            bench.push("k%d-%d" % (n, m))
        worker = bench.work()
        wait_until(lambda: worker.path.stat().st_size > 0 or bench.lengths()[0] < 4 or bench.lengths()[1], what="a beginning")
        worker.poll() or threading.Event().wait(rng.random() * 0.1)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    bench.work()
    bench.wait_empty(60)
    assert set(bench.ran()) == {"k%d-%d" % (n, m) for n in range(rounds) for m in range(4)}
    with bench.client as client:
        assert client.zcard(QUEUE + ":doneorder") == rounds * 4 and client.zcard(QUEUE + ":failed") == 0


@pytest.mark.parametrize("policy", ("allkeys-lru", "volatile-lru"))
def test_B89_an_eviction_policy_is_told_once(make_bench, policy):
    """B89: one warning and a word in the status name the policy."""
    bench = make_bench("--maxmemory", "100mb", "--maxmemory-policy", policy)
    bench.work()
    wait_until(lambda: policy in bench.status(), what="a word in the status")
    assert "durable=no" in bench.status()
    assert bench.warned(policy) == 1
    assert policy in bench.edgeq("check").stdout + bench.edgeq("check").stderr


def test_B89_no_persistence_is_told_once(make_bench):
    """B89: a server that keeps nothing is named as such."""
    bench = make_bench("--appendonly", "no")
    bench.work()
    wait_until(lambda: "no persistence" in bench.status(), what="a word in the status")
    assert bench.warned("no persistence") == 1


def test_B89_no_job_hangs_on_a_key_that_expires(bench):
    """B89: nothing of a job has a time to live."""
    bench.push("a")
    bench.edgeq("enqueue", "mail", "--delay", "1000")
    with bench.client as client:
        assert [key for key in client.scan_iter() if client.ttl(key) != -1] == []


def test_B90_a_refused_write_is_no_success(bench):
    """B90: no id, no exit 0 for what the server refused."""
    with bench.client as client:
        client.config_set("maxmemory", "1")
    result = bench.edgeq("enqueue", "mail", "{}")
    assert result.returncode == 74 and result.stdout == "" and "OOM" in result.stderr
    with bench.client as client:
        client.config_set("maxmemory", "0")
    assert bench.lengths() == (0, 0, 0)


def test_B90_misconf_is_no_success(make_bench):
    """B90: a failed save stops the server's writes: no id, no exit 0."""
    bench = make_bench("--enable-protected-configs", "yes")
    with bench.client as client:
        client.config_set("appendonly", "no")
        client.config_set("save", "3600 1")
        client.config_set("stop-writes-on-bgsave-error", "yes")
        client.set("x", "1")
        folder = bench.root / "gone"
        folder.mkdir()
        client.config_set("dir", str(folder))
        folder.rmdir()
        client.bgsave()
        wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", what="a failed save")
    result = bench.edgeq("enqueue", "mail", "{}")
    assert result.returncode == 74 and result.stdout == "" and "MISCONF" in result.stderr


def test_a_refused_connection_is_named_by_check_with_its_remedy(make_faked):
    result = make_faked(free_port()).edgeq("check")
    assert result.returncode != 0 and "refused" in result.stderr + result.stdout and "redis-server" in result.stderr + result.stdout


def test_a_silent_server_is_noticed_within_15_s(bench):
    bench.work()
    wait_until(lambda: "worker=up" in bench.status())
    bench.server.signal(signal.SIGSTOP)
    try:
        wait_until(lambda: "store" in bench.log(), 15, "the silence noticed")
    finally:
        bench.server.signal(signal.SIGCONT)
    bench.push("a")
    bench.wait_ran(1)


def test_a_server_that_comes_back_has_all_jobs(bench):
    """appendonly: what was accepted a second ago is there after a kill."""
    for n in range(5):
        bench.push("j%d" % n)
    wait_until(lambda: bench.client.info("persistence")["aof_pending_bio_fsync"] == 0)
    bench.server.stop()
    bench.work()
    wait_until(lambda: "refused" in bench.log())
    bench.server.start()
    bench.wait_ran(5)
    bench.wait_empty()
    assert bench.ran() == ["j%d" % n for n in range(5)]
