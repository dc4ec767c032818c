"""The tables `processed_jobs` and `queues`: which ids are done, and what outlives their lines. As journal.py is for the spool."""

from edgeq.store.journal import ReadLine

LINE = "job_id, n, seq, processed_at, attempts, type, ms, note"


def is_done(store, id):
    return store.db.one("SELECT 1 FROM processed_jobs WHERE queue=? AND job_id=?", (store.queue, id)) is not None


def find_line(store, id):
    row = store.db.one("SELECT %s FROM processed_jobs WHERE queue=? AND job_id=?" % LINE, (store.queue, id))
    return ReadLine(*row) if row else None


def done_lines(store):
    """The completions, oldest first."""
    for row in store.db.read("SELECT %s FROM processed_jobs WHERE queue=? ORDER BY n" % LINE, (store.queue,)):
        yield ReadLine(*row)


def done_count(store):
    """Completions since the queue was made."""
    counts = [store.db.one("SELECT max(n) FROM processed_jobs WHERE queue=?", (store.queue,)),
              store.db.one("SELECT done_n FROM queues WHERE queue=?", (store.queue,))]
    return max([row[0] or 0 for row in counts if row], default=0)


def add_line(store, line, n):
    """Inside a transaction."""
    store.db.change("INSERT INTO processed_jobs(%s, queue) VALUES(?,?,?,?,?,?,?,?,?)" % LINE,
                    (line.id, n, line.seq, line.done_at, line.attempts, line.type, line.ms, line.note, store.queue))


def keep_count(store):
    """The count of completions and the highest SEQ outlive the rows. Inside a transaction."""
    store.db.change("INSERT OR REPLACE INTO queues(queue, seq, done_n) VALUES(?,?,?)",
                    (store.queue, store.seq.newest(), done_count(store)))


def drop_lines(store):
    """All of them; how many they were. Inside a transaction."""
    keep_count(store)
    return store.db.change("DELETE FROM processed_jobs WHERE queue=?", (store.queue,))
