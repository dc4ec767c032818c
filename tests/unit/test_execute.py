"""Real processes, a real poll, no mocks but the clock: time passes when a test says so."""

import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from edgeq import execute, spawn
from edgeq.clock import Now
from edgeq.config import Config, TypeConfig
from edgeq.execute import Executor, read_ctl
from edgeq.spawn import CannotStart, Shortage
from edgeq.job import Entry, Lease
from edgeq.lease import Holder, start_time
from edgeq.reap import end_survivors
from edgeq.record import decode

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 20  # how long a condition may take on a loaded board; reached only by a failing test
PATHS = pytest.mark.parametrize("path", ("spawn", "fork"))
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def wait_for(condition, what="the condition"):
    """Its first true value, within LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.002)
    pytest.fail("waited in vain for %s" % what)


def is_gone(pid):
    return start_time(pid) == 0


class FakeLog:
    def __init__(self):
        self.events = []

    def warning(self, event, **fields):
        self.events.append((event, fields))


class Rig:
    """An Executor with its folders, and a clock that stands still."""

    def __init__(self, folder, **changes):
        self.folder, self.boot, self.count = Path(folder), 1000.0, 0
        self.handlers, self.ctl = self.folder / "handlers", self.folder / "ctl"
        for path in (self.folder, self.handlers, self.ctl):
            path.mkdir(exist_ok=True)
            path.chmod(0o711)
        self.poll, self.log = select.poll(), FakeLog()
        self.executor = Executor(str(self.handlers), str(self.ctl), "myq", self.poll, 10, self.log)
        self.settings = TypeConfig(Config(), {})
        for key, value in changes.items():
            setattr(self.settings, key, value)

    @property
    def now(self):
        return Now(0, self.boot)

    def handler(self, body, type="t", shebang="#!/bin/sh\n", mode=0o755):
        path = self.handlers / type
        path.write_text(shebang + body)
        path.chmod(mode)
        return path

    def lease(self, type="t", payload='{"a":1}', id="job-1", attempts=1, redelivered=False, timeout_s=None):
        self.count += 1
        extra = ',"timeout_s":%d' % timeout_s if timeout_s else ""
        record = decode(('{"id":"%s","type":"%s"%s,"payload":%s}\n' % (id, type, extra, payload)).encode(), 1 << 24)
        entry = Entry("processing", 5, 1, 0, False, attempts, False, type, id, token="0badcafe-1-1-%d" % self.count)
        return Lease(entry, record, self.boot, self.boot + 60, redelivered)

    def start(self, **lease):
        return self.executor.start(self.lease(**lease), self.settings, 5, self.now)

    def step(self):
        """What the worker does between two waits: the outcomes it collected."""
        for fd, _ in self.poll.poll(5):
            self.executor.pump(fd)
        return self.executor.collect(self.now)

    def finish(self):
        """The (Slot, Outcome) of the next handler to end. The wait is in the poll."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            ended = self.step()
            if ended:
                assert len(ended) == 1
                return ended[0]
        pytest.fail("no handler ended")

    def run(self, body=None, **lease):
        """The Outcome of a whole run."""
        if body is not None:
            self.handler(body)
        self.start(**lease)
        return self.finish()[1]

    def said(self, slot, words):
        """Wait until the handler wrote `words`: then it has come that far."""
        def look():
            assert not self.step(), bytes(slot.tail)
            return words in slot.tail
        wait_for(look, words)

    def is_clean(self):
        return not os.listdir(self.ctl) and not self.executor.running and not self.executor._outputs


@pytest.fixture
def rig():
    folder = tempfile.mkdtemp(prefix="edgeq-")  # not tmp_path: a USER must be able to go there
    STRANGERS.clear()
    STRANGERS.update(children())
    made = Rig(folder)
    yield made
    for slot in list(made.executor.running.values()):
        made.executor.abandon(slot)
    wait_for(lambda: made.step() or not made.executor.running)
    shutil.rmtree(folder)


def take(rig, path):
    """Make `rig` start its handlers by spawn or by fork."""
    rig.executor._can_spawn = path == "spawn"


def descriptors():
    return len(os.listdir("/proc/self/fd"))


STRANGERS = set()  # children that this process had before the test: a server that other tests share


