"""`edgeq move --to STORE`: carry the configured store's jobs to another. Killed anywhere, it is simply given again.

A chunk at a time: taken in by the target, sealed (flushed) there, and only then let go by the source. So a job is in
one store or in both, never in none; and one that is in both is known by its id and carried once.
"""

from edgeq import disk as seam
from edgeq.config import with_store
from edgeq.errors import Busy, NO, OK
from edgeq.job import FAILED, INCOMING
from edgeq.log import escape, say
from edgeq.reap import end_survivors

OPTIONS = {"move": {"to": "text"}}
HELP = {"move": """
Waiting, delayed, failed and dead jobs with their attempts, due times and
priorities, and the memory of done ids. No worker may run (75). Afterwards name
the new store in the configuration. 1: something that cannot be read stayed
behind.

  edgeq move --to sqlite:/var/lib/edgeq/queue.db
  edgeq move --to spool:/var/lib/edgeq
  edgeq move --to 'redis://10.0.0.1:6379/0?queue=app_jobs'
"""}
CHUNK = 64


def run(context):
    if context.args or not context.options.get("to"):
        raise context.usage("--to STORE")
    url, now = context.options["to"], context.clock.read()
    if url == context.config.store:
        raise context.usage("the jobs are in %s already" % escape(url, 60))
    source = context.open_store()
    target = context.open_store(with_store(context.config, url))
    source.make_folders()
    with _no_worker(source):
        target.make_folders()
        jobs_n, done_n, foreign_n = carry(source, target, now)
        left = describe_rest(source, target, now, foreign_n)
        for store in (source, target):
            store.close(now, clean=False)
    url = _without_password(url)
    context.out("moved %d jobs and %d completions to %s" % (jobs_n, done_n, url))
    say(2, "edgeq: move: now write STORE=%s into %s\n" % (escape(url, 200), context.config.path))
    for sentence in left:
        say(2, "edgeq: move: left behind: %s\n" % sentence)
    return NO if left else OK


def _without_password(url):
    head, at, tail = url.rpartition("@")
    return "%s//%s@%s" % (head.partition("//")[0], head.partition("//")[2].partition(":")[0], tail) if at else url


class _no_worker:
    """Holds what every worker holds a share of, so that none begins meanwhile; Busy when one runs."""

    def __init__(self, store):
        self.lock = seam.Lock(store.run + "/alive")

    def __enter__(self):
        if not self.lock.take(wait=False):
            raise Busy("move", "workers", "are running", "stop them first: /etc/init.d/S85edgeq stop")

    def __exit__(self, *_):
        self.lock.drop()


def carry(source, target, now):
    """(jobs, completions) that were carried now, and how many could not be. Both stores are open; no worker runs."""
    _recover(source, now)
    target.carry_marks(source, now)
    jobs_n = done_n = foreign_n = 0
    chunk = []
    for parcel in source.export():
        if not target.can_hold(parcel.id):
            foreign_n += 1
            continue
        chunk.append(parcel)
        if len(chunk) >= CHUNK:
            jobs_n, done_n = jobs_n + _hand_over(source, target, chunk, now), done_n + sum(1 for p in chunk if p.line)
            chunk = []
    jobs_n, done_n = jobs_n + _hand_over(source, target, chunk, now), done_n + sum(1 for p in chunk if p.line)
    if not foreign_n:
        source.let_go_done(now)
    return jobs_n, done_n, foreign_n


def _recover(source, now):
    """What a dead worker left: claims back to failed, dropped files taken in."""
    source.sweep_dead(now)
    for entry, holder in source.stale(now):
        end_survivors(holder, "%s/ctl/%s" % (source.run, entry.token))
        lease = source.take_over(entry, holder, now, 60)
        if lease:
            source.retry(lease, 0, "worker died", now)
    source.counts(now)  # a listing: what was dropped is known
    source.adopt(now)
    source.flush(now)


def _hand_over(source, target, chunk, now):
    """How many jobs of the chunk went over."""
    for parcel in chunk:
        target.take_parcel(parcel, now)
    # CRASH: before the seal the source still has them all; after it both have them, and the target knows the ids
    target.seal(now)
    source.let_go(chunk, now)
    return sum(1 for parcel in chunk if parcel.entry)


def describe_rest(source, target, now, foreign_n=0):
    """What could not be carried, as sentences."""
    counts, left = source.counts(now), []
    waiting_n = counts.ready + counts.delayed + counts.failed + counts.dead + counts.processing
    if source.home == target.home and INCOMING in source.states and FAILED in target.states:
        carried = target.counts(now)  # a spool beside its database: what waits there looks to the database like dropped files
        waiting_n -= carried.ready + carried.delayed
    if foreign_n:
        left.append("%d jobs or completions of other devices (NODE:ID): only another Redis can hold them" % foreign_n)
    elif waiting_n:
        left.append("%d jobs that cannot be read: see 'edgeq check'" % waiting_n)
    if counts.newer:
        left.append("%d of a newer format" % counts.newer)
    return left
