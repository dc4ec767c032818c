"""SEQ: never back, whatever the clock does."""

from contextlib import nullcontext

import pytest
from hypothesis import given, settings, strategies as st

from edgeq import BUILD_DATE
from edgeq.clock import Now
from edgeq.disk import Lock
from edgeq.store.seq import Sequence


def make(path, seed=lambda: 0, keeps_time=True):
    return Sequence(str(path / "seq"), Lock(str(path / "id.lock")), seed, keeps_time)


@settings(deadline=None)
@given(walls=st.lists(st.one_of(st.integers(-10 ** 9, 10 ** 11), st.just(0)), max_size=30))
def test_numbers_only_rise(walls, tmp_path_factory):
    seq = make(tmp_path_factory.mktemp("seq"))
    issued = [seq.issue(Now(wall, 0)) for wall in walls]
    assert issued == sorted(set(issued)) and all(len("%016d" % number) == 16 for number in issued)


def test_a_number_is_the_clock_in_microseconds_when_that_is_later(tmp_path):
    seq = make(tmp_path)
    assert seq.issue(Now(1.8e9, 0)) == 1_800_000_000_000_000
    assert seq.issue(Now(1.8e9, 0)) == 1_800_000_000_000_001
    assert (tmp_path / "seq").read_text() == "1800000000000001\n"


def test_it_is_seeded_once_from_the_spool(tmp_path):
    asked = []
    seq = make(tmp_path, lambda: asked.append(1) or 77)
    assert (seq.newest(), seq.newest(), seq.issue(Now(0, 0)), len(asked)) == (77, 77, 78, 1)


class FullLock:
    """A lock whose file finds no room in /run."""

    def __enter__(self):
        raise OSError(28, "No space left on device")

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize("lock", (FullLock(), nullcontext()))
def test_with_no_room_in_run_it_is_asked_of_the_spool_each_time(lock):
    seq = Sequence("/dev/full", lock, lambda: 77)  # reads as no number, and every write finds no room
    assert (seq.newest(), seq.issue(Now(0, 0)), seq.newest()) == (77, 78, 77)


@pytest.mark.parametrize("content", (b"", b"garbage\n", b"123\n", b"00000000000000 1\n", b"0000000000000012"))
def test_a_malformed_number_is_seeded_again(tmp_path, content):
    (tmp_path / "seq").write_bytes(content)
    assert make(tmp_path, lambda: 77).newest() == 77


def test_without_a_run_folder_the_names_say_it_each_time(tmp_path):
    assert make(tmp_path / "gone", lambda: 77).newest() == 77 and make(tmp_path / "gone", lambda: 77).issue(Now(0, 0)) == 78


def test_a_clock_is_trusted_from_the_build_on_and_not_behind_the_newest(tmp_path):
    seq = make(tmp_path)
    assert seq.is_trusted(Now(BUILD_DATE, 0)) and not seq.is_trusted(Now(BUILD_DATE - 1, 0))
    seq.issue(Now(BUILD_DATE + 1000, 0))
    assert [seq.is_trusted(Now(BUILD_DATE + at, 0)) for at in (900, 994, 996, 1000)] == [False, False, True, True]
    assert not make(tmp_path, keeps_time=False).is_trusted(Now(BUILD_DATE + 1000, 0))


def test_its_seconds_never_lie_before_the_newest_job(tmp_path):
    seq = make(tmp_path)
    seq.issue(Now(1.8e9, 0))
    assert seq.seconds(Now(5, 0)) == 1.8e9 and seq.seconds(Now(1.9e9, 0)) == 1.9e9
