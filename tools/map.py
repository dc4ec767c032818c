"""Print the import graph of edgeq/ and hold it against the house's floors.

    python3 tools/map.py [--source DIR]

Exit 0: every import goes down. Exit 1, a sentence for each: an import that goes up;
a room on floor 3 that imports another; a concrete store named outside store/, or by
another concrete store; rooms that import each other in a circle; a room that is not
in the table. An import inside a function counts too, and is printed in brackets.
"""

import argparse
import ast
import os
import sys

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The rooms, from the ground up. A name that ends in "/" is a folder: all that is in it.
FLOORS = [
    ("the ground", ["__init__", "errors", "clock", "disk", "log", "spawn", "libc"]),
    ("what a job is", ["job", "record", "config", "lease", "policy"]),
    ("where jobs are kept", ["store/"]),
    ("the rooms that do not know each other", ["space", "enqueue", "gate", "execute", "settle", "reap", "retain", "report",
                                               "outage", "wake"]),
    ("the walk", ["worker"]),
    ("the door", ["cli/", "cli", "__main__", "api"]),
]
APART = 3
CONCRETE = {"store/spool", "store/sqlite", "store/redis"}
NAMES_THEM = {"store/__init__"}


def floor_of(room):
    """The floor of a room, None when the table has no such room."""
    for number, (_, rooms) in enumerate(FLOORS):
        if any(room == name or (name.endswith("/") and room.startswith(name)) for name in rooms):
            return number
    return None


def find_rooms(source):
    """{room: path}: store/spool for edgeq/store/spool.py."""
    rooms, top = {}, os.path.join(source, "edgeq")
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__pycache__")))
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("."):
                path = os.path.join(folder, name)
                rooms[os.path.relpath(path, top)[:-3].replace(os.sep, "/")] = path
    return rooms


class Imports(ast.NodeVisitor):
    """Dotted names of edgeq that a module imports: {name: deferred}, deferred being inside a function."""

    def __init__(self, package):
        self.package, self.depth, self.names, self.strings = package, 0, {}, set()

    def visit_FunctionDef(self, node):
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_Import(self, node):
        for alias in node.names:
            self.add(alias.name)

    def visit_ImportFrom(self, node):
        base = node.module or ""
        if node.level:
            package = self.package[:len(self.package) - node.level + 1]
            base = ".".join([*package, base] if base else package)
        for alias in node.names:
            self.add(base + "." + alias.name, base)

    def visit_Constant(self, node):
        if isinstance(node.value, str):
            self.strings.add(node.value)

    def add(self, *candidates):
        if candidates[-1].split(".")[0] == "edgeq":
            deferred = self.depth > 0 and self.names.get(candidates, True)
            self.names[candidates] = deferred


def room_of(candidates, rooms):
    """The room behind `from edgeq.store import base`: store/base if there is one, else store/__init__."""
    for name in candidates:
        room = "/".join(name.split(".")[1:])
        for known in (room, (room + "/__init__").lstrip("/")):
            if known in rooms:
                return known
    return None


def read_graph(rooms):
    """({room: {room: deferred}}, {room: dotted names in its strings})"""
    graph, strings = {}, {}
    for room, path in rooms.items():
        with open(path, "rb") as f:
            tree = ast.parse(f.read(), path)
        reader = Imports(["edgeq", *room.split("/")[:-1]])
        reader.visit(tree)
        graph[room] = {}
        for candidates, deferred in reader.names.items():
            target = room_of(candidates, rooms)
            if target and target != room:
                graph[room][target] = graph[room].get(target, True) and deferred
        strings[room] = {s for s in reader.strings if s.startswith(("edgeq.", ".")) and " " not in s}
    return graph, strings


def find_circle(graph):
    """One circle of rooms as a list, [] when there is none."""
    done, path = set(), []

    def walk(room):
        if room in path:
            return path[path.index(room):] + [room]
        if room in done:
            return []
        path.append(room)
        for target in graph[room]:
            circle = walk(target)
            if circle:
                return circle
        path.pop()
        done.add(room)
        return []

    for room in graph:
        circle = walk(room)
        if circle:
            return circle
    return []


def find_faults(graph, strings):
    """Every broken rule as a sentence."""
    faults = []
    for room in graph:
        here = floor_of(room)
        if here is None:
            faults.append("%s has no floor: add it to FLOORS in tools/map.py" % room)
            continue
        named = {c for c in CONCRETE if any(s.strip(".").endswith(c.replace("/", ".")) for s in strings[room])}
        for target in sorted({*graph[room], *named} & CONCRETE):
            if target != room and room not in NAMES_THEM:
                faults.append("%s names the concrete store %s" % (room, target))
        for target in graph[room]:
            there = floor_of(target)
            if there is not None and there > here:
                faults.append("%s (floor %d) imports %s (floor %d): up" % (room, here, target, there))
            if there == here == APART:
                faults.append("%s imports %s: rooms on floor %d do not know each other" % (room, target, APART))
    circle = find_circle(graph)
    if circle:
        faults.append("a circle: " + " -> ".join(circle))
    return faults


def print_map(graph, rooms):
    for number in reversed(range(len(FLOORS))):
        print("floor %d: %s" % (number, FLOORS[number][0]))
        for room in sorted(graph):
            if floor_of(room) == number:
                with open(rooms[room], "rb") as f:
                    lines = f.read().count(b"\n")
                targets = ["[%s]" % t if graph[room][t] else t for t in sorted(graph[room]) if t != "__init__"]
                print_row(room, lines, targets)


def print_row(room, lines, targets):
    row = "  %-16s %4d  " % (room, lines)
    indent = len(row)
    for target in targets:
        if len(row) + len(target) > 79:
            print(row.rstrip())
            row = " " * indent
        row += target + " "
    print(row.rstrip())


def main(argv):
    parser = argparse.ArgumentParser(prog="map.py", description="The import graph of edgeq/ against its floors.")
    parser.add_argument("--source", default=REPO, metavar="DIR", help="the folder that holds edgeq/")
    options = parser.parse_args(argv)
    rooms = find_rooms(options.source)
    graph, strings = read_graph(rooms)
    print_map(graph, rooms)
    faults = find_faults(graph, strings)
    for fault in faults:
        print("map: " + fault, file=sys.stderr)
    print("%d rooms, %d faults" % (len(rooms), len(faults)))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
