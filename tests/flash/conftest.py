"""A fresh ext4 below a loop device, whose writes and flushes are counted, or that is so small that it fills up."""

import pytest

from bench.flash import Flash
from bench.ours import Queue


@pytest.fixture
def make_flash():
    """make_flash(size_mib, mkfs words): a Flash that goes with the test."""
    made = []

    def make(size_mib=1024, *words):
        made.append(Flash(size_mib, words))
        return made[-1]
    yield make
    for flash in made:
        flash.close()


@pytest.fixture
def flash(make_flash):
    return make_flash()


@pytest.fixture
def make_queue(flash):
    """make_queue(**settings): a queue on `flash`."""
    made = []

    def make(**settings):
        made.append(Queue(flash.path, **settings))
        return made[-1]
    yield make
    for queue in made:
        queue.close()
