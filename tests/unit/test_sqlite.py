"""What only the SQLite store has: locks of strangers, full disks, malformed files, newer schemas, the log, the drop-box."""

import os
import posix
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgeq import store as stores
from edgeq.errors import BadConfig, Busy, StoreDown
from edgeq.job import CORRUPT, DLQ, DONE, FAILED, INCOMING, PROCESSING, Job
from edgeq.store.tables import database, malformed
from edgeq.store.base import ALREADY_DONE, ALREADY_QUEUED, QUEUED
from tests.harness import Board

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def board(tmp_path):
    return make_board(tmp_path)


def make_board(root, folder=None, **settings):
    return Board(root, STORE="sqlite:%s/queue.db" % (folder or root / "spool"), **settings)


def file_of(board):
    return Path(board.config.store.partition(":")[2])


def put(board, store, id, **wishes):
    return store.enqueue(Job(wishes.pop("type", "t"), wishes.pop("payload", b"{}"), id=id, **wishes), board.now).status


def take(board, store):
    return store.claim(board.now, None, 60, True)


def drain(board, store):
    ran = []
    while lease := take(board, store):
        ran.append(lease.entry.id)
        store.ack(lease, board.now)
    store.flush(board.now)
    return ran


def edgeq(board, *words, stdin=None):
    """The command line as a process: (exit code, stdout, stderr)."""
    done = subprocess.run([sys.executable, "-m", "edgeq", *words], cwd=REPO, input=stdin, capture_output=True, text=True,
                          env=dict(os.environ, EDGEQ_CONF=str(board.conf), PYTHONPATH=str(REPO)))
    assert "Traceback" not in done.stderr and "edgeq: bug" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def add_handler(board, type, text):
    board.config.handlers and Path(board.config.handlers).mkdir(exist_ok=True)
    path = Path(board.config.handlers) / type
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


# --- the file ------------------------------------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_design(board):
    store = board.open()
    put(board, store, "a")
    rows = sqlite3.connect(file_of(board))
    have = {row[1] for row in rows.execute("PRAGMA table_info(jobs)")}
    assert have >= set("id queue payload status attempts max_attempts available_at leased_until worker_id last_error created_at"
                       " updated_at".split())
    assert {row[1] for row in rows.execute("PRAGMA table_info(processed_jobs)")} >= {"job_id", "processed_at"}
    assert rows.execute("PRAGMA user_version").fetchone() == (1,)
    assert rows.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert rows.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert rows.execute("SELECT id, status, attempts FROM jobs").fetchall() == [("a", "incoming", 0)]
    take(board, store)
    assert rows.execute("SELECT id, status, attempts FROM jobs").fetchall() == [("a", "processing", 1)]


def test_the_file_is_nobody_elses_to_read(board):
    old = os.umask(0)
    try:
        board.open()
    finally:
        os.umask(old)
    assert file_of(board).stat().st_mode & 0o777 == 0o640


def test_synchronous_is_normal_with_the_log_and_every_promise_flushes_it(board):
    store = board.open()
    put(board, store, "first")
    assert store.db.one("PRAGMA synchronous") == (1,)
    before = store.gauges().flushes_n
    put(board, store, "a")
    assert store.gauges().flushes_n == before + 1


def test_a_row_that_somebody_inserts_by_hand_runs(board):
    store = board.open()
    rows = sqlite3.connect(file_of(board))
    rows.execute("INSERT INTO jobs(id, queue, type, payload) VALUES('a', 'default', 't', '{\"x\": 1}')")
    rows.commit()
    lease = take(board, store)
    assert lease.entry.id == "a" and lease.record.payload == b'{"x": 1}'


@pytest.mark.parametrize("payload", ("{", "", "nan", '{"a":1}\n{"b":2}'))
def test_a_row_that_says_no_job_is_set_aside_and_never_runs(board, payload):
    store = board.open()
    put(board, store, "good")
    rows = sqlite3.connect(file_of(board))
    rows.execute("INSERT INTO jobs(id, queue, type, payload) VALUES('bad', 'default', 't', ?)", (payload,))
    rows.commit()
    assert len(store.check(board.now)) == 1
    assert drain(board, store) == ["good"]
    assert store.check(board.now) == [] and store.counts(board.now).corrupt == 1
    assert [name for name, _ in store.corrupt()] == ["bad.row"]


