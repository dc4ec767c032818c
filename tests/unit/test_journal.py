"""The done journal: bounded, checksummed, shared by processes."""

from binascii import crc32
from threading import Thread

import pytest
from hypothesis import given, strategies as st

from edgeq.store.journal import CHUNK_BYTES, ROLLED, Journal, Line, decode_line, parse_segment
from tests.harness import FaultyDisk


def line(id, seq=1, note=""):
    return Line(id, 0, seq, 1_800_000_000, 1, "mail", 5, note)


@pytest.fixture
def make(tmp_path):
    def make(keep_kb=16, disk=None, remembers=True):
        journal = Journal(disk or FaultyDisk(), str(tmp_path), keep_kb)
        if remembers:
            journal.remember()
        made.append(journal)
        return journal
    made = []
    yield make
    for journal in made:
        journal.close()


def fill(journal, first, n, note="n" * 120):
    for at in range(first, first + n):
        journal.append([line("j%d" % at, at, note)], at)


@given(st.text(max_size=200))
def test_a_line_is_one_line_and_comes_back(note):
    one = line("a", 7, note)
    data = one.encode()
    assert data.count(b"\n") == 1 and data.count(b" ") == 8 and data.isascii()
    found = decode_line(data[:-1])
    assert (found.id, found.seq, found.attempts, found.type, found.ms) == ("a", 7, 1, "mail", 5)


@given(st.integers(0, 60), st.integers(0, 255))
def test_a_damaged_line_is_ignored(at, byte):
    data = bytearray(line("a", 7).encode()[:-1])
    if at < len(data) and data[at] != byte:
        data[at] = byte
        assert decode_line(bytes(data)) is None


def test_lines_are_numbered_and_found(make):
    journal = make()
    journal.append([line("a"), line("b")], 9)
    journal.append([line("c")], 9)
    journal.flush()
    assert [journal.find(id).n for id in "abc"] == [1, 2, 3] and journal.find("d") is None and journal.done_count() == 3
    assert journal.find("a b") is None


def test_a_reader_without_memory_finds_the_same(make):
    fill(make(), 0, 100)
    reader = make(remembers=False)
    assert all(reader.find("j%d" % n) for n in range(100)) and reader.done_count() == 100 and reader.highest_seq() == 99


def test_the_count_goes_on_after_a_restart(make):
    fill(make(), 0, 50)
    again = make()
    fill(again, 50, 50)
    assert again.done_count() == 100 and [again.find("j%d" % n).n for n in (0, 49, 50, 99)] == [1, 50, 51, 100]


def test_two_processes_share_one_journal(make):
    one, two = make(), make()
    for n in range(0, 120, 2):
        fill(one, n, 1)
        fill(two, n + 1, 1)
    assert one.done_count() == two.done_count() == 120
    assert sorted(found.n for found in (one.find("j%d" % n) for n in range(120))) == list(range(1, 121))


def test_a_process_that_only_reads_learns_what_others_wrote(make):
    """Its filter is no proof against lines that came after it was built."""
    idle = make()
    writer = make()
    writer.append([line("a")], 1)
    assert idle.find("a")
    fill(writer, 0, 200)  # several segments on
    assert all(idle.find("j%d" % n) for n in range(200))


def test_a_process_that_begins_to_write_learns_what_others_wrote(make):
    late, writer = make(), make()
    fill(writer, 0, 100)
    late.append([line("mine")], 100)
    assert all(late.find("j%d" % n) for n in range(100))


def test_a_torn_end_is_skipped_and_never_overwritten(make, tmp_path):
    journal = make()
    journal.append([line("a")], 1)
    journal.close()
    segment, = tmp_path.iterdir()
    data = bytearray(segment.read_bytes())
    end = len(data.rstrip(b"\n")) + 1
    data[end:end + 9] = b"torn 2 00"
    segment.write_bytes(data)
    again = make()
    again.append([line("b")], 2)
    assert again.find("a") and again.find("b").n == 2 and b"torn 2 00\n" in segment.read_bytes()


def test_only_the_old_ones_are_surplus_and_never_the_newest(make):
    journal = make()
    fill(journal, 0, 300)
    gone = 0
    while (name := journal.surplus()):
        assert name == journal.segments()[0]
        journal.delete(name)
        gone += 1
    assert gone > 3 and journal.find("j299") and journal.find("j0") is None and journal.done_count() == 300


