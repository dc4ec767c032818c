"""What the field tests share: the shipped zipapp, the device's shell, and benches whose every process ends with the test."""

import pytest

from tests.fault.outside import build
from tests.field.bench import FieldBench, end_everything
from tests.init.conftest import board, cold_board  # noqa: F401 the fixtures
from tests.shell.conftest import device_bin  # noqa: F401 the fixture


@pytest.fixture(scope="session")
def pyz(tmp_path_factory):
    return build(tmp_path_factory.mktemp("pyz"))


@pytest.fixture
def make_bench(tmp_path, pyz, device_bin):  # noqa: F811
    """make_bench(**configuration) -> FieldBench; several a test. Afterwards the standing checks, and nothing is left running."""
    made = []

    def make(**keys):
        made.append(FieldBench(tmp_path / ("bench%d" % len(made)), pyz, device_bin, **keys))
        return made[-1]
    try:
        yield make
        for bench in made:
            bench.standing()
    finally:
        for bench in made:
            bench.stop_all()
            if bench.island:
                bench.island.close()
        end_everything(tmp_path)


@pytest.fixture(params=["spool", "sqlite"])
def make_any(request, make_bench):
    """As make_bench, once with each store of the board itself."""
    def make(**keys):
        return make_bench(store=request.param, **keys)
    return make
