"""The tables: `jobs`, `processed_jobs` (the completions), `queues`; docs/files.md says what the columns mean."""

from edgeq.errors import BadConfig

VERSION = 1

TABLES = (
    """CREATE TABLE jobs(
        id TEXT NOT NULL, queue TEXT NOT NULL, payload TEXT NOT NULL DEFAULT '{}', status TEXT NOT NULL DEFAULT 'incoming',
        attempts INTEGER NOT NULL DEFAULT 0, max_attempts INTEGER, available_at INTEGER NOT NULL DEFAULT 0,
        leased_until INTEGER, worker_id TEXT NOT NULL DEFAULT '', last_error TEXT NOT NULL DEFAULT '',
        created_at INTEGER NOT NULL DEFAULT 0, updated_at INTEGER NOT NULL DEFAULT 0,
        type TEXT NOT NULL, priority INTEGER NOT NULL DEFAULT 5, seq INTEGER NOT NULL DEFAULT 0,
        is_at INTEGER NOT NULL DEFAULT 0, again INTEGER NOT NULL DEFAULT 0,
        timeout_s INTEGER, expires_s INTEGER, "key" TEXT, other TEXT,
        PRIMARY KEY(queue, id))""",  # with rowid: a row of an ordinary payload fits its page
    "CREATE INDEX jobs_by_status ON jobs(queue, status, available_at)",
    'CREATE INDEX jobs_by_key ON jobs(queue, "key") WHERE "key" IS NOT NULL',
    """CREATE TABLE processed_jobs(
        job_id TEXT NOT NULL, processed_at INTEGER NOT NULL, queue TEXT NOT NULL, n INTEGER NOT NULL,
        seq INTEGER NOT NULL, attempts INTEGER NOT NULL, type TEXT NOT NULL, ms INTEGER NOT NULL, note TEXT NOT NULL,
        PRIMARY KEY(queue, n)) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX processed_by_id ON processed_jobs(queue, job_id)",
    # what must outlive the rows: the highest SEQ and the number of completions when rows were dropped
    "CREATE TABLE queues(queue TEXT NOT NULL PRIMARY KEY, seq INTEGER NOT NULL, done_n INTEGER NOT NULL) WITHOUT ROWID",
    "PRAGMA user_version=%d" % VERSION,
)


def make(database):
    """CRASH: one transaction: a cut leaves an empty file, or all of it."""
    database.connection.execute("BEGIN IMMEDIATE")
    if database.number("SELECT count(*) FROM sqlite_master") and database.number("PRAGMA user_version") == 0:
        database.connection.execute("ROLLBACK")
        raise BadConfig("store", database.path, "a database of something else", "name another file in STORE")
    if database.number("PRAGMA user_version") == 0:
        for statement in TABLES:
            database.connection.execute(statement)
    database.connection.execute("COMMIT")
    database.disk.flush_folder(database.folder)
