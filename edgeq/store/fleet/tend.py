"""The operator's verbs, the bounds, the audit, and `edgeq move`."""

from edgeq import record as records
from edgeq.errors import Busy, Duplicate, NotFound
from edgeq.job import CORRUPT, DLQ, DONE, FAILED, INCOMING, PROCESSING, is_word
from edgeq.store.base import Parcel
from edgeq.store.fleet.element import id_in, text_of, without_end
from edgeq.store.arrivals import poke

PER_PASS = 64
PRUNE_AT_ONCE = 512


class Tend:
    """Part of store/redis.py's Redis."""

    def kick(self, id, now):
        self._usable()
        word = text_of(self.run_script("KICK", id))
        if word == "":
            raise NotFound("kick", id, "no such dead letter", "see 'edgeq ls dlq'")
        if word != "kicked":
            raise Duplicate("kick", id, "is done already" if word == DONE else "has a job in %s/" % word, "wait until it ends")
        self._sync()
        self.forget_error(id)
        poke(self.run, "0")

    def cancel(self, id, now):
        self._usable()
        word = text_of(self.run_script("CANCEL", id))
        if word in ("", DONE):
            raise NotFound("cancel", id, "is done already" if word else "no such job", "see 'edgeq ls'")
        if word == PROCESSING:
            raise Busy("cancel", id, "is running", "wait, or use --running")
        self._sync()
        self.forget_error(id)
        return word

    def purge(self, states, now):
        self._usable()
        gone = 0
        for state in states:
            if state == DONE:
                gone += self.run_script("PURGE_DONE")
            elif state == CORRUPT:
                gone += self.link.call("LLEN", self.key + "_corrupt")
                self.link.call("DEL", self.key + "_corrupt", self.key + ":why")
            else:
                ids = [entry.id for entry in self.entries(state)]
                for at in range(0, len(ids), 500):
                    gone += self.run_script("REMOVE", state, *ids[at:at + 500])
        self._sync()
        return gone

    def prune(self, now):
        """Dead letters beyond DLQ_KEEP or DLQ_KEEP_KB, completions beyond DONE_KEEP_KB, what was set aside beyond CORRUPT_KEEP."""
        self._usable()
        kept_bytes, surplus = 0, []
        for at, element in enumerate(self.link.call("LRANGE", self.key + "_dlq", 0, -1)):
            kept_bytes += len(element)
            if at >= self.config.dlq_keep or kept_bytes > self.config.dlq_keep_kb * 1024:
                surplus.append(id_in(element))
        surplus = [id for id in surplus if id][-PER_PASS:]
        gone = self.run_script("REMOVE", DLQ, *surplus) if surplus else 0
        for id in surplus:
            self.log.warning("dead letter dropped", id=id, because="DLQ_KEEP or DLQ_KEEP_KB")
        gone += self.run_script("PRUNE_DONE", self.config.done_keep_kb * 1024, PRUNE_AT_ONCE)
        if self.link.call("LLEN", self.key + "_corrupt") > self.config.corrupt_keep:
            self.link.call("LTRIM", self.key + "_corrupt", 0, self.config.corrupt_keep - 1)
        return gone

    def check(self, now, repair=False):
        """[sentence] of what is not as it should be on the server, and claims that nobody who lives holds."""
        found = ["%s is missing: repair makes it" % path for path, _ in self.folders() if not self.disk.exists(path)]
        if found and repair:
            self.make_folders()
        for id, state in self._unlisted():
            found.append("job %s says it is in %s and stands in no list: repair puts it back" % (id, state))
            if repair:
                self._relist(id, state)
        from edgeq.store.audit import check_claims
        check_claims(self, now, found, repair)
        return found

    def _unlisted(self):
        """(id, state) of jobs that stand in no list: somebody removed an element by hand."""
        listed = set()
        for key in [self._ready_key(digit) for digit in range(10)] + [self.key + "_processing", self.key + "_dlq"]:
            listed.update(id_in(element) for element in self.link.call("LRANGE", key, 0, -1))
        for key in (":delayed", ":failed", ":at"):
            listed.update(text_of(id) for id in self.link.call("ZRANGE", self.key + key, 0, -1))
        head = len(self.key + ":job:")
        for key in list(self.link.scan("SCAN", match=("MATCH", self.key + ":job:*"))):
            if text_of(key)[head:] not in listed:
                state = self.link.call("HGET", key, "st")
                if state and state != PROCESSING.encode():
                    yield text_of(key)[head:], text_of(state)

    def _relist(self, id, state):
        text, dead, priority = self.link.call("HMGET", self.key + ":job:" + id, "text", "dtext", "pr")
        is_dead = state == DLQ
        self.link.call("LPUSH", self.key + "_dlq" if is_dead else self._ready_key(int(priority)), dead if is_dead else text)

    # --- move: see Parcel in store/base.py ---------------------------------------------------------------------------------

    def export(self):
        for line in self.done_lines():
            yield Parcel(line=line)
        for state in (DLQ, FAILED, INCOMING):
            for entry in list(self.entries(state)):
                _, _, record, _ = self.find(entry.id)
                if record:
                    error = self.link.call("HGET", self.key + ":job:" + entry.id, "err")
                    yield Parcel(entry, record, None, text_of(error or b""))

    def take_parcel(self, parcel, now):
        self._usable()
        if parcel.line:
            line = parcel.line
            return bool(self.run_script("TAKE_LINE", line.id, "%d %d %d %s %d %s" % (
                line.seq, line.done_at, line.attempts, line.type, line.ms, line._note()), line.seq))
        entry, record = parcel.entry, parcel.record
        text = dead = records.encode_whole(record, entry).rstrip(b"\n")
        if entry.state == DLQ:
            text = records.encode_whole(without_end(record), entry).rstrip(b"\n")
        wait_s = max(entry.due - now.wall, 0) if entry.due and not entry.is_at else 0
        return bool(self.run_script(
            "TAKE_PARCEL", entry.id, entry.state, entry.priority, entry.seq, entry.due, int(entry.is_at), entry.attempts,
            int(entry.again), entry.type, text, dead if entry.state == DLQ else b"", record.expires_s or 0, record.key or "",
            int(record.is_latest), parcel.last_error.encode("utf-8", "backslashreplace"), int(wait_s * 1e6)))

    def can_hold(self, id):
        return is_word(id.replace(":", "", 1), 129)

    def seal(self, now):
        self._usable()
        self._sync()

    def let_go(self, parcels, now):
        self._usable()
        for parcel in parcels:
            if parcel.entry:
                self.run_script("REMOVE", parcel.entry.state, parcel.id)

    def let_go_done(self, now):
        self._usable()
        self.run_script("PURGE_DONE")
