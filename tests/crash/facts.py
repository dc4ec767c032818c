"""What was acknowledged, what an image holds, and where the two disagree: the oracle of the crash images.

The writer's notes (one JSON object each) say what it asked for and what it was told; `Facts` adds them up to the cut. `Sight`
reads the folders with its own few lines, not with edgeq's. `compare` looks before anything is repaired; `recover` does what a
worker (or `check --repair`) does at the next boot and runs every job; `conclude` looks again. A sentence is a loss.

Notes (k is the kind):

    want n id type      about to enqueue payload number n (id null: generated)
    have n id           the enqueue was acknowledged
    batch calls         how a batch was made safe: sync_file_range or syncfs
    whole               from here on no job is visible before all its bytes are safe, acknowledged or not (told of gates alone)
    lose ids            about to cancel, purge or drop these; lost ids: acknowledged; keep ids: refused
    start id            a handler started; ran id: it succeeded, the store was not told yet
    done ids            these completions were flushed (ids null: every one that ran)
    forget              the journal is about to be cut back
    bury id, dead id why   about to write a dead letter; it was acknowledged
    kick id, kicked id  the same for a kick
    charged id att      a try that is durable; refund id: about to be given back
    pause on, paused on about to pause or resume; acknowledged
    moving to, moved    about to carry all to another spool; acknowledged
    boot clean          a boot began, after a clean stop or not
    limits jobs         SYNC_JOBS + CONCURRENCY of the worker that follows
"""

import json
import os
import shutil
import zlib

from edgeq import disk as seam
from edgeq.cli.move import carry
from edgeq.clock import Now
from edgeq.config import Config
from edgeq.errors import Busy, EdgeqError
from edgeq.job import Job, Retry
from edgeq.policy import after_death
from edgeq.reap import reap
from edgeq.store.base import QUEUED
from edgeq.store.spool import Spool

ACKS = frozenset(("have", "lost", "done", "dead", "kicked", "charged", "paused", "moved"))
WAITING = ("incoming", "processing", "failed")
FAR_S = 400 * 86400
REAL_S = 1_900_000_000  # a clock that was set: later than the build and than every job


def is_ack(note):
    return json.loads(note)["k"] in ACKS


