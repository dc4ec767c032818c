"""Leases: who is alive, what is stale."""

import os
import subprocess

import pytest

from edgeq.lease import Leases, is_alive, start_time
from tests.harness import dead_owner


@pytest.fixture
def leases(tmp_path):
    return Leases(str(tmp_path), "0badcafe-boot")


def test_a_process_is_a_pid_and_a_start_time():
    me, started = os.getpid(), start_time(os.getpid())
    assert started > 0 and is_alive(me, started) and not is_alive(me, started + 1) and not is_alive(0, 0)
    assert not is_alive(*dead_owner())


def test_a_zombie_is_gone():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(child.pid) == 0
    child.wait()


def test_tokens_never_repeat_and_are_words_of_a_name(leases):
    tokens = {leases.make_token() for _ in range(1000)}
    assert len(tokens) == 1000 and all(token.startswith("0badcafe-%d-%d-" % (leases.pid, leases.start)) for token in tokens)


@pytest.mark.parametrize("verb", ("create", "write"))
def test_a_full_run_is_named_and_nothing_is_left_there(leases, monkeypatch, verb):
    """Each try to claim while /run is full would leave an empty lease, until the worker ends."""
    def full(fd, data):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr("posix.write", full)
    with pytest.raises(OSError) as raised:
        getattr(leases, verb)("t", 12.5, 3.25)
    assert raised.value.filename.startswith(leases.folder) and os.listdir(leases.folder) == []


def test_what_is_written_is_read_back(leases):
    leases.create("t", 12.5, 3.25)
    leases.write("t", 20.5, 3.25, (77, 88))
    holder = leases.read("t")
    assert (holder.pid, holder.start, holder.group, holder.group_start, holder.started_at, holder.leased_until) == (
        leases.pid, leases.start, 77, 88, 3.25, 20.5)
    assert leases.tokens() == ["t"]
    leases.remove("t")
    assert leases.read("t") is None and not leases.exists("t")
    leases.remove("t")


@pytest.mark.parametrize("content", ("", "garbage", "1 2", "1 2 other-boot 0 0 1 2\n", "x 2 0badcafe-boot 0 0 1 2\n"))
def test_a_lease_that_is_unreadable_or_of_another_boot_is_none(leases, tmp_path, content):
    (tmp_path / "t").write_text(content)
    assert leases.read("t") is None and leases.is_stale("t", False, 0) == (True, None)


def test_stale_is_past_the_deadline_unless_it_settles(leases):
    leases.create("t", 10, 0)
    assert [leases.is_stale("t", False, boot)[0] for boot in (9, 10, 11)] == [False, True, True]
    assert not leases.is_stale("t", True, 1000)[0]


def test_a_dead_owner_makes_it_stale_at_once_settling_or_not(leases):
    leases.pid, leases.start = dead_owner()
    leases.create("t", 10 ** 6, 0)
    for settling in (False, True):
        is_stale, holder = leases.is_stale("t", settling, 0)
        assert is_stale and holder.pid == leases.pid
