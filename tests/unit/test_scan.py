"""The ready view: bounded, ordered, honest about what it does not know."""

import pytest
from hypothesis import given, settings, strategies as st

from edgeq.clock import Now
from edgeq.job import FAILED, INCOMING, Entry
from edgeq.store.scan import ReadyView


class Names:
    """A disk that has only names."""

    def __init__(self):
        self.folders = {INCOMING: [], FAILED: []}

    def names(self, path):
        return iter(self.folders[path.rpartition("/")[2]])

    def add(self, folder, priority, seq, due=0, type="t", id="a", attempts=0):
        entry = Entry(folder, priority, seq, due, False, attempts, False, type, id)
        self.folders[folder].append(entry.name)
        return entry.name


def view(disk, size=4):
    return ReadyView(disk, "/q", size, lambda entry, now: max(entry.due - now.wall, 0))


def drain(view, may_run=None):
    found = []
    while (one := view.next(may_run)):
        found.append(one[1])
    return found


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50), st.booleans(), st.integers(0, 3)), max_size=40), st.integers(1, 8))
def test_the_head_is_the_beginning_of_the_order(jobs, size):
    disk, keys = Names(), []
    for n, (priority, seq, has_failed, late_s) in enumerate(jobs):
        due = seq + late_s if has_failed else 0
        name = disk.add(FAILED if has_failed else INCOMING, priority, seq * 10 ** 6, due, id="j%d" % n, attempts=int(has_failed))
        keys.append(((priority, max(seq, due) * 10 ** 6), name))
    found = view(disk, size)
    found.fill(Now(1000, 1000), None)
    heads = drain(found)
    assert len(heads) == min(size, len(jobs)) and found.is_whole == (len(jobs) <= size)
    order = dict((name, key) for key, name in keys)
    assert [order[name] for name in heads] == sorted(order.values())[:len(heads)]
    assert found.ready_n + found.failed_n == len(jobs) and found.evictions == max(len(jobs) - size, 0)


def test_blocked_types_are_counted_and_left_out():
    disk = Names()
    disk.add(INCOMING, 0, 1, type="held")
    wanted = disk.add(INCOMING, 5, 2)
    found = view(disk)
    found.fill(Now(0, 0), lambda type: type != "held")
    assert drain(found) == [wanted] and found.blocked == {"held": {INCOMING: 1, FAILED: 0}}


def test_the_head_asks_again_whether_a_type_may_run():
    disk = Names()
    disk.add(INCOMING, 5, 1, type="a")
    second = disk.add(INCOMING, 5, 2, type="b")
    found = view(disk)
    found.fill(Now(0, 0), None)
    assert found.next(lambda type: type == "b")[1] == second and found.next(lambda type: False) is None


def test_a_wait_is_fixed_when_first_seen():
    disk = Names()
    disk.add(INCOMING, 5, 1, due=100)
    found = view(disk)
    found.fill(Now(50, 1000), None)
    assert found.next_due == 1050 and found.delayed_n == 1 and drain(found) == []
    found.fill(Now(90, 1001), None)
    assert found.next_due == 1050
    found.fill(Now(0, 1050), None)
    assert len(drain(found)) == 1


def test_strangers_and_newer_formats_are_told_apart():
    disk = Names()
    disk.folders[INCOMING] += ["x.json", "5.1.v2.json"]
    found = view(disk)
    found.fill(Now(0, 0), None)
    assert found.strangers == [(INCOMING, "x.json")] and found.newer_n == 1 and drain(found) == []


def test_a_doubtful_name_is_not_looked_at_before_its_time():
    disk = Names()
    name = disk.add(INCOMING, 5, 1)
    found = view(disk)
    found.doubtful[name] = 12
    found.fill(Now(0, 10), None)
    assert drain(found) == [] and found.next_due == 12
    found.fill(Now(0, 12), None)
    assert drain(found) == [name]


@pytest.mark.parametrize("digit, overtaken", (("0", True), ("4", True), ("5", False), ("9", False)))
def test_only_a_more_urgent_arrival_overtakes(digit, overtaken):
    disk = Names()
    disk.add(INCOMING, 5, 1)
    found = view(disk)
    assert found.is_overtaken(["9"]), "an empty head knows nothing"
    found.fill(Now(0, 0), None)
    assert found.is_overtaken([digit]) == overtaken


def test_a_listing_is_repeated_rarely_while_busy_and_when_something_is_due():
    disk = Names()
    disk.add(INCOMING, 5, 1, due=100)
    found = view(disk)
    found.fill(Now(97, 10), None)
    assert [found.is_due(Now(0, boot)) for boot in (10.5, 11.5, 13)] == [False, True, True]


def test_unreadable_is_not_empty():
    found = view(Names())
    found.disk.names = lambda path: (_ for _ in ()).throw(OSError(5, "EIO"))
    with pytest.raises(OSError):
        found.fill(Now(0, 0), None)
