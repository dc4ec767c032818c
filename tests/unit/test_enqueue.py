"""The front door: every field checked, the guard asked, batches whole or not at all."""

import pytest

from edgeq.config import Config
from edgeq.enqueue import admit, enqueue, make_batch, make_job
from edgeq.errors import BadJob, StoreFull


class Guard:
    def __init__(self, full=""):
        self.full = full

    def ask(self, jobs_n):
        return self.full


def test_a_job_of_good_wishes():
    job = make_job(Config(), "mail", b" [1]\n", id="a", priority=0, max_attempts=1, timeout_s=1, expires_s=1, key="k.v", delay_s=0,
                   at=5)
    assert (job.type, job.payload, job.id, job.priority, job.key, job.at, job.delay_s) == ("mail", b"[1]", "a", 0, "k.v", 5, 0)
    assert make_job(Config(), "mail", b"1").priority == 5


@pytest.mark.parametrize("wish", (
    {"id": "a/b"}, {"id": ""}, {"id": "a" * 65}, {"key": "-k"}, {"key": "a b"}, {"priority": 10}, {"max_attempts": 0},
    {"max_attempts": 1000},
    {"timeout_s": 0}, {"timeout_s": 604_801}, {"expires_s": 0}, {"delay_s": 315_360_001}, {"at": 9_000_000_000}))
def test_a_bad_wish_is_named(wish):
    with pytest.raises(BadJob):
        make_job(Config(), "mail", b"{}", **wish)


@pytest.mark.parametrize("type", ("", "-x", "a.b", "../x", "a" * 65, "\u00e4"))
def test_a_bad_type_is_refused(type):
    with pytest.raises(BadJob, match="type"):
        make_job(Config(), type, b"{}")


def test_the_payload_has_a_limit_in_bytes():
    config = Config()
    config.max_payload_kb = 1
    make_job(config, "mail", b'"%s"' % (b"x" * 1022))
    with pytest.raises(BadJob, match="MAX_PAYLOAD_KB"):
        make_job(config, "mail", b'"%s"' % (b"x" * 1023))


def test_a_batch_is_a_line_a_job_and_blank_lines_are_none():
    jobs = make_batch(Config(), [b'{"type":"a","payload":{"x" : 1e999}}', b"", b"  ", b'{"type":"b","id":"i","priority":1}\n'])
    assert [(job.type, job.id, job.payload, job.priority) for job in jobs] == [("a", None, b'{"x" : 1e999}', 5),
                                                                               ("b", "i", b"{}", 1)]


@pytest.mark.parametrize("line",
                         (b"x", b"[]", b'{"type":"a"', b'{"type":"a","priority":11}', b'{"type":"a","latest":true}',
                          b'{"type":"a","payload":%s}' % (b"[" * 65 + b"]" * 65)))
def test_a_bad_line_of_a_batch_is_named(line):
    with pytest.raises(BadJob, match="line 3"):
        make_batch(Config(), [b'{"type":"a"}', b"", line])


def test_a_full_spool_refuses_before_anything_is_stored():
    class Store:
        def enqueue(self, *args):
            raise AssertionError("stored")
    with pytest.raises(StoreFull, match="inodes: 3 free"):
        enqueue(Store(), Guard("inodes: 3 free"), None, None, 0)
    admit(Guard(), 0)