def test_queues_share_a_file_and_nothing_else(tmp_path):
    first, second = make_board(tmp_path), make_board(tmp_path, QUEUE="urgent")
    one, two = first.open(), second.open()
    assert put(first, one, "a") == QUEUED and put(second, two, "a") == QUEUED
    assert drain(first, one) == ["a"] and two.counts(second.now).ready == 1
    assert drain(second, two) == ["a"]
    one.purge([DONE], first.now)
    assert put(second, two, "a") == ALREADY_DONE


def test_unknown_fields_of_a_record_are_kept(board):
    store = board.open()
    board.spool.joinpath("incoming", "x").write_text('{"type":"t","id":"a","site":"roof","payload":{"n":1e999}}\n')
    assert take(board, store) and store.find("a")[2].raw["site"] == '"roof"'


# --- a newer program, no module ---------------------------------------------------------------------------------------------------


def test_a_newer_schema_is_refused_and_left_untouched(board):
    """B93. Exit 78: this firmware cannot use what the configuration names."""
    store = board.open()
    put(board, store, "a")
    store.close(board.now)
    rows = sqlite3.connect(file_of(board))
    rows.execute("PRAGMA user_version=2")
    rows.close()
    before = file_of(board).read_bytes()
    for words in (("ls",), ("enqueue", "t"), ("work", "--once"), ("check", "--repair"), ("status",)):
        code, _, err = edgeq(board, *words)
        assert code == 78 or words == ("status",) and code == 2, (words, code, err)
        assert "newer" in err or words == ("status",)
        assert err.count("\n") <= 1
    with pytest.raises(BadConfig, match="newer"):
        board.open()
    assert file_of(board).read_bytes() == before


def test_a_database_of_something_else_is_refused(board):
    file_of(board).parent.mkdir(parents=True)
    rows = sqlite3.connect(file_of(board))
    rows.execute("CREATE TABLE photos(name)")
    rows.close()
    before = file_of(board).read_bytes()
    with pytest.raises(BadConfig, match="something else"):
        board.open()
    rows = sqlite3.connect(file_of(board))
    assert rows.execute("SELECT name FROM sqlite_master").fetchall() == [("photos",)] and before


@pytest.mark.parametrize("url", ("sqlite:", "sqlite:queue.db", "sqlite:/var/lib/"))
def test_a_url_that_names_no_file_is_refused(board, url):
    board.config.store = url
    with pytest.raises(BadConfig, match="absolute path"):
        stores.open_store(board.config, board.clock, board.log)


def test_without_the_module_it_says_so_in_one_line(board, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/sqlite3.py").write_text("raise ImportError('No module named _sqlite3')\n")
    done = subprocess.run([sys.executable, "-m", "edgeq", "ls"], cwd=tmp_path / "lib", capture_output=True, text=True, env=dict(
        os.environ, EDGEQ_CONF=str(board.conf), PYTHONPATH="%s:%s" % (tmp_path / "lib", REPO)))
    assert done.returncode == 78 and done.stderr.count("\n") == 1 and "no sqlite3" in done.stderr


def test_a_worker_on_the_spool_never_imports_sqlite3(tmp_path):
    board = Board(tmp_path)
    code = ("import sys; from edgeq.cli import main; code = main(['work', '--once']);"
            "sys.exit(9 if {'sqlite3', '_sqlite3'} & set(sys.modules) else code)")
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True,
                          env=dict(os.environ, EDGEQ_CONF=str(board.conf), PYTHONPATH=str(REPO)))
    assert done.returncode == 0, done.stderr


# --- a stranger's lock (B78) ----------------------------------------------------------------------------------------------------


class Stranger:
    """Another program that keeps the write lock until it is told, or for so many seconds."""

    def __init__(self, path):
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.connection.execute("BEGIN IMMEDIATE")

    def leave(self):
        self.connection.execute("ROLLBACK")
        self.connection.close()

    def leave_after(self, seconds):
        timer = threading.Timer(seconds, self.leave)
        timer.start()
        return timer


