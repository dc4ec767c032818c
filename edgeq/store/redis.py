"""The Redis store: for many workers on many hosts. Each verb is one script (fleet/lua.py), so it happens whole or not at all.

`redis://HOST:PORT/DB?queue=app_jobs`. The lists app_jobs, app_jobs_processing and app_jobs_dlq are what any redis-cli user expects:
LPUSH of `{"id":101,"task":"send_welcome_email","email":"a@b"}` is a job of type send_welcome_email with the rest as its payload.

What it promises beyond store/base.py: an idle worker sleeps in BLMOVE from app_jobs to app_jobs_processing (fleet/doze.py); its
claim writes the lease, or moves and writes it, in one script; so no job is ever in a worker's hands alone. Leases and waits go by
the server's clock; a claim whose answer was lost is found by its lease. An element of app_jobs_processing that no claim has (a
lost answer to BLMOVE, a foreign one, a hand) goes back after GRACE_S.

What it does not: survive more than the server does. `appendfsync everysec` may lose a second of accepted jobs in a power
cut there; eviction or no persistence at all is said once and stands in the status (durable=no, see `notes`).

Who is dead: a claim names its owner's node, boot, pid namespace, pid and start time. The same node in another boot and a pid that
is gone here are dead at once; of other hosts only the deadline speaks. On this host lie the running mark, the wake-ups, a node's
own drain and the handlers' groups, as for every store (store/local.py).

Errors: as of fleet/link.py. LeaseLost: somebody else holds the claim.
"""

from edgeq import BUILD_DATE
from edgeq import disk as seam
from edgeq.errors import BadConfig, BadJob, BadPassword, EdgeqError, StoreDown
from edgeq.job import CORRUPT, FAILED, INCOMING, PROCESSING, Entry, Lease
from edgeq.store.base import QUEUED, Gauges, Receipt
from edgeq.store.fleet.doze import BLOCK_S, Doze
from edgeq.store.fleet.element import info_of, job_of, options_of, text_of
from edgeq.store.fleet.pauses import FleetPauses
from edgeq.store.fleet.recover import Recover
from edgeq.store.fleet.settle import Settle
from edgeq.store.fleet.tend import Tend
from edgeq.store.fleet.views import Views
from edgeq.store.arrivals import poke
from edgeq.store.local import LocalStore
from edgeq.store.mark import MARK

DOWN_MAX_S = 8
REAP_GAP_S = 1  # between two looks for leases that ran out


def open_backend(config, clock, log, disk=None):
    try:
        from edgeq.store.fleet import link, lua
    except (ImportError, AttributeError) as error:  # the second: redis-py on a Python without ssl
        raise BadConfig("store", config.store.partition("@")[2] or config.store, "no redis-py can be loaded (%s)" % error,
                        "pip install edgeq[redis], or use dist/edgeq-redis.pyz, on a Python with ssl") from None
    place = link.Place(config.store, config.queue)
    return Redis(config, clock, log, disk or seam.Disk(), place, link.Link(place, config), lua.script_of)


