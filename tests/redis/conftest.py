import pytest

from tests.redis import bench as benches


@pytest.fixture
def make_bench(tmp_path):
    """make_bench(*server options, **configuration) -> a Bench on a server of its own."""
    made = []

    def make(*options, **keys):
        made.append(benches.make(tmp_path, *options, **keys))
        made[-1].handler("mail")
        return made[-1]
    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench):
    return make_bench()


@pytest.fixture
def make_faked(tmp_path):
    """make_faked(port, **configuration) -> a Bench on somebody else's server."""
    made = []

    def make(port, **keys):
        made.append(benches.Bench(tmp_path, port=port, **keys))
        made[-1].handler("mail")
        return made[-1]
    yield make
    for bench in made:
        bench.close()
