"""The seam: sequences of calls, locks, files in /run."""

import os

import pytest

from edgeq.disk import Disk, Lock, forget, read_text, write_run
from tests.harness import FaultyDisk, Killed


def test_publish_writes_renames_and_flushes_in_this_order(tmp_path):
    disk = FaultyDisk()
    disk.publish(str(tmp_path), "name", b"data")
    assert [name for name, _ in disk.trace] == ["open", "fchmod", "write", "rename", "fsync"]
    assert (tmp_path / "name").read_bytes() == b"data" and disk.fds == set()
    assert (disk.flushes_n, disk.written_bytes) == (1, 4)


def test_replace_flushes_the_file_before_and_the_folder_after(tmp_path):
    disk = FaultyDisk()
    disk.replace(str(tmp_path), "name", b"data")
    assert [name for name, _ in disk.trace] == ["open", "fchmod", "write", "fsync", "rename", "open", "fsync"]


@pytest.mark.parametrize("n", (1, 2, 3, 4))
def test_nothing_stays_of_a_publish_that_failed_before_its_rename(tmp_path, n):
    disk = FaultyDisk(n, 28)
    disk._can_hit = lambda name, is_write: True
    with pytest.raises(OSError):
        disk.publish(str(tmp_path), "name", b"data")
    assert os.listdir(tmp_path) == [] and disk.fds == set()


def test_a_short_write_is_carried_on(tmp_path):
    disk = FaultyDisk(3, short=True)
    disk.publish(str(tmp_path), "name", b"0123456789")
    assert disk.hits == 1 and (tmp_path / "name").read_bytes() == b"0123456789"


def test_a_long_list_of_the_kernel_is_read_to_its_end():
    """It comes a page at a time: a board with forty mounts has more of them than one read shows."""
    with open("/proc/kallsyms", "rb", buffering=0) as file:
        assert len(file.read(100_000)) < 100_000
    assert len(read_text("/proc/kallsyms", 100_000)) == 100_000


@pytest.mark.parametrize("size", (0, 1, 65535, 65536, 65537, 200_000))
def test_a_file_is_read_whole_up_to_the_limit(tmp_path, size):
    (tmp_path / "f").write_bytes(b"x" * size)
    assert len(Disk().read_file(str(tmp_path / "f"), 1 << 20)) == size
    assert len(Disk().read_file(str(tmp_path / "f"), 70_000)) == min(size, 70_000)


def test_reading_follows_no_link_and_blocks_on_no_fifo(tmp_path):
    (tmp_path / "link").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError):
        Disk().open_read(str(tmp_path / "link"))
    os.close(Disk().open_read(str(tmp_path / "fifo")))


def test_a_folder_that_cannot_be_flushed_reduces_us_and_other_errors_show(tmp_path):
    disk = Disk()
    disk.fsync = lambda fd: (_ for _ in ()).throw(OSError(22, "EINVAL"))
    disk.flush_folder(str(tmp_path))
    assert disk.is_reduced
    disk.fsync = lambda fd: (_ for _ in ()).throw(OSError(5, "EIO"))
    with pytest.raises(OSError):
        disk.flush_folder(str(tmp_path))


def test_a_file_where_a_folder_should_be_is_an_error(tmp_path):
    assert Disk().make_folder(str(tmp_path / "a"), 0o2750) is None  # it was not there
    assert Disk().make_folder(str(tmp_path / "a"), 0o2750).st_ino == (tmp_path / "a").stat().st_ino
    assert (tmp_path / "a").stat().st_mode & 0o7777 == 0o2750
    (tmp_path / "b").write_text("")
    with pytest.raises(NotADirectoryError):
        Disk().make_folder(str(tmp_path / "b"), 0o750)


def test_an_exclusive_lock_keeps_others_out_until_dropped(tmp_path):
    one, two = Lock(str(tmp_path / "l")), Lock(str(tmp_path / "l"))
    assert one.take() and not two.take(wait=False)
    one.drop()
    assert two.take(wait=False)
    two.drop()


def test_shared_locks_live_together_and_the_last_may_become_exclusive(tmp_path):
    one, two = Lock(str(tmp_path / "l"), shared=True), Lock(str(tmp_path / "l"), shared=True)
    assert one.take() and two.take() and not one.try_exclusive()
    two.drop()
    assert one.try_exclusive()
    one.drop()


@pytest.mark.timeout(10)
def test_a_lock_may_be_nested_and_is_held_to_the_outer_end(tmp_path):
    one, two = Lock(str(tmp_path / "l")), Lock(str(tmp_path / "l"))
    with one:
        with one:
            pass
        assert not two.take(wait=False)
    assert two.take(wait=False)
    two.drop()


def test_a_lock_knows_when_its_file_was_removed(tmp_path):
    lock = Lock(str(tmp_path / "l"))
    lock.take()
    assert lock.is_ours()
    (tmp_path / "l").unlink()
    assert not lock.is_ours()
    lock.drop()


def test_files_in_run_are_replaced_whole_and_forgotten_twice(tmp_path):
    path = str(tmp_path / "f")
    write_run(path, b"one\n")
    write_run(path, b"two\n")
    assert read_text(path) == "two\n" and os.listdir(tmp_path) == ["f"]
    forget(path)
    forget(path)
    assert os.listdir(tmp_path) == []


def test_the_double_kills_for_good(tmp_path):
    disk = FaultyDisk(2)
    with pytest.raises(Killed):
        disk.publish(str(tmp_path), "name", b"data")
    with pytest.raises(Killed):
        disk.exists(str(tmp_path))
    disk.bury()
