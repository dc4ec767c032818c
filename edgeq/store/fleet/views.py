"""What those see who only look."""

from edgeq import BUILD_DATE
from edgeq import record as records
from edgeq.errors import BadJob
from edgeq.job import DLQ, DONE, FAILED, INCOMING, PROCESSING, is_word
from edgeq.store.base import Counts
from edgeq.store.fleet.element import ENTRY, entry_of, id_in, line_of, text_of


class Views:
    """Part of store/redis.py's Redis."""

    def _decoded(self, text):
        """The Record of an element. In the fleet an id is NODE:ID and a key NODE:KEY, which on a device's own disk could not be."""
        id, limit = id_in(text), self.readable_bytes()
        node, colon, rest = id.partition(":")
        if not (colon and is_word(node) and is_word(rest)):
            return records.decode(text + b"\n", limit)
        head, mark, payload = text.partition(b',"payload":')  # a payload may say what it likes
        head = head.replace(id.encode(), rest.encode(), 1).replace(b'"key":"%s:' % node.encode(), b'"key":"', 1)
        record = records.decode(head + mark + payload + b"\n", limit)
        record.id, record.raw["id"] = id, records.quote(id)
        if record.key:
            record.key = "%s:%s" % (node, record.key)
            record.raw["key"] = records.quote(record.key)
        return record

    def _ready_key(self, digit):
        return self.key if digit == 5 else "%s:p%d" % (self.key, digit)

    def _entry(self, id):
        return entry_of(id, self.link.call("HMGET", self.key + ":job:" + id, *ENTRY))

    def entries(self, state):
        ids = []
        if state == PROCESSING:
            ids = [text_of(id) for id in self.link.call("ZRANGE", self.key + ":leases", 0, -1)]
        elif state == DLQ:
            ids = [id_in(element) for element in self.link.call("LRANGE", self.key + "_dlq", 0, -1)]
        elif state in (INCOMING, FAILED):
            for digit in range(10):
                ids += [id_in(element) for element in self.link.call("LRANGE", self._ready_key(digit), 0, -1)]
            for key in (":failed",) if state == FAILED else (":delayed", ":at"):
                ids += [text_of(id) for id in self.link.call("ZRANGE", self.key + key, 0, -1)]
        found = [self._entry(id) for id in dict.fromkeys(ids) if id]
        yield from sorted((entry for entry in found if entry and entry.state == state), key=lambda e: (e.priority, e.seq))

    def find(self, id):
        fields = self.link.call("HMGET", self.key + ":job:" + id, *ENTRY, "text", "dtext")
        entry = entry_of(id, fields)
        if entry is None:
            line = self.link.call("HGET", self.key + ":done", id)
            return (DONE, None, None, line_of(id, 0, line)) if line else (None, None, None, None)
        try:
            return entry.state, entry, self._decoded(fields[-1] if entry.state == DLQ and fields[-1] else fields[-2]), None
        except BadJob:
            return entry.state, entry, None, None

    def done_lines(self):
        found = self.link.scan("ZSCAN", self.key + ":doneorder")
        for id, n in zip(found, found):
            line = self.link.call("HGET", self.key + ":done", id)
            if line:
                yield line_of(text_of(id), int(n), line)

    def corrupt(self):
        from hashlib import sha1
        for element in self.link.call("LRANGE", self.key + "_corrupt", 0, -1):
            name = sha1(element).hexdigest()
            yield name[:12], text_of(self.link.call("HGET", self.key + ":why", name) or b"no reason recorded")

    def counts(self, now, may_run=None):
        counts = Counts()
        if self.link.trouble:
            raise self.link.trouble  # the worker's next try is what asks, after its pause
        answer = self.run_script("COUNTS")
        (counts.ready, counts.delayed, counts.failed, counts.processing, counts.dead, counts.done, counts.corrupt) = answer[:7]
        counts.oldest_at = max(now.boot - max(float(answer[7]), 0), 0.001) if answer[7] else 0.0
        return counts

    def oldest_at(self, now):
        return self.counts(now).oldest_at

    def wait_s(self, entry, now):
        """Seconds until the server lets it go; None: for a trusted clock."""
        steady, wall = self.server_clock()
        if not steady:
            seconds, rest = self.link.call("TIME")
            steady = wall = int(seconds) * 1_000_000 + int(rest)
        if entry.is_at:
            return max(entry.due - wall / 1e6, 0) if wall / 1e6 >= BUILD_DATE else None
        score = self.link.call("ZSCORE", self.key + (":failed" if entry.state == FAILED else ":delayed"), entry.id)
        return max((float(score) - steady) / 1e6, 0) if score else 0

    def holder(self, entry):
        return self.leases.read(entry.token)