def children():
    tasks = Path("/proc/self/task")
    found = [pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
    return [pid for pid in found if pid not in STRANGERS]


# --- what a handler gets ---------------------------------------------------------------------------------

@PATHS
def test_payload_arrives_and_the_outcome_tells_all(rig, path):
    take(rig, path)
    rig.handler("cat; echo; echo err >&2; echo result=fine > $EDGEQ_CTL; exit 3")
    slot = rig.start(payload='{"url": "x y"}')
    rig.boot += 2.5
    ended, outcome = rig.finish()
    assert ended is slot and slot.lease.entry.id == "job-1"
    assert (outcome.exit_code, outcome.signal, outcome.duration_s, outcome.timeout_s) == (3, 0, 2.5, 300)
    assert (outcome.timed_out, outcome.stopped, outcome.cancelled, outcome.error) == (False, False, False, "")
    assert outcome.tail == b'{"url": "x y"}\nerr\n' and outcome.ctl == {"result": "fine"}
    assert rig.is_clean()


@PATHS
@pytest.mark.parametrize("payload,stdin", [
    ('"two\\nlines \\u00e9"', "two\nlines é".encode()), ('""', b""), ("{}", b"{}"), ("17", b"17"), ('["\\n"]', b'["\\n"]')])
def test_a_json_string_arrives_as_its_text(rig, path, payload, stdin):
    take(rig, path)
    assert rig.run("cat", payload=payload).tail == stdin


@pytest.mark.parametrize("has_memfd", (True, False))
def test_payload_of_a_mebibyte(rig, has_memfd, monkeypatch):
    if not has_memfd:
        monkeypatch.delattr(execute.posix, "memfd_create")
        rig = Rig(rig.folder)
        assert not rig.executor._memfd_flags
    assert rig.run("wc -c; cat | wc -c; ls $EDGEQ_CTL*", payload='"%s"' % ("x" * (1 << 20))).tail.split()[:2] == [b"1048576", b"0"]
    assert rig.is_clean()


@PATHS
def test_environment_is_exact(rig, path, monkeypatch):
    monkeypatch.setattr(execute.posix, "environ", {b"TZ": b"UTC-2", b"SECRET": b"s", b"LANG": b"C", b"EDGEQ_CONF": b"/x"})
    for key, value in (("PATH", "/sbin:/usr/sbin:/bin:/usr/bin"), ("PATH", "/opt/bin:/bin")):
        if value.startswith("/opt"):
            execute.posix.environ[b"PATH"] = value.encode()
        rig = Rig(rig.folder)
        take(rig, path)
        outcome = rig.run("tr '\\0' '\\n' < /proc/$$/environ", attempts=2, redelivered=True)
        assert sorted(outcome.tail.decode().split()) == sorted([
            "PATH=" + value, "HOME=/", "TZ=UTC-2", "LANG=C", "EDGEQ_ID=job-1", "EDGEQ_TYPE=t", "EDGEQ_QUEUE=myq", "EDGEQ_ATTEMPT=2",
            "EDGEQ_MAX_ATTEMPTS=5", "EDGEQ_REDELIVERED=1", "EDGEQ_CTL=%s/0badcafe-1-1-1" % rig.ctl])
    assert rig.run("echo $EDGEQ_REDELIVERED$EDGEQ_ATTEMPT").tail == b"01\n"


@PATHS
def test_descriptors_are_exactly_three(rig, path):
    leaks = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    for fd in leaks:
        os.set_inheritable(fd, True)  # what an init script left open
    rig = Rig(rig.folder)
    take(rig, path)
    try:
        assert rig.run("exec ls /proc/self/fd").tail.split() == [b"0", b"1", b"2", b"3"]  # 3: the folder itself
    finally:
        for fd in leaks:
            os.close(fd)


@PATHS
@pytest.mark.parametrize("closed", ("0", "0,1,2", "1,2", "2"))
def test_a_worker_without_stdio_confuses_nothing(rig, path, closed):
    rig.handler("cat > %s/in; echo out; echo err >&2; ls /proc/self/fd > %s/fds" % (rig.folder, rig.folder))
    code = """
import os, sys
sys.path[:0] = [%r, %r]
for fd in (%s,): os.close(fd)
import importlib.util
spec = importlib.util.spec_from_file_location("t", %r); t = importlib.util.module_from_spec(spec); spec.loader.exec_module(t)
rig = t.Rig(%r); t.take(rig, %r)
for n in range(3):
    outcome = rig.run()
    assert (outcome.exit_code, outcome.tail) == (0, b"out\\nerr\\n"), (outcome.exit_code, outcome.tail)
open(%r, "w").write("ok")
""" % (str(ROOT), os.path.dirname(pytest.__path__[0]), closed, __file__, str(rig.folder), path, str(rig.folder / "ok"))
    subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=60)
    assert (rig.folder / "in").read_text() == '{"a":1}'
    assert (rig.folder / "fds").read_text().split() == ["0", "1", "2", "3"]
    assert (rig.folder / "ok").exists()


