"""One line an event, whatever a job carries."""

import os

import pytest
from hypothesis import given, strategies as st

from edgeq.log import Log, escape, say, show
from tests.harness import Clock


@given(st.one_of(st.text(), st.binary()))
def test_escaped_text_is_bounded_printable_ascii(text):
    out = escape(text)
    assert len(out) <= 120 and out.isascii() and (out.isprintable() or not out)
    assert '"' not in out.replace('\\"', "")


def test_escapes_are_those_of_the_status_line():
    assert escape('a"b\\c\nd\x1b\u00e9') == r'a\"b\\c\x0ad\x1b\xc3\xa9'
    assert escape("x" * 119 + "\n") == "x" * 119, "no escape is cut in two"


def test_values_that_are_no_plain_word_are_quoted():
    assert [show(value) for value in ("a-b", "a b", "", 7, b"x\n")] == ["a-b", '"a b"', '""', "7", r'"x\x0a"']


@pytest.fixture
def lines(monkeypatch):
    found = []
    monkeypatch.setattr(Log, "_write", lambda self, strength, line, now: found.append((strength, line)))
    return found


def test_strengths_below_the_threshold_are_not_told(lines):
    log = Log(Clock())
    log.debug("a")
    log.info("b", id="x\ny")
    assert lines == [("info", r'b id="x\x0ay"')]


def test_repeats_within_a_minute_are_counted_and_told_once(lines):
    clock = Clock()
    log = Log(clock)
    for _ in range(5):
        log.warning("store", why="full")
        clock.sleep(10)
    assert len(lines) == 1
    clock.sleep(20)
    log.warning("store", why="full")
    assert lines[1:] == [("warning", "store why=full repeated=4")]


def test_information_is_told_each_time(lines):
    log = Log(Clock())
    log.info("done")
    log.info("done")
    assert len(lines) == 2


def test_memory_of_repeats_is_bounded(lines):
    log = Log(Clock())
    for n in range(1000):
        log.warning("n", n=n)
    assert len(log._seen) <= 64


def test_a_reader_that_went_away_costs_a_line_not_the_worker():
    reader, writer = os.pipe()
    assert say(writer, "hello\n")
    os.close(reader)
    assert not say(writer, "hello\n")
    os.close(writer)


def test_a_line_on_stderr_is_dated(capfd):
    Log(Clock()).error("store", why="x")
    assert capfd.readouterr().err == "edgeq: 2027-01-15T08:00:00Z error store why=x\n"