def test_a_lock_held_for_three_seconds_reaches_no_caller(board):
    store = board.open()
    for id in "ab":
        put(board, store, id)
    timer = Stranger(file_of(board)).leave_after(3)
    put(board, store, "c")
    timer.join()
    timer = Stranger(file_of(board)).leave_after(0.3)
    lease = take(board, store)
    timer.join()
    timer = Stranger(file_of(board)).leave_after(0.3)
    store.ack(lease, board.now)
    timer.join()
    assert drain(board, store) == ["b", "c"]


def test_a_lock_held_beyond_the_limit_is_busy_and_nothing_is_lost(board, monkeypatch):
    monkeypatch.setattr(database, "BUSY_S", 0.2)
    store = board.open()
    put(board, store, "a")
    lease = take(board, store)
    stranger = Stranger(file_of(board))
    for call in (lambda: put(board, store, "b"), lambda: take(board, store) or store.ack(lease, board.now),
                 lambda: store.retry(lease, 0, "", board.now), lambda: store.bury(lease, "", board.now)):
        with pytest.raises(Busy, match="locked"):
            call()
    assert not store.is_broken and store.counts(board.now).processing == 1
    stranger.leave()
    assert put(board, store, "b") == QUEUED
    store.ack(lease, board.now)
    assert drain(board, store) == ["b"] and store.check(board.now) == []


def test_a_put_beyond_the_limit_exits_75(board):
    board.open().close(board.now)
    stranger = Stranger(file_of(board))
    code, out, err = edgeq(board, "enqueue", "t")
    stranger.leave()
    assert code == 75 and out == "" and "locked" in err and err.count("\n") == 1


# --- no shared memory (B80) -------------------------------------------------------------------------------------------


def without_shared_memory(monkeypatch):
    def connect(path, mode):
        return sqlite3.connect("file:%s?mode=%s&vfs=unix-dotfile" % (path, mode), timeout=database.BUSY_S, isolation_level=None,
                               uri=True)
    monkeypatch.setattr(database, "connect", connect)


@pytest.mark.parametrize("was_used", (False, True))
def test_without_shared_memory_a_rollback_journal_is_used_and_told(board, monkeypatch, was_used):
    if was_used:  # a database that was left with a write-ahead log: its last user died
        code = ("import os, sys; from tests.harness import Board; from pathlib import Path; from edgeq.job import Job;"
                "b = Board(Path(sys.argv[1]), STORE=sys.argv[2]); s = b.open(); s.enqueue(Job('t', b'{}', id='old'), b.now);"
                "os._exit(0)")
        subprocess.run([sys.executable, "-c", code, str(board.root), board.config.store], cwd=REPO, check=True)
        assert file_of(board).with_name("queue.db-wal").stat().st_size
    without_shared_memory(monkeypatch)
    store = board.open()
    put(board, store, "a")
    assert drain(board, store) == ["old"] * was_used + ["a"]
    assert store.db.one("PRAGMA journal_mode") == ("persist",) and store.db.one("PRAGMA synchronous") == (2,)
    assert len(board.log.said("no shared memory here")) == 1
    assert any("rollback journal" in note for note in store.notes())
    before = store.gauges().flushes_n
    put(board, store, "b")
    assert store.gauges().flushes_n > before and store.check(board.now) == []


# --- the log stays bounded (B81) --------------------------------------------------------------------------------------


def test_the_log_stays_bounded(board):
    store = board.open()
    sizes = []
    for n in range(1200):
        put(board, store, "j%d" % n, payload=b'"%s"' % (b"x" * 200))
        if n % 100 == 99:
            drain(board, store)
            sizes.append(store.db.log_bytes())
    assert max(sizes) <= database.LOG_KEEP_BYTES