def test_the_workers_stdin_is_never_read(rig):
    reader, writer = os.pipe()
    saved = os.dup(0)
    os.dup2(reader, 0)
    try:
        assert rig.run("cat; echo rc=$?", payload='"p"').tail == b"prc=0\n"  # a pipe held open would block it for ever (B57)
    finally:
        os.dup2(saved, 0)
        for fd in (saved, reader, writer):
            os.close(fd)


@PATHS
def test_signals_are_default_and_unblocked(rig, path):
    take(rig, path)
    old = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    try:
        outcome = rig.run("exec grep -E 'Sig(Blk|Ign)' /proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, how in old:
            signal.signal(number, how)
    words = outcome.tail.split()
    assert [int(word, 16) & 0x7fffffff for word in words[1::2]] == [0, 0], outcome.tail


@PATHS
def test_own_session_and_folder(rig, path, monkeypatch):
    if path == "spawn":
        monkeypatch.chdir("/")  # the worker's duty
    take(rig, path)
    rig.handler("cut -d' ' -f5,6 /proc/$$/stat; echo $$; pwd; umask")
    slot = rig.start()
    pid = b"%d" % slot.pid
    assert rig.finish()[1].tail.split()[:4] == [pid, pid, pid, b"/"]


@PATHS
def test_first_for_the_oom_killer_and_we_are_not(rig, path):
    take(rig, path)
    ours = Path("/proc/self/oom_score_adj")
    before = ours.read_text()
    ours.write_text("7")
    try:
        assert rig.run("cat /proc/self/oom_score_adj").tail == b"1000\n"
        with pytest.raises(CannotStart):
            rig.start(type="missing")
        assert ours.read_text() == "7\n"
    finally:
        ours.write_text(before)


def test_limits_bind_the_handler_only(rig):
    before = [resource.getrlimit(what) for what in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)]
    for path in ("spawn", "fork"):
        take(rig, path)
        rig.settings.fsize_mb, rig.settings.mem_mb, rig.settings.nice = 1, 0, 0
        outcome = rig.run("exec head -c 3000000 /dev/zero > %s/big" % rig.folder)
        assert outcome.signal == signal.SIGXFSZ and outcome.exit_code is None
        assert (rig.folder / "big").stat().st_size == 1 << 20
    rig.settings.mem_mb, rig.settings.nice = 64, 7
    assert rig.run("ulimit -v; exec nice").tail.split() == [b"65536", b"7"]
    rig.settings.mem_mb = 1 << 20  # a TiB: more than any hard limit a board sets
    assert rig.run("ulimit -v").exit_code == 0
    assert before == [resource.getrlimit(what) for what in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)]


def test_a_soft_limit_stays_within_the_hard_one(rig):
    code = """
import resource, sys
sys.path.insert(0, %r)
from edgeq import spawn
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 8192))
undo = spawn._limit("RLIMIT_FSIZE", 1)
assert resource.getrlimit(resource.RLIMIT_FSIZE) == (8192, 8192)
undo()
assert resource.getrlimit(resource.RLIMIT_FSIZE) == (4096, 8192)
""" % str(ROOT)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@AS_ROOT
def test_user_owns_all_it_needs(rig):
    rig.settings.user = "nobody"
    groups = os.getgroups()
    os.setgroups([0, 4])
    outcome = rig.run("id -un; id -G; cat /dev/stdin; echo; echo e > /dev/stderr; echo retry_after=5 > $EDGEQ_CTL;"
                      " cat /proc/self/oom_score_adj; stat -c %a:%U $EDGEQ_CTL; awk '/^CapEff/ {print $2}' /proc/self/status")
    os.setgroups(groups)
    assert outcome.tail.split() == [b"nobody", b"65534", b'{"a":1}', b"e", b"1000", b"600:nobody", b"0000000000000000"]
    assert outcome.ctl == {"retry_after": 5.0} and rig.is_clean()


@AS_ROOT
def test_user_that_cannot_be_holds_the_type(rig):
    rig.handler("exit 0", mode=0o700)
    for user, why in (("nobody", "Permission denied"), ("nosuchuser", "USER=nosuchuser: no such user")):
        rig.settings.user = user
        with pytest.raises(CannotStart, match=why) as caught:
            rig.start()
        assert caught.value.why == why and rig.is_clean()


