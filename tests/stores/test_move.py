"""`edgeq move` between spool and SQLite, killed at every step: nothing lost, nothing doubled, everything carried."""

import posix
import subprocess
import sys
import os
from pathlib import Path

import pytest

from edgeq.cli.move import carry, describe_rest
from edgeq.config import with_store
from edgeq.disk import Disk
from edgeq.job import DLQ, DONE, FAILED, INCOMING, PROCESSING, Job
from edgeq.store import open_store
from tests.harness import Board, FaultyDisk, Killed, dead_owner

REPO = Path(__file__).resolve().parents[2]
# (from, to): apart, and with one folder for both, where the spool's incoming/ is the database's drop-box
WAYS = {
    "spool-sqlite": ("spool:{root}/a", "sqlite:{root}/b/queue.db"),
    "sqlite-spool": ("sqlite:{root}/a/queue.db", "spool:{root}/b"),
    "spool-sqlite-beside": ("spool:{root}/a", "sqlite:{root}/a/queue.db"),
    "sqlite-spool-beside": ("sqlite:{root}/a/queue.db", "spool:{root}/a"),
    "sqlite-sqlite": ("sqlite:{root}/a/queue.db", "sqlite:{root}/b/other.db"),
    "spool-spool": ("spool:{root}/a", "spool:{root}/b"),
}

BETWEEN_KINDS = ("sqlite-spool", "spool-sqlite", "sqlite-spool-beside", "spool-sqlite-beside")
STRIDE = 1 if os.environ.get("FULL", "") not in ("", "0") else 3  # which calls to die in


class Road:
    """A source with one job in every state, and what each must look like at the target."""

    def __init__(self, root, way):
        self.board = Board(root, STORE=WAYS[way][0].format(root=root))
        self.target_config = with_store(self.board.config, WAYS[way][1].format(root=root))
        self.stores = []
        self._fill()

    def _fill(self):
        board = self.board
        store = board.open()
        now = board.now

        def put(id, **wishes):
            store.enqueue(Job(wishes.pop("type", "t"), wishes.pop("payload", b'{"n":1e999}'), id=id, **wishes), now)

        def take():
            return store.claim(board.now, None, 60, True)
        put("done")
        store.ack(take(), now, "a result", 7)
        put("dead", priority=1, max_attempts=9)
        store.bury(take(), 'exit 65: "bad"', now)
        put("failed", type="u", expires_s=5000, key="k")
        store.retry(take(), 100, "exit 1: no route", now)
        put("claimed")
        take()
        put("waiting", priority=7, timeout_s=9, payload=b'[1,  2]')
        put("delayed", delay_s=500)
        put("at", at=int(now.wall) + 900)
        for n in range(6):
            put("many%d" % n)
        store.flush(now)
        # the worker dies: its claim is nobody's
        store._alive.drop()
        self.board.reboot(wall=board.clock.wall, boot=board.clock.boot)
        self.expected = self.describe(store)
        self.expected["claimed"] = (FAILED, "t", 5, 1, True)
        store.close(now, clean=False)

    def describe(self, store):
        """id -> what it is, of everything but what is claimed."""
        found = {}
        for state in (INCOMING, FAILED, DLQ):
            for entry in store.entries(state):
                where, entry, record, _ = store.find(entry.id)
                assert entry.id not in found, "%s stands twice" % entry.id
                what = (where, record.type, entry.priority, entry.attempts, entry.again)
                if state == DLQ:
                    what = (where, record.type, record.priority, record.attempts, record.raw["last_error"], record.raw["failed_at"])
                elif entry.id != "claimed":
                    what += (entry.due, entry.is_at, entry.seq)
                found[entry.id] = what + ((record.payload, record.max_attempts, record.timeout_s, record.expires_s, record.key)
                                          if entry.id != "claimed" else ())
        for line in store.done_lines():
            assert line.id not in found
            found[line.id] = (DONE, line.n, line.seq, line.attempts, line.ms, line.note, line.done_at)
        return found

    def open(self, disk=None):
        """(source, target), as the verb opens them."""
        self.stores = [open_store(config, self.board.clock, self.board.log, disk)
                       for config in (self.board.config, self.target_config)]
        for store in self.stores:
            store.make_folders()
            if disk:
                store.leases.pid, store.leases.start = dead_owner()  # it is to be killed
        return self.stores

    def leave(self):
        for store in self.stores:
            if hasattr(store, "db"):
                store.db.close()
            else:
                store.journal.close()

    def kill(self, disk):
        """What the kernel does for a process that died."""
        disk.bury()
        for store in self.stores:
            if hasattr(store, "db"):
                store.db.connection and store.db.connection.close()
                store.db._open.drop()

    def look(self):
        """After a move: everything is at the target, nothing at the source, both are healthy."""
        source, target = self.open()
        assert self.describe(target) == self.expected
        assert source.counts(self.board.now).done == 1 and target.counts(self.board.now).done == 1
        if source.home != target.home:
            assert {id for id in self.describe(source) if id != "done"} == set()
        assert describe_rest(source, target, self.board.now) == []
        assert list(target.entries(PROCESSING)) == [] and target.check(self.board.now) == []
        self.leave()


@pytest.mark.parametrize("way", sorted(WAYS))
def test_everything_is_carried(tmp_path, way):
    road = Road(tmp_path, way)
    carry(*road.open(), road.board.now)
    road.leave()
    road.look()
    carry(*road.open(), road.board.now)  # once more: nothing to do
    road.leave()
    road.look()


