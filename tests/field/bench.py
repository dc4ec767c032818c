"""One queue for the field reports: as tests/fault/outside.py has it, for both stores of the board, with the standing checks.

Standing checks (`standing`, after every test): each accepted id is in exactly one state, no traceback was said anywhere, status
is one line that a few lines of shell can read, and nothing half-written is left below the spool.
"""

import os
import re
import shutil
import signal
import sqlite3
import time
from pathlib import Path

from tests.fault.outside import WRAPPER, Bench, Island, Result, clean, state_of, wait_for

STATUS = re.compile(
    r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ queue=[A-Za-z0-9_-]+ ready=\d+ processing=\d+ done=\d+ dead=\d+ oldest_ready_s=\d+ '
    r'retries_1m=\d+ delayed=\d+ failed=\d+ corrupt=\d+ held=\d+ paused=\d+ worker=(up|idle|down|stalled) durable=(yes|no) '
    r'clock=(ok|untrusted) free_kb=\d+ flushes=\d+ written_kb=\d+ last_error="((?:[ !#-\[\]-~]|\\["\\]|\\x[0-9a-f]{2})*)"\n')


class FieldBench(Bench):
    """store: `spool` or `sqlite`. The wrapper runs under the device's ash with the device's applets alone."""
    def __init__(self, root, pyz, device_bin, store="spool", **keys):
        self.store, self.bin, self.island, self.accepted = store, device_bin, None, []
        if store == "sqlite":
            keys = {"STORE": "sqlite:%s/spool/queue.db" % root, **keys}
        Bench.__init__(self, root, pyz, **keys)
        self.db_path = self.spool / "queue.db"
        self.lets_dots = False

    def on_island(self, options):
        """The spool on a small file system of its own."""
        self.island = Island(self, options)
        self.db_path = self.island.spool / "queue.db"
        return self.island

    def env(self, **more):
        return {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "EDGEQ_CONF": str(self.conf), "EDGEQ_PYZ": str(self.pyz), **more}

    def argv(self, words, by="pyz"):
        head = ["/usr/bin/env", "PATH=%s" % self.bin, str(self.bin / "sh"), str(WRAPPER)] if by == "wrapper" else [str(self.pyz)]
        return self.inside + head + [word if isinstance(word, bytes) else str(word) for word in words]

    def edgeq(self, *words, **more):
        result = Bench.edgeq(self, *words, **more)
        assert "not found" not in result.err or "handler" in result.err or result.code in (1, 78), result
        return result

    def enqueue(self, *words, **more):
        id = Bench.enqueue(self, *words, **more)
        self.accepted.append(id)
        return id

    def enqueue_many(self, records):
        ids = Bench.enqueue_many(self, records)
        self.accepted += ids
        return ids

    def rows(self, sql):
        """Rows of the database, read by itself and without a lock that stays."""
        if not self.db_path.exists():
            return []
        if self.island:  # SQLite does not find its way through /proc/PID/root
            return self._rows_of_a_copy(sql)
        db = sqlite3.connect("file:%s?mode=ro" % self.db_path, uri=True, timeout=30)
        try:
            return db.execute(sql).fetchall()
        finally:
            db.close()

    def _rows_of_a_copy(self, sql):
        folder = self.root / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path in self.db_path.parent.glob("queue.db*"):
            shutil.copy(path, folder / path.name)
        db = sqlite3.connect(folder / "queue.db")
        try:
            return db.execute(sql).fetchall()
        finally:
            db.close()

    def where(self):
        """{id: [states]} of every job, found in the files or the rows. A job that moves while we look is looked for again."""
        for _ in range(20):
            found = self._look()
            if all(len(states) == 1 for states in found.values()):
                break
            time.sleep(0.02)
        return found

    def _look(self):
        found = {}
        if self.store == "sqlite":
            names = [name.split(".")[5] for name in self.names("incoming") if name.count(".") > 5]
            pairs = self.rows("SELECT id, status FROM jobs") + self.rows("SELECT job_id, 'done' FROM processed_jobs")
            pairs += [(id, "incoming") for id in names]
        else:
            names = [(folder, name) for folder in ("incoming", "processing", "failed") for name in self.names(folder)]
            names = [(folder, name, name.split(".")[5] if name.count(".") > 5 else name) for folder, name in names]
            pairs = [(id, folder) for folder, name, id in names if not name.endswith(".settling")]
            settled = [id for _, name, id in names if name.endswith(".settling")]
            pairs += [(line.id, "done") for line in self.lines()]
            pairs += [(name[:-5], "dlq") for name in self.names("dlq") if not name.endswith(".why")]
            known = {id for id, _ in pairs}
            pairs += [(id, "processing") for id in settled if id not in known]
        for id, state in pairs:
            found.setdefault(id, []).append(state)
        return found

    def ids_in(self, *states):
        return {id for id, found in self.where().items() if set(found) & set(states)}

    def wait_done(self, *ids, limit_s=60):
        wait_for(lambda: set(ids) <= self.ids_in("done"), lambda: "done: %s; %s; %s" %
                 (ids[:5], self.where(), [w.log[-2000:] for w in self.workers]), limit_s)

    def wait_settled(self, *ids, limit_s=120):
        ids = ids or self.accepted
        wait_for(lambda: set(ids) <= self.ids_in("done", "dlq"), lambda: "settled: %d ids; %s" %
                 (len(ids), [w.log[-2000:] for w in self.workers]), limit_s)

    def status(self, by="wrapper"):
        """(exit code, fields) of the status line."""
        result = self.edgeq("status", by=by)
        assert STATUS.fullmatch(result.out), result
        return result.code, dict(re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)', result.out))

    def standing(self):
        """The checks that hold after every test."""
        for worker in self.workers:
            assert worker.log is not None  # clean() looks for a traceback
        where = self.where()
        for id in self.accepted:
            assert len(where.get(id, ())) == 1, (id, where.get(id))
        assert {id: states for id, states in where.items() if len(states) != 1} == {}
        if self.q.exists():
            for by in ("wrapper", "pyz"):
                self.status(by)
            if not self.lets_dots:
                assert self.dots() == []

    def write_ahead(self, seconds, boot_id="", boot_s=0):
        """The test clock: environment for commands whose wall clock is `seconds` off."""
        path = self.root / "clock"
        temp = self.root / "clock~"
        temp.write_text(("%s %s %s" % (seconds, boot_id, boot_s)).strip() + "\n" if boot_id else "%s\n" % seconds)
        temp.rename(path)
        return {"EDGEQ_TEST_CLOCK": str(path)}