@AS_ROOT
def test_user_without_root(rig, monkeypatch):
    monkeypatch.setattr(execute.posix, "geteuid", lambda: 65534)
    assert spawn.find_user("nobody") is None  # who we are already
    with pytest.raises(CannotStart, match="not root"):
        spawn.find_user("daemon")


# --- what cannot start -----------------------------------------------------------------------------------

@PATHS
def test_each_bad_handler_has_its_reason(rig, path):
    """B12: e0 to e6. None counts as success, nothing is left, and the good one runs."""
    take(rig, path)
    rig.handler("", type="e0", shebang="")
    rig.handler("echo hi\n", type="e1", shebang="")
    rig.handler("exit 0", type="e2", mode=0o644)
    rig.handler("", type="e3", shebang="#!/no/such/interpreter\n")
    (rig.handlers / "e4").mkdir()
    (rig.handlers / "e5").symlink_to("/no/such/target")
    (rig.handlers / "e7").symlink_to("e7")
    rig.handler("exit 0", type="good")
    fds = descriptors()
    reasons = {}
    for type in ("e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"):
        with pytest.raises(CannotStart) as caught:
            rig.start(type=type)
        reasons[type] = caught.value.why
        assert not isinstance(caught.value, Shortage)
        assert rig.is_clean() and descriptors() == fds and not children()
    assert reasons == {
        "e0": "Exec format error", "e1": "Exec format error", "e2": "Permission denied", "e3": "interpreter missing",
        "e4": "Permission denied", "e5": "no handler: dangling link", "e6": "no handler", "e7": "Too many levels of symbolic links"}
    assert rig.run(type="good").exit_code == 0


@PATHS
def test_want_of_descriptors_is_nobodys_fault(rig, path):
    """With one more descriptor each time, until it starts: a Shortage, and nothing left behind (B61)."""
    take(rig, path)
    rig.handler("exit 0")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fds, failed = descriptors(), 0
    lowest = os.dup(2)
    os.close(lowest)
    for room in range(20):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + room, hard))
        try:
            rig.start()
        except Shortage as error:
            failed += 1
            assert error.why.endswith("Too many open files")
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert rig.is_clean() and descriptors() == fds and not children()
        else:
            break
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert failed >= 4 and rig.finish()[1].exit_code == 0


