"""`python3 -m bench [--quick] [--json] [--markdown] [SECTION...]`: measure, print.

Needs root (loop devices), the peers (tools/setup-bench.sh) and dist/edgeq.pyz; `make bench` sees to the latter two.
"""

import argparse
import os
import sys
import time

from bench import measure, peers


def main():
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer jobs, `one a second` twenty times as fast")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--markdown", action="store_true", help="the text of docs/figures.md")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=" ".join(name for name, _, _ in measure.SECTIONS))
    asked = parser.parse_args()
    known = [name for name, _, _ in measure.SECTIONS]
    if set(asked.sections) - set(known):
        parser.error("no such section: %s" % " ".join(sorted(set(asked.sections) - set(known))))
    if os.geteuid() != 0:
        parser.exit(77, "bench: root is needed, for a file system on a loop device\n")
    peers.check()
    size, results = measure.Size(asked.quick), {}
    for name, run, title in measure.SECTIONS:
        if not asked.sections or name in asked.sections:
            begin = time.monotonic()
            print("bench: %s ..." % name, end="", file=sys.stderr, flush=True)
            results[name] = run(size)
            print(" %.0f s" % (time.monotonic() - begin), file=sys.stderr)
    if asked.json:
        print(measure.as_json({"quick": size.is_quick, "seconds_scaled_by": size.dt_s, "machine": machine(), "results": results}))
    else:
        from bench import table
        table.write(sys.stdout, results, size, machine(), asked.markdown)


def machine():
    kernel = os.uname()
    return "%s %s, %d cores, load %.1f" % (kernel.sysname, kernel.release, os.cpu_count(), os.getloadavg()[0])


main()
