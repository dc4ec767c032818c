"""What cannot be read: doubted for a while, for somebody may still be writing, then set aside whole, with the reason (P6)."""

from edgeq import disk as seam
from edgeq.job import CORRUPT, safe_name

UNCHANGED_S = 2  # set aside only when nobody has touched it for so long


def doubt(store, folder, name, why, stamp, now):
    """It cannot be read. Maybe somebody is still writing: set aside once it has not changed for 2 seconds."""
    known = store._stamps.get(name)
    if known and known[0] == stamp and now.boot - known[1] >= UNCHANGED_S:
        del store._stamps[name]
        set_aside(store, folder, name, why)
        return
    if known is None or known[0] != stamp:
        if len(store._stamps) >= 4096:
            store._stamps.clear()
        store._stamps[name] = (stamp, now.boot)
    store.view.doubtful[name] = store._stamps[name][1] + UNCHANGED_S
    store.view.add_wait(name, store.view.doubtful[name])


def set_aside(store, folder, name, why):
    """Whole into corrupt/, by one rename, with a one-line reason beside it (P6)."""
    target = safe_name(name)
    if store.disk.exists(store.path(CORRUPT, target)):
        target = "%s.%s" % (target, seam.make_uuid()[:8])
    try:
        store.disk.rename(store.path(folder, name), store.path(CORRUPT, target))
    except FileNotFoundError:
        return
    except OSError as error:
        store.log.error("cannot set aside", file="%s/%s" % (folder, name), error=error.strerror)
        store.view.doubtful[name] = store.clock.read().boot + 60
        return
    store.set_aside_n += 1
    store.view.doubtful.pop(name, None)
    store.log.warning("set aside", file=target, why=why)
    try:
        store.disk.publish(store.path(CORRUPT), target + ".why", ("%s/%s: %s\n" % (
            folder, safe_name(name), why)).encode("ascii", "backslashreplace"), flush=False)
    except OSError as error:
        store.log.warning("no reason beside it", file=target, error=error.strerror)


def is_unsure(store, now):
    later = [*store.view.doubtful.values(), *store.view.held_back.values()]
    return any(0 < instant - now.boot <= UNCHANGED_S + 1 for instant in later)


def corrupt(store):
    """(name, why) of what was set aside."""
    for name in sorted(store._names(CORRUPT)):
        if not name.endswith(".why"):
            try:
                why = seam.read_text(store.path(CORRUPT, name + ".why")).strip()
            except OSError:
                why = "no reason recorded"
            yield name, why
