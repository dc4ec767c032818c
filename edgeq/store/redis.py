"""The Redis store: for many workers on many hosts. Each verb is one script (store/lua.py), so it happens whole or not at all.

`redis://HOST:PORT/DB?queue=app_jobs`. The lists app_jobs, app_jobs_processing and app_jobs_dlq are what any redis-cli user expects:
LPUSH of `{"id":101,"task":"send_welcome_email","email":"a@b"}` is a job of type send_welcome_email with the rest as its payload.

What it promises beyond store/base.py: a claim moves the job to app_jobs_processing and writes its lease in the same script, so no
job is ever in a worker's hands alone; leases and waits go by the server's clock; a claim whose answer was lost is found by its
lease. An element of app_jobs_processing that no claim has (a foreign BLMOVE, a hand) goes back after GRACE_S.

What it does not: survive more than the server does. `appendfsync everysec` may lose a second of accepted jobs in a power
cut there; eviction or no persistence at all is said once and stands in the status (durable=no, see `notes`).

Who is dead: a claim names its owner's node, boot, pid namespace, pid and start time. The same node in another boot and a pid that
is gone here are dead at once; of other hosts only the deadline speaks. On this host lie the running mark, the wake-ups, a node's
own drain and the handlers' groups, as for every store (store/local.py).

Errors: as of store/link.py. LeaseLost: somebody else holds the claim.
"""

import posix

from edgeq import BUILD_DATE
from edgeq import disk as seam
from edgeq import record as records
from edgeq.errors import (
    BadConfig, BadJob, BadPassword, Busy, Duplicate, EdgeqError, LeaseLost, NotFound, StoreDown)
from edgeq.job import CORRUPT, DLQ, DONE, FAILED, INCOMING, PROCESSING, Entry, Lease, is_word
from edgeq.lease import Holder, is_alive
from edgeq.store.base import QUEUED, Counts, Gauges, Parcel, Receipt
from edgeq.store.journal import ReadLine, escape_note
from edgeq.store.local import MARK, READABLE_BYTES, LocalStore, poke
from edgeq.store.pauses import Pauses

GRACE_S = 2  # how long an element may stand in processing without a claim
DOWN_MAX_S = 8
LOOK_EVERY_S = 0.5  # a worker with nothing to do looks so often (worker.py)
PAUSES_S = 1  # a pause seen so long ago is looked up again
PER_PASS = 64
PRUNE_AT_ONCE = 512
ENTRY = ("st", "pr", "seq", "due", "at", "att", "again", "type", "tok")


def open_backend(config, clock, log, disk=None):
    try:
        from edgeq.store import link, lua
    except ImportError as error:
        raise BadConfig("store", config.store.partition("@")[2] or config.store, "this Python has no redis-py (%s)" % error,
                        "pip install edgeq[redis], or use dist/edgeq-redis.pyz") from None
    place = link.Place(config.store, config.queue)
    return Redis(config, clock, log, disk or seam.Disk(), place, link.Link(place, config), lua)


