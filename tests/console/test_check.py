"""check and why: each finding with its remedy, each case that keeps a job from running in one line."""

import os
import re
import subprocess

import pytest

from tests.console.console import wait_for


def findings(console, *words):
    result = console.edgeq("check", *words)
    assert result.code == (1 if "finding" in result.lines[-1] else 0), result
    return [line for line in result.lines[:-1] if not line.startswith("note:")]


def test_a_fresh_board_is_clean_running_and_stopped(console):
    console.ok("work", "--preflight")
    assert findings(console) == []
    console.start()
    assert findings(console) == []
    assert findings(console, "--repair") == []


@pytest.mark.parametrize("make, said", [
    (lambda path: path.unlink(), "is missing (No such file or directory): its jobs are held: install it"),
    (lambda path: path.chmod(0o644), "is not executable: chmod +x"),
    (lambda path: path.chmod(0o757), "is writable by everybody: chmod o-w"),
    (lambda path: path.write_text(""), "is empty: install it again"),
    (lambda path: path.write_text("echo\n"), "has no #! line: the kernel cannot start it: add one"),
    (lambda path: path.write_text("#!/bin/sh\r\n:\r\n"), "has DOS line ends"),
    (lambda path: path.write_text("#! /no/such/shell -x\n"), "names an interpreter that is not there: /no/such/shell"),
    (lambda path: (path.unlink(), path.mkdir()), "is no file: put an executable there"),
    (lambda path: path.write_bytes(b"\x7fELF..."), "")])
def test_what_is_wrong_with_a_handler(console, make, said):
    path = console.handler("t", ":")
    console.ok("enqueue", "t")
    make(path)
    found = findings(console)
    assert (len(found) == 1 and found[0].startswith("handlers: %s" % path) and said in found[0]) if said else found == []


def test_modes_are_told_and_repaired(console):
    id = console.ok("enqueue", "t")
    console.handler("t", ":")
    (path,) = (console.q / "incoming").iterdir()
    path.chmod(0o666)
    (console.q / "incoming").chmod(0o777)
    (console.q / "failed").chmod(0o700)
    console.conf.chmod(0o666)
    found = findings(console)
    assert [line.split(":")[0] for line in found] == ["permissions"] * 4
    assert "incoming is 0777: repair makes it 3770" in found[0] and "1 file in incoming/ may be read" in found[1]
    assert "failed is 0700: repair makes it 2750" in found[2] and "chmod o-w" in found[3]
    console.conf.chmod(0o644)
    findings(console, "--repair")
    assert findings(console) == []
    assert (path.stat().st_mode & 0o7777, (console.q / "incoming").stat().st_mode & 0o7777) == (0o640, 0o3770)
    assert console.ids("incoming") == [id]


def test_leftovers_of_a_cut_are_findings_that_repair_clears(console):
    console.handler("t", ":")
    console.ok("enqueue", "t", "--id", "whole")
    (console.q / "dlq/torn.json").write_text('{"id":"torn"')
    (path,) = (console.q / "incoming").iterdir()
    (console.q / "dlq/whole.json").write_text(path.read_text())
    (console.q / "dlq/whole.json").chmod(0o640)
    (console.q / "dlq/torn.json").chmod(0o640)
    found = findings(console)
    assert len(found) == 2 and all("repair" in line for line in found)
    assert len(findings(console, "--repair")) == 2
    assert findings(console) == []
    assert console.names("incoming") == [] and console.ids("dlq") == ["whole"]


def test_configuration_is_looked_at(console):
    console.configure(NO_SUCH_KEY=1, LEASE_S=2)
    console.type_conf("bad", TIMEOUT_S="soon")
    console.type_conf("odd", GRACE_S=3, NONSENSE=1)
    console.type_conf("no.type", NICE=1)
    console.ok("work", "--preflight")
    found = "\n".join(findings(console))
    for said in ("unknown key NO_SUCH_KEY", "TIMEOUT_S=soon: not a number", "type bad is held", "unknown key GRACE_S",
                 "it goes into", "unknown key NONSENSE", "no.type.conf is no job type's file", "LEASE_S=2 is short"):
        assert said in found, said


def test_storage_is_looked_at(console):
    console.ok("work", "--preflight")
    console.configure(MIN_FREE_KB=1 << 39, REQUIRE_MOUNT=console.root)
    found = "\n".join(findings(console))
    assert "storage: nothing is mounted on REQUIRE_MOUNT" in found and "storage: intake is refused: bytes" in found


def test_a_spool_in_ram_is_a_finding(console):
    ram = "/dev/shm/edgeq-check-%d" % os.getpid()
    os.mkdir(ram)
    try:
        console.configure(SPOOL=ram)
        console.ok("work", "--preflight")
        assert "is in RAM" in findings(console)[0]
    finally:
        subprocess.run(["rm", "-rf", ram], check=True)


