"""What the tests from outside share: one zipapp a session, benches whose workers end with the test."""

import pytest

from tests.fault.outside import Bench, build


@pytest.fixture(scope="session")
def pyz(tmp_path_factory):
    return build(tmp_path_factory.mktemp("pyz"))


@pytest.fixture
def make_bench(tmp_path, pyz):
    """make_bench(**configuration) -> Bench; several a test."""
    made = []

    def make(**keys):
        made.append(Bench(tmp_path / ("bench%d" % len(made)), pyz, **keys))
        return made[-1]
    yield make
    for bench in made:
        bench.stop_all()