def test_a_log_that_a_reader_let_grow_is_cut_soon_after_it_left(board):
    store = board.open()
    put(board, store, "first")
    reader = sqlite3.connect(file_of(board), isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    store.enqueue_many([Job("t", b'"%s"' % (b"x" * 30000)) for _ in range(60)], board.now)
    drain(board, store)
    assert store.db.log_bytes() > 2 * database.LOG_KEEP_BYTES
    for _ in range(3):  # in its way still
        board.clock.boot = store.flush_due_at()
        store.flush(board.now)
        assert store.db.log_bytes() > database.LOG_KEEP_BYTES
    left_at = board.clock.boot
    reader.close()
    board.clock.boot = store.flush_due_at()
    store.flush(board.now)
    assert store.db.log_bytes() <= database.LOG_KEEP_BYTES and board.clock.boot - left_at <= 30
    assert store.flush_due_at() is None


def test_no_snapshot_is_held_while_a_handler_runs(board):
    store = board.open()
    for id in "ab":
        put(board, store, id)
    take(board, store)
    store.counts(board.now), list(store.entries(PROCESSING)), store.find("a"), list(store.done_lines())
    busy, pages, copied = sqlite3.connect(file_of(board)).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert (busy, pages, copied) == (0, 0, 0)


def test_freed_pages_are_given_back(board):
    store = board.open()
    store.enqueue_many([Job("t", b'"%s"' % (b"x" * 30000)) for _ in range(60)], board.now)
    store.purge([INCOMING], board.now)
    size = store.db.one("PRAGMA page_count")[0]
    for _ in range(60):
        store.prune(board.now)
    assert store.db.one("PRAGMA page_count")[0] < size / 4


# --- malformed (B82) --------------------------------------------------------------------------------------------------


def zero_second_page(path):
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\0" * 4096)


def cut_in_half(path):
    os.truncate(path, path.stat().st_size // 2)


def scribble(path):
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(os.urandom(4096))


def overwrite(path):
    path.write_bytes(os.urandom(20000))


def drop_log(path):
    path.with_name(path.name + "-wal").unlink(missing_ok=True)


def empty(path):
    os.truncate(path, 0)


@pytest.mark.parametrize("stop", ("clean", "unclean"))
@pytest.mark.parametrize("damage", (zero_second_page, cut_in_half, scribble, overwrite, drop_log, empty))
def test_a_damaged_file_does_not_stop_the_worker(board, damage, stop):
    add_handler(board, "t", 'echo "$EDGEQ_ID" >>"%s/ran"' % board.root)
    store = board.open()
    for n in range(60):
        put(board, store, "old%d" % n, payload=b'"%s"' % (b"x" * 300))
    if stop == "unclean":
        take(board, store)
    store.close(board.now)
    damage(file_of(board))
    for n in range(2):  # no loop: the second start is as good as any
        code, out, err = edgeq(board, "work", "--once")
        assert code == 0, err
    code, out, err = edgeq(board, "enqueue", "t", "--id", "new")
    assert (code, out) == (0, "new\n")
    assert edgeq(board, "work", "--once")[0] == 0
    assert "new" in (board.root / "ran").read_text().split()
    bad = list(file_of(board).parent.glob("queue.db.bad-*"))
    if damage in (zero_second_page, cut_in_half, overwrite):
        assert bad
    if bad:
        code, out, _ = edgeq(board, "status")
        assert " corrupt=1 " in out
        assert "malformed" in edgeq(board, "check")[1]
        assert edgeq(board, "purge", "corrupt")[1] == "purged 1\n"
        assert not list(file_of(board).parent.glob("queue.db.bad-*"))


def test_copies_of_malformed_files_are_bounded(board):
    for n in range(malformed.BAD_KEEP + 2):
        file_of(board).parent.mkdir(parents=True, exist_ok=True)
        overwrite(file_of(board))
        store = board.open()
        put(board, store, "a")
        store.close(board.now)
    names = store.db.bad_copies()
    assert len(names) == malformed.BAD_KEEP and names[-1] == "queue.db.bad-%d" % (n + 1)
    assert len(board.log.said("malformed")) == malformed.BAD_KEEP + 2


def test_a_file_that_goes_bad_under_a_worker_is_set_aside_when_it_reopens(board):
    store = board.open()
    for n in range(200):
        put(board, store, "j%d" % n, payload=b'"%s"' % (b"x" * 300))
    store.close(board.now, clean=False)
    store = board.open()
    zero_second_page(file_of(board))
    with pytest.raises(StoreDown, match="malformed"):
        for _ in range(3):
            take(board, store)
            put(board, store, "x")
    assert store.is_broken
    store.reopen(board.now)
    assert put(board, store, "new") == QUEUED and drain(board, store) == ["new"]
    assert store.db.bad_copies() == ["queue.db.bad-1"]


def test_a_malformed_file_that_others_use_is_left_in_its_place(board):
    store, other = board.open(), board.open()
    put(board, store, "a")
    store.db.is_malformed = True
    store.is_broken = True
    with pytest.raises(StoreDown, match="still use it"):
        store.reopen(board.now)
    assert not store.db.bad_copies()
    other.close(board.now)
    store.reopen(board.now)
    assert store.db.bad_copies()


def test_an_operator_does_not_set_aside_what_a_worker_must(board):
    file_of(board).parent.mkdir(parents=True)
    overwrite(file_of(board))
    code, out, err = edgeq(board, "enqueue", "t")
    assert code == 74 and "malformed" in err and err.count("\n") == 1
    code, out, _ = edgeq(board, "status")
    assert code == 2 and "malformed" in out
    assert not list(file_of(board).parent.glob("*.bad-*"))
    assert "malformed" in edgeq(board, "check")[1]
    edgeq(board, "check", "--repair")
    assert edgeq(board, "enqueue", "t")[0] == 0


def test_every_page_is_looked_at_only_after_an_unclean_end(board):
    seen = []

    def begin():
        store = board.open(start=False)
        store.db.is_sound = lambda: seen.append(1) or True
        store.start(board.now)
        return store
    store = begin()
    put(board, store, "a")
    take(board, store)
    store.close(board.now, clean=False)  # LINGER_S: it left because nothing was to do
    begin().close(board.now, clean=False)
    assert seen == []
    board.reboot()
    store = begin()
    assert seen == [1]
    for entry, holder in store.stale(board.now):
        store.bury(store.take_over(entry, holder, board.now, 60), "", board.now)
    store.close(board.now)
    board.reboot()
    begin()
    assert seen == [1]


# --- full and read-only disks (B83) -----------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path):
    """A file system of 1 MiB."""
    path = tmp_path / "tiny"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(folder):
    """No byte is left."""
    with open(folder / "filling", "wb", buffering=0) as file:
        size = 65536
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2


def test_a_full_disk_loses_nothing_and_is_left_without_a_restart(tmp_path, tiny):
    board = make_board(tmp_path, tiny, MIN_FREE_KB=0)
    store = board.open()
    for id in "abc":
        put(board, store, id)
    lease = take(board, store)
    fill(tiny)
    refused = 0
    for n in range(200):
        try:
            put(board, store, "n%d" % n, payload=b'"%s"' % (b"x" * 5000))
        except OSError as error:
            assert error.errno == 28
            refused += 1
            break
    assert refused
    (tiny / "filling").unlink()
    if store.is_broken:
        store.reopen(board.now)
    store.ack(lease, board.now)
    accepted = ["b", "c"] + ["n%d" % k for k in range(n)]
    assert drain(board, store) == accepted and store.check(board.now) == []


def test_a_settle_on_a_full_disk_asks_for_the_ballast(tmp_path, tiny):
    board = make_board(tmp_path, tiny, MIN_FREE_KB=0)
    store = board.open()
    (tiny / "ballast").write_bytes(b"x" * 200_000)
    store.enqueue_many([Job("t", b'"%s"' % (b"x" * 3000), id="j%d" % n) for n in range(60)], board.now)
    leases = [take(board, store) for _ in range(40)]
    store.db.shrink()
    fill(tiny)
    asked = []

    def make_room():
        asked.append(1)
        (tiny / "ballast").unlink(missing_ok=True)
        return True
    store.on_full = make_room
    for lease in leases:
        if store.is_broken:
            store.reopen(board.now)
        store.bury(lease, "exit 65: " + "y" * 60, board.now)
    assert asked and store.counts(board.now).dead == 40


def test_a_start_on_a_full_disk_says_75_and_recovers(tmp_path, tiny):
    board = make_board(tmp_path, tiny, MIN_FREE_KB=0)
    store = board.open()
    put(board, store, "a")
    store.close(board.now)
    fill(tiny)
    code, out, err = edgeq(board, "enqueue", "t", '"%s"' % ("x" * 60000))
    assert code == 75 and out == "" and err.count("\n") == 1, err
    code, out, err = edgeq(board, "status")
    assert code in (1, 2) and out.count("\n") == 1
    (tiny / "filling").unlink()
    add_handler(board, "t", "exit 0")
    assert edgeq(board, "enqueue", "t", "--id", "b")[0] == 0
    assert edgeq(board, "work", "--once")[0] == 0
    assert {line.id for line in board.open().done_lines()} == {"a", "b"}


def test_a_read_only_file_system_is_said_so(tmp_path, tiny):
    board = make_board(tmp_path, tiny, MIN_FREE_KB=0)
    store = board.open()
    put(board, store, "a")
    store.close(board.now)
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    code, out, err = edgeq(board, "enqueue", "t")
    assert code == 74 and "ead-only" in err and err.count("\n") == 1, err
    code, out, err = edgeq(board, "status")
    assert code == 2 and out.count("\n") == 1
    subprocess.run(["mount", "-o", "remount,rw", str(tiny)], check=True)
    assert edgeq(board, "enqueue", "t", "--id", "b")[0] == 0


# --- the drop-box -----------------------------------------------------------------------------------------------------


def drop(board, name, text):
    path = board.spool / "incoming" / name
    path.write_text(text)
    return path


def test_a_producer_without_python_is_taken_in(board):
    """The wrapper's own file, byte for byte."""
    store = board.open()
    drop(board, "2.1800000000000001.0.0.t.a.json", '{"id":"a","type":"t","created_at":1800000000,"priority":2,"payload":{"x":1}}\n')
    assert store.find("a")[0] == INCOMING and store.counts(board.now).ready == 1
    lease = take(board, store)
    assert (lease.entry.id, lease.entry.priority, lease.entry.seq) == ("a", 2, 1800000000000001)
    assert board.ls("incoming") == []


def test_the_wrapper_drops_beside_the_database(board):
    board.open().close(board.now)
    wrapper = REPO / "overlay/usr/bin/edgeq"
    done = subprocess.run([shutil.which("dash") or "/bin/sh", str(wrapper), "enqueue", "t", '{"x":1}', "--id", "a"], text=True,
                          capture_output=True, env={"EDGEQ_CONF": str(board.conf), "PATH": posix.environ[b"PATH"].decode(),
                                                    "EDGEQ_PYZ": "/nonexistent"})
    assert (done.returncode, done.stdout) == (0, "a\n"), done.stderr
    assert len(board.ls("incoming")) == 1
    store = board.open()
    assert take(board, store).record.payload == b'{"x":1}'


def test_many_dropped_files_share_a_flush_and_keep_their_order(board):
    store = board.open()
    put(board, store, "first")
    drain(board, store)
    for n in range(50):
        drop(board, "5.%016d.0.0.t.j%02d.json" % (1800000000000100 + n, n),
             '{"id":"j%02d","type":"t","created_at":1800000000,"payload":{}}\n' % n)
    before = store.gauges().flushes_n
    assert store.adopt(board.now) == 50
    assert store.gauges().flushes_n == before + 1
    assert drain(board, store) == ["j%02d" % n for n in range(50)]


def test_a_dropped_file_that_comes_back_after_a_cut_runs_once(board):
    store = board.open()
    path = drop(board, "some name", '{"type":"t","payload":1}\n')
    again = path.read_bytes(), path.stat().st_mtime_ns
    for _ in range(2):
        store.adopt(board.now)
        path.write_bytes(again[0])
        os.utime(path, ns=(again[1], again[1]))
    assert len(drain(board, store)) == 1
    path.write_bytes(again[0])
    os.utime(path, ns=(again[1], again[1]))
    assert drain(board, store) == []
    drop(board, "some name", '{"type":"t","payload":1}\n')  # a person's second file of that name is another job
    assert len(drain(board, store)) == 1


@pytest.mark.parametrize("state", (INCOMING, PROCESSING, FAILED, DLQ, DONE))
def test_a_dropped_id_that_is_known_is_dropped(board, state):
    store = board.open()
    put(board, store, "a")
    if state != INCOMING:
        lease = take(board, store)
        if state == FAILED:
            store.retry(lease, 100, "exit 1", board.now)
        if state == DLQ:
            store.bury(lease, "exit 65", board.now)
        if state == DONE:
            store.ack(lease, board.now)
    drop(board, "x.json", '{"id":"a","type":"t","payload":{}}\n')
    assert store.adopt(board.now) == 0 and board.ls("incoming") == []
    assert store.find("a")[0] == state


def test_an_id_that_stands_in_a_dropped_file_is_queued_already(board):
    store = board.open()
    drop(board, "5.1800000000000001.0.0.t.a.json", '{"id":"a","type":"t","created_at":1800000000,"payload":{}}\n')
    assert put(board, store, "a") == ALREADY_QUEUED
    store.cancel("a", board.now)
    assert store.find("a")[0] is None and board.ls("incoming") == []


def test_a_torn_file_is_set_aside_after_two_seconds(board):
    store = board.open()
    drop(board, "5.1800000000000001.0.0.t.a.json", '{"id":"a","type":"t","cre')
    put(board, store, "b")
    assert drain(board, store) == ["b"] and board.ls("corrupt") == [] and store.is_unsure(board.now)
    board.clock.sleep(2.1)
    assert take(board, store) is None
    assert board.ls("corrupt") == ["5.1800000000000001.0.0.t.a.json"] and store.counts(board.now).corrupt == 1


def test_a_newer_format_is_left_where_it_is(board):
    store = board.open()
    path = drop(board, "5.1800000000000001.0.0.t.a.v2.json", '{"id":"a","v":2}\n')
    assert drain(board, store) == [] and path.exists() and store.counts(board.now).newer == 1


def test_shell_producers_keep_their_order_behind_older_jobs_when_the_clock_went_back(board):
    """Without R/seq the wrapper knows only the files, not the rows."""
    store = board.open()
    put(board, store, "old")
    store.close(board.now)
    board.reboot(wall=100)
    board.run.mkdir(parents=True)
    (board.run / "seq").write_text("0000000100000001\n")
    drop(board, "5.0000000100000001.110.0.t.new.json", '{"id":"new","type":"t","created_at":100,"available_at":110,"payload":{}}\n')
    store = board.open()
    assert drain(board, store) == ["old"]
    board.clock.sleep(11)
    assert drain(board, store) == ["new"]
    assert CORRUPT not in store.find("new")


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_coalesces_what_waits(board):
    store = board.open()
    put(board, store, "a", key="k")
    receipt = store.enqueue(Job("t", key="k"), board.now)
    assert (receipt.id, receipt.status) == ("a", ALREADY_QUEUED)
    assert drain(board, store) == ["a"]
    assert store.enqueue(Job("t", key="k"), board.now).status == QUEUED


def test_the_latest_takes_the_place_of_those_with_its_key(board):
    store = board.open()
    for id in "ab":
        put(board, store, id, key="k", latest=True)
    put(board, store, "other")
    assert drain(board, store) == ["b", "other"] and store.gone() == (0, 1)


def test_one_job_of_a_key_runs_at_a_time(board):
    store = board.open()
    put(board, store, "a", key="k")
    lease = take(board, store)
    put(board, store, "b", key="k")
    assert take(board, store) is None and store.is_unsure(board.now)
    store.ack(lease, board.now)
    board.clock.sleep(1)
    assert drain(board, store) == ["b"]


def test_an_older_try_gives_way_to_the_latest(board):
    store = board.open()
    put(board, store, "a", key="k")
    lease = take(board, store)
    put(board, store, "b", key="k", latest=True)
    store.retry(lease, 0, "exit 1", board.now)
    board.clock.sleep(1)
    assert store.find("a")[0] is None and drain(board, store) == ["b"]


def test_the_guard_counts_the_database(board):
    from edgeq.space import Guard
    store = board.open()
    store.enqueue_many([Job("t", b'"%s"' % (b"x" * 30000)) for _ in range(20)], board.now)
    assert Guard(store.disk, store.root, store.run, board.config).used_kb() >= 600


def test_a_row_that_makes_no_name_is_set_aside_by_a_worker(board):
    store = board.open()
    rows = sqlite3.connect(file_of(board))
    rows.execute("INSERT INTO jobs(id, queue, type) VALUES('bad id', 'default', 'a type')")
    rows.commit()
    assert take(board, store) is None
    store.adopt(board.now)
    assert store.counts(board.now).corrupt == 1 and store.check(board.now) == []