def test_want_of_a_process_is_nobodys_fault(rig, monkeypatch):
    rig.handler("exit 0")
    fds = descriptors()

    def fail(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    monkeypatch.setattr(execute.posix, "posix_spawn", fail)
    monkeypatch.setattr(execute.posix, "fork", fail)
    for path in ("spawn", "fork"):
        take(rig, path)
        with pytest.raises(Shortage, match="temporarily unavailable"):
            rig.start()
        assert rig.is_clean() and descriptors() == fds


def test_no_control_folder_is_a_shortage(rig):
    rig.handler("exit 0")
    rig.ctl.rmdir()
    with pytest.raises(Shortage, match="ctl: No such file"):
        rig.start()
    rig.ctl.mkdir()
    assert rig.run().exit_code == 0


def test_a_library_without_setsid_forks(rig, monkeypatch):
    def fail(*_, **__):
        raise NotImplementedError
    monkeypatch.setattr(execute.posix, "posix_spawn", fail)
    session, pid = rig.run("cut -d' ' -f6 /proc/$$/stat; echo $$").tail.split()
    assert session == pid and rig.executor._can_spawn is False
    assert rig.run("exit 7").exit_code == 7


# --- how it ends -----------------------------------------------------------------------------------------

@PATHS
def test_exit_codes_and_signals(rig, path):
    take(rig, path)
    for code in (0, 1, 69, 127, 255):
        assert rig.run("exit %d" % code).exit_code == code
    for name in ("KILL", "SEGV", "TERM"):
        outcome = rig.run("kill -%s $$; sleep 100" % name)
        assert (outcome.exit_code, outcome.signal) == (None, getattr(signal, "SIG" + name))
        assert not outcome.timed_out and not outcome.stopped


def test_what_is_left_of_the_group_goes(rig):
    outcome = rig.run("sleep 1000 & echo $!; (sleep 1000 & echo $!); (trap '' TERM; sleep 1000) & echo $!")
    assert outcome.exit_code == 0
    for pid in outcome.tail.split():
        wait_for(lambda: is_gone(int(pid)), "the end of the group")


def test_a_grandchild_that_keeps_the_pipe_blocks_nothing(rig):
    """In a session of its own it is not ours to end, and it may write for ever."""
    fds = descriptors()
    os.mkfifo(rig.folder / "up")
    outcome = rig.run("setsid sh -c 'trap \"\" PIPE; echo $$ > %s/up; while :; do echo chatter || exec sleep 1000; done' &\n"
                      "read pid < %s/up; echo $pid > %s/pid; exit 4" % ((rig.folder,) * 3))
    pid = int((rig.folder / "pid").read_text())
    assert outcome.exit_code == 4 and descriptors() == fds and rig.is_clean()
    assert not is_gone(pid)
    assert end_survivors(None, "%s/0badcafe-1-1-1" % rig.ctl) >= 1
    assert is_gone(pid)


def test_a_handler_that_closes_its_output_runs_on(rig):
    rig.handler("echo last; exec >&- 2>&-; read x < %s/go; exit 5" % rig.folder)
    os.mkfifo(rig.folder / "go")
    slot = rig.start()
    fd = slot.out_fd
    wait_for(lambda: rig.step() or slot.out_fd == -1, "the end of its output")
    assert not rig.executor.owns(fd) and bytes(slot.tail) == b"last\n"
    rig.executor.pump(fd)  # an event of the same poll, handled late
    (rig.folder / "go").write_text("x\n")
    assert rig.finish()[1].exit_code == 5


def test_timeout_ends_the_whole_group(rig):
    rig.handler("sleep 1000 & a=$!; sleep 1000 & echo $a $! ready; wait")
    slot = rig.start()
    rig.said(slot, b"ready")
    assert rig.executor.next_deadline() == rig.boot + 300
    rig.boot += 299.9
    rig.executor.tick(rig.now)
    assert slot.state == execute.RUNNING
    rig.boot += 0.1
    rig.executor.tick(rig.now)
    assert rig.executor.next_deadline() == rig.boot + 10
    outcome = rig.finish()[1]
    assert outcome.timed_out and outcome.signal == signal.SIGTERM and outcome.timeout_s == 300
    for pid in outcome.tail.split()[:2]:
        wait_for(lambda: is_gone(int(pid)), "the end of the group")
    assert rig.executor.next_deadline() is None


@PATHS
def test_term_then_grace_then_kill(rig, path):
    take(rig, path)
    rig.handler("trap 'echo got-term' TERM; (trap '' TERM; echo $$ child; sleep 1000) &"
                " while :; do sleep 1000 & wait $!; echo again; done")
    slot = rig.start(timeout_s=30)
    rig.said(slot, b"child")
    rig.boot += 30
    rig.executor.tick(rig.now)
    rig.said(slot, b"got-term")
    rig.boot += 9.9
    rig.executor.tick(rig.now)
    assert slot.state == execute.ENDING and not rig.log.events
    rig.boot += 0.1
    rig.executor.tick(rig.now)
    assert slot.state == execute.KILLED and rig.executor.next_deadline() is None
    assert rig.log.events[0][0] == "handler-ignores-term"
    outcome = rig.finish()[1]
    assert outcome.timed_out and outcome.signal == signal.SIGKILL and outcome.timeout_s == 30


def test_exit_0_after_term_is_still_a_timeout(rig):
    rig.handler("trap 'exit 0' TERM; echo ready; sleep 1000 & wait")
    slot = rig.start()
    rig.said(slot, b"ready")
    rig.boot += 300
    rig.executor.tick(rig.now)
    outcome = rig.finish()[1]
    assert (outcome.timed_out, outcome.exit_code) == (True, 0)


def test_who_ended_in_time_is_not_timed_out_by_a_late_worker(rig):
    rig.handler("exit 0")
    for end in (lambda: rig.executor.tick(rig.now), lambda: rig.executor.stop_all(rig.now, 1),
                lambda: rig.executor.cancel("job-1", rig.now)):
        slot = rig.start()
        wait_for(lambda: is_gone(slot.pid), "the handler's end")
        rig.boot += 1000
        assert not end()
        assert rig.executor.next_deadline() is None  # nothing to wake up for: it waits to be collected
        outcome = rig.finish()[1]
        assert (outcome.exit_code, outcome.timed_out, outcome.stopped, outcome.cancelled) == (0, False, False, False)


def test_stop_all(rig):
    rig.handler("sleep 1000 & echo ready; wait")
    rig.handler("trap '' TERM; echo ready; while :; do sleep 1000; done", type="deaf")
    slots = [rig.start(id="a"), rig.start(id="b", type="deaf")]
    for slot in slots:
        rig.said(slot, b"ready")
    rig.executor.stop_all(rig.now, 3)
    soft, outcome = rig.finish()
    assert soft is slots[0] and outcome.stopped and not outcome.timed_out and outcome.signal == signal.SIGTERM
    assert rig.executor.next_deadline() == rig.boot + 3
    rig.executor.stop_all(rig.now, 1)  # in more of a hurry
    rig.boot += 1
    rig.executor.tick(rig.now)
    hard, outcome = rig.finish()
    assert hard is slots[1] and outcome.stopped and outcome.signal == signal.SIGKILL and rig.is_clean()


def test_a_timeout_is_not_forgiven_by_a_stop(rig):
    rig.handler("trap '' TERM; echo ready; while :; do sleep 1000; done")
    rig.said(rig.start(), b"ready")
    rig.boot += 300
    rig.executor.tick(rig.now)
    rig.executor.stop_all(rig.now, 0)
    rig.executor.tick(rig.now)
    outcome = rig.finish()[1]
    assert outcome.timed_out and not outcome.stopped


def test_cancel_one(rig):
    rig.handler("sleep 1000 & echo ready; wait")
    first, second = rig.start(id="a"), rig.start(id="b")
    for slot in (first, second):
        rig.said(slot, b"ready")
    assert rig.executor.cancel("nobody", rig.now) is False
    assert rig.executor.cancel("a", rig.now) is True
    slot, outcome = rig.finish()
    assert slot is first and outcome.cancelled and not outcome.stopped
    assert list(rig.executor.running.values()) == [second]
    assert rig.executor.cancel("a", rig.now) is False
    rig.executor.stop_all(rig.now, 5)
    rig.executor.cancel("b", rig.now)  # a person's word counts for more than a stop
    assert rig.finish()[1].cancelled


def test_abandoned_is_killed_reaped_and_forgotten(rig, monkeypatch):
    rig.handler("trap '' TERM; sleep 1000 & echo $! ready; wait")
    slot = rig.start()
    rig.said(slot, b"ready")
    rig.executor.abandon(slot)
    assert rig.executor.cancel("job-1", rig.now) is False
    told = []
    wait_for(lambda: told.extend(rig.step()) or not rig.executor.running)
    assert not told and rig.is_clean() and not children()
    wait_for(lambda: is_gone(int(slot.tail.split()[0])))
    monkeypatch.setattr(execute.posix, "killpg", lambda *_: pytest.fail("signalled a number that may be anybody's"))
    rig.executor.abandon(slot)


# --- output ----------------------------------------------------------------------------------------------

def rss_kb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


def test_400_mb_of_output_cost_no_memory(rig):
    rig.run("echo warm")
    before = rss_kb()
    cpu, began = time.process_time(), time.monotonic()
    outcome = rig.run("head -c 200000000 /dev/zero & head -c 200000000 /dev/zero >&2; wait; printf end; exit 6")
    assert outcome.exit_code == 6 and len(outcome.tail) == 4096 and outcome.tail.endswith(b"\0end")
    assert rss_kb() - before < 2048
    assert time.process_time() - cpu < 5 and time.monotonic() - began < 10


def test_odd_bytes_are_kept_as_they_came(rig):
    outcome = rig.run("head -c 1000000 /dev/urandom; head -c 100000 /dev/urandom >&2; printf '\\377\\300\\n'; exit 3")
    assert outcome.exit_code == 3 and outcome.tail.endswith(b"\xff\xc0\n") and len(outcome.tail) == 4096


def test_output_left_in_the_pipe_is_read_at_the_end(rig):
    rig.handler("head -c 60000 /dev/zero | tr '\\0' y; printf end")
    slot = rig.start()
    wait_for(lambda: is_gone(slot.pid), "the handler's end")  # nothing was pumped so far
    (_, outcome), = rig.executor.collect(rig.now)
    assert outcome.tail == b"y" * 4093 + b"end"


def test_a_chatty_handler_does_not_keep_the_worker(rig):
    rig.handler("exec cat /dev/zero")
    slot = rig.start()
    assert rig.poll.poll(LIMIT_S * 1000)
    rig.executor.pump(slot.out_fd)  # returns though there is always more
    assert len(slot.tail) == 4096 and not os.get_blocking(slot.out_fd)
    for reads_n in (execute.PUMP_READS, execute.DRAIN_READS):
        with open("/dev/zero", "rb") as zero:
            assert execute._swallow(zero.fileno(), bytearray(), reads_n) is True
    rig.executor.stop_all(rig.now, 1)
    assert rig.finish()[1].stopped


# --- nothing is left -------------------------------------------------------------------------------------

def test_300_runs_leave_nothing(rig):
    rig.handler("exit 0", shebang="#!/bin/true\n")
    rig.handler("", type="bad", shebang="")
    rig.run()
    fds = descriptors()
    for n in range(300):
        assert rig.run().exit_code == 0
        if n % 10 == 0:
            with pytest.raises(CannotStart):
                rig.start(type="bad")
    assert descriptors() == fds and rig.is_clean() and not children()


STRAYS = """
import os, sys, time
sys.path[:0] = [%r, %r]
import importlib.util
spec = importlib.util.spec_from_file_location("t", %r); t = importlib.util.module_from_spec(spec); spec.loader.exec_module(t)
rig = t.Rig(%r)
rig.handler("(setsid sleep 0.0$(($$ %% 5)) & ) ; exit 0")
for n in range(100):
    assert rig.run().exit_code == 0
print(os.getpid())
def zombies():
    rig.executor.collect(rig.now)
    return [pid for pid in t.children() if open("/proc/%%s/stat" %% pid).read().rpartition(") ")[2][0] == "Z"]
t.wait_for(lambda: not zombies() and not t.children())
"""


@AS_ROOT
@pytest.mark.parametrize("wrapper", ([], ["unshare", "--fork", "--pid", "--mount-proc"]), ids=("child", "pid1"))
def test_no_zombies_though_handlers_fork_twice(rig, wrapper):
    if wrapper and subprocess.run(wrapper + ["true"], stderr=subprocess.DEVNULL).returncode:
        pytest.fail("no pid namespaces here: run as root, or allow user namespaces")
    code = STRAYS % (str(ROOT), os.path.dirname(pytest.__path__[0]), __file__, str(rig.folder))
    done = subprocess.run(wrapper + [sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.PIPE)
    assert (done.stdout == b"1\n") == bool(wrapper)


# --- read_ctl --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("content,found", [
    (b"", {}),
    (b"retry_after=30\n", {"retry_after": 30.0}),
    (b"retry_after=0.5\nresult=a b=c\n", {"retry_after": 0.5, "result": "a b=c"}),
    (b"retry_after=1\r\nresult=x\r\n", {"retry_after": 1.0, "result": "x"}),
    (b"result=no newline", {"result": "no newline"}),
    (b"result=1\nresult=2\nretry_after=1\nretry_after=2\n", {"result": "2", "retry_after": 2.0}),
    (b"result=\n", {"result": ""}),
    (b"retry_after=-1\n", {}), (b"retry_after=nan\n", {}), (b"retry_after=inf\n", {}), (b"retry_after=1e999\n", {}),
    (b"retry_after=1_0\n", {}), (b"retry_after=\n", {}), (b"retry_after\n", {}), (b"retry_after=\xd9\xa3\n", {}),
    (b"retry_after=soon\nresult=r\n", {"result": "r"}),
    (b"other=1\n\n=\n RESULT=x\n", {}),
    (b"result=\xff\xc0\x00\x1b[2J\n", {"result": "\udcff\udcc0\x00\x1b[2J"}),
    (b"result=r\n" + b"x" * 10_000_000, {"result": "r"}),
    (b"result=r\n" + b"y" * 4071 + b"\nretry_after=1000\n", {"result": "r"}),  # not 1: the number was cut
])
def test_read_ctl(tmp_path, content, found):
    path = tmp_path / "ctl"
    path.write_bytes(content)
    assert read_ctl(str(path)) == found


