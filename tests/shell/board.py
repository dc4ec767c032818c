"""A board for the tests: spool, folder in RAM, configuration, and the wrapper run on them with the device's applets only."""

import os
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPO = HERE.parents[1]
WRAPPER = REPO / "overlay/usr/bin/edgeq"
FOLDERS = ("incoming", "processing", "failed", "dlq", "corrupt", "done")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def tool(name):
    """Where `name` is; the test fails when it is nowhere."""
    path = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
    if path is None:
        pytest.fail("%s is needed: run tools/setup-test.sh" % name)
    return path


def uptime():
    return int(float(Path("/proc/uptime").read_text().split()[0]))


def start_time(pid):
    return Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[19]


def journal_line(id, n, seq=1752999990000000, note="-", type="t"):
    body = "%s %d %016d 1753000000 1 %s 12 %s " % (id, n, seq, type, note)
    return "%s%08x\n" % (body, zlib.crc32(body.encode()))


def misspell(image, table, absent):
    """`image` with the names in `absent` changed in the sorted, NUL-separated `table`, which stays sorted."""
    names = table.split(b"\0")
    known = set(names)
    for i, name in enumerate(names):
        if name.decode() not in absent:
            continue
        before, after = names[i - 1] if i else b"", names[i + 1] if i + 1 < len(names) else b"\xff"
        for last in range(33, 127):
            other = name[:-1] + bytes([last])
            if before < other < after and other not in known:
                names[i] = other
                break
        else:
            raise AssertionError("no misspelling of %r keeps the order" % name)
    return image.replace(table, b"\0".join(names))


def read_until(process, word):
    """Read the stderr of `process` until `word` has come."""
    head = b""
    while word not in head:
        data = os.read(process.stderr.fileno(), 1000)
        if not data:
            process.communicate()
            raise AssertionError("%r never came: %r" % (word, head))
        head += data


class Result:
    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout.decode("utf-8", "surrogateescape")
        self.err = done.stderr.decode("utf-8", "surrogateescape")

    def __repr__(self):
        return "exit %d\nstdout: %s\nstderr: %s" % (self.code, self.out, self.err)


class Board:
    """A spool, a folder in RAM, a configuration, and the wrapper to run on them. `shell`: ash or dash."""

    def __init__(self, root, device_bin, shell="ash"):
        self.root, self.bin, self.shell = root, device_bin, shell
        self.conf = root / "edgeq.conf"
        self.spool, self.run_dir = root / "spool", root / "run"
        self.q, self.r = self.spool / "default", self.run_dir / "default"
        self.pyz = root / "edgeq.pyz"
        self.configure()

    def make(self):
        for name in FOLDERS:
            (self.q / name).mkdir(parents=True)
        (self.r / "wake").mkdir(parents=True)
        return self

    def configure(self, **keys):
        lines = {"SPOOL": self.spool, "RUN_DIR": self.run_dir, "MIN_FREE_KB": 0}
        lines.update(keys)
        self.conf.write_text("".join("%s=%s\n" % pair for pair in lines.items()))

    def env(self, **more):
        path = str(self.bin) if self.shell == "ash" else "/usr/bin:/bin"
        return {"PATH": path, "EDGEQ_CONF": str(self.conf), "EDGEQ_PYZ": str(self.pyz), **more}

    def argv(self, *words):
        shell = [str(self.bin / "sh")] if self.shell == "ash" else [tool("dash")]
        return shell + [str(WRAPPER)] + [os.fsencode(word) for word in words]

    def edgeq(self, *words, input=b"", env=None, prefix=(), **more):
        """Run the wrapper; nothing but PATH and the paths is in its environment."""
        done = subprocess.run([*prefix, *self.argv(*words)], input=input, env=self.env(**(env or {})), capture_output=True,
                              timeout=60, **more)
        result = Result(done)
        assert "not found" not in result.err, result
        return result

    def enqueue(self, *words, **more):
        """An accepted enqueue: its id."""
        result = self.edgeq("enqueue", *words, **more)
        assert result.code == 0, result
        assert result.out.count("\n") == 1
        return result.out.strip()

    def sh(self, script, *words, **more):
        """A few lines of shell on the device."""
        return Result(subprocess.run([str(self.bin / "sh"), "-c", script, "sh", *words], env=self.env(), capture_output=True,
                                     timeout=60, **more))

    def open_to_all(self):
        """Let another user reach the board and its applets through pytest's private folders."""
        for path in (self.root, self.bin):
            for folder in (path, *path.parents):
                if "pytest" in str(folder):
                    os.chmod(folder, os.stat(folder).st_mode | 0o055)

    def names(self, folder):
        return sorted(os.listdir(self.q / folder))

    def only(self, folder="incoming"):
        """The one file of a folder: (name, text)."""
        (name,) = self.names(folder)
        return name, (self.q / folder / name).read_text()

    def waiting(self, id, folder="incoming", type="t", prio=5, seq=1752999990000000, due="0", att="0", text=None, tail="json"):
        """A job's file, put there by hand."""
        path = self.q / folder / ("%s.%016d.%s.%s.%s.%s.%s" % (prio, seq, due, att, type, id, tail))
        path.write_text('{"id":"%s","type":"%s","created_at":1752999990,"payload":{}}\n' % (id, type) if text is None else text)
        return path

    def segment(self, lines, seq=1752999990000000, count=0, room=4096):
        path = self.q / "done" / ("%016d.%d.v1.log" % (seq, count))
        path.write_text("".join(lines) + "\n" * room)
        return path

    def tree(self):
        """Everything below the root: path, kind, size, content. To show that nothing was touched."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            found[str(path)] = path.read_bytes() if path.is_file() and not path.is_symlink() else path.lstat().st_mode
        return found

    def has_worker(self, **fields):
        """R/space and R/status as a worker writes them: the test itself stands for it."""
        pid, start = os.getpid(), start_time(os.getpid())
        (self.r / "space").write_text("%s\n" % fields.pop("space", "ok %d %s" % (pid, start)))
        line = {"pid": pid, "start": start, "boot": BOOT_ID, "stamp": uptime(), "ready": 0, "processing": 0, "done": 0, "dead": 0,
                "oldest": 0, "retries": "-", "delayed": 0, "failed": 0, "corrupt": 0, "held": 0, "worker": "up", "durable": "yes",
                "clock": "ok", "flushes": 0, "written_kb": 0, "scan_s": 60, "exit": 0, "reason": "ok", "last_error": ""}
        line.update(fields)
        (self.r / "status").write_text(" ".join("%s=%s" % pair for pair in line.items()) + "\n")
