"""The command line in-process: options, one-line errors, the exit codes of every verb."""

import json
import os
import posix
import subprocess
import sys

import pytest

from edgeq.cli import VERBS, main
from edgeq.cli.options import parse
from edgeq.errors import BadUsage
from edgeq.job import Job
from tests.harness import Board, Clock, dead_owner


@pytest.fixture
def board(tmp_path):
    """A queue whose clocks are the machine's: the command line asks them."""
    board = Board(tmp_path)
    real = __import__("edgeq.clock").clock.Clock()
    board.clock = Machine(real)
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "mail").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "handlers" / "mail").chmod(0o755)
    return board


class Machine(Clock):
    def __init__(self, real):
        self.real = real

    boot_id = property(lambda self: self.real.boot_id)

    def read(self):
        return self.real.read()


@pytest.fixture
def edgeq(board, capfd, monkeypatch):
    """edgeq(words...) -> (exit code, stdout, stderr)"""
    monkeypatch.delitem(posix.environ, b"EDGEQ_CONF", raising=False)

    def run(*words, stdin=None):
        if stdin is not None:
            done = subprocess.run([sys.executable, "-m", "edgeq", "--config", str(board.conf), *words], input=stdin,
                                  capture_output=True, timeout=60)
            return done.returncode, done.stdout.decode(), done.stderr.decode()
        try:
            code = main(["--config", str(board.conf), *words])
        except SystemExit as error:
            code = error.code
        return (code,) + tuple(capfd.readouterr())
    return run


@pytest.fixture
def store(board):
    """A spool with one job in every state: waiting, delayed, failed, running, dead, done."""
    store = board.open()

    def take(id):
        store.enqueue(Job("mail", b'{"n": 1}', id=id, priority=0), board.now)
        return store.claim(board.now, None, 60, True)
    store.bury(take("dead"), "exit 65: bad address", board.now)
    store.ack(take("done"), board.now, "result", 12)
    store.flush(board.now)
    store.retry(take("failed"), 600, "exit 1: no route", board.now)
    take("running")
    store.enqueue(Job("mail", id="waiting"), board.now)
    store.enqueue(Job("other", id="delayed", delay_s=600), board.now)
    yield store
    store._alive.drop()
    store.journal.close()


# --- options -------------------------------------------------------------------------------------------------

SPEC = {"id": "text", "delay": "whole", "fast": "flag", "v": "flag", "help": "flag"}


def test_options_stand_anywhere_and_end_at_two_dashes():
    assert parse("x", ["a", "--id", "b", "--delay=5", "-", "--fast", "-v", "--", "--id"], SPEC) == (
        {"id": "b", "delay": 5, "fast": True, "v": True}, ["a", "-", "--id"])
    assert parse("x", ["-h", "--id", "--x"], SPEC) == ({"help": True, "id": "--x"}, [])


@pytest.mark.parametrize("words",
                         (["--idd", "1"], ["--delay"], ["--delay", "x"], ["--delay=-1"], ["--delay", "1" * 19], ["--fast=1"],
                          ["-x"], ["-id", "1"],
                          ["--v"]))
def test_bad_options_are_usage_errors(words):
    with pytest.raises(BadUsage):
        parse("x", words, SPEC)


# --- exit codes ----------------------------------------------------------------------------------------------

