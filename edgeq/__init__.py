"""edgeq: a job queue for small appliances that lose power without warning.

A job walks one way, and four doors lead back:

    cli / wrapper --> enqueue --> [incoming] --claim--> [processing] --execute--> settle --ack--> [done] --prune--> gone
                                     ^   ^                                  |   '--bury--> [dlq] --prune--> gone
                                     |   '--- [failed] <---- retry ---------'                |
                                     '------- kick (operator) <-----------------------------'

* retry: the handler asked for another try; the job waits in failed/ for its backoff.
* give back: the job did not run (its type is held, the worker stops, the line is down); nothing is charged.
* reap: the lease ran out or its owner died; the job goes to failed/, or to dlq/ when its tries are spent.
* kick: a person puts a dead letter back.

What cannot be read goes to corrupt/. The state of a job is the folder and the name of its file; the file's
content, the payload above all, is never rewritten on the way. docs/files.md has every name and file to the byte.

Reading order: errors, clock, disk, log; job, record, config, lease, policy; store/base, store/journal, store/scan, store/sync,
store/local, store/spool; space, gate, enqueue, execute, settle, reap, retain, report, outage, wake; worker; cli.
"""

__version__ = "0.1.0"

# Unix seconds. A wall clock earlier than this program is wrong (P8). The wrapper holds the same number.
BUILD_DATE = 1780272000


def __getattr__(name):
    """`from edgeq import open_store, Worker` for Python programs on servers; loaded when asked for."""
    if name in ("open_store", "Worker"):
        return getattr(__import__("edgeq.api", None, None, [name]), name)
    raise AttributeError(name)
