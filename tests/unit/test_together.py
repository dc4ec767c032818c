"""Many files and one flush: which way is taken where, the order of its calls, and what stays after an error."""

import builtins
import os

import pytest

from edgeq import disk as seam
from edgeq import libc
from edgeq.errors import IO_ERROR, StoreDown
from edgeq.job import Job
from edgeq.store import together
from edgeq.store.together import GROUP, Together, commits_in_order, find_kind
from tests.harness import FaultyDisk

EIO, EINVAL, ESPIPE, ENOSPC, ENOSYS, EPERM, ENOTSUP = 5, 22, 29, 28, 38, 1, 95
FILES = [("n%02d" % n, b"data %d" % n) for n in range(GROUP + 8)]


class Machine:
    """A /proc and a /sys in which the folder `place` lies on a file system of our making."""

    def __init__(self, root, monkeypatch):
        self.root = root
        self.place = root / "place"
        self.place.mkdir()
        device = os.stat(self.place).st_dev
        self.number = "%d:%d" % (os.major(device), os.minor(device))
        monkeypatch.setattr(together, "MOUNTS", str(root / "mountinfo"))
        monkeypatch.setattr(together, "FS", str(root / "fs"))
        monkeypatch.setattr(together, "DEVICES", str(root / "devices"))
        (root / "devices").mkdir()
        os.symlink("../../devices/virtual/block/mmcblk0p3", root / "devices" / self.number)

    def mount(self, kind, journal="mmcblk0p3-8", fc_info="fc stats:\n0 commits\n0 ineligible\n0 numblks\n"):
        (self.root / "mountinfo").write_text(
            "22 1 179:2 / / rw - squashfs /dev/root ro\n24 22 0:21 / /run rw,nosuid shared:5 - tmpfs tmpfs rw\n"
            "30 22 %s / /data rw,noatime shared:1 master:2 - %s /dev/root rw\n" % (self.number, kind))
        for name, text in (("jbd2/%s/info" % journal, ""), ("ext4/mmcblk0p3/fc_info", fc_info)):
            path = self.root / "fs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                path.write_text(text)

    def is_ordered(self):
        return commits_in_order(seam.Disk(), str(self.place))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize("kind, is_ordered", [
    ("ext4", True), ("xfs", True), ("ext3", False), ("ext2", False), ("btrfs", False), ("f2fs", False), ("ubifs", False),
    ("overlay", False), ("tmpfs", False), ("nfs4", False), ("fuse.ext4", False)])
def test_the_way_by_the_type_of_the_file_system(machine, kind, is_ordered):
    machine.mount(kind)
    assert machine.is_ordered() is is_ordered
    assert find_kind(machine.number) == kind and find_kind("179:1") == ""


@pytest.mark.parametrize("what, is_ordered", [
    (dict(journal="mmcblk0p2-8"), False),  # somebody else's: this one has none
    (dict(journal="mmcblk0p3"), False),  # a device that is all journal
    (dict(fc_info="fc stats:\n1 commits\n0 ineligible\n"), False),
    (dict(fc_info="fc stats:\n0 commits\n7 ineligible\n"), True),  # Linux 5.10 counts so without the feature
    (dict(fc_info="something else\n"), False),
    (dict(fc_info="fc stats:\nno commits\n"), False),
    (dict(fc_info=None), True),  # Linux before 5.10
])
def test_ext4_must_have_its_own_journal_and_no_fast_commit(machine, what, is_ordered):
    machine.mount("ext4", **what)
    assert machine.is_ordered() is is_ordered


def test_in_doubt_commits_are_not_in_order(machine):
    machine.mount("ext4")
    os.unlink(machine.root / "devices" / machine.number)  # no sysfs
    assert not machine.is_ordered()
    machine.mount("xfs")
    assert machine.is_ordered()
    (machine.root / "mountinfo").write_text("30 22 %s /data\nnonsense\n" % machine.number)
    assert not machine.is_ordered()
    (machine.root / "mountinfo").unlink()
    assert not machine.is_ordered()
    assert not commits_in_order(seam.Disk(), str(machine.root / "nowhere"))


# --- the order ---------------------------------------------------------------------------------------------------


class Watched(FaultyDisk):
    """Notes what is done to which file. refuse: {(call, its n-th): errno}."""

    def __init__(self, refuse=()):
        FaultyDisk.__init__(self)
        self.refuse, self.seen, self.counts = dict(refuse), [], {}
        for name in ("rename", "fsync", "syncfs", "sync_file_range", "write"):
            setattr(self, name, self._seen(name, getattr(self, name)))

    def _seen(self, name, call):
        def watched(*args):
            at = args[0] if name == "rename" else os.readlink("/proc/self/fd/%d" % args[0])
            self.counts[name] = self.counts.get(name, 0) + 1
            self.seen.append((name, at) + args[1:] * (name == "sync_file_range"))
            if (name, self.counts[name]) in self.refuse:
                raise OSError(self.refuse[name, self.counts[name]], "refused")
            return call(*args)
        return watched


def run(tmp_path, disk, is_ordered=True, still=True, monkeypatch=None):
    """The batch `FILES`; its object. is_ordered, still: what is said of the file system before and after the flush."""
    answers = [is_ordered, still]
    monkeypatch.setattr(together, "commits_in_order", lambda *_: answers.pop(0))
    batch = Together(disk, str(tmp_path))
    try:
        try:
            batch.write(FILES)
            batch.show()
        except OSError:
            batch.take_back(os.unlink)
            raise
        batch.commit()
    finally:
        batch.close()
        assert disk.fds == set(), "descriptors leak"
    return batch


