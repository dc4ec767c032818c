"""Times: the test clock, dates without gmtime."""

import datetime
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from edgeq.clock import Clock, iso, open_clock, parse_iso


@given(st.integers(0, 253402300799))
def test_iso_is_what_a_calendar_says(seconds):
    expected = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    assert iso(seconds) == expected.strftime("%Y").zfill(4) + expected.strftime("-%m-%dT%H:%M:%SZ")
    assert parse_iso(iso(seconds)) == seconds


@pytest.mark.parametrize("text", ("2026-02-31T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01 00:00:00Z",
                                  "2026-01-01T00:00:00", "2026-01-01T00:00:60Z", "2026-1-1T0:0:0Z", "", "x" * 20,
                                  "2026-0\u0661-01T00:00:00Z"))
def test_a_date_that_is_none_is_refused(text):
    with pytest.raises(ValueError):
        parse_iso(text)


def test_the_clock_is_the_machines():
    clock = open_clock({})
    assert type(clock) is Clock and abs(clock.read().wall - time.time()) < 5
    assert abs(clock.read().boot - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5
    assert clock.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_the_test_clock_is_moved_by_its_file(tmp_path):
    path = tmp_path / "clock"
    path.write_text("1000 boot-7 500\n")
    clock = open_clock({b"EDGEQ_TEST_CLOCK": str(path).encode()})
    assert clock.boot_id == "boot-7"
    assert 990 < clock.read().wall - time.time() < 1010
    assert 490 < clock.read().boot - time.clock_gettime(time.CLOCK_BOOTTIME) < 510
    path.write_text("-1000")
    assert -1010 < clock.read().wall - time.time() < -990
