"""Boards for the tests of the init script and the guard."""

import pytest

from tests.init.board import Board
from tests.shell.conftest import device_bin  # noqa: F401 the fixture


@pytest.fixture
def cold_board(tmp_path, device_bin):  # noqa: F811
    """A board that is not switched on yet."""
    board = Board(tmp_path / "board", device_bin)
    yield board
    board.power_off()


@pytest.fixture
def board(cold_board):
    """A board that has booted, edgeq up."""
    cold_board.boot()
    cold_board.await_worker()
    return cold_board
