"""Retention (issue 5.5): done, dlq, corrupt and dot-files by bytes, count and age; never what still has to run."""

import os

import pytest

from edgeq.job import CORRUPT, DLQ, DONE, FAILED, INCOMING, PROCESSING, Job
from edgeq.store.base import PER_PASS
from edgeq.store.bounds import DAY_S
from tests.harness import Board

FOLDER = {DLQ: "DLQ_KEEP", CORRUPT: "CORRUPT_KEEP"}


@pytest.fixture
def make_store(tmp_path):
    made = []

    def make(**settings):
        board = Board(tmp_path, **settings)
        made.append(board.open())
        return board, made[-1]
    yield make
    for store in made:
        store._alive.drop()
        store.journal.close()


def fill(board, folder, n, size=100):
    """n files, the first one oldest by a minute each."""
    for at in range(n):
        path = board.spool / folder / ("f%03d.json" % at)
        path.write_bytes(b"x" * size)
        (board.spool / folder / ("f%03d.json.why" % at)).write_text("because\n") if folder == CORRUPT else None
        os.utime(path, (board.now.wall - 60 * (n - at),) * 2)


def passes(board, store):
    """Passes until nothing goes any more; how many went in each."""
    went = []
    while not went or went[-1]:
        went.append(store.prune(board.now))
    return went[:-1]


@pytest.mark.parametrize("folder", sorted(FOLDER))
def test_by_count_the_oldest_go(make_store, folder):
    board, store = make_store(**{FOLDER[folder]: 5})
    fill(board, folder, 9)
    assert passes(board, store) == [4] and board.ls(folder) == ["f%03d.json" % n for n in range(4, 9)]
    if folder == CORRUPT:
        assert len(list((board.spool / folder).glob("*.why"))) == 5


@pytest.mark.parametrize("folder", sorted(FOLDER))
def test_by_bytes_the_oldest_go(make_store, folder):
    board, store = make_store(**{FOLDER[folder] + "_KB": 4})
    fill(board, folder, 9, 1024)
    assert passes(board, store) == [5] and len(board.ls(folder)) == 4


@pytest.mark.parametrize("folder", sorted(FOLDER))
def test_by_age_only_while_the_clock_is_trusted(make_store, folder):
    board, store = make_store(KEEP_DAYS=1)
    fill(board, folder, 3)
    old = board.spool / folder / "f000.json"
    os.utime(old, (board.now.wall - 2 * DAY_S,) * 2)
    store.enqueue(Job("mail"), board.now)
    board.clock.step(-400 * DAY_S)  # behind the newest SEQ
    assert store.prune(board.now) == 0 and old.exists()
    board.clock.step(400 * DAY_S)
    assert store.prune(board.now) == 1 and not old.exists()


@pytest.mark.parametrize("folder", sorted(FOLDER))
def test_what_a_wrong_clock_dated_ages_with_this_boot(make_store, folder):
    """P8: a step of the clock purges nothing. The board began in 1970, this boot or the last one."""
    board, store = make_store(KEEP_DAYS=1)
    fill(board, folder, 1)
    os.utime(board.spool / folder / "f000.json", (1000, 1000))
    assert store.prune(board.now) == 0
    board.clock.sleep(DAY_S)
    assert store.prune(board.now) == 1


def test_a_step_of_the_clock_purges_no_letter(make_store):
    board, store = make_store(KEEP_DAYS=1)
    store.prune(board.now)
    fill(board, DLQ, 1)
    board.clock.step(30 * DAY_S)
    assert store.prune(board.now) == 0
    board.clock.sleep(DAY_S)
    assert store.prune(board.now) == 1


