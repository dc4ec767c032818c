"""A board for the tests from outside: the shipped zipapp and the wrapper as processes, strace as the hand that fails a call.

Nothing of edgeq is imported. The oracle reads the files by itself, as docs/files.md describes them: a journal line counts when
its CRC matches, a dead letter when it is whole JSON. `Bench.audit` is what every test ends with.
"""

import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import time
import zlib
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
WRAPPER = REPO / "overlay/usr/bin/edgeq"
FULL = os.environ.get("FULL", "") not in ("", "0")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
FOLDERS = ("incoming", "processing", "failed", "dlq", "corrupt", "done")
DISK_CALLS = ("rename", "renameat", "renameat2", "unlink", "unlinkat", "write", "pwrite64", "fsync", "fdatasync", "sync", "syncfs",
              "sync_file_range", "openat", "mkdir", "mkdirat", "chmod", "fchmod", "fchmodat", "ftruncate", "truncate", "link",
              "linkat")
LIMIT_S = 60  # far beyond what anything here takes: a board that is late is not a failure
SAYS_SO = '#!/bin/sh\necho "$EDGEQ_ID" >>"{ran}"\n'  # the first line of every handler: the count of runs


def tool(name):
    """Where `name` is; the test fails when it is nowhere."""
    path = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
    assert path, "%s is needed: run tools/setup-test.sh" % name
    return path


