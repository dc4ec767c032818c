"""What only the spool has: names in folders, files that people drop, what cannot be read, one id in two files."""

import os
import socket
from binascii import crc32

import pytest

from edgeq.errors import BadJob, LeaseLost, StoreFull
from edgeq.job import CORRUPT, DLQ, DONE, FAILED, INCOMING, PROCESSING, Job
from edgeq.lease import start_time
from edgeq.store.journal import Line
from tests.harness import Board, FaultyDisk, dead_owner, recover

RECORD = b'{"id":"%s","type":"mail","payload":{"to":"x"}}\n'


def put(board, store, id=None, **wishes):
    return store.enqueue(Job("mail", id=id, **wishes), board.now).id


def take(board, store):
    return store.claim(board.now, None, 60, True)


def look(board, store, times=2, pause_s=3):
    """The worker's looks at what lies in incoming/, a while apart; whether anything became a job."""
    adopted = 0
    for _ in range(times):
        store.claim(board.now, lambda type: False, 60, True)
        adopted += store.adopt(board.now)
        board.clock.sleep(pause_s)
    return adopted


def drain(board, store):
    ran = []
    while lease := take(board, store):
        ran.append(lease.entry.id)
        store.ack(lease, board.now)
    store.flush(board.now)
    return ran


# --- names ---------------------------------------------------------------------------------------------------


def test_the_name_tells_the_state(board, store):
    seq = 1_800_000_000_000_000
    put(board, store, "a", priority=2)
    assert board.ls(INCOMING) == ["2.%d.0.0.mail.a.json" % seq]
    lease = take(board, store)
    assert board.ls(INCOMING) == [] and board.ls(PROCESSING) == ["2.%d.0.1.mail.a.%s.json" % (seq, lease.token)]
    store.retry(lease, 5, "exit 1", board.now)
    assert board.ls(FAILED) == ["2.%d.1800000005.1.mail.a.json" % seq]
    board.clock.sleep(6)
    lease = take(board, store)
    store.ack(lease, board.now)
    assert board.ls(PROCESSING) == ["2.%d.1800000005.2.mail.a.%s.settling" % (seq, lease.token)]
    store.flush(board.now)
    assert board.ls(PROCESSING) == []


def test_the_record_is_canonical(board, store):
    store.enqueue(Job("mail", b'{"x": 1}', id="a", priority=1, max_attempts=3, timeout_s=9, expires_s=8, key="k", delay_s=5),
                  board.now)
    assert (board.spool / INCOMING / board.ls(INCOMING)[0]).read_bytes() == (
        b'{"id":"a","type":"mail","created_at":1800000000,"priority":1,"max_attempts":3,"timeout_s":9,"expires_s":8,'
        b'"key":"k","available_at":1800000005,"payload":{"x": 1}}\n')


def test_a_state_change_does_not_touch_the_file(board, store):
    put(board, store, "a")
    path = board.spool / INCOMING / board.ls(INCOMING)[0]
    before = path.stat().st_ino, path.read_bytes()
    store.retry(take(board, store), 0, "exit 1", board.now)
    path = board.spool / FAILED / board.ls(FAILED)[0]
    assert (path.stat().st_ino, path.read_bytes()) == before


def test_folders_have_the_modes_of_the_manual(board, store):
    modes = {folder: oct((board.spool / folder).stat().st_mode & 0o7777) for folder in (INCOMING, PROCESSING, FAILED, DLQ, CORRUPT,
                                                                                        DONE)}
    assert modes == {INCOMING: "0o3770", PROCESSING: "0o2750", FAILED: "0o2750", DLQ: "0o2750", CORRUPT: "0o2750", DONE: "0o2750"}


def test_job_files_are_0640_whatever_the_umask(board, store):
    old = os.umask(0o077)
    try:
        put(board, store, "a")
    finally:
        os.umask(old)
    assert (board.spool / INCOMING / board.ls(INCOMING)[0]).stat().st_mode & 0o777 == 0o640