TABLE = (
    ((), 64), (("help",), 0), (("--version",), 0), (("enq",), 64), (("--queue",), 64), (("--queue", "a/b", "status"), 64),
    (("enqueue",), 64), (("enqueue", "mail"), 0), (("enqueue", "a/b"), 64), (("enqueue", "mail", "{"), 65),
    (("enqueue", "mail", "1", "2"), 64),
    (("enqueue", "mail", "1", "--text", "x"), 64), (("enqueue", "mail", "--file", "/nowhere"), 65),
    (("enqueue", "mail", "--id", "a b"), 64),
    (("enqueue", "mail", "--priority", "10"), 64), (("enqueue", "mail", "--priority", "x"), 64),
    (("enqueue", "mail", "--at", "soon"), 64), (("enqueue", "mail", "--at", "0"), 64), (("enqueue", "mail", "-5"), 0),
    (("enqueue", "mail", "--key", ".k"), 64), (("--config=", "status"), 64),
    (("enqueue", "mail", "--delay", "1", "--at", "1"), 64), (("enqueue", "mail", "--id", "dead"), 0),
    (("enqueue", "mail", "--id", "done"), 0),
    (("enqueue", "--batch", "mail"), 64),
    (("enqueue", "--batch", "--delay", "5"), 64),
    (("enqueue", "--batch", "--id=x"), 64),
    (("enqueue", "--batch", "--fast"), 64),
    (("status",), 2), (("status", "-v"), 2), (("status", "--json"), 2), (("status", "--prom"), 2), (("status", "--all"), 2),
    (("status", "x"), 64),
    (("ls",), 0), (("ls", "ready"), 0), (("ls", "delayed"), 0), (("ls", "running"), 0), (("ls", "dead"), 0), (("ls", "done"), 0),
    (("ls", "corrupt"), 1),
    (("ls", "nonsense"), 64), (("ls", "ready", "x"), 64), (("ls", "--type", "nobody"), 1),
    (("show", "dead"), 0), (("show", "done"), 0), (("show", "waiting"), 0), (("show", "nobody"), 1), (("show",), 64),
    (("show", "a/b"), 64),
    (("why", "dead"), 0), (("why", "running"), 0), (("why", "failed"), 0), (("why", "delayed"), 0), (("why", "done"), 0),
    (("why", "nobody"), 1),
    (("kick", "dead"), 0), (("kick", "--all"), 0), (("kick", "waiting"), 75), (("kick", "nobody"), 1), (("kick",), 64),
    (("kick", "a/b"), 64),
    (("kick", "--all", "--type", "nobody"), 1), (("kick", "--all", "x"), 64),
    (("cancel", "waiting"), 0), (("cancel", "dead"), 0), (("cancel", "running"), 75), (("cancel", "done"), 1),
    (("cancel", "nobody"), 1), (("cancel",), 64),
    (("purge", "dlq"), 0), (("purge", "done"), 0), (("purge", "corrupt"), 0), (("purge", "incoming"), 64),
    (("purge", "incoming", "--force"), 0),
    (("purge", "processing", "--force"), 64), (("purge",), 64), (("purge", "all"), 64), (("purge", "all", "--force"), 75),
    (("pause",), 0), (("pause", "mail", "--for", "5"), 0), (("pause", "--for", "ever"), 0), (("pause", "--for", "0"), 64),
    (("pause", "a/b"), 64),
    (("pause", "a", "b"), 64), (("resume",), 1), (("resume", "a/b"), 64),
    (("wait", "done"), 0), (("wait", "dead"), 1), (("wait", "nobody"), 1), (("wait", "waiting", "--timeout", "0"), 75),
    (("wait",), 64),
    (("drain", "--timeout", "0"), 75), (("drain", "x"), 64), (("work", "x"), 64), (("work", "--concurrency", "0"), 64),
    (("check", "x"), 64))


@pytest.mark.parametrize("words, code", TABLE, ids=[" ".join(words) or "nothing" for words, _ in TABLE])
def test_exit_codes(edgeq, store, words, code):
    found, out, err = edgeq(*words)
    assert found == code, (out, err)
    if code in (64, 65, 75, 78) and words:
        lines = err.strip().split("\n")
        assert len(lines) == 1 and (not lines[0] or lines[0].startswith("edgeq: ")), err


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_helps_and_knows_its_options(edgeq, verb):
    code, out, err = edgeq(verb, "--help")
    assert (code, err) == (0, "") and out.startswith("usage: edgeq %s" % verb) and max(map(len, out.split("\n"))) <= 132
    code, out, err = edgeq(verb, "--no-such-option")
    assert code == 64 and err.count("\n") == 1 and "no such option" in err


# --- what they print -----------------------------------------------------------------------------------------