def payload(n):
    """The payload of job number n: its own, of a length of its own, up to several blocks."""
    size = (40, 200, 200, 900, 3000, 4096, 9000)[n % 7]
    return b'{"n":%d,"pad":"%s"}' % (n, (b"%d-" % n * (size // 2))[:size])


class QuietLog:
    def debug(self, *_, **__):
        pass

    info = warning = error = debug


class Carefree(seam.Disk):
    """No flush reaches the disk: a recovery that is looked at once need not survive a cut (`again` records those that do)."""

    def fsync(self, fd):
        pass

    fdatasync = fsync


class BoardClock:
    """A clock that stands until it is moved."""

    def __init__(self, boot_id, wall, boot=100.0):
        self.boot_id, self.wall, self.boot = boot_id, wall, boot

    def read(self):
        return Now(self.wall, self.boot)

    def go_on(self, seconds):
        self.wall += seconds
        self.boot += seconds


def make_config(mount, run):
    """The configuration of the recorded stores and of the checks: small bounds, so that a short run meets them all."""
    config = Config()
    config.spool, config.run_dir = mount + "/spool", run
    config.done_keep_kb, config.sync_jobs, config.ballast_kb = 16, 4, 16
    config.base_delay_s = 1
    return config


# --- the notes -----------------------------------------------------------------------------------------


class Facts:
    """What the notes say: see the module's text."""

    def __init__(self, notes):
        self.wants, self.have, self.dead, self.charged = {}, {}, {}, {}
        self.may_go, self.gone, self.started, self.ran, self.done = set(), set(), set(), set(), set()
        self.forgettable, self.kicked, self.finished = set(), set(), set()
        self.paused = self.all_whole = False
        self.limit = 0
        self.target, self.is_moved = None, False
        for note in notes:
            note = json.loads(note)
            getattr(self, "_" + note.pop("k"))(**note)

    def _want(self, n, id, type):
        self.wants[n] = (id, type)

    def _have(self, n, id):
        self.have.setdefault(id, n)

    def _batch(self, calls):
        pass  # for bench.py

    def _whole(self):
        self.all_whole = True

    def _lose(self, ids):
        self.may_go.update(ids)
        for id in ids:
            self.dead.pop(id, None)
            self.kicked.discard(id)

    def _lost(self, ids):
        self.gone.update(ids)

    def _keep(self, ids):
        self.may_go.difference_update(ids)

    def _start(self, id, **_):
        self.started.add(id)

    def _ran(self, id):
        self.ran.add(id)
        self.finished.add(id)

    def _done(self, ids):
        self.done.update(self.ran if ids is None else ids)

    def _forget(self):
        self.forgettable |= self.finished

    def _bury(self, id):
        self.kicked.discard(id)

    def _dead(self, id, why):
        self.dead[id] = why

    def _kick(self, id):
        self.dead.pop(id, None)
        self.charged.pop(id, None)

    def _kicked(self, id):
        self.kicked.add(id)

    def _charged(self, id, att):
        self.charged[id] = att

    def _refund(self, id):
        self.charged.pop(id, None)

    def _pause(self, on):
        self.paused = None

    def _paused(self, on):
        self.paused = on

    def _boot(self, clean):
        self.ran &= self.done  # what was not flushed may run again, and is told apart from this boot's

    def _moving(self, to):
        self.target = to

    def _moved(self):
        self.is_moved = True

    @property
    def homes(self):
        """The spools, below the mount point, in which a job may be."""
        return [self.target] if self.is_moved else ["spool"] + [self.target] * bool(self.target)

    def _limits(self, jobs):
        self.limit = jobs


# --- the image -----------------------------------------------------------------------------------------


class Place:
    """One job file as it lies there. n: its payload's number, None when it is torn."""

    __slots__ = ("folder", "name", "path", "id", "n", "attempts", "record", "seq")

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.n = self.record = None
        self.attempts = self.seq = 0
        parts = name.split(".")
        self.id = None
        if folder == "dlq":
            self.id = name[:-5]
        elif len(parts) == (8 if folder == "processing" else 7):
            self.id = parts[5]
            self.attempts = int(parts[3].rstrip("r"))
            self.seq = int(parts[1])


class Sight:
    """What lies in the spools `homes` below `mount`."""

    def __init__(self, mount, homes):
        self.places, self.lines = {}, {}
        self.seq = 0
        self.is_marked = self.is_paused = False
        for home in homes:
            self.root = "%s/%s/default" % (mount, home)
            for folder in WAITING + ("dlq",):
                for name in _names("%s/%s" % (self.root, folder)):
                    self._see(folder, name)
            for name in sorted(_names(self.root + "/done")):
                self._see_lines(name)
            self.is_marked |= _read(self.root + "/running")[-1:] == b"\n"
            self.is_paused |= bool(_read(self.root + "/paused"))

    def _see(self, folder, name):
        place = Place(folder, name)
        place.path = "%s/%s/%s" % (self.root, folder, name)
        data = _read(place.path)
        try:
            if data[-1:] != b"\n":
                raise ValueError("torn")
            place.record = json.loads(data)
            if place.id is None:
                place.id = place.record["id"]  # dropped by a person: its content says who it is
            if place.record["id"] == place.id and b'"payload":' + payload(place.record["payload"]["n"]) in data:
                place.n = place.record["payload"]["n"]
        except (ValueError, KeyError, TypeError):
            pass
        self.seq = max(self.seq, place.seq)
        if place.id is not None:
            self.places.setdefault(place.id, []).append(place)

    def _see_lines(self, name):
        for line in _read("%s/done/%s" % (self.root, name)).split(b"\n"):
            body, blank, crc = line.rpartition(b" ")
            if blank and crc == b"%08x" % zlib.crc32(body + b" "):
                fields = body.decode().split(" ")
                self.lines.setdefault(fields[0], []).append(fields)
                self.seq = max(self.seq, int(fields[2]))

    def whole(self, id):
        return [place for place in self.places.get(id, ()) if place.n is not None]


def _names(folder):
    try:
        return [name for name in os.listdir(folder) if name[0] != "."]
    except FileNotFoundError:
        return []


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


# --- before anything is repaired -----------------------------------------------------------------------


def compare(facts, sight):
    """[sentence]: what was acknowledged and is not so, or is there without ever having been asked for."""
    found = []
    for id, n in facts.have.items():
        if id in facts.may_go:
            continue
        whole = sight.whole(id)
        if not whole and id not in sight.lines and id not in facts.forgettable:
            found.append("P3: job %s was accepted and is nowhere (%s)" % (id, _torn(sight, id)))
        if any(place.n != n for place in whole):
            found.append("P2: job %s holds another job's payload" % id)
    for id in facts.gone:
        if sight.places.get(id):
            found.append("job %s was removed and acknowledged, and is back in %s/" % (id, sight.places[id][0].folder))
    for id in facts.done:
        if id not in sight.lines and (id not in facts.forgettable or sight.places.get(id)):
            found.append("P3: the completion of %s was flushed and its line is not there" % id)
    for id, why in facts.dead.items():
        letters = [place for place in sight.whole(id) if place.folder == "dlq"]
        if not letters:
            found.append("the dead letter %s was acknowledged and is not there" % id)
        elif letters[0].record.get("last_error") != why:
            found.append("the dead letter %s lost its reason" % id)
    for id in facts.kicked:
        if any(place.folder == "dlq" for place in sight.places.get(id, ())):
            found.append("job %s was kicked and acknowledged, and is in dlq/ again" % id)
    for id, attempts in facts.charged.items():
        for place in sight.whole(id):
            if place.folder in WAITING and place.attempts < attempts and id not in sight.lines:
                found.append("P4: try %d of %s was charged, flushed and forgotten" % (attempts, id))
    for id, places in sight.places.items():
        for place in places:
            if facts.all_whole and place.n is None:
                found.append("job %s is visible in %s/ without all its bytes" % (id, place.folder))
            if place.n is not None and (place.n not in facts.wants or facts.wants[place.n][0] not in (None, id)):
                found.append("job %s is there and nobody asked for it" % id)
    again = [id for id in facts.ran - facts.done - facts.may_go if id not in sight.lines]
    if len(again) > facts.limit:
        found.append("P9: %d finished jobs can run again, more than SYNC_JOBS + CONCURRENCY = %d: %s" % (
            len(again), facts.limit, " ".join(again)))
    if not sight.is_marked and any(place.folder == "processing" for places in sight.places.values() for place in places):
        found.append("P4: a claim without the running mark")
    if facts.paused is not None and facts.paused != sight.is_paused:
        found.append("a pause was %s and acknowledged, and is not so" % ("set" if facts.paused else "ended"))
    return found


def _torn(sight, id):
    return ", ".join("torn in %s/" % place.folder for place in sight.places.get(id, ())) or "no file, no line"


# --- the next boot ---------------------------------------------------------------------------------------


class Recovery:
    """A worker of the next boot on the spool below `mount`; `run`: an empty folder in RAM. rng: what differs between boards."""

    def __init__(self, mount, run, facts, sight, rng):
        self.facts, self.sight, self.rng, self.mount, self.run = facts, sight, rng, mount, run
        has_clock = rng.random() < 0.5
        self.clock = BoardClock("%08x-crash" % rng.getrandbits(32), REAL_S if has_clock else 12.0)
        self.found, self.ran = [], []
        self.way = rng.choice(("worker", "worker", "repair"))

    def go(self):
        """[sentence]: recover, run every job, look at everything once more."""
        shutil.rmtree(self.run, ignore_errors=True)
        if self.facts.target and not self.facts.is_moved:
            if self.rng.random() < 0.5:
                self._work_in("spool")  # nobody knows that a move was cut short
            self._move_again()
        self._work_in(self.facts.homes[-1])
        self._conclude()
        return self.found

    def _open(self, home):
        config = make_config(self.mount, self.run)
        config.spool = "%s/%s" % (self.mount, home)
        return Spool(config, self.clock, QuietLog(), Carefree())

    def _work_in(self, home):
        self.store = store = self._open(home)
        if self.way == "repair":
            self._repair()
        store.start(self.clock.read())
        if self.sight.seq > store.seq.newest() and len(self.facts.homes) == 1:
            self.found.append("the sequence begins at %d, before a job's %d" % (store.seq.newest(), self.sight.seq))
        self._reap()
        self._run_all()
        for seconds in (3, FAR_S, 3):  # what cannot be read is set aside after 2 s; then every delay is over
            self.clock.go_on(seconds)
            if seconds == FAR_S:
                self.clock.wall = max(self.clock.wall, REAL_S + 2 * FAR_S)  # somebody set the clock, if it was not
            self._run_all()
        if home == self.facts.homes[-1]:
            self._ask_again()
        store.flush(self.clock.read())
        self.found += ["check: " + sentence for sentence in store.check(self.clock.read())]
        store.close(self.clock.read())

    def _move_again(self):
        """A move that was cut short is simply given again."""
        source, target = self._open("spool"), self._open(self.facts.target)
        for store in (source, target):
            store.make_folders()
        carry(source, target, self.clock.read())
        for store in (source, target):
            store.close(self.clock.read(), clean=False)

    def _repair(self):
        self.store.make_folders()
        self.store.check(self.clock.read(), True)
        left = self.store.check(self.clock.read(), False)
        if left:
            self.found.append("check --repair left: %s" % "; ".join(left))

    def _reap(self):
        now = self.clock.read()
        self.store.sweep_dead(now)

        def decide(lease):
            return after_death(lease.entry.attempts, lease.record.max_attempts or 5, self.store.config, 0, lambda: 0.0)

        for lease, verdict in reap(self.store, now, 60, lambda *_: 0, decide, self.store.log):
            if isinstance(verdict, Retry):
                self.store.retry(lease, verdict.wait_s, verdict.why, now)
            else:
                self.store.bury(lease, verdict.why, now)

    def _run_all(self):
        store, now = self.store, self.clock.read()
        while True:
            lease = store.claim(now, None, 60, True)
            if lease is None:
                if store.adopt(now):
                    continue
                break
            self._judge_claim(lease)
            store.ack(lease, now)
            self.ran.append(lease.entry.id)
            if store.flush_due_at() == 0:
                store.flush(now)
        store.flush(now)

    def _judge_claim(self, lease):
        id, facts = lease.entry.id, self.facts
        if id in facts.done:
            self.found.append("job %s runs although its completion was flushed" % id)
        if id in facts.gone:
            self.found.append("job %s runs although it was removed" % id)
        if id in self.ran:
            self.found.append("job %s runs twice after one cut" % id)
        if id in facts.started and not lease.redelivered:
            self.found.append("P9: job %s runs again and is not told so" % id)

    def _ask_again(self):
        """One id, one job: an id that was accepted is not accepted again."""
        ids = [id for id in self.facts.have if id not in self.facts.may_go and id not in self.facts.forgettable]
        if not ids:
            return
        id = self.rng.choice(ids)
        try:
            status = self.store.enqueue(Job("ok", b"{}", id=id), self.clock.read()).status
        except Busy as error:
            status = str(error)
        if status == QUEUED:
            self.found.append("job %s was accepted a second time" % id)

    def _conclude(self):
        found, facts = self.found, self.facts
        sight = Sight(self.mount, facts.homes)
        for id in facts.have:
            if id in facts.may_go:
                continue
            letters = [place for place in sight.whole(id) if place.folder == "dlq"]
            lines = sight.lines.get(id, [])
            if id in facts.forgettable and not lines and not sight.places.get(id):
                continue
            if len(letters) + min(len(lines), 1) != 1:
                found.append("P1: job %s: %d lines, %d letters after everything ran" % (id, len(lines), len(letters)))
            if len(lines) > 1:
                found.append("P1: job %s is done %d times" % (id, len(lines)))
        for id in facts.dead:
            if id in self.ran:
                found.append("the dead letter %s ran again" % id)
        left = [place.path for places in sight.places.values() for place in places if place.folder in WAITING and (
            place.n is not None or facts.homes[-1] in place.path)]  # a move leaves behind what cannot be read
        if left:
            found.append("left after everything ran: " + " ".join(left))


def judge(mount, run, notes, rng):
    """[sentence] about the image mounted at `mount`."""
    facts = Facts(notes)
    sight = Sight(mount, facts.homes)
    found = compare(facts, sight)
    try:
        found += Recovery(mount, run, facts, sight, rng).go()
    except (OSError, EdgeqError) as error:
        found.append("recovery: %s: %s" % (type(error).__name__, error))
    return found
