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

from edgeq.errors import NO_ROOM
from edgeq.log import escape

SEGMENT_KB = 84  # a burst of 1,000 fits in one: each new one costs a commit of the file system's journal
SMALLEST_BYTES = 4096
FORMAT = "v1"
ROLLED = b"+\n"  # says "go on in the next segment" to other processes
NOTE_BYTES = 120
CHUNK_BYTES = 8192
PAD_BYTES = 16384


class Line:
    """One completion. done_at: Unix seconds; ms: run time; n: its number since the spool was made."""

    __slots__ = ("id", "n", "seq", "done_at", "attempts", "type", "ms", "note")

    def __init__(self, id, n, seq, done_at, attempts, type, ms, note):
        self.id, self.n, self.seq, self.done_at = id, n, seq, done_at
        self.attempts, self.type, self.ms, self.note = attempts, type, ms, note

    def _note(self):
        return escape_note(self.note)

    def encode(self):
        body = "%s %d %016d %d %d %s %d %s " % (
            self.id, self.n, self.seq, self.done_at, self.attempts, self.type, self.ms, self._note())
        return ("%s%08x\n" % (body, crc32(body.encode()))).encode()


class ReadLine(Line):
    """A completion as it was read: its note is escaped already, and stays as it is when it is written again."""

    __slots__ = ()

    def _note(self):
        return self.note


def escape_note(note):
    """A handler's result as it stands in a line: printable ASCII without blanks."""
    return escape(note, NOTE_BYTES).replace(" ", "\\x20")[:NOTE_BYTES] or "-"


def decode_line(data):
    """The Line in `data` (bytes without newline), or None when it is torn or another kind.

    What is no number is a newer format's, and 0 here: its id is done all the same.
    """
    body, blank, crc = data.rpartition(b" ")
    if not blank or len(crc) != 8 or crc != b"%08x" % crc32(body + b" "):
        return None
    fields = body.decode("ascii", "replace").split(" ")
    if len(fields) < 8:
        return None
    n, seq, done_at, attempts, ms = (int(text) if text.isdigit() and len(text) < 20 else 0 for text in fields[1:5] + fields[6:7])
    return ReadLine(fields[0], n, seq, done_at, attempts, fields[5], ms, fields[7])


def parse_segment(name):
    """(SEQ, COUNT, format) of a segment's name, or None."""
    parts = name.split(".")
    if len(parts) != 4 or parts[3] != "log" or len(parts[0]) != 16 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1]), parts[2]


def _padded(first, size):
    """The pieces of a new segment: `first`, and newlines up to `size`, room for the roll mark at the least."""
    yield first
    size = max(size - len(first), len(ROLLED) + 1)
    for at in range(0, size, PAD_BYTES):
        yield b"\n" * min(PAD_BYTES, size - at)


