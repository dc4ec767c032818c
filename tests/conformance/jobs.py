"""Short words for what the tests do to a store."""

from edgeq.job import Job


def put(bench, store, id=None, type="mail", **wishes):
    """Enqueue; the Receipt."""
    return store.enqueue(Job(type, wishes.pop("payload", b"{}"), id=id, **wishes), bench.now)


def take(bench, store, may_run=None, lease_s=60):
    """Claim after a fresh look; the Lease or None."""
    return store.claim(bench.now, may_run, lease_s, True)


def drain(bench, store):
    """Claim and ack until nothing is ready, then flush; [id] in the order of the claims."""
    ran = []
    while lease := take(bench, store):
        ran.append(lease.entry.id)
        store.ack(lease, bench.now)
    store.flush(bench.now)
    return ran


def bury(bench, store, id, why="exit 65"):
    """A dead letter under `id`."""
    put(bench, store, id)
    lease = take(bench, store)
    assert lease.entry.id == id
    store.bury(lease, why, bench.now)


def reap(bench, store):
    """Take over every stale claim; [Lease]."""
    taken = [store.take_over(entry, holder, bench.now, 60) for entry, holder in store.stale(bench.now)]
    return [lease for lease in taken if lease]


def where(store, id):
    """The folder's name that has the id, None when nobody knows it."""
    return store.find(id)[0]


def ids(store, state):
    return [entry.id for entry in store.entries(state)]
