"""One id, one job: when an id stands in two places after a cut or a race, which of them counts [M].

From the highest: a journal line, a dead letter, another claim, a failed job, a waiting one. Asked at each claim, when a claim is
taken over, and before a dead letter is written. Whoever drops a file because of a place of higher rank flushes that place first.
"""

import posix

from edgeq.errors import BadJob
from edgeq.job import DLQ, DONE, FAILED, INCOMING, PROCESSING, Entry, parse_name
from edgeq.store import keys
from edgeq.store.local import KEY_WAIT_S


def gives_way(spool, lease, now):
    """True when the claimed id has a file or line of higher rank: ours is dropped or given back, uncharged [M]."""
    entry = lease.entry
    higher = outranked(spool, entry)
    if higher is None:
        if lease.record.key and keys.is_running(spool, lease.record.key, lease.token):
            # RACE: two workers claimed two jobs of one key at once
            back = spool._put_back(lease, lease.origin, now)
            spool._hold_back(back, now.boot + KEY_WAIT_S + posix.urandom(1)[0] / 500)
            return True
        return False
    if higher == PROCESSING:
        back = spool._put_back(lease, lease.origin, now)
        # both may have seen each other: come back at different moments
        spool.view.doubtful[back.name] = now.boot + 0.05 + posix.urandom(1)[0] / 500
    else:
        drop_claim(spool, lease, higher)
        spool.dropped_n += 1
    return True


def outranked(spool, entry):
    """The folder that holds entry's id with a higher rank, its content flushed first; None when ours is the highest."""
    if spool.journal.find(entry.id):
        spool._flush_journal()  # whoever drops a file because of a line flushes the line first [M]
        return DONE
    if has_whole_dead(spool, entry.id):
        spool.flush_folder(DLQ)
        return DLQ
    if _is_claimed_twice(spool, entry):
        return PROCESSING
    if _came_from_failed(entry) or entry.id.startswith("%016d-" % entry.seq):
        return None  # a failed job outranks waiting ones; a generated id stands in one file, and a copy meets the journal
    if _has_id(FAILED, spool.disk.names(spool.path(FAILED)), entry):
        spool.flush_folder(FAILED)
        return FAILED
    return None


def drop_claim(spool, lease, higher):
    """A claim whose id is in `higher`."""
    spool._remove(spool.path(lease.entry.path))
    spool._forget(lease)
    spool.forget_error(lease.entry.id)
    spool.log.info("dropped", id=lease.entry.id, because="the same id is in " + higher)


def has_whole_dead(spool, id):
    """True when dlq/ holds the id's letter, whole. A torn one is set aside."""
    try:
        spool.read_record(spool.path(DLQ, id + ".json"))
        return True
    except FileNotFoundError:
        return False
    except BadJob as error:
        spool.set_aside(DLQ, id + ".json", error.why)
        return False


def _is_claimed_twice(spool, entry):
    """True when processing/ holds another claim of the id. Asked at each claim: the folder is read only when it may hold
    claims that are not ours."""
    if spool.company.is_alone():
        return list(spool._mine.values()).count(entry.id) > 1
    stamp = spool.company.look()
    names = spool.disk.listdir(spool.path(PROCESSING))
    if stamp and all(name[0] == "." or name.rpartition(".")[0].rpartition(".")[2] in spool._mine for name in names):
        spool.company.settle_in(stamp)
    return "/".join(names).count(".%s." % entry.id) > 1 and _has_id(PROCESSING, names, entry)


def _has_id(folder, names, entry):
    """True when one of the names in `folder`, not the entry's own, has its id."""
    needle = ".%s." % entry.id
    others = (parse_name(folder, name) for name in names if needle in name and name != entry.name)
    return any(other and other.id == entry.id for other in others)


def _came_from_failed(entry):
    """A claim that has failed before came from failed/."""
    return entry.attempts > 1


def seek(spool, id):
    """(folder, Entry) of the highest-ranking place that has the id, (None, None) when it is free."""
    found = {}
    needle = ".%s." % id
    # along the way jobs move, then the beginning once more: a job that moves meanwhile is met at least once
    for folder in (INCOMING, FAILED, PROCESSING, FAILED, INCOMING):
        if folder in found:
            continue
        for name in spool._names(folder):
            if needle in name:
                entry = parse_name(folder, name)
                if entry and entry.id == id:
                    found[folder] = entry
                    break
    if spool.journal.find(id):
        return DONE, None
    if spool.disk.exists(spool.path(DLQ, id + ".json")):
        return DLQ, Entry(DLQ, 0, 0, 0, False, 0, False, "", id)
    for folder in (PROCESSING, FAILED, INCOMING):
        if folder in found:
            return folder, found[folder]
    return None, None