def test_no_spool_yet(console):
    assert console.edgeq("check").code == 1
    console.edgeq("check", "--repair")
    assert findings(console) == []


def test_a_clock_before_the_newest_job_is_a_finding(console):
    clock = console.root / "clock"
    clock.write_text("-1000000000\n")
    console.handler("t", ":")
    console.ok("enqueue", "t")
    late = console.edgeq("check", env={"EDGEQ_TEST_CLOCK": str(clock)})
    assert late.code == 1 and late.lines[0].startswith("clock: ")


# --- why --------------------------------------------------------------------------------------------------------


def why(console, id, **more):
    line = console.ok("why", id, **more)
    assert line.count("\n") == 0 and line.startswith(id + ": ")
    return line[len(id) + 2:]


def test_each_case_of_why_without_a_worker(console):
    console.configure(BASE_DELAY_S=1000)
    console.handler("bad", "echo last words; exit 1")
    console.handler("killed", "kill -9 $$")
    console.handler("hangs", "read -r _ <%s" % (console.root / "never"))
    os.mkfifo(console.root / "never")
    console.handler("wrong", "exit 65")
    console.handler("down", "exit 69")
    console.type_conf("hangs", TIMEOUT_S=0.2)
    console.type_conf("net", NEEDS="net")
    for type in ("bad", "killed", "hangs", "wrong", "down", "nobody"):
        console.ok("enqueue", type, "--id", type)
    console.edgeq("work", "--once")
    assert re.match(r'failed, 1 of 5 tries, last error "exit 1: last words"; backs off: next try in (999|100.) s, at 2',
                    why(console, "bad"))
    assert 'last error "signal 9"' in why(console, "killed")
    assert 'last error "timeout after 0.2 s"' in why(console, "hangs")
    assert why(console, "wrong") == 'dead after 1 try, last error "exit 65"; edgeq kick wrong puts it back'
    assert "offline: exit 69; tried again in " in why(console, "down") and "edgeq resume down" in why(console, "down")
    assert "held: no handler; tried again in " in why(console, "nobody") and "install " in why(console, "nobody")
    console.ok("enqueue", "net", "--id", "net")
    assert "waits for net: runs when %s/run/cond/net is there" % console.root in why(console, "net")
    console.ok("enqueue", "t", "--id", "t")
    assert "ready, but the worker is down: /etc/init.d/S85edgeq start" in why(console, "t")
    console.ok("pause", "t", "--for", "600")
    assert re.search(r"type t is paused for (600|5[89]\d) s more, until 2", why(console, "t"))
    console.ok("pause", "--for", "ever")
    assert "everything is paused for ever: edgeq resume ends it" in why(console, "nobody")
    console.ok("enqueue", "t", "--id", "later", "--delay", "1000")
    assert re.search(r"runs in (999|100.) s", why(console, "later"))
    console.ok("enqueue", "t", "--id", "at", "--at", "2099-01-01T00:00:00Z")
    assert "at 2099-01-01T00:00:00Z" in why(console, "at")
    clock = console.root / "clock"
    clock.write_text("-1000000000\n")
    assert "waits until the clock can be trusted" in why(console, "at", env={"EDGEQ_TEST_CLOCK": str(clock)})


def test_why_a_job_runs_or_waits_behind_others(console):
    console.configure(CONCURRENCY=1)
    console.gate("slow")
    worker = console.start()
    first, second, third = (console.ok("enqueue", "slow") for _ in range(3))
    wait_for(lambda: console.began("slow") == [first], "it runs")
    line = why(console, first)
    assert line.startswith("running, try 1 of 5, since 2") and "worker %d, lease for " % worker.pid in line
    wait_for(lambda: "ready, 1 before it, 1 running" in why(console, third), "the worker's status")
    assert "ready, 0 before it" in why(console, second)
    worker.kill()
    worker.wait()
    assert "claimed (try 1 of 5) by a worker that is gone" in why(console, first)
    console.open_gate("slow")


def test_why_on_a_full_disk(console):
    console.handler("t", ":")
    console.gate("slow")
    first = console.ok("enqueue", "slow")
    second = console.ok("enqueue", "t")
    console.configure(CONCURRENCY=1, MIN_FREE_KB=1 << 39)
    console.start()
    wait_for(lambda: console.began("slow") == [first], "what was accepted runs all the same")
    wait_for(lambda: "ready, 0 before it, 1 running; the disk is full: edgeq check" in why(console, second), "it says so")
    console.open_gate("slow")
