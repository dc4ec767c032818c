"""What stands on the console: golden tables, 80 columns held whatever jobs are called, the session of the manual, odd terminals."""

import json
import os
import re
import subprocess
import sys

import pytest

from edgeq.cli.status import age, cut, short
from tests.console.console import COLUMNS, REPO, START, wait_for

HOSTILE = ["x" * 64, "_" + "-" * 63, "A", "0" * 64, "type-with-a-long-name-that-goes-on"]


# --- golden -----------------------------------------------------------------------------------------------------


def masked(text):
    """What differs from run to run."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "WHEN", text)
    text = re.sub(r"free_kb=\d+", "free_kb=N", text)
    text = re.sub(r"(durable)=(yes|no)", r"\1=X", text)
    text = re.sub(r"(written_kb|flushes|oldest_ready_s|ms)=\d+", r"\1=N", text)
    return re.sub(r"worker \d+", "worker PID", text)


def test_the_table_of_an_empty_queue(console):
    console.ok("work", "--preflight")
    assert masked(console.edgeq("status", "-v").out) == (
        'WHEN queue=default ready=0 processing=0 done=0 dead=0 oldest_ready_s=N retries_1m=0 delayed=0 failed=0 corrupt=0 held=0'
        ' paused=0 worker=down durable=X clock=ok free_kb=N flushes=N written_kb=N last_error=""\n'
        'TYPE              READY DELAY  RUN FAILED  HELD  DEAD OLDEST LAST ERROR\n'
        'cache hits=0 misses=0 evictions=0 newer_format=0\n'
        'removed since the boot: expired=0 superseded=0\n')


def test_the_table_by_type(console):
    console.handler("good", ":")
    console.handler("bad", "echo no route to host; exit 1")
    console.handler("wrong", "exit 65")
    console.configure(BASE_DELAY_S=3600)
    console.type_conf("wifi", NEEDS="net")
    console.handler("wifi", ":")
    for type in ("bad", "wrong", "nobody", "wifi"):
        console.ok("enqueue", type)
    assert console.edgeq("work", "--once").code == 75
    console.ok("enqueue", "good")
    console.ok("enqueue", "good", "--delay", "60")
    console.ok("enqueue", "later", "--delay", "60")
    console.ok("pause", "later")
    table = console.edgeq("status", "-v").out.partition("\n")[2]
    assert masked(table) == (
        "TYPE              READY DELAY  RUN FAILED  HELD  DEAD OLDEST LAST ERROR\n"
        "bad                   0     0    0      1     0     0      - exit 1: no route to\n"
        "good                  1     1    0      0     0     0     0s \n"
        "later                 0     1    0      0     0     0      - paused\n"
        "nobody                0     0    0      0     1     0      - held: no handler\n"
        "wifi                  0     0    0      0     1     0      - waits for net\n"
        "wrong                 0     0    0      0     0     1      - exit 65\n"
        "paused: later, 3600 s more\n"
        "cache hits=0 misses=0 evictions=0 newer_format=0\n"
        "removed since the boot: expired=0 superseded=0\n").replace("3600 s", re.search(r"later, (\d+ s)", table)[1])


@pytest.mark.parametrize("type", HOSTILE)
def test_hostile_names_keep_to_their_columns(console, type):
    console.handler(type, r"printf 'a\nb\033[2J\"\\\377 %s' xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; exit 65")
    console.ok("enqueue", type, "--id", type)
    console.ok("enqueue", type, '"\\u001b[2J"')
    console.start()
    wait_for(lambda: len(console.names("dlq")) == 2, "both are dead")
    wait_for(lambda: "dead=2" in console.edgeq("status").out, "the status says so")
    for words in (("status", "-v"), ("top",)):
        shown = console.edgeq(*words).out.splitlines()[words == ("status", "-v"):]
        assert [line for line in shown if len(line) > COLUMNS] == []
        assert any(line.startswith(type[:15]) for line in shown)
    for words in (("ls",), ("log",), ("why", type), ("show", type), ("status", "--json"), ("status", "--prom"), ("status",)):
        out = console.edgeq(*words).out
        assert out.isascii() and all(line.isprintable() for line in out.splitlines()) and "\x1b" not in out, words
    assert len(console.edgeq("status").out.splitlines()) == len(console.edgeq("status", by="wrapper").out.splitlines()) == 1


def test_numbers_keep_to_their_columns():
    assert [short(n, 5) for n in (0, 99999, 100000, 12_345_678, 10 ** 9)] == ["0", "99999", "100k", "12M", "1000M"]
    assert [short(n, 4) for n in (9999, 10_000, 10_000_000)] == ["9999", "10k", "10M"]
    assert [age(s) for s in (-1, 0, 119, 120, 7199, 7200, 172_800, 10 ** 9)] == [
        "?", "0s", "119s", "2m", "119m", "2h", "2d", "11574d"]
    assert cut("abc", 3) == "abc" and cut("abcd", 3) == "ab~"


# --- for machines -----------------------------------------------------------------------------------------------


def test_json_and_prometheus(console):
    console.ok("enqueue", "t")
    console.ok("--queue", "other", "enqueue", "u")
    shown = [json.loads(line) for line in console.edgeq("status", "--json", "--all").lines]
    assert [(row["queue"], row["ready"], row["exit"]) for row in shown] == [("default", 1, 2), ("other", 1, 2)]
    target = console.root / "collector"
    target.mkdir()
    result = console.edgeq("status", "--prom", "--all", "--output", str(target / "edgeq.prom"))
    assert (result.code, result.out) == (2, "") and os.listdir(target) == ["edgeq.prom"]
    text = (target / "edgeq.prom").read_text()
    assert 'edgeq_ready{queue="default"} 1\nedgeq_ready{queue="other"} 1\n' in text
    assert 'edgeq_jobs{queue="other",type="u",state="ready"} 1\n' in text
    families = re.findall(r"^# TYPE (\S+)", text, re.M)
    assert len(families) == len(set(families)), "a family's samples stand in one group"
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) edgeq_\w+ .+|edgeq_\w+\{queue="\w+"(,type="\w+",state="\w+")?\} \d+', line), line
    again = console.edgeq("status", "--prom", "--output", str(console.root / "no/such/folder"))
    assert again.code == 74 and again.err.count("\n") == 1


# --- the manual -------------------------------------------------------------------------------------------------


def session():
    """[(command, what it prints, exit code)] of docs/console.md."""
    text = re.search(r"```console\n(.*?)```", (REPO / "docs/console.md").read_text(), re.S)[1]
    steps = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append([line[2:], [], 0])
        elif line.startswith("# exit "):
            steps[-1][2] = int(line[7:])
        else:
            steps[-1][1].append(line)
    return steps


def test_the_session_of_the_manual(console):
    """docs/console.md, word for word but for what differs from board to board."""
    console.configure(REPORT_S=0, SYNC_WINDOW_MS=0)
    console.handler("send_report", "read -r x; echo no such recipient: hq; exit 65")
    bin = console.root / "path"
    bin.mkdir()
    (bin / "edgeq").write_text('#!/bin/sh\nexec busybox sh %s "$@"\n' % (REPO / "overlay/usr/bin/edgeq"))
    (bin / "edgeq").chmod(0o755)

    def comparable(text):
        text = masked(text).replace(str(console.handlers), "/etc/edgeq/handlers").replace(str(console.root), "/var/lib")
        text = re.sub(r"note: storage.*\n", "", text)
        return re.sub(r"tried again in \d+ s", "tried again in N s", text)
    for command, lines, code in session():
        command = command.replace("/etc/edgeq/handlers", str(console.handlers))
        done = subprocess.run(["busybox", "sh", "-c", command], env=console.env(PATH="%s:%s" % (bin, os.environ["PATH"])),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, text=True)
        assert (comparable(done.stdout), done.returncode) == (comparable("".join(line + "\n" for line in lines)), code), command


# --- odd terminals ----------------------------------------------------------------------------------------------

POOR = [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii:strict"},
        {"LANG": "de_DE.ISO-8859-1"}]


@pytest.mark.parametrize("poor", POOR)
def test_without_a_language_nothing_breaks(console, poor):
    """B60: payload, output and file names beyond ASCII, in the environment that init gives."""
    console.handler("good", "cat; printf ' \\303\\274\\377\\n'; exit 65")
    environ = {"PATH": os.environ["PATH"], "EDGEQ_CONF": str(console.conf), **poor}

    def run(*words, **more):
        done = subprocess.run([sys.executable, "-IS", "-c", START, *words], env=environ, capture_output=True, timeout=60, **more)
        assert b"Traceback" not in done.stderr and b"bug:" not in done.stderr, done
        return done.returncode
    assert run("enqueue", "good", '{"w":"温ü"}', "--id", "x") == 0
    (console.q / "incoming" / os.fsdecode(b"h\xc3\xbc\xff.json")).write_text('{"type":"good","payload":"\\u6e29"}\n')
    (console.q / "incoming/torn\x1b[2J").write_text("{")
    assert run("work", "--once") == 0
    for words, code in ((("ls",), 0), (("show", "x"), 0), (("why", "x"), 0), (("status", "-v"), 2), (("log",), 0), (("top",), 0),
                        (("check",), 0), (("ls", "corrupt"), 0), (("why", "ü"), 64), (("ü",), 64), (("enqueue", "t", b"\xff"), 65)):
        assert run(*words) == code, words


@pytest.mark.parametrize("words", [
    ["ls"], ["status"], ["status", "-v"], ["log"], ["top"], ["--help"], ["ls", "--help"], ["enqueue", "t"], ["check"]])
def test_a_closed_stdout_is_a_quiet_no(console, words):
    """B59. `enqueue` queues nothing that it could not tell the id of; see below."""
    console.handler("good", ":")
    console.ok("enqueue", "good")
    console.ok("work", "--once")
    console.ok("enqueue", "good")
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *console.argv(*words)], env=console.env(), capture_output=True, timeout=60)
    assert done.returncode != 0
    assert b"Traceback" not in done.stderr and b"bug:" not in done.stderr and done.stderr.count(b"\n") <= 1


@pytest.mark.parametrize("words, input", [(["enqueue", "t"], b""), (["enqueue", "--batch"], b'{"type":"t"}\n{"type":"t"}\n')])
def test_an_id_that_cannot_be_told_is_said_on_stderr(console, words, input):
    for how, said, n in ((">&-", b"stdout: is closed: the id could not be told, nothing was queued\n", 0),
                         (">/dev/full", b"was queued, but its id could not be printed\n", input.count(b"\n") or 1)):
        done = subprocess.run(["sh", "-c", '"$@" ' + how, "sh", *console.argv(*words)], env=console.env(), input=input,
                              capture_output=True, timeout=60)
        assert done.returncode == 74 and done.stderr.endswith(said) and done.stderr.count(b"\n") == 1, done
        assert len(console.names("incoming")) == n


@pytest.mark.parametrize("words", [["ls"], ["ls", "done"], ["log"], ["show", "big"]])
def test_head_leaves_no_traceback(console, words):
    console.handler("good", ":")
    for n in range(40):
        console.ok("enqueue", "good", by="wrapper")
    console.ok("work", "--once")
    for n in range(40):
        console.ok("enqueue", "good", by="wrapper")
    console.ok("enqueue", "t", "--id", "big", '"%s"' % ("x" * 60000))
    done = subprocess.run(["sh", "-c", '"$@" | head -n 1', "sh", *console.argv(*words)], env=console.env(), capture_output=True,
                          timeout=60)
    assert done.returncode == 0 and done.stdout.count(b"\n") == 1 and done.stderr == b""
