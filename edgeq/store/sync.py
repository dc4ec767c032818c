"""The batch: what was settled since the last flush, many waiters behind one barrier.

Completions ride together (SYNC_JOBS or SYNC_WINDOW_MS, P9); the barrier's order is: journal lines written, one fdatasync,
folders that got retries flushed, and only then the settled claims unlinked. A barrier that failed leaves everything in
the batch.
"""


class Batch:
    """Settled claims waiting for the barrier.

    lines: [Line] not yet written to the journal; settled: [Entry] whose claim goes after the flush; folders: names of
    folders with renames to be made durable; since: boot-clock instant of the oldest of these, or None.
    """

    def __init__(self):
        self.lines, self.settled, self.folders = [], [], set()
        self.since = None
        self.size = 0

    def add_done(self, entry, line, now):
        self.settled.append(entry)
        self.lines.append(line)
        self._grew(now)

    def add_move(self, folder, now):
        self.folders.add(folder)
        self._grew(now)

    def _grew(self, now):
        self.size += 1
        if self.since is None:
            self.since = now.boot

    def due_at(self, window_ms, jobs):
        """The boot-clock instant at which the barrier must fall, 0 when at once, None when nothing waits for it."""
        if self.since is None:
            return None
        return 0 if self.size >= jobs else self.since + window_ms / 1000

    def clear(self):
        self.lines, self.settled, self.folders = [], [], set()
        self.since, self.size = None, 0