class Redis(LocalStore):
    """One queue on a server. server_clock: in tests, a function that gives (steady, wall) microseconds instead of the server's."""

    states = (CORRUPT,)
    look_every_s = LOOK_EVERY_S
    down_max_s, down_jitter = DOWN_MAX_S, 0.5  # many workers must not come back at once

    def __init__(self, config, clock, log, disk, place, link, lua):
        LocalStore.__init__(self, config, clock, log, disk, config.spool, config.spool_path)
        self.place, self.link, self.lua, self.key = place, link, lua, place.queue
        self.prelude = lua.PRELUDE % BUILD_DATE
        self.server_clock = lambda: (0, 0)
        self.pauses = _Pauses(self, self.pauses)
        self._scripts = {}
        self._next_due = None
        self._blocked = {}
        self._orphans = {}
        self._types = {}
        self._is_greeted = False
        self._notes = []
        self._barriers_n = self._written_bytes = 0
        self._node = None

    # --- the server --------------------------------------------------------------------------------------------

    def run_script(self, name, *args):
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self.prelude + getattr(self.lua, name)
        return self.link.run(script, self.key, tuple(int(n) for n in self.server_clock()) + args)

    def barrier(self):
        """What was answered is as safe as this server makes it: with WAITAOF (7.2) on its disk. OSError: the line broke."""
        self._barriers_n += 1

    def _sync(self):
        try:
            self.barrier()
        except (OSError, EdgeqError):
            self.is_broken = True
            raise

    @property
    def node(self):
        """This device's name in the fleet."""
        return self._home_text()[0]

    @property
    def owner_text(self):
        """Who claims: `NODE BOOT PIDNS PID START`."""
        return " ".join(self._home_text() + (str(self.leases.pid), str(self.leases.start)))

    def _home_text(self):
        if self._node is None:
            try:
                space = posix.readlink("/proc/self/ns/pid").strip("pid:[]")
            except OSError:
                space = "0"
            self._node = node_name(self), space
        return self._node[0], self.clock.boot_id, self._node[1]

    # --- opening and closing -------------------------------------------------------------------------------------

    def start(self, now):
        """A worker begins. A server that is away is waited for, by the worker's loop; one that does not let us in: exit 78."""
        self.make_folders()
        self._alive.take()
        self.is_broken = False
        try:
            self._greet(now)
        except BadPassword:
            raise
        except EdgeqError as error:
            self.log.warning("store", error=error)

    def _greet(self, now):
        """Once a line: who is suspect (P4), and what the server's settings endanger (B89)."""
        self.suspect_seq = self._find_suspects()
        self._is_greeted = True
        seam.write_run(self.run + "/suspect", b"%d %s\n" % (self.suspect_seq, self.clock.boot_id.encode()))
        self._notes = self._dangers()
        for note in self._notes:
            self.log.warning("redis", why=note)

    def _find_suspects(self):
        mark = self._mark()
        newest = self._newest()
        try:
            seq, boot_id = seam.read_text(self.run + "/suspect").split()
            if boot_id == self.clock.boot_id:
                return int(seq)
        except (FileNotFoundError, ValueError):
            pass
        return 0 if mark is None else newest

    def _newest(self):
        return int(self.link.call("HGET", self.key + ":meta", "seq") or 0)

    def _dangers(self):
        """[sentence] about eviction and persistence; [] where INFO is not allowed."""
        try:
            info = self.link.call("INFO", "memory"), self.link.call("INFO", "persistence")
            save = self.link.call("CONFIG", "GET", "save")
        except StoreDown:
            return []
        memory, persistence = (_info(part) for part in info)
        policy, found = memory.get("maxmemory_policy", "noeviction"), []
        if policy != "noeviction":
            found.append("maxmemory-policy %s may drop jobs: set noeviction" % policy)
        value = save[1] if isinstance(save, list) and len(save) > 1 else dict(save or {}).get("save", "?")
        if persistence.get("aof_enabled") == "0" and value in (b"", ""):
            found.append("no persistence: a restart of the server loses all jobs: set appendonly yes")
        return found

    def highest_seq(self):
        return 0  # R/seq is no measure here: the server has the order

    def close(self, now, clean=True):
        try:
            if not self.is_broken and self.batch.since is not None:
                self.flush(now)
            if clean and self._alive.fd >= 0 and self._alive.try_exclusive() and self._mark() is not None:
                own = self._home_text()
                if not any(tuple(owner.split(" ")[:3]) == own for _, _, owner, _ in self._claims()):
                    self.disk.unlink(self.path(MARK))
                    self.flush_folder("")
        finally:
            self._alive.drop()
            self.link.close()

    def reopen(self, now):
        self.make_folders()
        self.link.close()
        self.is_broken = self.is_marked = False
        try:
            self.link.call("PING")
            self.flush(now)
        except (OSError, EdgeqError):
            self.is_broken = True
            raise

    def notes(self):
        try:
            return self._dangers()
        except (OSError, EdgeqError):
            return []  # whoever uses it says why

    def notice(self):
        return "redis: " + "; ".join(self._notes) if self._notes else ""

    def gauges(self):
        return Gauges(self._barriers_n, self._written_bytes // 1024, is_reduced=bool(self._notes))

    # --- the front door --------------------------------------------------------------------------------------------

    def enqueue(self, job, now, fast=False):
        return self.enqueue_many([job], now)[0]

    def enqueue_many(self, jobs, now):
        self._usable()
        fields = []
        for job in jobs:
            if job.id is None:
                job.id = "%016d-%s" % (int(now.wall * 1e6), seam.make_uuid()[:8])
            fields += [job.id, job.type, job.priority, options_of(job), job.payload, int(job.delay_s or 0) if job.at is None else 0,
                       "" if job.at is None else int(job.at), job.key or "", int(job.latest), job.expires_s or 0]
        try:
            answer = self.run_script("ENQUEUE", *fields)
            self._sync()
        except (OSError, EdgeqError) as error:
            what = jobs[0].id if len(jobs) == 1 else "batch of %d" % len(jobs)
            if isinstance(error, BadPassword):
                raise
            why = error.why if isinstance(error, EdgeqError) else error.strerror
            raise StoreDown("enqueue", what, "no answer: %s; it may still run" % why,
                            "repeat with the same --id %s" % what) from None
        receipts = [Receipt(_text(answer[n]), _text(answer[n + 1])) for n in range(0, len(answer), 3)]
        for job, receipt, old in zip(jobs, receipts, answer[2::3]):
            self._written_bytes += len(job.payload)
            if old:
                self._tell_superseded(_text(old), job.type, receipt.id)
        if any(receipt.status == QUEUED for receipt in receipts):
            poke(self.run, "0")
        return receipts

    def _tell_superseded(self, id, type, by):
        self.forget_error(id)
        self.count_gone(0, 1)
        self.log.warning("superseded", id=id, type=type, by=by)

    def adopt(self, now):
        """A foreign producer's jobs are taken in where a claim meets them."""
        return 0

    def _take_stranger(self, key, element, now):
        """What somebody pushed by hand becomes a job in its place, or is set aside (P6)."""
        try:
            job = job_of(element, max(4 * self.config.max_payload_bytes, READABLE_BYTES))
        except BadJob as error:
            if self.run_script("SET_ASIDE", key, element, error.why.encode("ascii", "backslashreplace")[:200]):
                self.set_aside_n += 1
                self.log.warning("set aside", list=_text(key), why=error.why)
            return
        if job.id is None:
            job.id = "%016d-%s" % (int(now.wall * 1e6), seam.make_uuid()[:8])
        word = self.run_script("ADOPT", key, element, job.id, job.type, job.priority, options_of(job), job.payload, 0,
                               "" if job.at is None else int(job.at), job.key or "", int(job.latest), job.expires_s or 0)
        self.log.debug("adopted", id=job.id, type=job.type, was=_text(word))

    # --- claim -----------------------------------------------------------------------------------------------------

    def claim(self, now, may_run=None, lease_s=60, fresh=False):
        self._usable()
        if not self._is_greeted:
            self._greet(now)
        if not self.is_marked:
            self._mark_running()
        token = self.leases.make_token()
        while True:
            allowed = [type for type in self._types if may_run is None or may_run(type)]
            blocked = [type for type in self._types if type not in allowed]
            answer = self.run_script("CLAIM", token, int(lease_s * 1e6), self.owner_text, len(allowed), *(allowed + blocked))
            word = answer[0]
            self._tell_gone(answer[-1])
            if word == b"ask":
                self._types[_text(answer[1])] = True
            elif word == b"stranger":
                self._take_stranger(answer[1], answer[2], now)
            elif word != b"again":
                self.pauses.heard(answer[-2], now)
                if word == b"none":
                    self._note_none(answer, now)
                    return None
                lease = self._leased(answer, token, now, lease_s)
                if lease:
                    return lease
                token = self.leases.make_token()

    def _note_none(self, answer, now):
        self._next_due = now.boot + max(float(answer[1]), 0) if answer[1] else None
        self._blocked = {}
        for line in answer[2]:
            state, type, n = _text(line).split(" ")
            self._blocked.setdefault(type, {INCOMING: 0, FAILED: 0})[state] += int(n)

    @property
    def blocked(self):
        return self._blocked

    def _tell_gone(self, lines):
        for line in lines:
            why, id, type = _text(line).split(" ")
            if why == "expired":
                self.expired_n += 1
                self.count_gone(1, 0)
                self.log.warning("expired", id=id, type=type)
            elif why == "superseded":
                self._tell_superseded(id, type, "a newer one of its key")
            else:
                self.log.info("dropped", id=id, because="it is done" if why == "done" else "it stood in the list twice")

    def _leased(self, answer, token, now, lease_s):
        """The Lease of a claim; None when what was claimed cannot be read."""
        id, type, element, priority, seq, attempts, again, due, is_at, state, error = answer[1:12]
        origin = Entry(_text(state), int(priority), int(seq), int(due), is_at == b"1", int(attempts), again == b"1", _text(type),
                       _text(id))
        claimed = origin.moved(PROCESSING, attempts=origin.attempts + 1, token=token, due=0, is_at=False)
        try:
            record = self._decoded(element)
        except BadJob as trouble:
            self.run_script("DROP", origin.id, token)
            self.link.call("LPUSH", self.key + "_corrupt", element)
            self.set_aside_n += 1
            self.log.warning("set aside", id=origin.id, why=trouble.why)
            return None
        is_suspect = origin.seq <= self.suspect_seq
        lease = Lease(claimed, record, now.boot, now.boot + lease_s, origin.again or origin.attempts > 0 or is_suspect, is_suspect,
                      (self.last_error(origin.id) or _text(error)) if origin.attempts or origin.again else "")
        lease.origin = origin
        if is_suspect:
            self._sync()  # CRASH: a job that may have taken the board down is charged before it runs (P4)
        self.leases.create(token, lease.leased_until, now.boot)
        self._mine.add(token)
        return lease

    def _decoded(self, text):
        """The Record of an element. An id of the fleet is NODE:ID, which on a device's own disk could not be."""
        id, limit = id_in(text), max(4 * self.config.max_payload_bytes, READABLE_BYTES)
        node, colon, rest = id.partition(":")
        if not (colon and is_word(node) and is_word(rest)):
            return records.decode(text + b"\n", limit)
        record = records.decode(text.replace(id.encode(), rest.encode(), 1) + b"\n", limit)
        record.id, record.raw["id"] = id, records.quote(id)
        return record

    def next_due(self, now):
        return self._next_due

    def is_unsure(self, now):
        return False

    def is_trusted(self, now):
        return self.config.clock != "none" and now.wall >= BUILD_DATE

    # --- settle ------------------------------------------------------------------------------------------------------

    def heartbeat(self, leases, now, lease_s):
        """[Lease] that are lost; the others' deadlines move."""
        if not leases:
            return []
        pairs = [part for lease in leases for part in (lease.entry.id, lease.token)]
        try:
            kept = self.run_script("HEARTBEAT", int(lease_s * 1e6), *pairs)
        except EdgeqError as error:
            raise OSError(5, str(error)) from None  # not knowing is not lost
        lost = []
        for lease, is_ours in zip(leases, kept):
            if not is_ours:
                lost.append(lease)
                continue
            lease.leased_until = now.boot + lease_s
            try:
                self.leases.write(lease.token, lease.leased_until, lease.started_at, lease.handler)
            except OSError:
                pass  # /run was emptied: the server has the lease
        return lost

    def ack(self, lease, now, note="", ms=0):
        self._usable()
        entry = lease.entry
        line = "%d %d %d %s %d %s" % (entry.seq, int(now.wall), entry.attempts, entry.type, ms, escape_note(note))
        self._holding(lease, self.run_script("ACK", entry.id, entry.token, line))
        self.batch.add_move(DONE, now)
        self._forget(lease)
        self._forget_errors_of(entry)

    def retry(self, lease, wait_s, why, now):
        self._put(lease, lease.entry.moved(FAILED), now, why, wait_s)
        self.batch.add_move(FAILED, now)

    def bury(self, lease, why, now, attempts=None):
        self._usable()
        attempts = lease.entry.attempts if attempts is None else attempts
        if not lease.is_moved:
            self._put(lease, lease.entry.moved(DLQ, attempts=attempts), now, why)
            lease.is_moved = True
        self._sync()
        self.forget_error(lease.entry.id)

    def hold(self, lease, why, ran, now):
        origin = lease.origin or self._origin(lease.entry)
        self._put(lease, origin.moved(origin.state, again=origin.again or ran), now, why)

    def give_back(self, lease, why, now):
        entry = lease.entry
        attempts = entry.attempts if entry.again else entry.attempts - 1
        self._put(lease, entry.moved(INCOMING, attempts=attempts, again=True), now, why)
        self.batch.add_move(INCOMING, now)

    def drop(self, lease, why, now):
        self._usable()
        self._holding(lease, self.run_script("DROP", lease.entry.id, lease.token))
        self._sync()
        self._forget(lease)
        self.forget_error(lease.entry.id)

    def _put(self, lease, target, now, why, wait_s=None):
        self._usable()
        dead = b""
        if target.state == DLQ:
            dead = records.encode_dead(lease.record, target, target.attempts, why, now.wall).rstrip(b"\n")
        wait_us = "" if wait_s is None else int(wait_s * 1e6)
        answer = self.run_script("PUT", target.id, lease.token, target.state, target.due, wait_us, target.attempts,
                                 int(target.again), why.encode("utf-8", "backslashreplace"), dead, int(target.is_at))
        self._holding(lease, answer[0])
        self._forget(lease)
        if answer[0] == 2:
            self._tell_superseded(target.id, target.type, _text(answer[1]))
        elif why:
            self._save_error(target.id, why)

    def _holding(self, lease, is_ours):
        if not is_ours:
            self._forget(lease)
            raise LeaseLost("settle", lease.entry.id, "its claim is somebody else's")

    def _forget(self, lease):
        self._mine.discard(lease.token)
        self.leases.remove(lease.token)

    def flush_due_at(self):
        return self.batch.due_at(self.config.sync_window_ms, self.config.sync_jobs)

    def flush(self, now):
        self._usable()
        if self.batch.since is not None:
            self._sync()
            self.batch.clear()

    # --- reap ----------------------------------------------------------------------------------------------------------

    def _claims(self):
        answer = self.run_script("CLAIMS")
        return [(_text(answer[n]), _text(answer[n + 1]), _text(answer[n + 2]), float(answer[n + 3]))
                for n in range(0, len(answer), 4)]

    def stale(self, now):
        """[(Entry, Holder or None)] of claims nobody rightly holds. What stands in processing without a claim goes back."""
        found, claimed = [], set()
        for id, token, owner, left_s in self._claims():
            claimed.add(id)
            if token not in self._mine:
                is_stale, holder = self._judge(token, owner, left_s, now)
                entry = is_stale and self._entry(id)
                if entry and entry.state == PROCESSING:
                    found.append((entry, holder))
        self._rescue(claimed, now)
        return found

    def _judge(self, token, owner, left_s, now):
        """(whether the claim is stale, its Holder when it is of this boot)."""
        parts = owner.split(" ")
        node, boot_id, space = self._home_text()
        if len(parts) != 5 or parts[0] != node or parts[2] != space and parts[1] == boot_id:
            return left_s <= 0, None
        if parts[1] != boot_id:
            return True, None
        pid, start = int(parts[3]), int(parts[4])
        holder = self.leases.read(token) or Holder(token, pid, start, boot_id, 0, 0, now.boot, now.boot + left_s)
        if not is_alive(pid, start) or (pid, start) == (self.leases.pid, self.leases.start):
            return True, holder  # ours, but we do not know it: its answer was lost
        return left_s <= 0, holder

    def _rescue(self, claimed, now):
        orphans, ripe = {}, []
        for element in self.link.call("LRANGE", self.key + "_processing", 0, -1):
            head = element[:200].split(b'"', 4)
            if len(head) > 3 and head[1] == b"id" and head[3].decode("ascii", "replace") in claimed:
                continue
            orphans[element] = self._orphans.get(element, now.boot)
            if now.boot - orphans[element] >= GRACE_S:
                ripe.append(element)
        self._orphans = orphans
        if ripe and self.run_script("RESCUE", *ripe):
            self.log.warning("rescued", n=len(ripe), because="in processing without a claim")

    def take_over(self, entry, holder, now, lease_s):
        token = self.leases.make_token()
        group = (holder.group, holder.group_start) if holder else (0, 0)
        if not self.run_script("TAKE_OVER", entry.id, entry.token, token, self.owner_text, int(lease_s * 1e6)):
            return None
        self._mine.add(token)
        self.leases.create(token, now.boot + lease_s, now.boot, group)
        self.leases.remove(entry.token)
        text, error = self.link.call("HMGET", self.key + ":job:" + entry.id, "text", "err")
        lease = Lease(entry.moved(PROCESSING, token=token, again=True), None, now.boot, now.boot + lease_s, True, False,
                      self.last_error(entry.id) or _text(error or b""))
        lease.handler = group
        try:
            lease.record = self._decoded(text or b"")
        except BadJob as trouble:
            self.run_script("DROP", entry.id, token)
            self.link.call("LPUSH", self.key + "_corrupt", text or b"")
            self.log.warning("set aside", id=entry.id, why=trouble.why)
            self._forget(lease)
            return None
        return lease

    def sweep_dead(self, now):
        """Nothing to do: a job is done and its dead letter gone in one script."""

    # --- the operator's verbs --------------------------------------------------------------------------------------------

    def kick(self, id, now):
        self._usable()
        word = _text(self.run_script("KICK", id))
        if word == "":
            raise NotFound("kick", id, "no such dead letter", "see 'edgeq ls dlq'")
        if word != "kicked":
            raise Duplicate("kick", id, "is done already" if word == DONE else "has a job in %s/" % word, "wait until it ends")
        self._sync()
        self.forget_error(id)
        poke(self.run, "0")

    def cancel(self, id, now):
        self._usable()
        word = _text(self.run_script("CANCEL", id))
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
        for entry, holder in self.stale(now):
            found.append("job %s is claimed by nobody who lives: repair puts it back, its try charged" % entry.id)
            if repair:
                lease = self.take_over(entry, holder, now, 60)
                if lease:
                    self.retry(lease, 0, "worker died", now)
        for id, state in self._unlisted():
            found.append("job %s says it is in %s and stands in no list: repair puts it back" % (id, state))
            if repair:
                self._relist(id, state)
        if repair:
            self.flush(now)
        return found

    def _unlisted(self):
        """(id, state) of jobs that stand in no list: somebody removed an element by hand."""
        listed = set()
        for key in [self._ready_key(digit) for digit in range(10)] + [self.key + "_processing", self.key + "_dlq"]:
            listed.update(id_in(element) for element in self.link.call("LRANGE", key, 0, -1))
        for key in (":delayed", ":failed", ":at"):
            listed.update(_text(id) for id in self.link.call("ZRANGE", self.key + key, 0, -1))
        head = len(self.key + ":job:")
        for key in list(self.link.client().scan_iter(match=self.key + ":job:*", count=1000)):
            if _text(key)[head:] not in listed:
                state = self.link.call("HGET", key, "st")
                if state and state != PROCESSING.encode():
                    yield _text(key)[head:], _text(state)

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
                    yield Parcel(entry, record, None, _text(error or b""))

    def take_parcel(self, parcel, now):
        self._usable()
        if parcel.line:
            line = parcel.line
            return bool(self.run_script("TAKE_LINE", line.id, "%d %d %d %s %d %s" % (
                line.seq, line.done_at, line.attempts, line.type, line.ms, line._note()), line.seq))
        entry, record = parcel.entry, parcel.record
        text = dead = records.encode_whole(record, entry).rstrip(b"\n")
        if entry.state == DLQ:
            text = records.encode_whole(_without_end(record), entry).rstrip(b"\n")
        wait_s = max(entry.due - now.wall, 0) if entry.due and not entry.is_at else 0
        return bool(self.run_script(
            "TAKE_PARCEL", entry.id, entry.state, entry.priority, entry.seq, entry.due, int(entry.is_at), entry.attempts,
            int(entry.again), entry.type, text, dead if entry.state == DLQ else b"", record.expires_s or 0, record.key or "",
            int(record.is_latest), parcel.last_error.encode("utf-8", "backslashreplace"), int(wait_s * 1e6)))

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

    # --- views ---------------------------------------------------------------------------------------------------------------

    def _ready_key(self, digit):
        return self.key if digit == 5 else "%s:p%d" % (self.key, digit)

    def _entry(self, id):
        return entry_of(id, self.link.call("HMGET", self.key + ":job:" + id, *ENTRY))

    def entries(self, state):
        ids = []
        if state == PROCESSING:
            ids = [_text(id) for id in self.link.call("ZRANGE", self.key + ":leases", 0, -1)]
        elif state == DLQ:
            ids = [id_in(element) for element in self.link.call("LRANGE", self.key + "_dlq", 0, -1)]
        elif state in (INCOMING, FAILED):
            for digit in range(10):
                ids += [id_in(element) for element in self.link.call("LRANGE", self._ready_key(digit), 0, -1)]
            for key in (":failed",) if state == FAILED else (":delayed", ":at"):
                ids += [_text(id) for id in self.link.call("ZRANGE", self.key + key, 0, -1)]
        found = [self._entry(id) for id in dict.fromkeys(ids) if id]
        yield from sorted((entry for entry in found if entry and entry.state == state), key=lambda e: (e.priority, e.seq))

    def find(self, id):
        fields = self.link.call("HMGET", self.key + ":job:" + id, *ENTRY, "text", "dtext")
        entry = entry_of(id, fields)
        if entry is None:
            line = self.link.call("HGET", self.key + ":done", id)
            return (DONE, None, None, _line(id, 0, line)) if line else (None, None, None, None)
        try:
            return entry.state, entry, self._decoded(fields[-1] if entry.state == DLQ and fields[-1] else fields[-2]), None
        except BadJob:
            return entry.state, entry, None, None

    def done_lines(self):
        for id, n in self.link.client().zscan_iter(self.key + ":doneorder"):
            line = self.link.call("HGET", self.key + ":done", id)
            if line:
                yield _line(_text(id), int(n), line)

    def corrupt(self):
        from hashlib import sha1
        for element in self.link.call("LRANGE", self.key + "_corrupt", 0, -1):
            name = sha1(element).hexdigest()
            yield name[:12], _text(self.link.call("HGET", self.key + ":why", name) or b"no reason recorded")

    def counts(self, now, may_run=None):
        counts = Counts()
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


class _Pauses(Pauses):
    """Pauses of the fleet, on the server; this node's own `drain` stays a mark beside its store, and ends with its boot."""

    def __init__(self, store, own):
        Pauses.__init__(self, own.disk, own.root, own.boot_id, own.is_trusted)
        self.store, self.own = store, own
        self._known, self._known_at = {}, None

    def set(self, type, for_s, now, this_boot=False):
        if this_boot:
            self.own.set(type, for_s, now, True)
            return
        until = int(self._server_s() + for_s) if for_s else 0
        self.store.link.call("HSET", self._key(), type, until)
        self._known_at = None

    def clear(self, type):
        is_fleet = self.store.link.call("HDEL", self._key(), type)
        self._known_at = None
        try:
            self.own.clear(type)
        except NotFound:
            if not is_fleet:
                raise

    def heard(self, pairs, now):
        """What a claim's script told: it saw these before it took a job."""
        self._known = {_text(pairs[n]): int(pairs[n + 1]) for n in range(0, len(pairs), 2)}
        self._known_at = now.boot

    def ends_in(self, type, now):
        own = self.own.ends_in(type, now)
        if self._known_at is None or not 0 <= now.boot - self._known_at < PAUSES_S:
            try:
                self.heard([part for pair in self.store.link.client().hgetall(self._key()).items() for part in pair], now)
            except Exception as error:  # the line is down: nothing can be claimed either
                self.store.log.debug("pauses", error=error)
                return own
        if type not in self._known:
            return own
        until = self._known[type]
        left = until - self._server_s() if until else 0
        return 0 if not until else left if left > 0 else own

    def all(self, now):
        found = self.own.all(now)
        self.ends_in("", now)
        for type in self._known:
            left = self.ends_in(type, now)
            if left is not None:
                found[type] = left
        return found

    def _key(self):
        return self.store.key + ":pauses"

    def _server_s(self):
        seconds, _ = self.store.link.call("TIME")
        return int(seconds)


# --- rows and texts ---------------------------------------------------------------------------------------------------


def _text(data):
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)