def run_in(bench, argv, **more):
    """A command of the outside world, inside the bench's namespaces."""
    import subprocess
    return Result(subprocess.run([*bench.inside, *argv], capture_output=True, timeout=60, **more))


def tree(root, leave_out=()):
    """{path: kind and content} below `root`; to show that nothing was touched."""
    found = {}
    for path in sorted(Path(root).rglob("*")):
        if any(str(path).startswith(str(out)) for out in leave_out):
            continue
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        elif path.is_file():
            found[str(path)] = path.read_bytes()
        else:
            found[str(path)] = oct(path.lstat().st_mode)
    return found


def cpu_s(pid):
    fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_kb(pid):
    """Private_Dirty of a process."""
    text = Path("/proc/%d/smaps_rollup" % pid).read_text()
    return int(re.search(r"^Private_Dirty:\s+(\d+)", text, re.M)[1])


def rss_kb(pid):
    return int(re.search(r"^VmRSS:\s+(\d+)", Path("/proc/%d/status" % pid).read_text(), re.M)[1])


def zombies(pid):
    """Children of `pid` that nobody waited for."""
    text = Path("/proc/%d/task/%d/children" % (pid, pid)).read_text()
    return [child for child in text.split() if state_of(int(child)) == "Z"]


def named(marker):
    """Pids of the processes with `marker` in their environment or arguments."""
    found, marker = [], os.fsencode(str(marker))
    for path in Path("/proc").glob("[0-9]*"):
        if int(path.name) == os.getpid():
            continue
        try:
            if marker in (path / "environ").read_bytes() or marker in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def end_everything(root, limit_s=20):
    """Whatever a test left running: handlers that outlived a killed worker have our folder in their environment."""
    ends_at = time.monotonic() + limit_s
    while True:
        left = [pid for pid in named(root) if state_of(pid) not in ("", "Z")]
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        assert time.monotonic() < ends_at, left
        time.sleep(0.01)


__all__ = [
    "FieldBench", "clean", "cpu_s", "end_everything", "named", "private_kb", "rss_kb", "run_in", "tree", "wait_for", "zombies"
]