@pytest.mark.parametrize("folder", sorted(FOLDER))
def test_a_pass_is_bounded_and_a_lowered_limit_reaches_old_files(make_store, folder):
    board, store = make_store(**{FOLDER[folder]: 1000, FOLDER[folder] + "_KB": 1000})
    fill(board, folder, 2 * PER_PASS + 10)
    assert store.prune(board.now) == 0
    setattr(store.config, FOLDER[folder].lower(), 6)
    assert passes(board, store) == [PER_PASS, PER_PASS, 4] and len(board.ls(folder)) == 6


def test_links_go_and_what_they_name_stays(make_store, tmp_path):
    board, store = make_store(CORRUPT_KEEP=1, DLQ_KEEP=1)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("dear")
    for folder in (DLQ, CORRUPT):
        (board.spool / folder / "link-to-folder").symlink_to(precious)
        (board.spool / folder / "link-to-file").symlink_to(precious / "file")
        (board.spool / folder / "newest.json").write_text("x")
        for name in ("link-to-folder", "link-to-file"):
            os.utime(board.spool / folder / name, (0, 0), follow_symlinks=False)
    inner = board.spool / CORRUPT / "folder"
    inner.mkdir()
    (inner / "link").symlink_to(precious)
    os.utime(inner, (0, 0))
    passes(board, store)
    assert board.ls(DLQ) == ["newest.json"] and board.ls(CORRUPT) == ["newest.json"]
    assert (precious / "file").read_text() == "dear"


def test_dot_files_go_after_a_day_of_uptime_and_links_among_them_too(make_store, tmp_path):
    board, store = make_store()
    (tmp_path / "precious").write_text("dear")
    for folder in (INCOMING, DLQ, DONE):
        (board.spool / folder / ".half").write_text("x")
        (board.spool / folder / ".link").symlink_to(tmp_path / "precious")
    assert store.prune(board.now) == 0
    board.clock.step(10 * DAY_S)  # the wall clock alone is no reason
    assert store.prune(board.now) == 0
    board.clock.sleep(DAY_S + 1)
    assert store.prune(board.now) == 6 and (tmp_path / "precious").read_text() == "dear"
    assert [name for folder in (INCOMING, DLQ, DONE) for name in os.listdir(board.spool / folder) if name[0] == "."] == []


def test_the_journal_keeps_to_its_bytes_and_lowering_them_applies(make_store):
    board, store = make_store(DONE_KEEP_KB=48)
    for n in range(900):
        store.enqueue(Job("mail", id="job-number-%05d-%s" % (n, "x" * 40)), board.now, fast=True)
        store.ack(store.claim(board.now, None, 60), board.now)
        if n % 32 == 0:
            store.flush(board.now)
    store.flush(board.now)

    def size():
        return sum(path.stat().st_size for path in (board.spool / DONE).iterdir())
    assert size() > 48 * 1024
    went = passes(board, store)
    assert went and size() <= 48 * 1024
    assert store.journal.find("job-number-00899-" + "x" * 40) and store.journal.done_count() == 900
    store.journal.keep_kb = 16
    passes(board, store)
    assert size() <= 16 * 1024 and store.journal.done_count() == 900


def test_what_still_has_to_run_is_never_touched(make_store):
    board, store = make_store(DLQ_KEEP=0, DLQ_KEEP_KB=0, CORRUPT_KEEP=0, CORRUPT_KEEP_KB=0, KEEP_DAYS=1, DONE_KEEP_KB=16)
    for id in "abc":
        store.enqueue(Job("mail", id=id), board.now)
    store.retry(store.claim(board.now, None, 60), 0, "exit 1", board.now)
    store.claim(board.now, None, 60)
    for folder in (INCOMING, PROCESSING, FAILED):
        for path in (board.spool / folder).iterdir():
            os.utime(path, (1, 1))
    before = {folder: board.ls(folder) for folder in (INCOMING, PROCESSING, FAILED)}
    board.clock.sleep(400 * DAY_S)
    passes(board, store)
    assert {folder: board.ls(folder) for folder in (INCOMING, PROCESSING, FAILED)} == before and all(before.values())