def _info(answer):
    if isinstance(answer, dict):
        return {key: str(value) for key, value in answer.items()}
    return dict(line.split(":", 1) for line in _text(answer).split("\r\n") if ":" in line)


def id_in(element):
    """The id that an element of ours begins with; "" when it is not of ours."""
    head = element[:200].split(b'"', 4)
    return _text(head[3]) if len(head) > 3 and head[0] == b"{" and head[1] == b"id" else ""


def entry_of(id, fields):
    """The Entry of a job's hash; None when there is none."""
    state, priority, seq, due, is_at, attempts, again, type, token = fields[:9]
    if not state:
        return None
    return Entry(_text(state), int(priority), int(seq), int(due), is_at == b"1", int(attempts), again == b"1", _text(type), id,
                 _text(token or b""))


def _line(id, n, data):
    seq, done_at, attempts, type, ms, note = _text(data).split(" ", 5)
    return ReadLine(id, n, int(seq), int(done_at), int(attempts), type, int(ms), note)


def options_of(job):
    """The fields of a record between created_at and available_at, as they stand in it."""
    parts = []
    if job.priority != records.DEFAULT_PRIORITY:
        parts.append(',"priority":%d' % job.priority)
    for field in ("max_attempts", "timeout_s", "expires_s"):
        if getattr(job, field) is not None:
            parts.append(',"%s":%d' % (field, getattr(job, field)))
    if job.key is not None:
        parts.append(',"key":"%s"' % job.key + (',"latest":true' if job.latest else ""))
    return "".join(parts)


