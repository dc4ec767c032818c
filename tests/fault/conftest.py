"""What the tests from outside share: one zipapp a session, benches whose workers end with the test."""

from pathlib import Path

import pytest

from bench.flash import Flash
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


@pytest.fixture
def make_ext4():
    """make_ext4(mkfs words): the folder of an ext4 of our own; with its own journal a batch goes by sync_file_range there."""
    made = []

    def make(*words):
        made.append(Flash(64, words))
        return Path(made[-1].path)
    yield make
    for flash in made:
        flash.close()


def pytest_terminal_summary(terminalreporter):
    """The figures of `make check-fault`; a loss fails its test."""
    points, failed_n = {"in the seam": 0, "from outside": 0}, 0
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            found = dict(report.user_properties).get("points") if report.when == "call" else None
            if found is not None:
                points["in the seam" if "test_seam" in report.nodeid else "from outside"] += found
            failed_n += outcome == "failed"
    if any(points.values()):
        terminalreporter.write_line("calls faulted: %s; tests that found a loss or another fault: %d" % (
            ", ".join("%d %s" % (n, where) for where, n in points.items()), failed_n))