def test_bytes_are_sent_and_waited_for_before_the_first_name_and_the_last_name_is_flushed(tmp_path, monkeypatch):
    disk = Watched()
    run(tmp_path, disk, monkeypatch=monkeypatch)
    names = [call[0] for call in disk.seen]
    first, second = names.index("sync_file_range"), names.index("rename")
    assert names[:second] == (["write"] * GROUP + ["sync_file_range"] * 2 * GROUP
                              + ["write"] * 8 + ["sync_file_range"] * 16), "a group at a time"
    dots = [call[1] for call in disk.seen if call[0] == "write"]
    assert [call[1:] for call in disk.seen[first:first + 2 * GROUP]] == (
        [(dot, 2) for dot in dots[:GROUP]] + [(dot, 7) for dot in dots[:GROUP]])
    assert disk.seen[second:] == [("rename", dot) for dot in dots] + [("fsync", str(tmp_path / FILES[-1][0]))]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict(FILES)
    assert disk.flushes_n == 1


def test_where_commits_are_not_in_order_it_is_syncfs(tmp_path, monkeypatch):
    disk = Watched()
    run(tmp_path, disk, is_ordered=False, monkeypatch=monkeypatch)
    assert [call[0] for call in disk.seen] == ["write"] * len(FILES) + ["rename"] * len(FILES) + ["syncfs"]
    assert disk.seen[-1] == ("syncfs", str(tmp_path)) and disk.flushes_n == 1


def test_a_first_fast_commit_is_noticed_and_followed_by_syncfs(tmp_path, monkeypatch):
    disk = Watched()
    run(tmp_path, disk, still=False, monkeypatch=monkeypatch)
    assert [call[0] for call in disk.seen[-2:]] == ["fsync", "syncfs"] and disk.flushes_n == 2


@pytest.mark.parametrize("n", (1, GROUP, GROUP + 1, 2 * GROUP, 2 * GROUP + 1, 2 * len(FILES)))
@pytest.mark.parametrize("error", (ENOSYS, EINVAL, ESPIPE, ENOTSUP, EPERM))
def test_a_call_that_is_not_there_says_nothing_of_the_bytes(tmp_path, monkeypatch, error, n):
    disk = Watched({("sync_file_range", n): error})
    run(tmp_path, disk, monkeypatch=monkeypatch)
    names = [call[0] for call in disk.seen]
    assert names.count("sync_file_range") == n and "fsync" not in names and names[-1] == "syncfs"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict(FILES)


@pytest.mark.parametrize("n", (1, GROUP + 1, 2 * GROUP + 1, 2 * len(FILES)))
@pytest.mark.parametrize("error", (EIO, ENOSPC))
def test_bytes_that_the_disk_refuses_are_told_before_anything_is_visible(tmp_path, monkeypatch, error, n):
    disk = Watched({("sync_file_range", n): error})
    with pytest.raises(OSError):
        run(tmp_path, disk, monkeypatch=monkeypatch)
    assert list(tmp_path.iterdir()) == [] and disk.counts.get("rename") is None


def test_few_files_are_open_at_once(tmp_path, monkeypatch):
    disk, most = FaultyDisk(), [0]
    real = disk.open

    def count(*args):
        fd = real(*args)
        most[0] = max(most[0], len(disk.fds))
        return fd
    disk.open = count
    monkeypatch.setattr(together, "commits_in_order", lambda *_: True)
    batch = Together(disk, str(tmp_path))
    batch.write([("m%d" % n, b"x") for n in range(5 * GROUP)])
    assert most[0] == GROUP + 1 and len(disk.fds) == 1
    batch.close()
    assert disk.fds == set()


# --- through the store ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ("fsync", "syncfs"))
def test_a_flush_that_fails_is_told_as_such_and_the_store_refuses_from_then_on(board, monkeypatch, call):
    disk = Watched()
    store = board.open(disk)
    monkeypatch.setattr(together, "commits_in_order", lambda *_: call == "fsync")
    disk.counts.clear()
    disk.refuse = {(call, 1): EIO}
    with pytest.raises(StoreDown) as caught:
        store.enqueue_many([Job("t", id="a"), Job("t", id="b")], board.now)
    assert "they may still run" in str(caught.value) and caught.value.exit_code == IO_ERROR and store.is_broken


def test_a_small_python_refuses_before_it_writes(board, store, monkeypatch):
    real = builtins.__import__

    def lacking(name, *args):
        if name == "edgeq.libc":
            raise ImportError("No module named '_ctypes'")
        return real(name, *args)
    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(StoreDown, match="no syncfs: No module named '_ctypes'"):
        store.enqueue_many([Job("t", id="a")], board.now)
    assert board.ls("incoming") == []


def test_a_c_library_without_the_calls(board, store, monkeypatch):
    monkeypatch.setattr(libc, "_SYNC_FILE_RANGE", libc._find("no_such_call"))
    with pytest.raises(OSError) as caught:
        libc.sync_file_range(0, 2)
    assert caught.value.errno == ENOSYS
    monkeypatch.setattr(libc, "_SYNCFS", None)
    with pytest.raises(StoreDown, match="the C library lacks it"):
        store.enqueue_many([Job("t", id="a")], board.now)
    assert board.ls("incoming") == []


def test_the_calls_themselves(tmp_path):
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    libc.sync_file_range(fd, 7)
    libc.syncfs(fd)
    with pytest.raises(OSError) as caught:
        libc.sync_file_range(fd, 64)  # no such flag: the fourth argument arrives where it belongs
    assert caught.value.errno == EINVAL
    os.close(fd)
    for call in (lambda: libc.syncfs(fd), lambda: libc.sync_file_range(fd, 7)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == 9
