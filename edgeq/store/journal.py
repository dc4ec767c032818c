"""The done journal: bounded, append-only, checksummed lines. Audit trail and memory of processed ids in one.

A segment (`SEQ.COUNT.v1.log`) is written whole before use, filled with newlines, so that appending rewrites
blocks the file already has: one fdatasync a batch and no commit of the file system's own journal (measured: 0.4 KiB
a job instead of 1.0). Lines are appended under flock on the segment, by any number of processes.

    ID N SEQ DONE_AT ATT TYPE MS NOTE CRC

Promises: a line that `flush` covered survives a cut; a line that does not match its CRC is ignored; the newest
segment is never deleted; a segment of a newer format is read where possible and never changed.
Does not promise: that an unflushed line survives. Fails with OSError; after a failed flush `renew` copies what was not
safe into a new segment, since the kernel forgets dirty pages it could not write.

Memory: a Bloom filter of the ids (16 KiB at the default DONE_KEEP_KB); only a hit reads the files.
"""

from binascii import crc32
import fcntl

from posix import O_RDWR, O_NOFOLLOW, O_CLOEXEC

from edgeq.log import escape

SEGMENT_KB = 64
FORMAT = "v1"
ROLLED = b"+\n"  # says "go on in the next segment" to other processes
NOTE_BYTES = 120


class Line:
    """One completion. done_at: Unix seconds; ms: run time; n: its number since the spool was made."""

    __slots__ = ("id", "n", "seq", "done_at", "attempts", "type", "ms", "note")

    def __init__(self, id, n, seq, done_at, attempts, type, ms, note):
        self.id, self.n, self.seq, self.done_at = id, n, seq, done_at
        self.attempts, self.type, self.ms, self.note = attempts, type, ms, note

    def encode(self):
        note = escape(self.note, NOTE_BYTES).replace(" ", "\\x20")[:NOTE_BYTES] or "-"
        body = "%s %d %016d %d %d %s %d %s " % (
            self.id, self.n, self.seq, self.done_at, self.attempts, self.type, self.ms, note)
        return ("%s%08x\n" % (body, crc32(body.encode()))).encode()


def decode_line(data):
    """The Line in `data` (bytes without newline), or None when it is torn or another kind."""
    body, blank, crc = data.rpartition(b" ")
    if not blank or len(crc) != 8 or crc != b"%08x" % crc32(body + b" "):
        return None
    fields = body.decode("ascii", "replace").split(" ")
    if len(fields) < 8:
        return None
    return Line(fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[4]), fields[5], int(fields[6]), fields[7])


def parse_segment(name):
    """(SEQ, COUNT, format) of a segment's name, or None."""
    parts = name.split(".")
    if len(parts) != 4 or parts[3] != "log" or len(parts[0]) != 16 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1]), parts[2]