class Journal:
    """The journal in `folder`. `keep_kb`: DONE_KEEP_KB. Nothing is read until it is asked for."""

    def __init__(self, disk, folder, keep_kb):
        self.disk, self.folder, self.keep_kb = disk, folder, keep_kb
        self.segment_bytes = max(SMALLEST_BYTES, min(SEGMENT_KB, keep_kb // 12 * 4) * 1024)  # whole pages, three to the limit
        self._fd = -1
        self._name = ""
        self._status = None  # of the open segment, whose size never changes
        self._end = self._flushed_end = 0
        self.count = 0  # the number of the last line
        self.is_unsafe = False  # a flush failed: what was not safe before it must be written again, elsewhere
        self._bits = None  # the Bloom filter, once `remember` was called
        self._mask = 0

    # --- reading -----------------------------------------------------------------------------------

    def segments(self):
        """Segment names, oldest first; another format's too."""
        return sorted(name for name in self.disk.names(self.folder) if parse_segment(name))

    def lines(self, name):
        """The good lines of segment `name`."""
        for data in self._pieces(name):
            line = decode_line(data)
            if line:
                yield line

    def _pieces(self, name):
        """What stands in a segment, piece by piece."""
        for chunk in self._chunks(name):
            for data in chunk.strip(b"\n").split(b"\n"):
                if data:
                    yield data

    def _chunks(self, name):
        """A segment in parts that end with a newline: whole, it would leave a hole of its size in the heap for good."""
        try:
            fd = self.disk.open_read("%s/%s" % (self.folder, name))
        except FileNotFoundError:  # pruned meanwhile by another worker
            return
        try:
            at, rest = 0, b""
            while data := self.disk.pread(fd, CHUNK_BYTES, at):
                at += len(data)
                cut = data.rfind(b"\n") + 1
                if cut:
                    yield rest + data[:cut]
                rest = data[cut:] if cut else rest + data
            if rest:
                yield rest + b"\n"
        finally:
            self.disk.close(fd)

    def highest_seq(self):
        """The highest SEQ that the newest segment's name and lines know; 0 when there is none."""
        names = self.segments()
        return max([parse_segment(names[-1])[0]] + [line.seq for line in self.lines(names[-1])]) if names else 0

    def find(self, id):
        """The Line of `id`, or None. Reads the segments unless the filter says no."""
        if self._bits is not None:
            if self._fd < 0:
                self._join()
            self._catch_up()
            if not self._may_hold(id):
                return None
        needle = b"\n%s " % id.encode()
        for name in reversed(self.segments()):
            for chunk in self._chunks(name):
                data = b"\n" + chunk
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

    # --- the filter ----------------------------------------------------------------------------------

    def remember(self):
        """Build the filter: one pass over all segments."""
        bits = 1 << 13
        while bits < self.keep_kb * 1024 // 64 * 24:
            bits <<= 1
        self._bits, self._mask = bytearray(bits // 8), bits - 1
        for name in self.segments():
            for data in self._pieces(name):
                self._learn(data)

    def _learn(self, data):
        h = crc32(data[:data.find(b" ")])  # one sum, two places: 0.3 % false hits at the default size
        for h in (h & self._mask, (h >> 11) & self._mask):
            self._bits[h >> 3] |= 1 << (h & 7)

    def _may_hold(self, id):
        h = crc32(id.encode())
        return all(self._bits[h >> 3] >> (h & 7) & 1 for h in (h & self._mask, (h >> 11) & self._mask))

    # --- writing -------------------------------------------------------------------------------------

    def append(self, lines, seq):
        """Number and write `lines` ([Line]); not flushed.

        seq: the highest SEQ issued, for a new segment's name; or what tells it, asked only when one is begun.
        """
        if self._fd < 0:
            self._open_newest(seq)
        while True:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            fd = self._fd
            try:
                if self._catch_up(locked=True):
                    continue  # RACE: another process went on to a new segment; lock that one
                if not self._is_in_place():
                    self.close()
                    self._open_newest(seq)
                    continue
                data = self._numbered(lines)
                if self._end + len(data) + len(ROLLED) > self._status.st_size:
                    self._roll(seq, data)
                    return
                self.disk.pwrite_all(self._fd, data, self._end)
                self._took(data)
                return
            finally:
                if fd == self._fd:
                    fcntl.flock(fd, fcntl.LOCK_UN)

    def _is_in_place(self):
        """False when done/ was emptied (B45) or something was mounted over it (B44): these lines would go nowhere."""
        try:
            found = self.disk.lstat("%s/%s" % (self.folder, self._name))
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (self._status.st_dev, self._status.st_ino)

    def remember_once(self):
        if self._bits is None:
            self.remember()

    def carry(self, line, seq):
        """Append a line that comes from another store, numbered as it was there if that is later than ours."""
        if self._fd < 0:
            self._open_newest(seq)
        self._catch_up()
        self.count = max(self.count, line.n - 1)
        self.append([line], seq)

    def carry_seq(self, seq):
        """Make sure that a segment knows `seq` as issued, or a later one."""
        if self.highest_seq() < seq:
            self.renew_empty(seq)

    def flush(self):
        """What was appended is on the medium, or OSError and `renew` is needed."""
        if self._fd >= 0 and self._flushed_end != self._end:
            end = self._end
            self._sync(self._fd)
            self._flushed_end = end

    def flush_all(self):
        """Flush lines that any process wrote: before a file is dropped because of a line."""
        if self._fd < 0 and not self._join():
            return
        self._catch_up()
        self._sync(self._fd)
        self._flushed_end = self._end

    def _sync(self, fd):
        try:
            self.disk.flush_data(fd)
        except OSError:
            self.is_unsafe = True
            raise

    def renew(self, seq):
        """After a failed flush: a new segment that begins with every line not known to be safe."""
        if self._fd < 0:
            return
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._catch_up(locked=True)
        begin = max(self._flushed_end, 0)
        unsafe = self.disk.pread(self._fd, self._end - begin, begin)
        good = [data for data in unsafe.split(b"\n") if data and decode_line(data)]
        self._roll(seq, b"".join(data + b"\n" for data in good), False)
        self.is_unsafe = False

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

    def _open_newest(self, seq):
        names = [name for name in self.segments() if parse_segment(name)[2] == FORMAT]
        if not names or names[-1] != self.segments()[-1] or not self._join():
            self._begin(seq, self.done_count() if self.segments() else 0, b"")

    def _join(self):
        """Attach the newest segment, and learn what other processes wrote before; False when there is none."""
        if not self._attach_newest():
            return False
        if self._bits is not None:
            self.remember()
        return True

    def _attach_newest(self, known=""):
        """Attach the newest segment of our format; False when there is none but `known`."""
        names = [name for name in self.segments() if parse_segment(name)[2] == FORMAT]
        return bool(names) and names[-1] != known and self._attach(names[-1])

    def _attach(self, name):
        """Open segment `name` and find its end: after the last byte that is not filling (a cut can leave gaps)."""
        try:
            fd = self.disk.open("%s/%s" % (self.folder, name), O_RDWR | O_NOFOLLOW | O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # RACE: without the lock, of a line that is appended between two parts of the look only the second half was seen
            fcntl.flock(fd, fcntl.LOCK_SH)
            used, count = self._measure(name)
            fcntl.flock(fd, fcntl.LOCK_UN)
            status = self.disk.fstat(fd)
        except OSError:  # all or nothing: a new segment with the old one's end would be written in the middle
            self.disk.close(fd)
            raise
        self.close()
        self._fd, self._name, self._status = fd, name, status
        self.count = max(parse_segment(name)[1], count)
        self._end = min(used + 1, status.st_size) if used else 0
        self._flushed_end = -1  # unknown: the next flush really flushes
        return True

    def _measure(self, name):
        """(where its last piece ends, the number of its last good line): numbers only rise within a segment."""
        at = used = count = 0
        for chunk in self._chunks(name):
            body = chunk.rstrip(b"\n")
            used = at + len(body) if body else used
            at += len(chunk)
            for piece in reversed(body.split(b"\n")):
                line = decode_line(piece) if piece else None
                if line:
                    count = line.n
                    break
        return used, count

    def _catch_up(self, locked=False):
        """Learn what other processes appended; True when that led to another segment.

        RACE: without the lock the last line may be half written just now: left for the next look.
        """
        if self._fd < 0:
            return False
        moved = False
        while True:
            data = self.disk.pread(self._fd, 2, self._end)
            if data[:1] == b"\n":
                return moved
            if data and data != ROLLED:
                rest = self.disk.pread(self._fd, self._status.st_size, self._end).rstrip(b"\n") + b"\n"
                last = rest[rest.rfind(b"\n", 0, -1) + 1:]
                if not locked and last != ROLLED and not decode_line(last[:-1]):
                    rest = rest[:-len(last)]
                    if not rest:
                        return moved
                for piece in rest.split(b"\n"):
                    line = decode_line(piece) if piece else None
                    if line:
                        self.count = max(self.count, line.n)
                        if self._bits is not None:
                            self._learn(piece)
                # the mark, if it is there, ends what was read
                self._end += len(rest) - (len(ROLLED) if rest.endswith(b"\n" + ROLLED) else 0)
                continue
            old = self._name
            if not self._attach_newest(old):
                return moved
            moved = True
            if self._bits is not None:
                for name in self.segments():
                    for piece in self._pieces(name) if name > old else ():
                        self._learn(piece)

    def _roll(self, seq, first, flush_old=True):
        """Go on in a new segment that begins with `first`; tell others through the mark in the old one.

        The old one is flushed first, for every process that has lines in it: nobody looks back afterwards.
        """
        old, old_end, old_size = self._fd, self._end, self._status.st_size
        self._fd = -1
        try:
            if flush_old:
                self._sync(old)
            self._begin(seq, self.count, first)
        except OSError:
            self._fd = old
            fcntl.flock(old, fcntl.LOCK_UN)
            raise
        try:
            if old_end + len(ROLLED) <= old_size:
                self.disk.pwrite_all(old, ROLLED, old_end)
        except OSError:
            pass  # `first` is safe and must not be written again; the others go on by themselves when the old one is full
        finally:
            self.disk.close(old)

    def _begin(self, seq, count, first):
        names, seq = self.segments(), seq() if callable(seq) else seq
        if names:
            seq = max(seq, parse_segment(names[-1])[0] + 1)
        name = "%016d.%d.%s.log" % (seq, count, FORMAT)
        for size in (self.segment_bytes, SMALLEST_BYTES):
            try:
                # CRASH: until the flush inside publish nothing counts on this segment; a torn one has no good line.
                self.disk.publish(self.folder, name, _padded(first, size))
                break
            except OSError as error:
                if size == SMALLEST_BYTES or error.errno not in NO_ROOM or self.disk.exists(self.folder + "/" + name):
                    raise  # else a full disk: one that the ballast has room for, many times (P7)
        if self._bits is not None:
            for piece in first.split(b"\n"):
                if piece:
                    self._learn(piece)
        try:
            self._attach(name)
        except OSError:
            if not first:
                raise
            return  # `first` is safe and must not be written again; whoever comes next attaches
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
        self._catch_up(locked=True)
        self._roll(seq, b"")
