"""Pauses: `Q/paused` (everything) and `Q/paused.TYPE`. Marks on flash, so that a pause survives a reboot (docs/files.md).

The worker looks at the mark after each claim as well as before it, and gives back what it claimed in between: whoever set
a pause and then sees nothing in processing/ may be sure that nothing starts (the OTA interlock).
"""

from edgeq.errors import NotFound

DEFAULT_FOR_S = 3600
PAUSE_LIMIT_S = 315_360_000  # as in the wrapper


class Pauses:
    """The pause marks below `root`. `is_trusted(now)`: whether the wall clock may be believed."""

    def __init__(self, disk, root, boot_id, is_trusted):
        self.disk, self.root, self.boot_id, self.is_trusted = disk, root, boot_id, is_trusted

    def set(self, type, for_s, now, this_boot=False):
        """Pause `type` ("" for everything) for `for_s` seconds, 0 for ever. Durable when it returns.

        this_boot: a reboot ends it, too (`drain`); such a mark is dated 0.
        """
        line = "%d %d %s %d\n" % (for_s, 0 if this_boot else now.wall, self.boot_id, now.boot + for_s)
        self.disk.replace(self.root, _mark(type), line.encode())

    def clear(self, type):
        """End a pause; NotFound when there is none. Durable when it returns."""
        try:
            self.disk.unlink("%s/%s" % (self.root, _mark(type)))
        except FileNotFoundError:
            raise NotFound("resume", type or "queue", "is not paused") from None
        self.disk.flush_folder(self.root)

    def ends_in(self, type, now):
        """Seconds a pause of exactly `type` has left; None when there is none, 0 when for ever."""
        try:
            text = self.disk.read_file("%s/%s" % (self.root, _mark(type)), 200)
        except FileNotFoundError:
            return None
        except OSError:
            return 0  # unreadable: the safe side
        try:
            for_s, set_at, boot_id, until = text.decode().split()
            for_s, set_at, until = int(for_s), int(set_at), int(until)
        except ValueError:
            return 0  # unreadable: the safe side
        if for_s == 0:
            return 0
        if boot_id == self.boot_id:
            left = until - now.boot
        elif set_at == 0:
            return None  # it was for its own boot only
        elif self.is_trusted(now):
            left = set_at + for_s - now.wall
        else:
            left = for_s - now.boot  # it began before this boot
        left = min(left, for_s)
        return left if left > 0 else None

    def is_paused(self, type, now):
        """True when jobs of `type` must not start."""
        return self.ends_in("", now) is not None or self.ends_in(type, now) is not None

    def all(self, now):
        """{type or "": seconds left, 0 for ever} of every pause in force."""
        found = {}
        try:
            names = list(self.disk.names(self.root))
        except FileNotFoundError:
            return found  # no spool yet
        for name in names:
            if name == "paused" or name.startswith("paused."):
                type = name[7:]
                left = self.ends_in(type, now)
                if left is not None:
                    found[type] = left
        return found


def _mark(type):
    return "paused." + type if type else "paused"