def test_a_line_of_a_newer_format_says_that_its_id_is_done(make, tmp_path):
    """B93: whatever else it says, and however it says it: the wrapper believes it too."""
    body = b"new later x %s 1r mail fast - more " % (b"9" * 5000)
    (tmp_path / "0000000000000500.70.v2.log").write_bytes(body + b"%08x\n" % crc32(body) + b"\n" * 4096)
    journal = make()
    assert (journal.find("new").n, journal.find("other"), journal.highest_seq(), journal.done_count()) == (0, None, 500, 70)
    journal.append([line("a", 600)], 600)
    assert journal.find("a").n == 71 and journal.find("new").id == "new"


def test_a_segment_of_a_newer_format_is_read_for_order_and_never_changed(make, tmp_path):
    newer = tmp_path / "0000000000000500.70.v2.log"
    newer.write_bytes(b"\n" * 4096)
    journal = make()
    assert journal.highest_seq() == 500
    journal.flush_all()
    journal.append([line("a", 3)], 3)
    journal.flush_all()
    assert newer.read_bytes() == b"\n" * 4096 and journal.find("a").n == 71
    assert parse_segment(journal.segments()[-1])[0] > 500 and journal.surplus() is None


def test_the_newest_segments_name_carries_the_highest_seq(make):
    journal = make()
    fill(journal, 0, 5)
    journal.renew_empty(12345)
    assert parse_segment(journal.segments()[-1])[:2] == (12345, 5) and make().highest_seq() == 12345


def test_a_batch_larger_than_a_segment_is_written(make):
    journal = make()
    journal.append([line("j%d" % n, n, "n" * 120) for n in range(40)], 40)
    journal.flush()
    assert all(journal.find("j%d" % n) for n in range(40))
    other = make()
    fill(other, 40, 5)
    fill(journal, 45, 5)
    assert all(make().find("j%d" % n) for n in range(50))


@pytest.mark.parametrize("call", ("fdatasync",))
def test_after_a_failed_flush_every_unsafe_line_goes_elsewhere(make, call):
    journal = make()
    journal.append([line("safe")], 1)
    journal.flush()
    journal.append([line("a"), line("b")], 2)
    real = journal.disk.fdatasync
    journal.disk.fdatasync = lambda fd: (_ for _ in ()).throw(OSError(5, "EIO"))
    with pytest.raises(OSError):
        journal.flush()
    journal.disk.fdatasync = real
    assert journal.is_unsafe
    before = set(journal.segments())
    journal.renew(3)
    assert not journal.is_unsafe
    new, = set(journal.segments()) - before
    assert {found.id for found in journal.lines(new)} >= {"a", "b"} and journal.find("safe")


def test_a_roll_whose_flush_failed_is_not_forgotten(make):
    journal = make()
    fill(journal, 0, 20)
    journal.disk.fdatasync = lambda fd: (_ for _ in ()).throw(OSError(5, "EIO"))
    with pytest.raises(OSError):
        fill(journal, 20, 5)
    assert journal.is_unsafe


def test_the_mark_of_a_rolled_segment_is_no_line(make, tmp_path):
    fill(make(), 0, 60)
    old = sorted(tmp_path.iterdir())[0]
    assert old.read_bytes().rstrip(b"\n").endswith(ROLLED.strip()) and all(found.id != "+" for found in make().lines(old.name))


def test_a_line_that_another_appends_during_the_first_look_is_seen_whole(make):
    writer = make(256)
    fill(writer, 1, 1)
    while writer._end < CHUNK_BYTES - 60:
        fill(writer, writer.count + 1, 1, "n" * min(120, max(CHUNK_BYTES - 80 - writer._end - 60, 1)))

    disk, others = FaultyDisk(), []
    pread = disk.pread

    def race(fd, size, at):
        data = pread(fd, size, at)
        if not others and (size, at) == (CHUNK_BYTES, 0):
            others.append(Thread(target=fill, args=(writer, writer.count + 1, 1)))
            others[0].start()
            others[0].join(0.2)  # long enough where nothing holds it back
        return data
    disk.pread = race
    late = make(256, disk, remembers=False)
    fill(late, 1000, 1)
    others[0].join()
    numbers = [found.n for name in late.segments() for found in late.lines(name)]
    assert numbers == list(range(1, len(numbers) + 1)) and writer.done_count() == late.done_count() == len(numbers)
