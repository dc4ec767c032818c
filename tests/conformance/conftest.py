"""Every test of this folder runs on every store of stores.py."""

import pytest

from tests.conformance.stores import FACTORIES


@pytest.fixture(params=sorted(FACTORIES))
def make_bench(request, tmp_path):
    """make_bench(**settings) -> a queue on the store under test."""
    made = []

    def make(**settings):
        made.append(FACTORIES[request.param](tmp_path, **settings))
        return made[-1]
    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench):
    return make_bench()


@pytest.fixture
def store(bench):
    return bench.open()
