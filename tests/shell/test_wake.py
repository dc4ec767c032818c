"""Pokes: who sleeps is woken, nobody is blocked, and a FIFO that is not there is never made a file."""

import os
import stat
import subprocess

import pytest

from tests.shell.board import read_until, tool


class Reader:
    """A reader's FIFO, opened as a worker opens it."""

    def __init__(self, board, name, asleep):
        self.path = board.r / "wake" / name
        os.mkfifo(self.path, 0o660)
        self.fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.keep = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        if asleep:
            (board.r / "wake" / (name + ".asleep")).write_text("")

    def heard(self):
        try:
            return os.read(self.fd, 65536)
        except BlockingIOError:
            return b""


def test_sleepers_are_poked_with_the_priority(any_board):
    asleep, awake, other = Reader(any_board, "w1", True), Reader(any_board, "w2", False), Reader(any_board, "w3", True)
    any_board.enqueue("t", "--priority", "3")
    assert (asleep.heard(), awake.heard(), other.heard()) == (b"3", b"", b"3")


@pytest.mark.parametrize("words", [["pause"], ["pause", "t"], ["resume"]])
def test_pause_and_resume_poke_too(board, words):
    asleep = Reader(board, "w1", True)
    board.edgeq("pause") if words == ["resume"] else None
    asleep.heard()
    assert board.edgeq(*words).code == 0
    assert len(asleep.heard()) == 1


def test_the_poke_comes_after_the_flush(board):
    Reader(board, "w1", True)
    log = board.root / "strace"
    board.edgeq("enqueue", "t", prefix=[tool("strace"), "-f", "-y", "-qq", "-o", str(log), "-e", "trace=fsync,write,openat"])
    calls = log.read_text()
    assert calls.index("fsync(") < calls.index("wake/w1\", O_RDWR") < calls.index("write(1<%s/wake/w1>, \"5\", 1)" % board.r)


def test_a_marker_without_a_fifo_makes_no_file(any_board):
    (any_board.r / "wake/gone.asleep").write_text("")
    (any_board.r / "wake/file.asleep").write_text("")
    (any_board.r / "wake/file").write_text("not a FIFO")
    any_board.enqueue("t")
    assert sorted(os.listdir(any_board.r / "wake")) == ["file", "file.asleep", "gone.asleep"]
    assert (any_board.r / "wake/file").read_text() == "not a FIFO"


def test_a_fifo_without_a_reader_does_not_block(board):
    os.mkfifo(board.r / "wake/w1")
    (board.r / "wake/w1.asleep").write_text("")
    board.enqueue("t")
    assert stat.S_ISFIFO(os.stat(board.r / "wake/w1").st_mode)


def test_hundreds_of_pokes_do_not_fill_a_waking_readers_pipe(board):
    """Without the marker no byte is written, however long the reader takes."""
    awake = Reader(board, "w1", False)
    for _ in range(20):
        board.enqueue("t", "--fast")
    assert awake.heard() == b""


def test_arrivals_get_the_digit(board):
    board.enqueue("t")
    assert not (board.r / "arrivals").exists()  # no worker ever looked for it
    (board.r / "arrivals").write_text("")
    board.enqueue("t", "--priority", "0")
    board.enqueue("t")
    assert (board.r / "arrivals").read_text() == "05"


def test_a_reader_that_goes_away_in_between(board):
    """RACE: the FIFO is removed between the test and the open: the file that the open makes does not stay."""
    Reader(board, "w1", True)
    strace = [tool("strace"), "-f", "-qq", "-P", str(board.r / "wake/w1"), "-e", "trace=stat,newfstatat,openat",
              "-e", "inject=openat:delay_enter=1000000"]
    process = subprocess.Popen([*strace, *board.argv("enqueue", "t")], env=board.env(), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    read_until(process, b"S_IFIFO")  # it has seen a FIFO ...
    os.unlink(board.r / "wake/w1")  # ... which goes before it is opened
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert os.listdir(board.r / "wake") == ["w1.asleep"]


def test_an_unwritable_wake_folder_harms_nothing(board):
    Reader(board, "w1", True)
    os.chmod(board.r / "wake/w1", 0o400)
    board.open_to_all()
    os.system("chmod 777 %s %s; chmod 666 %s" % (board.q / "incoming", board.r, board.r / "seq"))
    result = board.edgeq("enqueue", "t", user=65534, group=65534, extra_groups=[])
    assert result.code == 0 and result.err == "", result
