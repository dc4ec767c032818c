"""What becomes of a run: the table of DESIGN 5."""

import pytest
from hypothesis import given, strategies as st

from edgeq.config import Config, TypeConfig
from edgeq.job import Ack, Bury, Drop, GiveBack, Hold, Outcome, Retry
from edgeq.policy import after_death, backoff, decide, explain

SETTINGS = TypeConfig(Config(), {"BASE_DELAY_S": 5, "MAX_DELAY_S": 100})


def verdict(outcome, attempts=1, max_attempts=5):
    return decide(attempts, max_attempts, outcome, SETTINGS, 0, lambda: 0.0)


@pytest.mark.parametrize("code, kind",
                         [(0, Ack), (64, Bury), (65, Bury), (66, Bury), (76, Bury), (77, Bury), (78, Bury), (100, Bury),
                          (69, Hold), (126, Hold), (127, Hold), (75, Retry), (111, Retry), (1, Retry), (255, Retry),
                          (67, Retry)])
def test_exit_codes(code, kind):
    assert type(verdict(Outcome(code))) is kind


@pytest.mark.parametrize("outcome, why", (
    (Outcome(1), "exit 1"), (Outcome(1, tail=b"first\nlast words\n\n"), "exit 1: last words"), (Outcome(signal=9), "signal 9"),
    (Outcome(None, 15, True, timeout_s=30), "timeout after 30 s"), (Outcome(error="no handler"), "no handler"),
    (Outcome(1, tail=b"\xff\x1b[31m" + b"x" * 500), None)))
def test_reasons_are_one_short_printable_line(outcome, why):
    found = explain(outcome)
    assert found == why if why else found.isascii() and found.isprintable() and len(found) < 120


def test_tries_run_out():
    assert type(verdict(Outcome(1), 4)) is Retry and type(verdict(Outcome(1), 5)) is Bury and type(verdict(Outcome(signal=11),
                                                                                                           5)) is Bury
    assert type(verdict(Outcome(69), 99)) is Hold, "a destination that is down costs no try"


def test_a_handler_names_its_own_wait_within_the_maximum():
    assert verdict(Outcome(75, ctl={"retry_after": 30})).wait_s == 30
    assert verdict(Outcome(75, ctl={"retry_after": 10 ** 9})).wait_s == 100
    assert verdict(Outcome(0, ctl={"result": "ok"})).note == "ok"


def test_what_we_ended_ourselves_is_not_the_jobs_fault():
    assert type(verdict(Outcome(None, 15, stopped=True))) is GiveBack and type(verdict(Outcome(0, stopped=True))) is Ack
    assert type(verdict(Outcome(None, 15, cancelled=True))) is Drop


@given(st.integers(-5, 10 ** 9), st.floats(0, 86400), st.floats(0, 2_592_000), st.floats(0, 0.5), st.floats(0, 1, exclude_max=True))
def test_backoff_stays_between_half_and_the_maximum(attempts, base_s, max_s, jitter, draw):
    wait_s = backoff(attempts, base_s, max_s, jitter, lambda: draw)
    full = min(base_s * 2 ** min(max(attempts - 1, 0), 40), max_s)
    assert full / 2 <= wait_s <= full


def test_backoff_doubles():
    assert [backoff(n, 5, 3600, 0.2, lambda: 0.0) for n in (1, 2, 3, 11, 5000)] == [5, 10, 20, 3600, 3600]


def test_the_first_death_of_a_worker_is_not_waited_for():
    settle = [after_death(attempts, 3, SETTINGS, 0, lambda: 0) for attempts in (1, 2, 3)]
    assert settle[0].wait_s == 0 and settle[1].wait_s == 10 and type(settle[2]) is Bury
    assert type(after_death(1, 1, SETTINGS, 0, lambda: 0)) is Bury and settle[2].why == "worker died"
