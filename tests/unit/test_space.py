"""Room: refuse early, flap never, and a ballast of real bytes (P7)."""

import os
from types import SimpleNamespace

import pytest

from edgeq.config import Config
from edgeq.disk import Disk
from edgeq.space import Guard, find_mount, is_mounted


@pytest.fixture
def guard(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "spool" / "incoming").mkdir(parents=True)
    config = Config()
    config.ballast_kb, config.max_jobs, config.min_free_inodes, config.min_free_kb = 8, 100, 100, 1000
    guard = Guard(Disk(), str(tmp_path / "spool"), str(tmp_path / "run"), config)
    guard.room = SimpleNamespace(f_bavail=10_000, f_frsize=1024, f_favail=10_000, f_files=20_000)
    guard.disk.statvfs = lambda path: guard.room
    return guard


def test_there_is_room(guard):
    assert guard.judge(0) == "" and (guard.free_kb, guard.free_inodes) == (10_000, 10_000)


@pytest.mark.parametrize("field, values, word", (("f_bavail", (999, 1050, 1101), "bytes"), ("f_favail", (99, 105, 111), "inodes")))
def test_intake_is_refused_below_the_limit_and_taken_again_well_above_it(guard, field, values, word):
    setattr(guard.room, field, values[0])
    assert guard.judge(0).startswith(word + ": %d" % values[0])
    setattr(guard.room, field, values[1])
    assert guard.judge(0).startswith(word)
    setattr(guard.room, field, values[2])
    assert guard.judge(0) == ""
    setattr(guard.room, field, values[1])
    assert guard.judge(0) == ""


def test_too_many_jobs(guard):
    assert [bool(guard.judge(n)) for n in (99, 100, 95, 91, 90, 99)] == [False, True, True, True, False, False]


def test_a_file_system_without_inodes_is_not_short_of_them(guard):
    guard.room.f_files = guard.room.f_favail = 0
    assert guard.judge(0) == "" and guard.free_inodes == -1


def test_the_spool_itself_may_be_bounded(guard, tmp_path):
    guard.config.spool_max_kb = 64
    (tmp_path / "spool" / "incoming" / "a").write_bytes(os.urandom(100_000))
    assert guard.judge(0).startswith("SPOOL_MAX_KB") and guard.used_kb() >= 97


def test_the_verdict_is_published_when_it_changes(guard, tmp_path):
    guard.judge(0)
    guard.publish()
    assert (tmp_path / "run" / "space").read_text().startswith("ok %d " % os.getpid())
    (tmp_path / "run" / "space").unlink()
    guard.publish()
    assert not (tmp_path / "run" / "space").exists()
    guard.room.f_bavail = 5
    guard.judge(0)
    guard.publish()
    words = (tmp_path / "run" / "space").read_text().split()
    assert words[0] == "full" and words[3] == "bytes" and words[4] == "5"


def test_the_ballast_is_real_bytes_given_up_once(guard, tmp_path):
    assert not guard.has_ballast() and guard.load_ballast()
    data = (tmp_path / "spool" / "ballast").read_bytes()
    assert len(data) == 8192 and len(set(data)) > 200
    assert guard.drop_ballast() and not guard.drop_ballast() and not guard.has_ballast()


def test_no_ballast_is_loaded_without_room_for_it(guard):
    guard.room.f_bavail = 1010
    assert not guard.load_ballast() and not guard.has_ballast()
    guard.config.ballast_kb = 0
    assert guard.has_ballast()


def test_the_mount_of_a_path():
    assert find_mount("/proc/self")[:2] == ("/proc", "proc")
    assert is_mounted("/proc") and not is_mounted("/proc/sys/kernel") and not is_mounted("/nowhere")
    assert find_mount("/dev/shm")[2]
