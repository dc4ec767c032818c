"""Fixtures that the in-process tests share; what they are made of is in tests/harness.py."""

import shutil

import pytest

from tests.harness import Board, fast_folder


@pytest.fixture
def board(tmp_path):
    """A queue with its configuration and its clock, nothing started."""
    return Board(tmp_path)


@pytest.fixture
def store(board):
    """The queue's store, as a worker has it."""
    store = board.open()
    yield store
    store._alive.drop()
    store.journal.close()


@pytest.fixture
def ram_path(tmp_path_factory):
    """As tmp_path, in RAM where possible: for tests that run thousands of steps."""
    path = fast_folder(tmp_path_factory)
    yield path
    shutil.rmtree(path)


def pytest_collection_modifyitems(items):
    """Boots are long, and two workers share the tests: each begins with half of them, so that none ends with all."""
    boots = [item for item in items if "/tests/image/" in str(item.path)]
    others = [item for item in items if "/tests/image/" not in str(item.path)]
    middle = len(others) // 2
    items[:] = boots[::2] + others[:middle] + boots[1::2] + others[middle:]