def job_of(element, limit_bytes):
    """The Job that a foreign producer's element asks for; BadJob when it is none.

    `task` may stand for `type`; then, without a `payload`, the rest of the object is the payload.
    """
    text = records.one_line(records._decode(element))
    raw = records._fields(text)
    if "type" not in raw and "task" in raw:
        raw["type"] = raw.pop("task")
        if "payload" not in raw:
            rest = ["%s:%s" % (records.quote(key), value) for key, value in raw.items() if key not in ("id", "type")]
            raw = {key: raw[key] for key in ("id", "type") if key in raw}
            raw["payload"] = "{%s}" % ",".join(rest)
        text = "{%s}" % ",".join("%s:%s" % (records.quote(key), value) for key, value in raw.items())
    record = records.decode_text(text, limit_bytes)
    return records.to_job(record)


def _without_end(record):
    """A dead letter's record as it was before it died."""
    fresh = records.Record()
    fresh.raw = {key: value for key, value in record.raw.items() if key not in ("attempts", "last_error", "failed_at")}
    return fresh


def node_name(store):
    """This device's name in the fleet: NODE, or one made once and kept beside the store, never in an image."""
    if store.config.node:
        return store.config.node
    path = store.path("node")
    try:
        name = store.disk.read_file(path, 100).decode("ascii", "replace").strip()
        if is_word(name):
            return name
    except FileNotFoundError:
        pass
    name = "n" + seam.make_uuid()[:12].replace("-", "")
    store.disk.replace(store.home, "node", name.encode() + b"\n")
    return name
