"""Pauses end by themselves, survive a reboot, and an unreadable one is for ever."""

import pytest

from edgeq.clock import Now
from edgeq.disk import Disk
from edgeq.errors import NotFound
from edgeq.store.pauses import Pauses


def make(path, boot_id="one", trusted=True):
    return Pauses(Disk(), str(path), boot_id, lambda now: trusted)


def test_a_pause_ends_by_the_boot_clock_whatever_the_wall_clock_does(tmp_path):
    pauses = make(tmp_path)
    pauses.set("", 100, Now(1000, 50))
    assert (tmp_path / "paused").read_text() == "100 1000 one 150\n"
    assert [pauses.is_paused("mail", Now(wall, boot)) for wall, boot in ((1000, 50), (10 ** 9, 149), (0, 150))] == [True, True,
                                                                                                                    False]


def test_a_pause_of_a_type_stops_that_type(tmp_path):
    pauses = make(tmp_path)
    pauses.set("mail", 100, Now(0, 0))
    assert pauses.is_paused("mail", Now(0, 1)) and not pauses.is_paused("other", Now(0, 1))
    assert pauses.all(Now(0, 1)) == {"mail": 99} and pauses.ends_in("mail", Now(0, 40)) == 60


def test_it_survives_a_reboot_for_what_is_left(tmp_path):
    make(tmp_path).set("", 100, Now(1000, 50))
    assert make(tmp_path, "two").ends_in("", Now(1040, 5)) == 60
    assert make(tmp_path, "two").ends_in("", Now(1101, 5)) is None
    untrusted = make(tmp_path, "two", trusted=False)
    assert untrusted.ends_in("", Now(5, 30)) == 70 and untrusted.ends_in("", Now(5, 101)) is None


def test_for_ever_is_for_ever(tmp_path):
    pauses = make(tmp_path)
    pauses.set("", 0, Now(0, 0))
    assert pauses.ends_in("", Now(10 ** 9, 10 ** 9)) == 0 and pauses.is_paused("x", Now(10 ** 9, 10 ** 9))


@pytest.mark.parametrize("content", (b"", b"1 2 3", b"a b c d\n", b"\xff" * 10, b"9" * 500))
def test_an_unreadable_mark_is_a_pause_for_ever(tmp_path, content):
    (tmp_path / "paused").write_bytes(content)
    assert make(tmp_path).ends_in("", Now(0, 0)) == 0


def test_a_mark_that_cannot_be_opened_is_a_pause_for_ever(tmp_path):
    (tmp_path / "paused").symlink_to("/dev/null")
    (tmp_path / "paused.mail").mkdir()
    assert make(tmp_path).is_paused("x", Now(0, 0)) and make(tmp_path).ends_in("mail", Now(0, 0)) == 0


def test_resume_ends_it_once(tmp_path):
    pauses = make(tmp_path)
    pauses.set("", 0, Now(0, 0))
    pauses.clear("")
    assert not pauses.is_paused("x", Now(0, 0)) and pauses.all(Now(0, 0)) == {}
    with pytest.raises(NotFound):
        pauses.clear("")