class Journal:
    """The journal in `folder`. `keep_kb`: DONE_KEEP_KB. Nothing is read until it is asked for."""

    def __init__(self, disk, folder, keep_kb):
        self.disk, self.folder, self.keep_kb = disk, folder, keep_kb
        self.segment_bytes = max(4096, min(SEGMENT_KB, keep_kb // 4) * 1024)
        self._fd = -1
        self._name = ""
        self._end = self._flushed_end = 0
        self.count = 0  # the number of the last line
        self._bits = None  # the Bloom filter, once `remember` was called
        self._mask = 0

    # --- reading -----------------------------------------------------------------------------------

    def segments(self):
        """Segment names, oldest first; another format's too."""
        return sorted(name for name in self.disk.names(self.folder) if parse_segment(name))

    def lines(self, name):
        """The good lines of segment `name`."""
        for data in self._read(name).split(b"\n"):
            line = decode_line(data) if data else None
            if line:
                yield line

    def highest_seq(self):
        """The highest SEQ that the newest segment's name and lines know; 0 when there is none."""
        names = self.segments()
        return max([parse_segment(names[-1])[0]] + [line.seq for line in self.lines(names[-1])]) if names else 0

    def find(self, id):
        """The Line of `id`, or None. Reads the segments unless the filter says no."""
        if self._bits is not None:
            self._catch_up()
            if not self._may_hold(id):
                return None
        needle = b"\n%s " % id.encode()
        for name in reversed(self.segments()):
            data = b"\n" + self._read(name)
            at = data.find(needle)
            while at >= 0:
                line = decode_line(data[at + 1:data.index(b"\n", at + 1)])
                if line:
                    return line
                at = data.find(needle, at + 1)
        return None

    def done_count(self):
        """Completions since the spool was made."""
        if self._fd >= 0:
            self._catch_up()
            return self.count
        names = self.segments()
        return max([parse_segment(names[-1])[1]] + [line.n for line in self.lines(names[-1])]) if names else 0

    def _read(self, name):
        try:
            data = self.disk.read_file("%s/%s" % (self.folder, name), 1 << 24)
        except FileNotFoundError:  # pruned meanwhile by another worker
            return b""
        return data if data[-1:] == b"\n" else data + b"\n"

    # --- the filter ----------------------------------------------------------------------------------

    def remember(self):
        """Build the filter: one pass over all segments."""
        bits = 1 << 13
        while bits < self.keep_kb * 1024 // 64 * 24:
            bits <<= 1
        self._bits, self._mask = bytearray(bits // 8), bits - 1
        for name in self.segments():
            for data in self._read(name).split(b"\n"):
                if data:
                    self._learn(data)

    def _learn(self, data):
        id = data[:data.find(b" ")]
        for h in (crc32(id), crc32(id, 0x9E3779B9), crc32(id, 0x7F4A7C15)):
            self._bits[(h & self._mask) >> 3] |= 1 << (h & 7)

    def _may_hold(self, id):
        id = id.encode()
        return all(self._bits[(h & self._mask) >> 3] >> (h & 7) & 1
                   for h in (crc32(id), crc32(id, 0x9E3779B9), crc32(id, 0x7F4A7C15)))

    # --- writing -------------------------------------------------------------------------------------

    def append(self, lines, seq):
        """Number and write `lines` ([Line]); not flushed. `seq`: the highest SEQ issued, for a new segment's name."""
        if self._fd < 0:
            self._open_newest(seq)
        while True:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            fd = self._fd
            try:
                if self._catch_up():
                    continue  # RACE: another process went on to a new segment; lock that one
                data = self._numbered(lines)
                if self._end + len(data) + len(ROLLED) > self._size():
                    self._roll(seq, data if len(data) + len(ROLLED) < self.segment_bytes else b"")
                    if len(data) + len(ROLLED) < self.segment_bytes:
                        return
                    raise OSError(27, "a batch larger than a segment")
                self.disk.pwrite_all(self._fd, data, self._end)
                self._took(data)
                return
            finally:
                if fd == self._fd:
                    fcntl.flock(fd, fcntl.LOCK_UN)

    def flush(self):
        """What was appended is on the medium, or OSError and `renew` is needed."""
        if self._fd >= 0 and self._flushed_end != self._end:
            end = self._end
            self.disk.flush_data(self._fd)
            self._flushed_end = end

    def flush_all(self):
        """Flush lines that any process wrote: before a file is dropped because of a line."""
        if self._fd < 0:
            names = self.segments()
            if not names or not self._attach(names[-1]):
                return
        self._catch_up()
        self.disk.flush_data(self._fd)
        self._flushed_end = self._end

    def renew(self, seq):
        """After a failed flush: a new segment that begins with every line not known to be safe."""
        if self._fd < 0:
            return
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._catch_up()
        unsafe = self._read(self._name)[max(self._flushed_end, 0):self._end]
        good = [data for data in unsafe.split(b"\n") if data and decode_line(data)]
        self._roll(seq, b"".join(data + b"\n" for data in good), False)

    def close(self):
        if self._fd >= 0:
            self.disk.close(self._fd)
            self._fd = -1

    def _numbered(self, lines):
        for n, line in enumerate(lines, self.count + 1):
            line.n = n
        return b"".join(line.encode() for line in lines)

    def _took(self, data):
        self._end += len(data)
        self.count += data.count(b"\n")
        if self._bits is not None:
            for line in data.split(b"\n"):
                if line:
                    self._learn(line)

    def _size(self):
        return self.disk.fstat(self._fd).st_size

    def _open_newest(self, seq):
        names = [name for name in self.segments() if parse_segment(name)[2] == FORMAT]
        if not names or names[-1] != self.segments()[-1] or not self._attach(names[-1]):
            self._begin(seq, self.done_count() if self.segments() else 0, b"")

    def _attach(self, name):
        """Open segment `name` and find its end: after the last byte that is not filling (a cut can leave gaps)."""
        try:
            fd = self.disk.open("%s/%s" % (self.folder, name), O_RDWR | O_NOFOLLOW | O_CLOEXEC)
        except FileNotFoundError:
            return False
        self.close()
        self._fd, self._name = fd, name
        self.count = parse_segment(name)[1]
        data = self._read(name)
        for piece in data.split(b"\n"):
            line = decode_line(piece) if piece else None
            if line:
                self.count = max(self.count, line.n)
        used = data.rstrip(b"\n")
        self._end = min(len(used) + 1, self._size()) if used else 0
        self._flushed_end = -1  # unknown: the next flush really flushes
        return True

    def _catch_up(self):
        """Learn what other processes appended; True when that led to another segment."""
        if self._fd < 0:
            return False
        moved = False
        while True:
            data = self.disk.pread(self._fd, 2, self._end)
            if data[:1] == b"\n":
                return moved
            if data and data != ROLLED:
                rest = self.disk.pread(self._fd, self._size(), self._end).rstrip(b"\n") + b"\n"
                for piece in rest.split(b"\n"):
                    line = decode_line(piece) if piece else None
                    if line:
                        self.count = max(self.count, line.n)
                        if self._bits is not None:
                            self._learn(piece)
                # the mark, if it is there, ends what was read
                self._end += len(rest) - (len(ROLLED) if rest.endswith(b"\n" + ROLLED) else 0)
                continue
            newest = [name for name in self.segments() if parse_segment(name)[2] == FORMAT][-1:]
            if not newest or newest[0] == self._name or not self._attach(newest[0]):
                return moved
            moved = True
            if self._bits is not None:
                for piece in self._read(self._name).split(b"\n"):
                    if piece:
                        self._learn(piece)

    def _roll(self, seq, first, flush_old=True):
        """Go on in a new segment that begins with `first`; tell others through the mark in the old one.

        The old one is flushed first, for every process that has lines in it: nobody looks back afterwards.
        """
        old, old_end, old_size = self._fd, self._end, self._size()
        self._fd = -1
        try:
            if flush_old:
                self.disk.flush_data(old)
            self._begin(seq, self.count, first)
        except OSError:
            self._fd = old
            fcntl.flock(old, fcntl.LOCK_UN)
            raise
        if old_end + len(ROLLED) <= old_size:
            self.disk.pwrite_all(old, ROLLED, old_end)
        self.disk.close(old)

    def _begin(self, seq, count, first):
        names = self.segments()
        if names:
            seq = max(seq, parse_segment(names[-1])[0] + 1)
        name = "%016d.%d.%s.log" % (seq, count, FORMAT)
        data = first + b"\n" * max(self.segment_bytes - len(first), 1)
        # CRASH: until the flush inside publish nothing counts on this segment; a torn one has no good line.
        self.disk.publish(self.folder, name, data)
        self._attach(name)
        if self._bits is not None:
            for piece in first.split(b"\n"):
                if piece:
                    self._learn(piece)
        self._flushed_end = self._end

    # --- bounds --------------------------------------------------------------------------------------

    def surplus(self):
        """The oldest segment that is beyond DONE_KEEP_KB, or None; never the newest, never another format's."""
        names = self.segments()
        try:
            size = sum(self.disk.lstat("%s/%s" % (self.folder, name)).st_size for name in names)
        except FileNotFoundError:  # purged meanwhile
            return None
        if len(names) < 2 or size <= self.keep_kb * 1024 or parse_segment(names[0])[2] != FORMAT:
            return None
        return names[0]

    def delete(self, name):
        self.disk.unlink("%s/%s" % (self.folder, name))

    def renew_empty(self, seq):
        """Go on in a fresh segment, so that all older ones may be deleted."""
        if self._fd < 0:
            self._open_newest(seq)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._catch_up()
        self._roll(seq, b"")
