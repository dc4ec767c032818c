"""The only place that asks the time.

Two clocks, because a board without a battery has only one that can be believed:

* `wall`: Unix seconds. May be 1970 after a power cut and may step at any moment.
* `boot`: seconds since boot, suspended time included (`/proc/uptime` shows the same). Never steps. Every wait
  within one boot is measured with it (P8).

`boot_id` names the boot. The test clock plugs in here: EDGEQ_TEST_CLOCK names a file holding
`WALL_OFFSET_S [BOOT_ID [BOOT_OFFSET_S]]`, read again at each reading.
"""

from time import time, clock_gettime, CLOCK_BOOTTIME

from edgeq import disk


class Now:
    """One reading of both clocks."""

    __slots__ = ("wall", "boot")

    def __init__(self, wall, boot):
        self.wall, self.boot = wall, boot


class Clock:
    """The machine's clocks."""

    def __init__(self):
        self.boot_id = disk.read_text("/proc/sys/kernel/random/boot_id").strip()

    def read(self):
        return Now(time(), clock_gettime(CLOCK_BOOTTIME))


class TestClock:
    """The machine's clocks, moved by the numbers in a file."""

    def __init__(self, path):
        self.path, self.real = path, Clock()
        self.boot_id = (self._numbers() + [self.real.boot_id])[1]

    def read(self):
        now, numbers = self.real.read(), self._numbers()
        now.wall += float(numbers[0])
        if len(numbers) > 2:
            now.boot += float(numbers[2])
        return now

    def _numbers(self):
        return disk.read_text(self.path).split() or ["0"]


def open_clock(environ):
    """The clock of this process. `environ`: a mapping of bytes, as posix.environ."""
    path = environ.get(b"EDGEQ_TEST_CLOCK")
    return TestClock(path.decode()) if path else Clock()


def iso(seconds):
    """`2026-07-20T10:15:00Z`. Plain arithmetic: gmtime overflows after 2038 where time_t has 32 bits."""
    days, rest = divmod(int(seconds), 86400)
    # Days to a civil date; see Howard Hinnant, chrono-compatible low-level date algorithms.
    era, day_of_era = divmod(days + 719468, 146097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return "%04d-%02d-%02dT%02d:%02d:%02dZ" % (
        year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1,
        rest // 3600, rest // 60 % 60, rest % 60)


def parse_iso(text):
    """Unix seconds of `YYYY-MM-DDTHH:MM:SSZ`; ValueError for anything else, 31 February included."""
    if len(text) != 20 or text[4::3][:2] != "--" or text[10] != "T" or text[13::3][:2] != "::" or text[19] != "Z":
        raise ValueError(text)
    year, month, day, hour, minute, second = (
        _digits(text[a:b]) for a, b in ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19)))
    shifted_year = year - (month <= 2)
    era, year_of_era = divmod(shifted_year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    days = era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468
    seconds = days * 86400 + hour * 3600 + minute * 60 + second
    if iso(seconds) != text:
        raise ValueError(text)
    return seconds


def _digits(text):
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)