def build(folder):
    """The zipapp of this tree, as `make pyz` makes it: its path."""
    path = Path(folder) / "edgeq.pyz"
    done = subprocess.run([tool("python3"), str(REPO / "tools/build_pyz.py"), "-o", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def wait_for(condition, what, limit_s=LIMIT_S):
    """The first true answer of `condition`, asked often; the test fails when there is none within the limit."""
    ends_at = time.monotonic() + limit_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < ends_at, "not within %g s: %s" % (limit_s, what() if callable(what) else what)
        time.sleep(0.01)


def each(function, items, threads=6):
    """function(item) for all items, a few at a time (most of their time is waiting); the answers in order, or all that failed."""
    failed = []

    def guarded(item):
        try:
            return function(item)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed.append((item, error))
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(guarded, items))
    assert not failed, "%d of %d failed:\n\n%s" % (len(failed), len(items), "\n\n".join(
        "%s: %s" % (item, str(error)[:1500]) for item, error in failed[:12]))
    return answers


def start_time(pid):
    """Field 22 of /proc/PID/stat, 0 when there is no such live process."""
    try:
        fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_alive(pid):
    return start_time(pid) > 0


def clean(text):
    """No traceback and no bug of ours in what a person saw."""
    assert "Traceback" not in text and "edgeq: bug" not in text and "edgeq bug" not in text, text
    return text


class Result:
    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout.decode("utf-8", "surrogateescape")
        self.err = done.stderr.decode("utf-8", "surrogateescape")

    @property
    def killed(self):
        return self.code in (-9, 137)

    def __repr__(self):
        return "exit %d\nstdout: %s\nstderr: %s" % (self.code, self.out, self.err)


class Line:
    """A good line of the journal."""

    def __init__(self, fields):
        self.id, self.n, self.seq, self.done_at, self.attempts, self.type, self.ms, self.note = fields[:8]
        self.n, self.attempts, self.done_at = int(self.n), int(self.attempts.rstrip("r")), int(self.done_at)


class Bench:
    """One queue: spool, folder in RAM, configuration, handlers, and the log `ran` in which each handler leaves its id."""

    def __init__(self, root, pyz, **keys):
        self.root, self.pyz = Path(root), pyz
        self.root.mkdir(parents=True, exist_ok=True)
        self.spool, self.run_dir, self.handlers = self.root / "spool", self.root / "run", self.root / "handlers"
        self.conf, self.ran_path = self.root / "edgeq.conf", self.root / "ran"
        self.q, self.r = self.spool / "default", self.run_dir / "default"
        self.handlers.mkdir(exist_ok=True)
        self.keys = {"SPOOL": self.spool, "RUN_DIR": self.run_dir, "HANDLERS": self.handlers,
                     "MIN_FREE_KB": 0, "MIN_FREE_INODES": 0, "BASE_DELAY_S": 0, "REPORT_S": 0, "BALLAST_KB": 4, **keys}
        self.workers = []
        self.inside = []  # a prefix for every command: nsenter into another namespace
        self.configure()

    def configure(self, **keys):
        self.keys.update(keys)
        self.conf.write_text("".join("%s=%s\n" % pair for pair in self.keys.items()))

    def type_conf(self, type, **keys):
        folder = Path("%s.d" % self.conf)
        folder.mkdir(exist_ok=True)
        (folder / (type + ".conf")).write_text("".join("%s=%s\n" % pair for pair in keys.items()))

    def handler(self, type, script):
        """HANDLERS/type: leaves its id in `ran`, then does `script` ({root} is the bench's folder)."""
        temp = self.handlers / ("." + type)
        temp.write_text((SAYS_SO + script + "\n").replace("{ran}", str(self.ran_path)).replace("{root}", str(self.root)))
        temp.chmod(0o755)
        temp.rename(self.handlers / type)

    def copy(self, root):
        """Another bench with the same files; the handlers' logs apart."""
        ours = ("SPOOL", "RUN_DIR", "HANDLERS")
        other = Bench(root, self.pyz, **{key: value for key, value in self.keys.items() if key not in ours})
        for name in ("spool", "run"):
            if (self.root / name).exists():
                shutil.copytree(self.root / name, other.root / name, dirs_exist_ok=True,
                                ignore=lambda folder, names: [n for n in names if (Path(folder) / n).is_fifo()])
        for path in self.handlers.iterdir():
            text = path.read_text().replace(str(self.root), str(other.root))
            (other.handlers / path.name).write_text(text)
            (other.handlers / path.name).chmod(0o755)
        return other

    # --- running things ------------------------------------------------------------------------------

    def env(self, **more):
        return {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "EDGEQ_CONF": str(self.conf), "EDGEQ_PYZ": str(self.pyz), **more}

    def argv(self, words, by="pyz"):
        head = [tool("busybox"), "sh", str(WRAPPER)] if by == "wrapper" else [str(self.pyz)]
        return self.inside + head + [str(word) for word in words]

    def edgeq(self, *words, by="pyz", input=b"", prefix=(), env=None):
        """Run a verb to its end."""
        result = Result(subprocess.run([*prefix, *self.argv(words, by)], input=input, env=self.env(**(env or {})),
                                       capture_output=True, timeout=LIMIT_S))
        if not prefix:
            clean(result.err)
        return result

    def edgeq_with(self, rule, trace, *words, by="pyz", input=b""):
        """(Result, where) of a verb with one call tampered with (`CALL:HOW:when=N`): `ours`, below our folders; `elsewhere`; ``.

        The runs differ by a call now and then: what was not ours is not held against edgeq, but for its manners.
        """
        result = self.edgeq(*words, by=by, input=input, prefix=trace_argv(trace, [rule.partition(":")[0]], rule, by == "wrapper"))
        injected = [call for call in read_trace(trace) if "(INJECTED)" in call.text]
        if result.code in (-9, 137):
            return result, "ours"
        if any(not call.touches(self.spool, self.run_dir) for call in injected):
            return result, "elsewhere"
        clean(result.err)
        return result, "ours" if injected else ""

    def enqueue(self, *words, by="pyz", **more):
        """An accepted enqueue: its id."""
        result = self.edgeq("enqueue", *words, by=by, **more)
        assert result.code == 0, result
        return result.out.strip()

    def enqueue_many(self, records):
        """Many at once: their ids, in order."""
        result = self.edgeq("enqueue", "--batch", input="".join(json.dumps(record) + "\n" for record in records).encode())
        assert result.code == 0, result
        return result.out.split()

    def once(self, **more):
        return self.edgeq("work", "--once", **more)

    def drain(self, limit_s=LIMIT_S):
        """`work --once` until nothing waits. The clock goes three seconds ahead: a retry's due second is rounded up."""
        ahead = self.root / "ahead"
        ahead.write_text("3\n")
        ends_at = time.monotonic() + limit_s
        while True:
            result = self.once(env={"EDGEQ_TEST_CLOCK": str(ahead)})
            assert result.code in (0, 75), result
            left = self.names("incoming") + self.names("processing") + self.names("failed")
            if not left:
                return result
            assert time.monotonic() < ends_at, (left, result)
            time.sleep(0.05)

    def worker(self, *words, prefix=(), env=None, ready=True):
        """Start a worker; it is stopped at the end of the test."""
        worker = Worker(self, self.argv(("work",) + words), prefix, self.env(**(env or {})))
        self.workers.append(worker)
        if ready:
            worker.wait_ready()
        return worker

    def stop_all(self):
        for worker in self.workers:
            worker.kill()

    # --- looking -----------------------------------------------------------------------------------------

    def names(self, folder, dots=False):
        try:
            return sorted(name for name in os.listdir(self.q / folder) if dots or name[0] != ".")
        except FileNotFoundError:
            return []

    def dots(self):
        """Half-written files, anywhere below the spool."""
        return [str(path) for path in self.q.rglob(".*")] if self.q.exists() else []

    def waiting(self):
        """{id: folder/name} of all job files but dead letters."""
        found = {}
        for folder in ("incoming", "processing", "failed"):
            for name in self.names(folder):
                fields = name.split(".")
                id = fields[5] if len(fields) > 6 else name
                assert id not in found, (found[id], folder, name)
                found[id] = folder + "/" + name
        return found

    def lines(self):
        """The good lines of the journal, in order. A copy, to the byte, is one line: a failed flush writes lines again."""
        found, seen = [], set()
        for name in self.names("done"):
            for line in (self.q / "done" / name).read_bytes().split(b"\n"):
                body, blank, crc = line.rpartition(b" ")
                if blank and crc == b"%08x" % zlib.crc32(body + b" ") and line not in seen:
                    seen.add(line)
                    found.append(Line(body.decode().split(" ")))
        return found

    def done(self):
        """{id: Line}; an id with two lines fails the test."""
        lines = self.lines()
        assert len({line.id for line in lines}) == len(lines), sorted(line.id for line in lines)
        assert len({line.n for line in lines}) == len(lines), [line.n for line in lines]
        return {line.id: line for line in lines}

    def dead(self):
        """{id: record}; a torn letter fails the test."""
        return {name[:-5]: json.loads((self.q / "dlq" / name).read_text()) for name in self.names("dlq")}

    def runs(self):
        """{id: how often a handler began}."""
        found = {}
        if self.ran_path.exists():
            for id in self.ran_path.read_text().split():
                found[id] = found.get(id, 0) + 1
        return found

    def findings(self):
        """What `edgeq check` says of the store; the rest (RAM disk, clock, handlers) is the machine's."""
        result = self.edgeq("check")
        assert result.code in (0, 1), result
        return [line for line in result.out.splitlines() if line.startswith("store:")]

    def audit(self, accepted, gone=()):
        """Every accepted id is done or dead, once, and nothing else is left; what of the unaccepted ones is there is there once.

        gone: ids that must be nowhere.
        """
        assert self.waiting() == {}
        done, dead = self.done(), self.dead()
        assert not set(done) & set(dead), set(done) & set(dead)
        lost = set(accepted) - set(done) - set(dead)
        assert not lost, "lost: %s" % sorted(lost)
        assert not set(gone) & (set(done) | set(dead)), "back again: %s" % sorted(set(gone) & (set(done) | set(dead)))
        assert self.names("corrupt") == []
        assert self.findings() == []
        assert not (self.q / "running").exists()  # a clean stop: nothing is suspect
        return done, dead


class Worker:
    """A worker process; its log is in `log`."""

    def __init__(self, bench, argv, prefix, env):
        self.bench = bench
        self.log_path = bench.root / ("worker-%d.log" % len(bench.workers))
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([*prefix, *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                            start_new_session=True)
        self.has_prefix = bool(prefix)
        self.pid = self.process.pid

    @property
    def log(self):
        return clean(self.log_path.read_text("utf-8", "surrogateescape"))

    def wait_ready(self):
        """Until it sleeps for the first time, or has its hands full: its mark in R/workers is there."""
        def is_ready():
            assert self.process.poll() is None, self.log
            found = [name for name in self._listed("workers") if "~" not in name]
            if self.has_prefix:
                children = self.children()
                pids = [pid for pid in children if any(name.startswith("%d-" % pid) for name in found)]
                if pids:
                    self.pid = pids[0]
                return bool(pids)
            return any(name.startswith("%d-" % self.pid) for name in found)
        wait_for(is_ready, lambda: "the worker is up: " + self.log)
        return self

    def _listed(self, folder):
        try:
            return os.listdir(self.bench.r / folder)
        except FileNotFoundError:
            return []

    def is_asleep(self):
        return any(name.startswith("%d-" % self.pid) and name.endswith(".asleep") for name in self._listed("wake")) and (
            state_of(self.pid) == "S")

    def wait_asleep(self):
        wait_for(self.is_asleep, lambda: "the worker sleeps: " + self.log)
        return self

    def children(self):
        """Pids of the children of the process we started (or of the worker)."""
        return children_of(self.process.pid)

    def signal(self, number):
        os.kill(self.pid, number)

    def stop(self, limit_s=LIMIT_S):
        """TERM, and the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait(limit_s)

    def wait(self, limit_s=LIMIT_S):
        code = self.process.wait(limit_s)
        clean(self.log)
        return code

    def kill(self):
        """kill -9, and wait; harmless when it is gone."""
        if self.process.poll() is None:
            for pid in {self.pid, self.process.pid}:
                try:
                    os.kill(pid, signal.SIGKILL)
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass
            self.process.wait(LIMIT_S)


def state_of(pid):
    try:
        return Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children_of(pid):
    try:
        return [int(child) for child in Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


# --- strace ----------------------------------------------------------------------------------------------

CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)[( ]")


class Call:
    """One line of a trace. n: the how-manieth call of that name in its process; text: the line; is_write: may change a file."""

    def __init__(self, pid, name, n, text):
        self.pid, self.name, self.n, self.text = pid, name, n, text

    @property
    def is_write(self):
        if self.name.startswith("mkdir") and "EEXIST" in self.text:
            return False
        return self.name != "openat" or re.search("O_WRONLY|O_RDWR|O_CREAT", self.text) is not None

    @property
    def paths(self):
        """What stands between quotes or angle brackets."""
        return re.findall(r'"((?:[^"\\]|\\.)*)"', self.text) + re.findall(r"<([^<>]*)>", self.text)

    def touches(self, *roots):
        return any(path.startswith(str(root)) for path in self.paths for root in roots)

    def __repr__(self):
        return "%s %d: %s" % (self.name, self.n, self.text)


def trace_argv(path, calls=DISK_CALLS, inject="", follow=True):
    argv = [tool("strace"), "-qq", "-y", "-o", str(path), "-s", "256", "-e", "trace=" + ",".join(calls), "-e", "signal=none"]
    if follow:
        argv.append("-f")  # no --seccomp-bpf: with it strace 6.1 forgets the injected signal
    if inject:
        argv += ["-e", "inject=" + inject]
    return argv


def read_trace(path):
    """[Call], in the order in which they ended."""
    found, counts = [], {}
    for line in Path(path).read_text("utf-8", "surrogateescape").splitlines():
        match = CALL.match(line) or re.match(r"^()(\w+)\(", line)
        if not match or "<unfinished" in line and not line.endswith(("+++", "= ?")):
            if match and "<unfinished" in line:
                counts[match[1], match[2]] = counts.get((match[1], match[2]), 0) + 1
                found.append(Call(match[1], match[2], counts[match[1], match[2]], line))
            continue
        if "resumed>" in line:
            for call in reversed(found):
                if call.pid == match[1] and call.name == match[2]:
                    call.text += line
                    break
            continue
        counts[match[1], match[2]] = counts.get((match[1], match[2]), 0) + 1
        found.append(Call(match[1], match[2], counts[match[1], match[2]], line))
    return found


def points(calls, roots, opens="write"):
    """{name: [n]} of the calls that touch one of `roots`. opens: `write` leaves the openat out that only read."""
    found = {}
    for call in calls:
        if call.touches(*roots) and (call.is_write or opens == "all") and call.n not in found.setdefault(call.name, []):
            found[call.name].append(call.n)
    return {name: sorted(ns) for name, ns in found.items() if ns}


class Island:
    """A mount namespace of its own with a small tmpfs as the bench's spool (F1, F2). Its files are seen through /proc/PID/root."""

    def __init__(self, bench, options):
        bench.spool.mkdir(exist_ok=True)
        self.bench = bench
        self.holder = subprocess.Popen([tool("unshare"), "-Urm", "sh", "-c",
                                        'mount -t tmpfs -o "$1" edgeq "$2" && echo ready && exec sleep 1000', "sh", options,
                                        str(bench.spool)], stdout=subprocess.PIPE)
        assert self.holder.stdout.readline() == b"ready\n"
        bench.inside = [tool("nsenter"), "-t", str(self.holder.pid), "-U", "-m", "--preserve-credentials"]
        self.spool = Path("/proc/%d/root%s" % (self.holder.pid, bench.spool))
        bench.q = self.spool / "default"

    def remount(self, options):
        subprocess.run([*self.bench.inside, tool("mount"), "-o", "remount," + options, str(self.bench.spool)], check=True)

    def fill(self):
        """Not a byte left; the bytes are in the file `hog`."""
        with open(self.spool / "hog", "ab", buffering=0) as hog:
            for size in (65536, 4096, 512, 1):
                try:
                    while hog.write(b"x" * size):
                        pass
                except OSError:
                    pass

    def free(self):
        (self.spool / "hog").unlink()

    def close(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()