def test_read_ctl_opens_plain_files_only(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("result=root:x:0\n")
    (tmp_path / "link").symlink_to(secret)
    os.link(secret, tmp_path / "hard")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("link", "hard", "fifo", "folder", "missing"):
        assert read_ctl(str(tmp_path / name)) == {}


@pytest.mark.parametrize("trick", ["rm $EDGEQ_CTL; mkdir $EDGEQ_CTL", "rm $EDGEQ_CTL; mkfifo $EDGEQ_CTL", "rm $EDGEQ_CTL",
                                   "ln -sf /etc/passwd $EDGEQ_CTL"])
def test_a_handler_that_plays_with_its_control_file(rig, trick):
    outcome = rig.run(trick)
    assert (outcome.exit_code, outcome.ctl) == (0, {})
    assert rig.run("exit 0").exit_code == 0
    shutil.rmtree(rig.ctl)
    rig.ctl.mkdir()


# --- end_survivors ---------------------------------------------------------------------------------------

@pytest.fixture
def sleepers():
    """Start processes in groups of their own, not as our handlers; ended at the end."""
    made = []

    def start(*command, **environ):
        process = subprocess.Popen(command or ("sleep", "1000"), env={"PATH": os.environ["PATH"], **environ},
                                   start_new_session=True, stdout=subprocess.PIPE)
        made.append(process)
        return process
    yield start
    for process in made:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        process.stdout.close()


def holder_of(pid, start):
    return Holder("token", 1, 1, "boot", pid, start, 0.0, 0.0)


def test_survivors_group_is_killed_when_it_is_that_group(sleepers):
    handler = sleepers("sh", "-c", "sleep 1000 & echo $!; wait")
    child = int(handler.stdout.readline())
    assert end_survivors(holder_of(handler.pid, start_time(handler.pid)), "/no/ctl") == 1
    assert is_gone(handler.pid)
    wait_for(lambda: is_gone(child))


def test_a_stranger_with_the_same_number_lives(sleepers):
    stranger = sleepers()
    assert end_survivors(holder_of(stranger.pid, start_time(stranger.pid) - 1), "/no/ctl") == 0
    assert end_survivors(holder_of(stranger.pid, 0), "/no/ctl") == 0
    assert end_survivors(holder_of(0, 0), "/no/ctl") == 0
    assert not is_gone(stranger.pid) and stranger.poll() is None


def test_survivors_are_found_by_their_environment(sleepers):
    """One the lease does not name yet, one in another session, one whose leader is gone; not who only looks alike."""
    ctl = "/run/edgeq/q/ctl/0badcafe-1-1-1"
    mine = [sleepers(EDGEQ_CTL=ctl), sleepers("env", "Z=1", "sleep", "1000", EDGEQ_CTL=ctl)]
    shell = sleepers("sh", "-c", "setsid sleep 1000 & echo $!; sleep 1000 & echo $!; exec true", EDGEQ_CTL=ctl)
    orphans = [int(shell.stdout.readline()), int(shell.stdout.readline())]
    others = [sleepers(EDGEQ_CTL=ctl + "1"), sleepers(X="EDGEQ_CTL=" + ctl), sleepers(XEDGEQ_CTL=ctl), sleepers()]
    wait_for(lambda: is_gone(shell.pid))
    for process in mine + others:  # past their exec: before it they have our environment
        wait_for(lambda: Path("/proc/%d/comm" % process.pid).read_text() == "sleep\n")
    for pid in orphans:
        wait_for(lambda: Path("/proc/%d/comm" % pid).read_text() == "sleep\n")
    assert end_survivors(None, ctl) == 4
    assert all(is_gone(process.pid) for process in mine) and all(is_gone(pid) for pid in orphans)
    assert not any(is_gone(process.pid) for process in others)
    assert end_survivors(None, ctl) == 0


def test_survivors_that_fork_all_the_time_are_ended(sleepers):
    ctl = "/run/edgeq/q/ctl/forks"
    shell = sleepers("sh", "-c", "echo; while :; do setsid sleep 1000 & sleep 0.01; done", EDGEQ_CTL=ctl)
    shell.stdout.readline()
    assert end_survivors(None, ctl) >= 1
    assert is_gone(shell.pid) and end_survivors(None, ctl) == 0


def test_neither_we_nor_our_guard_are_survivors(sleepers):
    """A job that restarted edgeq: guard and worker have its EDGEQ_CTL in their environment."""
    code = "import sys; sys.path.insert(0, %r)\nfrom edgeq import reap\nprint(reap.end_survivors(None, '/c/t'))" % str(ROOT)
    guard = sleepers("sh", "-c", '"$0" -c "$1"; echo alive', sys.executable, code, EDGEQ_CTL="/c/t")
    assert guard.stdout.read() == b"0\nalive\n"


def test_a_running_handler_is_found_by_what_the_lease_says(rig):
    rig.handler("echo ready; sleep 1000 & wait")
    slot = rig.start()
    rig.said(slot, b"ready")
    assert slot.start == start_time(slot.pid) > 0
    assert end_survivors(holder_of(slot.pid, slot.start), slot.ctl_path) >= 1
    assert rig.finish()[1].signal == signal.SIGKILL


# --- footprint -------------------------------------------------------------------------------------------

def test_imports_stay_small():
    code = """
import sys
sys.path.insert(0, %r)
before = set(sys.modules)
import edgeq.execute
print(*sorted(set(sys.modules) - before))
""" % str(ROOT)
    done = subprocess.run([sys.executable, "-IS", "-c", code], check=True, capture_output=True, text=True, timeout=60)
    new = {name for name in done.stdout.split() if not name.startswith("edgeq")}
    assert new <= {"posix", "_signal", "select", "fcntl", "resource", "time", "errno", "_json"}, new
