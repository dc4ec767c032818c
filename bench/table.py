"""Results as text for a console, or as Markdown for docs/figures.md."""

import textwrap

from bench import measure, peers

PROMISES = [(measure.EDGEQ, "durable put (P3), at least once (P9), one id one job, retries, dead letters; a job is a file"),
            (measure.EDGEQ_SQLITE, "the same promises in a database")] + [
    (peer.name, peer.promise) for peer in peers.LIBRARIES + (peers.Nq,)]

HONEST = (
    "Where a peer is better: beanstalkd writes fewer bytes than any queue with a file a job, and its CPU a job does not grow with "
    "depth, but its server holds every job in RAM and its log needs the server to be read. dirq and nq cost less than durable "
    "queues because they flush nothing (or too early). A SQLite queue has flat CPU by depth and any query one likes. A bare "
    "`posix_spawn` has no payload, no time limit, no output and no lease.")


def write(out, results, size, machine, is_markdown):
    head = "# Figures\n\nMade by `make bench BENCH_ARGS=--markdown`. " if is_markdown else ""
    out.write("%sMachine: %s.\n%s\n" % (head, machine, _scale(size)))
    for name, _, title in measure.SECTIONS:
        if name in results:
            out.write("\n%s%s\n\n" % ("## " if is_markdown else "", title))
            _table(out, results[name], is_markdown)
    out.write("\n%sWhat each promises\n\n" % ("## " if is_markdown else ""))
    for name, promise in PROMISES:
        out.write(("| %s | %s |\n" if is_markdown else "  %-16s %s\n") % (name, promise))
        if is_markdown and name == PROMISES[0][0]:
            out.write("|---|---|\n")
    out.write("\n%s\n" % textwrap.fill(HONEST, 120, break_on_hyphens=False))


def _scale(size):
    if size.dt_s == 1:
        return "One job a second is measured in real time."
    return "Time is compressed: a job each %g s, SYNC_WINDOW_MS=%d instead of %d; the five-second commit of ext4 is not." % (
        size.dt_s, measure.WINDOW_MS * size.dt_s, measure.WINDOW_MS)


def _table(out, rows, is_markdown):
    columns = []
    for values in rows.values():
        columns += [column for column in values if column not in columns]
    lines = [[""] + columns] + [[name] + [_text(values.get(column)) for column in columns] for name, values in rows.items()]
    if is_markdown:
        for at, line in enumerate(lines):
            out.write("| %s |\n" % " | ".join(line))
            if at == 0:
                out.write("|%s\n" % ("---|" + "--:|" * len(columns)))
        return
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns) + 1)]
    for line in lines:
        out.write("  " + "  ".join(cell.ljust(width) if at == 0 else cell.rjust(width)
                                   for at, (cell, width) in enumerate(zip(line, widths))).rstrip() + "\n")


def _text(value):
    return "" if value is None else "%g" % value