def test_enqueue_prints_the_id_and_says_when_it_is_known(edgeq, store):
    assert edgeq("enqueue", "mail", '{"a":1}', "--id", "new") == (0, "new\n", "")
    assert edgeq("enqueue", "mail", "--id", "new") == (0, "new\n", "edgeq: enqueue: new: already queued\n")
    assert "already dead" in edgeq("enqueue", "mail", "--id", "dead")[2] and "already done" in edgeq("enqueue", "mail", "--id",
                                                                                                     "done")[2]


def test_payloads_from_text_file_and_stdin(edgeq, board, store):
    (board.root / "note").write_bytes(b'line "1"\n\x07')
    edgeq("enqueue", "mail", "--id", "t", "--text", 'a"b\\c\n\u00e4')
    edgeq("enqueue", "mail", "--id", "f", "--file", str(board.root / "note"))
    assert edgeq("enqueue", "mail", "-", "--id", "s", stdin=b'\n{"x":\n1}\n')[0] == 0
    payloads = {id: store.find(id)[2].payload.decode() for id in "tfs"}
    assert json.loads(payloads["t"]) == 'a"b\\c\n\u00e4' and payloads["s"] == '{"x": 1}'
    assert json.loads(payloads["f"]) == 'line "1"\n\x07'


def test_a_batch_is_all_or_nothing(edgeq, board, store):
    before = board.ls("incoming")
    code, out, err = edgeq("enqueue", "--batch", stdin=b'{"type":"mail","id":"b1"}\n{"type":"a/b"}\n')
    assert (code, out) == (65, "") and "line 2" in err and board.ls("incoming") == before
    code, out, err = edgeq("enqueue", "--batch", stdin=b'{"type":"mail","id":"b1"}\n\n{"type":"mail","payload":[1]}')
    assert code == 0 and out.split()[0] == "b1" and len(out.split()) == 2
    assert edgeq("enqueue", "--batch", stdin=b"\n")[0] == 65


def test_a_full_spool_says_of_what(edgeq, board, store):
    with board.conf.open("a") as file:
        file.write("MAX_JOBS=1\n")
    code, out, err = edgeq("enqueue", "mail")
    assert (code, out) == (75, "") and "jobs" in err and "MAX_JOBS=1" in err


def test_a_bad_configuration_names_file_and_line(edgeq, board):
    board.conf.write_text("SPOOL=/x\nLEASE_S=never\n")
    code, out, err = edgeq("status")
    assert code == 78 and "edgeq.conf line 2" in err and err.count("\n") == 1


def test_ls_shows_each_job_on_a_line(edgeq, store):
    lines = {line.split()[0]: line for line in edgeq("ls")[1].splitlines()}
    assert set(lines) == {"waiting", "delayed", "failed", "running", "dead"}
    assert [lines[id].split()[2] for id in ("waiting", "delayed", "failed")] == ["ready", "delayed", "failed"]
    assert "exit 65: bad address" in lines["dead"] and edgeq("ls", "--type", "other")[1].split()[0] == "delayed"


def test_why_tells_what_happened_and_what_comes_next(edgeq, store):
    said = {id: edgeq("why", id)[1] for id in ("waiting", "delayed", "failed", "running", "dead", "done")}
    assert all(text.count("\n") == 1 for text in said.values())
    assert "ready" in said["waiting"] and "runs in 60" in said["delayed"] and "exit 1: no route" in said["failed"]
    assert "worker %d" % os.getpid() in said["running"] and "exit 65: bad address" in said["dead"] and "done at" in said["done"]


def test_show_prints_the_record_with_its_payload(edgeq, store):
    record = json.loads(edgeq("show", "dead")[1])
    assert record["payload"] == {"n": 1} and record["last_error"] == "exit 65: bad address" and record["attempts"] == 1


