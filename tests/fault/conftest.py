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