@pytest.fixture(autouse=True)
def no_syncfs(monkeypatch):
    """This machine's own disk is not what is tested: a syncfs is one call that may fail or be the last."""
    def sync(disk, folder):
        fd = disk.open(folder, posix.O_RDONLY)
        try:
            disk.flush(fd)
        finally:
            disk.close(fd)
    monkeypatch.setattr("edgeq.store.carry.sync_file_system", sync)


@pytest.mark.parametrize("after", (False, True))
@pytest.mark.parametrize("way", BETWEEN_KINDS)
def test_killed_at_any_call_to_the_disk_it_is_simply_done_again(tmp_path, monkeypatch, way, after):
    monkeypatch.setattr("edgeq.cli.move.CHUNK", 4)
    steps = -after if STRIDE > 1 else 0
    while True:
        steps += STRIDE
        road = Road(make(tmp_path / ("%d" % steps)), way)
        disk = FaultyDisk()
        stores = road.open(disk)
        arm(disk, steps, after)
        try:
            carry(*stores, road.board.now)
            break
        except Killed:
            road.kill(disk)
        carry(*road.open(), road.board.now)
        road.leave()
        road.look()
    road.leave()
    road.look()
    assert steps > 10


@pytest.mark.parametrize("way", BETWEEN_KINDS)
def test_killed_at_any_commit_it_is_simply_done_again(tmp_path, monkeypatch, way):
    from edgeq.store.tables.database import Database
    monkeypatch.setattr("edgeq.cli.move.CHUNK", 4)
    commit, count, limit = Database.commit, [0], [0]

    def counted(database):
        count[0] += 1
        if count[0] == limit[0]:
            raise Killed()
        commit(database)
    monkeypatch.setattr(Database, "commit", counted)
    n = 0
    while True:
        n += 1
        road = Road(make(tmp_path / ("%d" % n)), way)
        stores = road.open(Disk())
        count[0], limit[0] = 0, n
        try:
            carry(*stores, road.board.now)
            break
        except Killed:
            limit[0] = 0
        finally:
            limit[0] = 0
            road.leave()
        carry(*road.open(), road.board.now)
        road.leave()
        road.look()
    road.look()
    assert n > 4


def test_a_move_that_was_killed_and_a_worker_that_ran_in_between_double_nothing(tmp_path, monkeypatch):
    road = Road(make(tmp_path / "x"), "spool-sqlite")
    source, target = road.open()
    for parcel in source.export():
        target.take_parcel(parcel, road.board.now)
    target.seal(road.board.now)  # killed here: both have everything
    road.leave()
    store = road.board.open()
    ran = []
    while lease := store.claim(road.board.now, None, 60, True):
        ran.append(lease.entry.id)
        store.ack(lease, road.board.now)
    assert "many0" in ran
    store.close(road.board.now)
    source, target = road.open()
    carry(source, target, road.board.now)
    for id in ran:
        assert target.find(id)[0] == DONE
    again = []
    while lease := target.claim(road.board.now, None, 60, True):
        again.append(lease.entry.id)
        target.ack(lease, road.board.now)
    assert not set(ran) & set(again)
    road.leave()


def test_marks_go_along(tmp_path):
    road = Road(tmp_path, "spool-sqlite")
    source, target = road.open()
    source.pauses.set("t", 0, road.board.now)
    carry(source, target, road.board.now)
    assert target.pauses.all(road.board.now) == {"t": 0}
    road.leave()
    store = open_store(road.target_config, road.board.clock, road.board.log)
    store.start(road.board.now)
    assert store.claim(road.board.now, None, 60, True).is_suspect, "the source's end was unclean"
    store.close(road.board.now)


def edgeq(board, *words):
    done = subprocess.run([sys.executable, "-m", "edgeq", *words], cwd=REPO, capture_output=True, text=True,
                          env=dict(os.environ, EDGEQ_CONF=str(board.conf), PYTHONPATH=str(REPO)))
    assert "Traceback" not in done.stderr and "edgeq: bug" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def test_the_verb(tmp_path):
    board = Board(tmp_path)
    board.open().close(board.now)
    url = "sqlite:%s/spool/queue.db" % tmp_path
    assert edgeq(board, "enqueue", "t", "--id", "a")[0] == 0
    assert edgeq(board, "move")[0] == 64 and edgeq(board, "move", "--to", "nonsense:x")[0] == 78
    assert edgeq(board, "move", "--to", board.config.store)[0] == 64
    worker = board.open()
    code, out, err = edgeq(board, "move", "--to", url)
    assert code == 75 and "running" in err
    worker.close(board.now)
    code, out, err = edgeq(board, "move", "--to", url)
    assert (code, out) == (0, "moved 1 jobs and 0 completions to %s\n" % url)
    board.conf.write_text(board.conf.read_text() + "STORE=%s\n" % url)
    assert edgeq(board, "ls")[1].startswith("a t ready")
    home = "spool:%s/spool" % tmp_path
    code, out, err = edgeq(board, "move", "--to", home)  # beside each other, and nothing is left behind
    assert (code, out, err.count("\n")) == (0, "moved 1 jobs and 0 completions to %s\n" % home, 1), err


def make(path):
    path.mkdir(parents=True)
    return path


CHANGES = ("rename", "unlink", "fsync", "fdatasync", "write", "pwrite")


def arm(disk, n, after):
    """Die in the n-th call from now that changes something: before it has its effect, or after."""
    left = [n]

    def dying(name, call):
        def run(*args):
            if disk.is_dead:
                raise Killed()
            left[0] -= 1
            if left[0] == 0:
                if after:
                    disk._do(name, call, args, {})
                disk.is_dead = True
                raise Killed()
            return disk._do(name, call, args, {})
        return run
    for name in CHANGES:
        setattr(disk, name, dying(name, getattr(posix, name)))