class Redis(Doze, Settle, Recover, Tend, Views, LocalStore):
    """One queue on a server. server_clock: in tests, a function that gives (steady, wall) microseconds instead of the server's."""

    states = (CORRUPT,)
    reaps_everywhere = True
    down_max_s, down_jitter = DOWN_MAX_S, 0.5  # many workers must not come back at once

    def __init__(self, config, clock, log, disk, place, link, script_of):
        LocalStore.__init__(self, config, clock, log, disk, config.spool, config.spool_path)
        self.place, self.link, self.script_of, self.key = place, link, script_of, place.queue
        self.server_clock = lambda: (0, 0)
        self.pauses = FleetPauses(self, self.pauses)
        self._scripts = {}
        self._next_due = None
        self._blocked = {}
        self._reap_at = 0.0
        self._types = {}
        self._is_greeted = False
        self._notes = []
        self._barriers_n = self._written_bytes = 0
        self._node = None

    # --- the server --------------------------------------------------------------------------------------------

    def run_script(self, name, *args):
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = self.script_of(name, BUILD_DATE, (BLOCK_S + 1) * 1_000_000)
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
        suspect_seq = self._find_suspects()
        self._is_greeted = True
        self._note_suspects(suspect_seq)
        self._notes = self._dangers()
        for note in self._notes:
            self.log.warning("redis", why=note)

    def _find_suspects(self):
        mark, newest, known = self._mark(), self._newest(), self._known_suspects()
        if known is not None:
            return known
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
        memory, persistence = (info_of(part) for part in info)
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
            self._wake_quietly()
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
        receipts = [Receipt(text_of(answer[n]), text_of(answer[n + 1])) for n in range(0, len(answer), 3)]
        for job, receipt, old in zip(jobs, receipts, answer[2::3]):
            self._written_bytes += len(job.payload)
            if old:
                self.tell_superseded(text_of(old), job.type, receipt.id)
        if any(receipt.status == QUEUED for receipt in receipts):
            poke(self.run, "0")
        return receipts

    def adopt(self, now):
        """A foreign producer's jobs are taken in where a claim meets them."""
        return 0

    def _take_stranger(self, key, element, now):
        """What somebody pushed by hand becomes a job in its place, or is set aside (P6)."""
        try:
            job = job_of(element, self.readable_bytes())
        except BadJob as error:
            if self.run_script("SET_ASIDE", key, element, error.why.encode("ascii", "backslashreplace")[:200]):
                self.set_aside_n += 1
                self.log.warning("set aside", list=text_of(key), why=error.why)
            return
        if job.id is None:
            job.id = "%016d-%s" % (int(now.wall * 1e6), seam.make_uuid()[:8])
        word = self.run_script("ADOPT", key, element, job.id, job.type, job.priority, options_of(job), job.payload, 0,
                               "" if job.at is None else int(job.at), job.key or "", int(job.latest), job.expires_s or 0)
        self.log.debug("adopted", id=job.id, type=job.type, was=text_of(word))

    # --- claim -----------------------------------------------------------------------------------------------------

    def claim(self, now, may_run=None, lease_s=60, fresh=False):
        self._usable()
        if not self._is_greeted:
            self._greet(now)
        if not self.is_marked:
            self._mark_running()
        token = self.leases.make_token()
        doze_us = (BLOCK_S + 1) * 1_000_000 if fresh and self.is_resident else 0
        while True:
            source, moved = self._woken()
            allowed = [type for type in self._types if may_run is None or may_run(type)]
            blocked = [type for type in self._types if type not in allowed]
            answer = self.run_script("CLAIM", token, int(lease_s * 1e6), self.owner_text, doze_us, source, moved, len(allowed),
                                     *(allowed + blocked))
            word = answer[0]
            self._tell_gone(answer[-1])
            if word == b"ask":
                self._types[text_of(answer[1])] = True
            elif word == b"stranger":
                self._take_stranger(answer[1], answer[2], now)
            elif word != b"again":
                self.pauses.heard(answer[-2], now)
                if word == b"none":
                    if self._note_none(answer, doze_us, now):
                        continue
                    return None
                lease = self._leased(answer, token, now, lease_s)
                if lease:
                    return lease
                token = self.leases.make_token()

    def _note_none(self, answer, doze_us, now):
        """When to look again, and where to sleep; True: at once, for something went back to where it can be claimed."""
        _, due, _, place, has_orphans, lease_ends, _, _ = answer
        waits = [float(due)] if due else []
        if doze_us:
            self._source = self._sleeps_at = text_of(place)
        if has_orphans:
            rescued_n, again_s = self._rescue()
            if rescued_n:
                return True
            waits += [again_s] if again_s is not None else []
        if lease_ends and self.is_resident:
            if float(lease_ends) <= 0 and now.boot >= self._reap_at:
                self.is_reap_due, self._reap_at = True, now.boot + REAP_GAP_S
            waits.append(float(lease_ends) if float(lease_ends) > 0 else REAP_GAP_S)
        self._next_due = now.boot + max(min(waits), 0) if waits else None
        self._blocked = {}
        for line in answer[2]:
            state, type, n = text_of(line).split(" ")
            self._blocked.setdefault(type, {INCOMING: 0, FAILED: 0})[state] += int(n)
        return False

    @property
    def blocked(self):
        return self._blocked

    def _tell_gone(self, lines):
        for line in lines:
            why, id, type = text_of(line).split(" ")
            if why == "expired":
                self.expired_n += 1
                self.count_gone(1, 0)
                self.log.warning("expired", id=id, type=type)
            elif why == "superseded":
                self.tell_superseded(id, type, "a newer one of its key")
            else:
                self.log.info("dropped", id=id, because="it is done" if why == "done" else "it stood in the list twice")

    def _leased(self, answer, token, now, lease_s):
        """The Lease of a claim; None when what was claimed cannot be read."""
        id, type, element, priority, seq, attempts, again, due, is_at, state, error = answer[1:12]
        origin = Entry(text_of(state), int(priority), int(seq), int(due), is_at == b"1", int(attempts), again == b"1",
                       text_of(type), text_of(id))
        claimed = origin.moved(PROCESSING, attempts=origin.attempts + 1, token=token, due=0, is_at=False)
        try:
            record = self._decoded(element)
        except BadJob as trouble:
            self.link.call("LPUSH", self.key + "_corrupt", element)  # CRASH: twice after a cut here, never lost
            self.run_script("DROP", origin.id, token)
            self.set_aside_n += 1
            self.log.warning("set aside", id=origin.id, why=trouble.why)
            return None
        is_suspect = origin.seq <= self.suspect_seq
        lease = Lease(claimed, record, now.boot, now.boot + lease_s, origin.again or origin.attempts > 0 or is_suspect, is_suspect,
                      (self.last_error(origin.id) or text_of(error)) if origin.attempts or origin.again else "")
        lease.origin = origin
        if is_suspect:
            self._sync()  # CRASH: a job that may have taken the board down is charged before it runs (P4)
        self.leases.create(token, lease.leased_until, now.boot)
        self._mine[token] = origin.id
        return lease

    def next_due(self, now):
        return self._next_due

    def is_unsure(self, now):
        return False

    def is_trusted(self, now):
        return self.config.clock != "none" and now.wall >= BUILD_DATE