def test_a_journal_of_a_newer_format_is_no_finding(board, store):
    body = b"new - - - 1r mail - - "
    newer = board.spool / "done" / "1799999999999999.70.v2.log"
    newer.write_bytes((body + b"%08x\n" % crc32(body)) * 2 + b"\n" * 4096)
    before, store = newer.read_bytes(), board.open()
    assert store.check(board.now) == []
    put(board, store, "new")
    assert put(board, store, "b") == "b" and drain(board, store) == ["b"]
    store.purge([DONE], board.now)  # as `move` does when all was carried, which such a line cannot be
    assert newer.read_bytes() == before and len(board.ls(DONE)) == 2


def test_a_newer_format_is_left_alone_and_counted(board, store):
    name = "5.1800000000000000.0.0.mail.a.v2.json"
    (board.spool / INCOMING / name).write_bytes(b"not for us")
    assert look(board, store) == 0 and drain(board, store) == []
    assert board.ls(INCOMING) == [name] and board.ls(CORRUPT) == []
    assert store.counts(board.now).newer == 1 and store.check(board.now) == []


def test_one_pass_brings_a_journal_back_within_its_bound(board, store):
    """A busy minute fills many segments, and there is one pass a minute."""
    for n in range(3 * store.config.done_keep_kb * 1024 // 60 // 500):
        store.journal.append([Line("j%d-%d" % (n, k), 0, 1, 1, 1, "mail", 0, "x" * 20) for k in range(500)], store.seq.newest)
    store.prune(board.now)
    assert sum(path.stat().st_size for path in (board.spool / DONE).iterdir()) <= store.config.done_keep_kb * 1024
    assert store.journal.find("j%d-499" % n)


def test_names_of_a_moment_are_not_remembered(board, store):
    """Each enqueue has a dot-name for a moment; a scan that meets one keeps it only while it is there."""
    for n in range(100):
        dot = board.spool / INCOMING / (".%d" % n)
        dot.write_bytes(b"half")
        store.prune(board.now)
        assert len(store.dots) == 1
        dot.unlink()
    store.prune(board.now)
    assert not store.dots


def test_dot_names_are_never_read_and_go_after_a_day_of_uptime(board, store):
    path = board.spool / INCOMING / ".half"
    path.write_bytes(RECORD % b"a")
    os.utime(path, (board.clock.wall, board.clock.wall))
    assert look(board, store) == 0
    board.clock.step(10 ** 7)
    store.prune(board.now)
    assert path.exists(), "a clock step is not a day"
    board.clock.sleep(90_000)
    store.prune(board.now)
    assert not path.exists()


# --- files that people drop ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name",
                         ("job.json", "x", "5.1.0.0.mail.a.json", "--help", "a b\nc.json", "99.1800000000000000.0.0.mail.a.json"))
def test_a_dropped_file_of_any_name_becomes_a_job(board, store, name):
    (board.spool / INCOMING / name).write_bytes(b'{"type":"mail", "id":"a",\n "payload": {"x" : 1e999}}\n')
    assert look(board, store, 1) == 1
    lease = take(board, store)
    assert lease.entry.id == "a" and lease.record.payload == b'{"x" : 1e999}' and not lease.redelivered


def test_a_dropped_file_needs_only_a_type(board, store):
    (board.spool / INCOMING / "x").write_bytes(b'{"type":"mail"}\n')
    look(board, store, 1)
    lease = take(board, store)
    assert lease.record.payload == b"{}" and lease.entry.id.startswith("1800000000000000-")


def test_a_dropped_file_keeps_its_wishes(board, store):
    (board.spool / INCOMING / "x").write_bytes(b'{"type":"mail","id":"a","priority":2,"available_at":1800000050}\n')
    look(board, store, 1)
    assert board.ls(INCOMING) == ["2.1800000000000000.1800000050a.0.mail.a.json"]


def test_a_dropped_file_counts_as_ready_before_a_worker_looks(board, store):
    """As the wrapper counts it: `mv dlq/ID.json incoming/` with no worker up is a job that waits."""
    put(board, store, "a")
    (board.spool / "incoming" / "by hand").write_text('{"type":"mail"}\n')
    (board.spool / "incoming" / "x.v2.json").write_text('{"type":"mail"}\n')
    (board.spool / "failed" / "stranger").write_text('{"type":"mail"}\n')
    assert store.counts(board.now).ready == 2


