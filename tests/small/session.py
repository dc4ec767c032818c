"""Every verb of the device edition, once or more, on a small board: what each must say."""

import re

from tests.init.board import wait_for

PREFLIGHT = re.compile(r"default: fit: /data/edgeq/default on /data \(\S+\), Python 3\.\d+\.\d+\n")


class Session:
    """Types verbs. `environ`: what stands before each."""

    def __init__(self, board, environ="", is_quiet=True):
        self.board, self.environ, self.is_quiet = board, environ, is_quiet

    def says(self, words, pattern="", code=0):
        """Run `edgeq words`: this exit code, this on stdout, and no surprise on stderr."""
        result = self.board.sh("%s edgeq %s" % (self.environ, words))
        assert result.code == code, (words, result)
        assert re.search(pattern, result.out), (words, pattern, result)
        assert not self.is_quiet or "bug" not in result.err + result.out and "Traceback" not in result.err, (words, result)
        return result


def without_a_worker(session):
    """The verbs that need none; three jobs run by `work --once`, one of them to its death."""
    says = session.says
    says("work --preflight", PREFLIGHT)
    says("enqueue ok --id a", "^a$")
    says("enqueue ok '{\"n\": [1, null]}' --id b --delay 3600", "^b$")
    says("enqueue ok --id c --key k --latest", "^c$")
    session.board.sh("echo '{\"type\":\"bad\",\"id\":\"d\"}' >/run/batch")
    says("enqueue --batch </run/batch", "^d$")
    says("status", " ready=3 .* delayed=1 ", 2)
    says("work --once")
    assert sorted(session.board.ran()) == ["a", "c"], session.board.sh("edgeq status; edgeq ls; ls /data/edgeq/default/*")
    for option, text in (("-v", r"(?m)^ok +0 +1 "), ("--json", '"done": *2'), ("--prom", "edgeq_done_total.* 2"),
                         ("--all", "done=2")):
        says("status " + option, text, 2)
    says("ls", "b")
    says("ls done", "a.*\n.*c|c.*\n.*a")
    says("show b", '"n": \\[1, null\\]')
    says("show a", "^a |done")
    says("why b", "runs in 3[56]..? s")
    says("why d", 'dead after 1 tr.*"exit 65: broken"')
    says("top", "done 2 ")
    says("log", "id=a ")
    says("log -n 1", "")
    says("check", "(?m)^clean$")
    says("check --repair", "(?m)^clean$")
    says("kick d")
    says("cancel b")
    says("why b", "", 1)
    says("pause ok --for 60")
    says("resume ok")
    says("drain")
    says("resume")
    says("wait a")
    says("wait d --timeout 0", "", 75)
    says("purge done")
    says("move --to spool:/data/other")
    says("--help", "usage")
    assert session.board.sh(session.environ + " edgeq statsu").code == 64


def with_the_service(session):
    """S85, the guard and the worker: jobs run, a killed worker comes back, a clean stop."""
    board = session.board
    started = board.s85("start")
    assert (started.code, started.out) == (0, "Starting edgeq: OK\n"), started
    worker = board.await_worker()
    board.enqueue("ok", "--id", "s1")
    wait_for(lambda: "s1" in board.ran(), "the job runs")
    board.sh("kill -KILL %d" % worker)
    wait_for(lambda: [pid for pid in board.workers() if pid != worker], "a new worker")
    board.enqueue("ok", "--id", "s2", "--text", "it's")
    wait_for(lambda: "s2" in board.ran(), "the job runs")
    session.says("enqueue ok --id s3 --delay 5000")
    session.says("status", " worker=up ", wait_for(lambda: board.sh("edgeq status").code + 1, "an exit code") - 1)
    session.says("cancel s3")
    board.configure(SPOOL="/data/edgeq", REQUIRE_MOUNT="/data")
    assert board.s85("reload").code == 0
    assert board.s85("status").code == 0
    assert board.s85("stop").out == "Stopping edgeq: OK (stopped)\n"
    assert not board.workers() and not board.guards()
