"""The shell wrapper under BusyBox ash, with the device's applets and nothing else.

Debian's busybox is not a stand-in for Buildroot's: its shell finds its own applets whatever PATH says, `stat` and `timeout`
among them. So the tests run a copy of it in whose table of applets the names that the device lacks are misspelt (the table
stays sorted): for shell, env and xargs alike they are not there. test_device.py proves it. `flock`, which Debian's lacks,
is util-linux's. A missing tool fails the tests: nothing is skipped.
"""

from pathlib import Path

import pytest

from tests.shell.board import HERE, Board, misspell, tool


@pytest.fixture(scope="session")
def device_bin(tmp_path_factory):
    """A folder with the device's applets."""
    folder = tmp_path_factory.mktemp("device")
    applets = (HERE / "applets.txt").read_text().split()
    image = Path(tool("busybox")).read_bytes()
    start = image.index(b"[\0[[\0")
    table = image[start:image.index(b"\0\0", start)]
    ours = [name.decode() for name in table.split(b"\0")]
    busybox = folder / "busybox"
    busybox.write_bytes(misspell(image, table, set(ours) - set(applets)))
    busybox.chmod(0o755)
    bin = folder / "bin"
    bin.mkdir()
    for name in applets:
        if name in ours:
            (bin / name).symlink_to(busybox)
    (bin / "flock").symlink_to(tool("flock"))
    return bin


@pytest.fixture
def bare_board(tmp_path, device_bin):
    """A board before its first boot: a configuration and nothing else."""
    root = tmp_path / "board"
    root.mkdir()
    return Board(root, device_bin)


@pytest.fixture
def board(bare_board):
    """A board whose spool and folder in RAM are there and empty."""
    return bare_board.make()


@pytest.fixture(params=["ash", "dash"])
def any_board(request, board):
    """`board`, under ash and under dash (with a PC's tools)."""
    board.shell = request.param
    return board