def test_a_file_still_being_written_is_waited_for(board, store):
    path = board.spool / INCOMING / "x.json"
    path.write_bytes(b'{"type":"mail"')
    for size in range(4):
        assert look(board, store, 1) == 0
        with path.open("ab") as file:
            file.write(b" ")
    assert board.ls(CORRUPT) == []
    with path.open("ab") as file:
        file.write(b"}\n")
    assert look(board, store, 2) == 1


def test_what_does_not_change_for_two_seconds_is_set_aside_with_a_reason(board, store):
    (board.spool / INCOMING / "x y\n.json").write_bytes(b'{"type":"mail"')
    look(board, store, 1, 1)
    look(board, store, 1, 0.5)
    assert board.ls(CORRUPT) == []
    look(board, store, 2)
    assert board.ls(INCOMING) == [] and board.ls(CORRUPT) == ["x_y_.json"]
    why, = (board.spool / CORRUPT).glob("*.why")
    assert why.read_text().count("\n") == 1 and "torn" in why.read_text()
    assert store.counts(board.now).corrupt == 1


def bad(kind, path):
    """Put something at `path` that is no job."""
    if kind == "link":
        secret = path.parents[3] / "secret"
        secret.write_bytes(RECORD % b"a")
        path.symlink_to(secret)
    elif kind == "dangling link":
        path.symlink_to("/nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
        os.chdir(here)
    elif kind == "hard link":
        secret = path.parents[3] / "secret"
        secret.write_bytes(RECORD % b"a")
        path.hardlink_to(secret)
    elif kind == "folder":
        path.mkdir()
        (path / "in it").write_bytes(b"x")
    else:
        path.write_bytes({"not json": b"hello\n", "empty": b"", "array": b"[]\n", "no type": b"{}\n",
                          "bad type": b'{"type":"../sh"}\n',
                          "latin-1": b'{"type":"mail","payload":"\xe4"}\n',
                          "too big": b'{"type":"mail","payload":"%s"}\n' % (b"x" * 70000),
                          "too deep": b'{"type":"mail","payload":%s%s}\n' % (b"[" * 65, b"]" * 65),
                          "twice": b'{"type":"a","type":"b"}\n',
                          "surrogate": b'{"type":"mail","payload":"\\ud800"}\n', "nan": b'{"type":"mail","payload":NaN}\n'}[kind])


BAD = ("link", "dangling link", "fifo", "socket", "hard link", "folder", "not json", "empty", "array", "no type", "bad type",
       "latin-1",
       "too big", "too deep", "twice", "surrogate", "nan")


NAMES = ("dropped.json", "5.1800000000000000.0.0.mail.a.json")


@pytest.mark.parametrize("name, kind", [(name, kind) for name in NAMES for kind in BAD if (name, kind) != (NAMES[1], "too big")])
def test_what_is_no_job_is_set_aside_whole_and_stops_nobody(board, store, kind, name):
    bad(kind, board.spool / INCOMING / name)
    put(board, store, "good")
    assert drain(board, store) == ["good"]
    for _ in range(3):
        look(board, store, 1)
        drain(board, store)
    assert board.ls(INCOMING) == [] and board.ls(CORRUPT) == [name]
    assert store.check(board.now) == [] and drain(board, store) == []


@pytest.mark.parametrize("content", (b'{"id":"b","type":"mail"}\n', b'{"id":"a","type":"other"}\n'))
def test_a_name_and_a_content_that_disagree_are_set_aside(board, store, content):
    (board.spool / INCOMING / "5.1800000000000000.0.0.mail.a.json").write_bytes(content)
    assert drain(board, store) == []
    board.clock.sleep(3)
    assert drain(board, store) == [] and len(board.ls(CORRUPT)) == 1


def test_a_torn_job_is_replaced_by_a_second_enqueue_of_its_id(board, store):
    put(board, store, "a")
    path = board.spool / INCOMING / board.ls(INCOMING)[0]
    path.write_bytes(path.read_bytes()[:20])
    assert store.enqueue(Job("mail", id="a"), board.now).status == "queued"
    assert len(board.ls(CORRUPT)) == 1 and drain(board, store) == ["a"]


def test_two_files_set_aside_under_one_name_are_both_kept(board, store):
    for n in range(2):
        (board.spool / INCOMING / "x").write_bytes(b"%d" % n)
        look(board, store, 2)
    assert len(board.ls(CORRUPT)) == 2


def test_corrupt_is_bounded(tmp_path):
    board = Board(tmp_path, CORRUPT_KEEP=2)
    store = board.open()
    for kind in ("folder", "fifo", "link", "not json"):
        bad(kind, board.spool / CORRUPT / kind)
    store.prune(board.now)
    assert len(board.ls(CORRUPT)) == 2


def test_a_letter_moved_by_hand_is_a_kick(board, store):
    put(board, store, "a", delay_s=1)
    board.clock.sleep(2)
    lease = take(board, store)
    store.retry(lease, 0, "exit 1", board.now)
    board.clock.sleep(1)
    store.bury(take(board, store), "exit 65", board.now)
    board.clock.wall = 100.0  # and nobody knows the time
    (board.spool / DLQ / "a.json").rename(board.spool / INCOMING / "a.json")
    assert look(board, store, 1) == 1
    lease = take(board, store)
    assert lease.entry.attempts == 1 and lease.redelivered


def test_adoption_never_renames_over_another_file(board, store):
    put(board, store, "a")
    (board.spool / INCOMING / "x").write_bytes(RECORD % b"a")
    assert look(board, store, 1) == 0
    assert len(board.ls(INCOMING)) == 1 and drain(board, store) == ["a"]


# --- one id in two files -------------------------------------------------------------------------------------


def double(board, store, folder):
    """A second file of the id `a` in incoming/, beside the one in `folder`."""
    put(board, store, "a")
    name = board.ls(INCOMING)[0]
    content = (board.spool / INCOMING / name).read_bytes()
    lease = None
    if folder != INCOMING:
        lease = take(board, store)
    if folder == DLQ:
        store.bury(lease, "exit 65", board.now)
    elif folder == FAILED:
        store.retry(lease, 1, "exit 1", board.now)
    elif folder == DONE:
        store.ack(lease, board.now)
        store.flush(board.now)
    (board.spool / INCOMING / name.replace("5.18", "5.17")).write_bytes(content)
    return lease


@pytest.mark.parametrize("folder, ran", ((DONE, []), (DLQ, []), (FAILED, []), (INCOMING, ["a"])))
def test_of_two_files_of_one_id_the_lower_rank_is_dropped(board, store, folder, ran):
    double(board, store, folder)
    assert drain(board, store) == ran
    board.clock.sleep(5)
    drain(board, store)
    assert board.ls(INCOMING) == board.ls(FAILED) == board.ls(PROCESSING) == []
    assert board.ls(DLQ) == (["a.json"] if folder == DLQ else []) and store.check(board.now) == []


def test_a_second_claim_of_one_id_gives_back_uncharged(board, store):
    lease = double(board, store, PROCESSING)
    assert take(board, store) is None
    assert [name.split(".")[3] for name in board.ls(INCOMING)] == ["0"]
    store.ack(lease, board.now)
    board.clock.sleep(2)
    assert drain(board, store) == [] and board.ls(INCOMING) == []


def test_a_torn_letter_does_not_outrank_a_job(board, store):
    put(board, store, "a")
    (board.spool / DLQ / "a.json").write_bytes(b'{"id":"a","type":"ma')
    assert drain(board, store) == ["a"] and board.ls(CORRUPT) == ["a.json"]


def test_a_letter_whose_id_is_done_is_swept_at_start(board, store):
    """[M]: it was kicked and done, and a cut brought the letter's name back."""
    put(board, store, "a")
    drain(board, store)
    (board.spool / DLQ / "a.json").write_bytes(RECORD % b"a")
    store.sweep_dead(board.now)
    assert board.ls(DLQ) == []


def test_a_dead_claim_beside_its_letter_is_dropped(board, store):
    doomed = board.open(owner=dead_owner())
    put(board, store, "a")
    lease = doomed.claim(board.now, None, 60, True)
    (board.spool / DLQ / "a.json").write_bytes(RECORD % b"a")
    assert lease and recover(store, board.now) == []
    assert board.ls(PROCESSING) == [] and board.ls(DLQ) == ["a.json"]


def test_check_names_doubles_and_repair_keeps_the_higher_rank(board, store):
    double(board, store, DLQ)
    assert any("a is in dlq/ and in incoming/" in sentence for sentence in store.check(board.now))
    store.check(board.now, True)
    assert store.check(board.now) == [] and board.ls(DLQ) == ["a.json"] and board.ls(INCOMING) == []


@pytest.mark.parametrize("move", [
    lambda store, lease, now: store.retry(lease, 5, "exit 1", now),
    lambda store, lease, now: store.hold(lease, "paused", False, now)], ids=("retry", "hold"))
def test_repair_on_a_running_spool_drops_no_job_that_moves_meanwhile(board, store, move):
    """Met in incoming/, in processing/ and in failed/ (or in incoming/ again): it was one file all the time."""
    leases = []

    class Meanwhile(FaultyDisk):
        def names(self, folder):
            if folder.endswith("/processing") and not leases:
                leases.append(take(board, store))
            elif folder.endswith("/failed") and len(leases) == 1:
                leases.append(move(store, leases[0], board.now))
            return FaultyDisk.names(self, folder)
    put(board, store, "a")
    assert board.open(Meanwhile(), start=False).check(board.now, repair=True) == []
    assert len(leases) == 2 and len(board.ls(INCOMING) + board.ls(FAILED)) == 1 and store.check(board.now) == []


def test_repair_sets_aside_what_cannot_be_read_and_makes_missing_folders(board, store):
    (board.spool / FAILED / "what").write_bytes(b"x")
    (board.spool / DLQ / "a.json").write_bytes(b"torn")
    (board.spool / CORRUPT).rmdir()
    assert "corrupt/ is missing" in store.check(board.now)[0]
    store.check(board.now, True)
    assert store.check(board.now) == [] and board.ls(CORRUPT) == ["a.json", "what"]


@pytest.mark.parametrize("errno", (5, 24))
def test_check_does_not_set_aside_what_it_could_not_read_this_time(board, errno):
    """EIO and EMFILE say nothing about the job."""
    store = board.open(FaultyDisk())
    put(board, store, "a")
    store.disk.open_read = lambda path: (_ for _ in ()).throw(OSError(errno, os.strerror(errno), path))
    try:
        store.check(board.now, True)
    except OSError as error:
        assert error.errno == errno
    assert len(board.ls(INCOMING)) == 1 and board.ls(CORRUPT) == []


# --- the running mark ----------------------------------------------------------------------------------------


def test_the_running_mark_is_written_before_the_first_claim_and_removed_at_a_clean_stop(board, store):
    mark = board.spool / "running"
    assert not mark.exists()
    put(board, store, "a")
    assert not mark.exists()
    store.ack(take(board, store), board.now)
    assert mark.read_text() == board.clock.boot_id + "\n"
    store.close(board.now)
    assert not mark.exists()


def test_lingering_out_and_a_claim_left_behind_leave_the_mark(board, store):
    put(board, store, "a")
    take(board, store)
    store.close(board.now)
    assert (board.spool / "running").exists()
    store = board.open()
    store.close(board.now, clean=False)
    assert (board.spool / "running").exists()


def test_a_mark_that_could_not_be_flushed_is_flushed_before_a_claim(board):
    store = board.open(FaultyDisk())
    put(board, store, "a")
    folder_flush = store.disk.flush_folder
    store.disk.flush_folder = lambda path: (_ for _ in ()).throw(OSError(5, "EIO"))
    with pytest.raises(OSError):
        take(board, store)
    flushed = []
    store.disk.flush_folder = lambda path: flushed.append(path) or folder_flush(path)
    if store.is_broken:
        store.reopen(board.now)
    assert take(board, store) and str(board.spool) in [path.rstrip("/") for path in flushed]


# --- a full disk (P7) ----------------------------------------------------------------------------------------


class Full(FaultyDisk):
    """ENOSPC for every new byte while `is_full`."""

    is_full = False

    def write_all(self, fd, data):
        if self.is_full:
            raise OSError(28, "No space left on device")
        FaultyDisk.write_all(self, fd, data)


def test_a_job_dies_on_a_full_disk_without_a_byte(board):
    store = board.open(Full())
    put(board, store, "a")
    lease = take(board, store)
    store.disk.is_full = True
    store.bury(lease, "exit 65", board.now)
    assert board.ls(DLQ) == ["a.json"] and board.ls(PROCESSING) == []
    assert board.log.said("buried without its reason") == [{"id": "a", "why": "exit 65"}]
    store.kick("a", board.now)
    assert take(board, store).entry.id == "a"


def test_a_settle_on_a_full_disk_uses_the_ballast(board):
    store = board.open(Full())
    put(board, store, "a")
    lease = take(board, store)
    store.disk.is_full = True
    store.on_full = lambda: not setattr(store.disk, "is_full", False)
    store.bury(lease, "exit 65", board.now)
    assert b'"last_error":"exit 65"' in (board.spool / DLQ / "a.json").read_bytes()


def test_nothing_is_left_of_an_enqueue_that_found_no_room(board):
    store = board.open(Full())
    store.disk.is_full = True
    for jobs in (lambda: store.enqueue(Job("mail"), board.now), lambda: store.enqueue_many([Job("mail"), Job("mail")], board.now)):
        with pytest.raises((OSError, StoreFull)):
            jobs()
    assert list((board.spool / INCOMING).iterdir()) == []


# --- /run ----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(20)
@pytest.mark.parametrize("garble",
                         (lambda path: path.unlink(), lambda path: path.write_text("garbage"), lambda path: path.write_text("")))
def test_a_lost_or_garbled_seq_is_seeded_again(board, store, garble):
    put(board, store, "a")
    garble(board.run / "seq")
    put(board, store, "b")  # holds R/id.lock while it seeds
    garble(board.run / "seq")
    lease = take(board, store)
    store.give_back(lease, "stopped", board.now)
    assert drain(board, store) == ["a", "b"]


def test_a_given_id_that_looks_generated_seeds_nothing(board, store):
    """As the wrapper (tests/shell/test_enqueue.py): a dead letter that a device called so is no job of the year 2034."""
    for id in ("2046072010150012-00000007", "2046072010150013-sensor-7", "2046072010150013-x"):
        put(board, store, id)
        store.bury(take(board, store), "exit 65", board.now)
    generated = put(board, store)
    store.bury(take(board, store), "exit 65", board.now)
    assert store.highest_seq() == int(generated[:16])
    (board.spool / "dlq" / "2046072010150014-0123abcd.json").write_text("torn")  # nobody can say: the safe side
    assert store.highest_seq() == 2046072010150014


def test_enqueue_works_without_a_run_folder(board, store):
    board.reboot()
    assert store.enqueue(Job("mail"), board.now).status == "queued"


def test_a_claim_taken_over_while_its_file_cannot_be_read_is_not_lost(board):
    doomed = board.open(owner=dead_owner())
    put(board, doomed, "a")
    doomed.claim(board.now, None, 60, True)
    store = board.open(FaultyDisk())
    (entry, holder), = store.stale(board.now)
    open_read, store.disk.open_read = store.disk.open_read, lambda path: (_ for _ in ()).throw(OSError(24, "EMFILE"))
    with pytest.raises(OSError):
        store.take_over(entry, holder, board.now, 60)
    store.disk.open_read = open_read
    assert recover(store, board.now) == ["a"]


def test_a_kick_of_a_torn_letter_says_so(board, store):
    (board.spool / DLQ / "a.json").write_bytes(b"torn")
    with pytest.raises(BadJob):
        store.kick("a", board.now)


def test_files_of_the_folders_must_lie_on_one_file_system(board, store):
    from edgeq.errors import BadConfig
    real = store.disk.lstat

    class Elsewhere:
        st_mode, st_dev = 0o040755, 99
    store.disk.lstat = lambda path: Elsewhere if str(path).endswith("/dlq") else real(path)
    with pytest.raises(BadConfig, match="file system"):
        store.make_folders()


def test_a_late_worker_cannot_settle_a_claim_that_was_put_back(board, store):
    put(board, store, "a")
    late = take(board, store)
    store._mine.clear()  # as after a restart that kept the lease object
    board.clock.sleep(100)
    recover(board.open(owner=(os.getppid(), start_time(os.getppid()))), board.now)
    with pytest.raises(LeaseLost):
        store.ack(late, board.now)


def test_a_delay_beyond_the_last_instant_is_cut_to_it(tmp_path):
    board = Board(tmp_path)
    store = board.open()
    (board.run / "seq").write_text("8999999999999999\n")
    put(board, store, "a", delay_s=50)
    assert [entry.due for entry in store.entries(INCOMING)] == [8_999_999_999]
    assert drain(board, store) == ["a"]
