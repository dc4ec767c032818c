"""A console: the command line as a technician has it, in Python and by the wrapper, on a queue in a temporary folder."""

import pytest

from tests.console.console import Console


@pytest.fixture
def console(tmp_path):
    console = Console(tmp_path)
    yield console
    console.stop()
