"""`edgeq check` of a spool: every broken promise as a sentence with what repair does; [] is health.

Works on a stopped spool and on a running one: a claim whose owner lives, a settling claim, a dot-file younger than a day
are nobody's fault. Also the oracle of the fault tests: whatever was cut or failed, after recovery it says nothing.
"""

from edgeq.errors import BadJob, EIO, OUR_SHORTAGE
from edgeq.job import DLQ, DONE, FAILED, INCOMING, PROCESSING, FOLDERS, format_version, parse_name
from edgeq.disk import is_folder
from edgeq.store.base import RANK
from edgeq.store.journal import FORMAT, parse_segment


def check(spool, now, repair):
    """[sentence]; with `repair`, what each sentence names has been put right where that is possible."""
    found = []
    for folder in FOLDERS:
        if not _is_there(spool, spool.path(folder)):
            found.append("%s/ is missing: repair makes it" % folder)
    if found:
        if not repair:
            return found
        spool.make_folders()
    places = _survey(spool, now, found, repair)
    _check_doubles(spool, places, found, repair)
    check_claims(spool, now, found, repair)
    _check_journal(spool, found)
    return found


def _is_there(spool, path):
    try:
        return is_folder(spool.disk.lstat(path))
    except FileNotFoundError:
        return False


def _survey(spool, now, found, repair):
    """id -> [(folder, name)] of every readable job file; names and contents that break P2 or P6 are told."""
    places = {}
    for folder in (INCOMING, PROCESSING, FAILED, DLQ):
        for name in sorted(spool.disk.names(spool.path(folder))):
            if format_version(name):
                continue
            id = _id_of(folder, name)
            if id is None and folder == INCOMING:
                continue  # dropped by a person: the worker's business
            try:
                why = "its name says no job" if id is None else unreadable(spool, folder, name)
            except OSError as error:
                if error.errno != EIO:
                    raise
                found.append("%s/%s cannot be read now (%s): the worker sets it aside if it stays so" % (
                    folder, name, error.strerror))
                continue
            if why is None:
                places.setdefault(id, []).append((folder, name))
            elif why:
                found.append("%s/%s cannot be read (%s): repair sets it aside" % (folder, name, why))
                if repair:
                    spool.set_aside(folder, name, why)
    return places


def _id_of(folder, name):
    if folder == DLQ:
        return name[:-5] if name.endswith(".json") else None
    entry = parse_name(folder, name)
    return entry.id if entry else None


def unreadable(spool, folder, name):
    """Why a job file cannot be read; None when it can, "" when it is gone."""
    try:
        spool.read_record(spool.path(folder, name))
        return None
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno in OUR_SHORTAGE or error.errno == EIO:
            raise  # nothing is known about the file yet
        return error.strerror
    except BadJob as error:
        return error.why


def _check_doubles(spool, places, found, repair):
    """P1: an id in two places, or in one although the journal says done. The lower rank is dropped, flushed first."""
    for id, where in sorted(places.items()):
        where.sort(key=lambda place: -RANK[place[0]])
        done = spool.journal.find(id)
        surplus = where if done else [place for place in where[1:] if _stand_together(spool, where[0], place)]
        # a settling claim beside its line or letter is a live owner's, until its batch is flushed
        surplus = [place for place in surplus if not (place[0] == PROCESSING and _is_owned(spool, place[1]))]
        for folder, name in surplus:
            higher = DONE if done else where[0][0]
            found.append("job %s is in %s/ and in %s/: repair drops the one in %s/" % (id, higher, folder, folder))
            if repair:
                if done:
                    spool._flush_journal()
                else:
                    spool.flush_folder(higher)
                spool._remove(spool.path(folder, name))


def _stand_together(spool, higher, lower):
    """RACE: the folders were listed one after the other, and a job that moved meanwhile was met twice: its only file, maybe.

    A job that left the higher place for the lower one never gets the higher name back (its token, its tries, its SEQ are
    others), so that name was there all the time.
    """
    return all(spool.disk.exists(spool.path(*place)) for place in (higher, lower, higher))


def _is_owned(spool, name):
    entry = parse_name(PROCESSING, name)
    return not spool.leases.is_stale(entry.token, True, 0)[0] or spool._lives(entry.token)


def check_claims(spool, now, found, repair):
    """P5: a claim nobody rightly holds."""
    for entry, holder in spool.stale(now):
        found.append("job %s is claimed by nobody who lives: repair puts it back, its try charged" % entry.id)
        if repair:
            lease = spool.take_over(entry, holder, now, 60)
            if lease:
                spool.retry(lease, 0, "worker died", now)
    if repair:
        spool.flush(now)


def _check_journal(spool, found):
    """The journal's own damage. Torn lines are ignored, not repaired: the batch that wrote them was not acknowledged."""
    for name in spool.disk.names(spool.path(DONE)):
        if parse_segment(name) is None:
            found.append("done/%s is no journal segment: move it away" % name)
            continue
        if parse_segment(name)[2] != FORMAT:
            continue  # a newer program's: nobody here knows how it is numbered
        last = 0
        for line in spool.journal.lines(name):
            if line.n <= last:
                found.append("done/%s: line %d stands after line %d" % (name, line.n, last))
            last = max(last, line.n)
