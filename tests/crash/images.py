"""From a log of the disk to the images that a power cut could leave.

A cut falls at some entry of the log. Everything up to the last flush before it is on the disk. Of the writes after that
flush nothing is promised: they are lost, all kept, kept at random, kept up to a point, or torn at 4 KiB (the last of
them, or all). Tearing finer than that could tear ext4's super block, which no disk with 4 KiB pages does.
"""

import os

from tests.crash.device import BLOCK, ENTRY, FLUSHED, NOTED, WROTE

WAYS = ("lost", "kept", "random", "prefix", "torn", "shredded")
ZERO = bytes(BLOCK)


class Log:
    """The entries of a log: [(kind, offset, bytes)]; writes, flushes, notes: positions of each kind. `told`: notes that were
    taken before it began."""

    def __init__(self, path, told=()):
        self.told = list(told)
        with open(path, "rb") as file:
            data = file.read()
        self.entries, at = [], 0
        while at < len(data):
            kind, size, offset = ENTRY.unpack_from(data, at)
            at += ENTRY.size
            self.entries.append((kind, offset, data[at:at + size]))
            at += size
        self.writes, self.flushes, self.notes = (
            [at for at, entry in enumerate(self.entries) if entry[0] == kind] for kind in (WROTE, FLUSHED, NOTED))

    def notes_before(self, end):
        return self.told + [self.entries[at][2] for at in self.notes if at < end]

    def last_flush(self, at):
        """How many entries are safe when the power goes before entry `at`."""
        while at > 0 and self.entries[at - 1][0] != FLUSHED:
            at -= 1
        return at

    def next_flush(self, at):
        while at < len(self.entries) and self.entries[at][0] != FLUSHED:
            at += 1
        return at


class Cut:
    """safe: entries that are certainly on the disk; end: entries that happened; kept: ((entry, pieces or None)...), what of
    the rest is there as well; way: one word; notes_n: how many notes had been taken."""

    __slots__ = ("safe", "end", "kept", "way", "notes_n", "is_after_ack")

    def __init__(self, log, safe, end, kept, way, is_after_ack=False):
        self.safe, self.end, self.kept, self.way, self.is_after_ack = safe, end, tuple(kept), way, is_after_ack
        self.notes_n = sum(1 for at in log.notes if at < end)

    @property
    def key(self):
        return self.safe, self.kept, self.notes_n

    def __str__(self):
        return "%s: entries 0 to %d safe, %d happened, of the rest %s" % (
            self.way, self.safe, self.end, " ".join(
                "%d" % at if pieces is None else "%d%s" % (at, list(pieces)) for at, pieces in self.kept)[:300] or "nothing")


def choose(log, rng, extra, is_ack):
    """Every flush boundary, and `extra` cuts between them, half of these right after an acknowledgement. No two alike.

    is_ack(note bytes) -> bool.
    """
    cuts = {}
    for at in log.flushes:
        end = at + 1
        while end < len(log.entries) and log.entries[end][0] == NOTED:
            end += 1
        is_after_ack = log.entries[end - 1][0] == NOTED and is_ack(log.entries[end - 1][2])
        _add(cuts, Cut(log, at + 1, end, (), "boundary", is_after_ack))
    acks = [at for at in log.notes if is_ack(log.entries[at][2])]
    wanted = len(cuts) + extra
    for tries in range(20 * extra):
        if len(cuts) >= wanted:
            break
        is_after_ack = bool(acks) and tries % 2 == 0
        if is_after_ack:
            first = rng.choice(acks) + 1
            # the next writer's calls are on their way already: anywhere up to the flush that would make them safe
            end = rng.randint(first, log.next_flush(first))
        else:
            end = rng.choice(log.writes) + 1
        safe = log.last_flush(end)
        way = rng.choice(WAYS)
        _add(cuts, Cut(log, safe, end, _keep(log, rng, safe, end, way), way, is_after_ack))
    return sorted(cuts.values(), key=lambda cut: (cut.safe, cut.end))


def _add(cuts, cut):
    cuts.setdefault(cut.key, cut)


def _keep(log, rng, safe, end, way):
    open_writes = [at for at in range(safe, end) if log.entries[at][0] == WROTE]
    if way == "lost" or not open_writes:
        return ()
    if way == "random":
        share = rng.choice((0.2, 0.5, 0.8))
        return [(at, None) for at in open_writes if rng.random() < share]
    if way == "prefix":
        return [(at, None) for at in open_writes[:rng.randint(0, len(open_writes))]]
    if way == "torn":
        kept = [(at, None) for at in open_writes[:rng.randint(1, len(open_writes))]]
        last = kept[-1][0]
        pieces = list(_pieces(log.entries[last]))
        kept[-1] = (last, tuple(pieces[:rng.randint(0, len(pieces))]))
        return kept
    if way == "shredded":
        return [(at, tuple(piece for piece in _pieces(log.entries[at]) if rng.random() < 0.5)) for at in open_writes]
    return [(at, None) for at in open_writes]


def _pieces(entry):
    """Numbers of the 4 KiB blocks that a write touches."""
    _, offset, data = entry
    return range(offset // BLOCK, (offset + len(data) + BLOCK - 1) // BLOCK)


class Builder:
    """Builds images at `path`, in the order of their cuts. `base`: what the disk held before the log began."""

    def __init__(self, log, base, path):
        self.log, self.path, self.at = log, path, 0
        with open(base, "rb") as file:
            self.data = bytearray(file.read())
        self.used = {n for n in range(len(self.data) // BLOCK) if self.data[n * BLOCK:(n + 1) * BLOCK] != ZERO}
        self.runs = None
        with open(path, "wb") as file:
            file.truncate(len(self.data))

    def build(self, cut):
        while self.at < cut.safe:
            kind, offset, data = self.log.entries[self.at]
            if kind == WROTE:
                self.data[offset:offset + len(data)] = data
                self.used.update(_pieces(self.log.entries[self.at]))
                self.runs = None
            self.at += 1
        if self.runs is None:
            self.runs = list(_runs(sorted(self.used)))
        fd = os.open(self.path, os.O_RDWR)
        try:
            os.ftruncate(fd, 0)  # what the last check wrote
            os.ftruncate(fd, len(self.data))
            view = memoryview(self.data)
            for first, last in self.runs:
                os.pwrite(fd, view[first * BLOCK:(last + 1) * BLOCK], first * BLOCK)
            for at, pieces in cut.kept:
                self._write(fd, self.log.entries[at], pieces)
        finally:
            os.close(fd)

    @staticmethod
    def _write(fd, entry, pieces):
        _, offset, data = entry
        if pieces is None:
            os.pwrite(fd, data, offset)
            return
        for piece in pieces:
            first = max(piece * BLOCK, offset)
            os.pwrite(fd, data[first - offset:(piece + 1) * BLOCK - offset], first)


def _runs(numbers):
    """(first, last) of each row of successive numbers."""
    first = last = None
    for number in numbers:
        if last is not None and number == last + 1:
            last = number
            continue
        if last is not None:
            yield first, last
        first = last = number
    if last is not None:
        yield first, last
