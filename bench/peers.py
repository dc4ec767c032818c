"""The peers that pip and apt give, each with its own idea of one job: put, then take it and say that it is done.

Every class has `name`, `promise` (what exit 0 of a put, and a kill or a cut between take and done, mean there: read from
its source and seen in the crash tests of facts/flash-writes.md), `put(n)`, `step()` and `close()`; `server` is the pid of
its daemon, whose CPU counts, or 0.
"""

import os
import shutil
import socket
import sqlite3
import subprocess
import time

from bench import fleet
from bench.ours import PAYLOAD


class Missing(SystemExit):
    pass


class Sqlite:
    name = "SQLite queue"
    promise = "durable put, at least once; WAL + FULL, the schema of DESIGN 8, hand-written"

    def __init__(self, folder):
        self.db = sqlite3.connect(folder + "/queue.db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.executescript("""
            CREATE TABLE jobs(id TEXT PRIMARY KEY, queue TEXT, payload TEXT, status TEXT, attempts INTEGER,
                max_attempts INTEGER, available_at INTEGER, leased_until INTEGER, worker_id TEXT, last_error TEXT,
                created_at INTEGER, updated_at INTEGER);
            CREATE INDEX jobs_ready ON jobs(queue, status, available_at);
            CREATE TABLE processed_jobs(job_id TEXT PRIMARY KEY, processed_at INTEGER);""")
        self.n, self.server = 0, 0

    def put(self, n):
        for _ in range(n):
            self._insert()

    def put_many(self, n, at_once):
        for at in range(0, n, at_once):
            self.db.execute("BEGIN IMMEDIATE")
            for _ in range(min(at_once, n - at)):
                self._insert()
            self.db.execute("COMMIT")

    def _insert(self):
        self.n += 1
        now = int(time.time())
        self.db.execute("INSERT INTO jobs VALUES(?, 'q', ?, 'ready', 0, 5, 0, 0, '', '', ?, ?)",
                        ("%016d" % self.n, PAYLOAD.decode(), now, now))

    def step(self):
        now = int(time.time())
        self.db.execute("BEGIN IMMEDIATE")
        id, _ = self.db.execute("SELECT id, payload FROM jobs WHERE queue='q' AND status='ready' AND available_at<=? "
                                "ORDER BY available_at LIMIT 1", (now,)).fetchone()
        self.db.execute("UPDATE jobs SET status='running', attempts=attempts+1, leased_until=?, worker_id='w', updated_at=? "
                        "WHERE id=?", (now + 60, now, id))
        self.db.execute("COMMIT")
        self.db.execute("BEGIN IMMEDIATE")
        self.db.execute("INSERT INTO processed_jobs VALUES(?, ?)", (id, now))
        self.db.execute("DELETE FROM jobs WHERE id=?", (id,))
        self.db.execute("COMMIT")

    def close(self):
        self.db.close()


class PersistQueue:
    name = "persist-queue"
    promise = "SQLiteAckQueue: durable put in its default mode, an unacked job comes back at the next start"

    def __init__(self, folder):
        from persistqueue import SQLiteAckQueue
        self.queue = SQLiteAckQueue(folder, auto_commit=True)
        self.server = 0

    def put(self, n):
        for _ in range(n):
            self.queue.put(PAYLOAD)

    def step(self):
        item = self.queue.get(block=False)
        self.queue.ack(item)

    def close(self):
        self.queue.close()


class Huey:
    name = "huey (SQLite)"
    promise = "durable put (its default), at most once: taken means removed, a crash loses the job"

    def __init__(self, folder):
        from huey.storage import SqliteStorage
        self.storage = SqliteStorage(filename=folder + "/huey.db")
        self.server = 0

    def put(self, n):
        for _ in range(n):
            self.storage.enqueue(PAYLOAD)

    def step(self):
        if self.storage.dequeue() is None:
            raise SystemExit("bench: huey: no job")

    def close(self):
        self.storage.close()


class Dirq:
    name = "dirq"
    promise = "not durable: no sync call at all; a job locked by a dead worker waits for a purge"

    def __init__(self, folder):
        from dirq.QueueSimple import QueueSimple
        self.queue = QueueSimple(folder + "/dirq")
        self.names, self.server = None, 0

    def put(self, n):
        for _ in range(n):
            self.queue.add(PAYLOAD)
        self.names = None

    def step(self):
        if self.names is None:
            self.names = self.queue.first()
        name, self.names = self.names, None
        while not (name and self.queue.lock(name)):
            name = self.queue.next()
        self.queue.get(name)
        self.queue.remove(name)
        self.names = self.queue.next()

    def close(self):
        pass


class Beanstalkd:
    name = "beanstalkd -f0"
    promise = "durable put, at least once; a put after its log failed is still acknowledged; all jobs in RAM"

    def __init__(self, folder):
        path = shutil.which("beanstalkd") or "/usr/sbin/beanstalkd"
        address = folder + "/socket"
        os.mkdir(folder + "/wal")
        self.process = subprocess.Popen([path, "-b", folder + "/wal", "-f0", "-l", "unix:" + address])
        self.server = self.process.pid
        self.socket = socket.socket(socket.AF_UNIX)
        limit = time.monotonic() + 10
        while True:
            try:
                self.socket.connect(address)
                break
            except OSError:
                if time.monotonic() > limit or self.process.poll() is not None:
                    raise SystemExit("bench: beanstalkd does not answer")
                time.sleep(0.01)
        self.file = self.socket.makefile("rb")

    def put(self, n):
        for _ in range(n):
            self._ask(b"put 0 0 60 %d\r\n%s\r\n" % (len(PAYLOAD), PAYLOAD), b"INSERTED")

    def step(self):
        said = self._ask(b"reserve\r\n", b"RESERVED").split()
        self.file.read(int(said[2]) + 2)
        self._ask(b"delete %s\r\n" % said[1], b"DELETED")

    def _ask(self, data, wanted):
        self.socket.sendall(data)
        line = self.file.readline()
        if not line.startswith(wanted):
            raise SystemExit("bench: beanstalkd: %r" % line)
        return line

    def close(self):
        self.file.close()
        self.socket.close()
        self.process.terminate()
        self.process.wait()


class Nq:
    """Its own runner: a put is a command that will run, and done is when it ended."""

    name = "nq"
    promise = "not durable: the command is written after the folder was flushed; a process per waiting job"

    def __init__(self, folder):
        self.environ, self.server = dict(os.environ, NQDIR=folder), 0
        self.folder = folder

    def put(self, n):
        for _ in range(n):
            subprocess.run(["nq", "-c", "true"], env=self.environ, check=True, stdout=subprocess.DEVNULL)

    def step(self):
        subprocess.run(["nq", "-w"], env=self.environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def close(self):
        self.step()


LIBRARIES = (Sqlite, PersistQueue, Huey, Dirq, Beanstalkd)


def check():
    """Loud failure when a peer is missing: a table with holes compares nothing."""
    missing = [command for command in ("nq", "beanstalkd", "busybox")
               if not shutil.which(command, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")]
    for module in ("persistqueue", "huey", "dirq"):
        try:
            __import__(module)
        except ImportError:
            missing.append(module)
    missing += fleet.check()
    if missing:
        raise Missing("bench: missing: %s; tools/setup-bench.sh installs them (make bench runs it)" % ", ".join(missing))