def test_status_without_a_worker_counts_the_folders(edgeq, store):
    line = edgeq("status")[1]
    fields = dict(pair.split("=", 1) for pair in line.split()[1:19])
    assert line.count("\n") == 1 and [fields[key] for key in ("ready", "processing", "done", "dead", "delayed", "failed",
                                                              "worker")] == [
        "1", "1", "1", "1", "1", "1", "down"]
    found = json.loads(edgeq("status", "--json")[1])
    assert (found["ready"], found["dead"], found["exit"]) == (1, 1, 2)
    assert 'edgeq_dead{queue="default"} 1' in edgeq("status", "--prom")[1]
    table = edgeq("status", "-v")[1].splitlines()
    row, = [row.split() for row in table[1:] if row.startswith("mail ")]
    assert dict(zip(table[1].split(), row))["DEAD"] == "1" and max(map(len, table[1:])) <= 80


def test_status_works_before_anything_was_made(edgeq):
    code, out, err = edgeq("status")
    assert code == 2 and "worker=down" in out and err == ""


def test_kick_and_cancel_do_what_they_say(edgeq, store):
    assert edgeq("kick", "dead") == (0, "dead\n", "")
    assert edgeq("cancel", "dead")[0] == 0 and edgeq("show", "dead")[0] == 1
    code, out, err = edgeq("kick", "waiting", "nobody")
    assert code == 75 and err.count("\n") == 2


def test_a_pause_is_told_and_resumed(edgeq, store):
    edgeq("pause", "mail", "--for", "60")
    assert "paused=1" in edgeq("status")[1] and "paused" in edgeq("why", "waiting")[1]
    assert edgeq("resume", "mail")[0] == 0 and "paused=0" in edgeq("status")[1] and edgeq("resume", "mail")[0] == 1


def test_check_is_clean_on_a_healthy_spool(edgeq, board):
    with board.conf.open("a") as file:
        file.write("MIN_FREE_KB=0\nMIN_FREE_INODES=0\n")
    store = board.open()
    store.close(board.now)
    code, out, err = edgeq("check")
    findings = [line for line in out.splitlines()[:-1] if not line.startswith(("storage:", "note:"))]
    assert findings == [] and err == ""


def test_check_names_every_trouble_with_its_remedy(edgeq, board):
    store = board.open(owner=dead_owner())
    store.enqueue(Job("nohandler", id="a"), board.now)
    store.claim(board.now, None, 60, True)
    store.enqueue(Job("nohandler", id="b"), board.now)
    store._alive.drop()
    (board.root / "handlers" / "empty").write_text("")
    with board.conf.open("a") as file:
        file.write("FROM_THE_FUTURE=1\n")
    code, out, err = edgeq("check")
    assert code == 1 and err == ""
    for word in ("job a is claimed by nobody", "FROM_THE_FUTURE", "nohandler is missing", "empty is not executable"):
        assert word in out
    assert "job a" not in edgeq("check", "--repair")[1] or "job a" not in edgeq("check")[1]


def test_check_works_offline_and_names_a_missing_folder(edgeq, board, store):
    board.reboot = None
    __import__("shutil").rmtree(board.run)
    (board.spool / "corrupt").rmdir()
    code, out, err = edgeq("check")
    assert code == 1 and "corrupt/ is missing" in out and err == ""


def test_nobody_reads_our_output(board, store):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "edgeq", "--config", str(board.conf), "ls"], stdout=writer,
                          stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert done.returncode == 74 and done.stderr == b""


def test_a_bug_is_one_line_too(edgeq, board, monkeypatch):
    from edgeq import store as stores
    monkeypatch.setattr(stores, "open_store", lambda *args: 1 / 0)
    code, out, err = edgeq("ls")
    assert code == 70 and err.startswith("edgeq: bug: ZeroDivisionError") and err.count("\n") == 1


def test_work_once_runs_what_is_ready_and_leaves(board):
    store = board.open()
    store.enqueue(Job("mail", id="a"), board.now)
    store.close(board.now)
    command = [sys.executable, "-m", "edgeq", "--config", str(board.conf), "work", "--once"]
    assert subprocess.run(command, timeout=60, capture_output=True).returncode == 0
    store = board.open()
    assert store.find("a")[0] == "done" and not (board.spool / "running").exists()
    store.enqueue(Job("nohandler", id="b"), board.now)
    store.close(board.now)
    assert subprocess.run(command, timeout=60, capture_output=True).returncode == 75
