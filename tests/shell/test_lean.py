"""The wrapper that is installed is the one of the tree without comments and indentation, and nothing else."""

import re
import subprocess

from tests.shell.board import REPO, WRAPPER

LEAN_SED = REPO / "tools/lean.sed"


def make_lean(source, target):
    target.write_bytes(subprocess.run(["sed", "-f", LEAN_SED, source], check=True, capture_output=True).stdout)
    return target


def parsed(script):
    """The lines of what bash reads in it, indented its own way, but for the lines of a string."""
    text = subprocess.run(["bash", "--pretty-print", script], check=True, capture_output=True, text=True).stdout
    return [line for line in text.split("\n") if line.strip()]


def guard_text(script):
    """As start_guard takes it out of the file that runs."""
    pattern = re.search(r"guard_text=\$\(sed -n '(.+)' \"\$0\"\)", WRAPPER.read_text())[1]
    return subprocess.run(["sed", "-n", pattern, script], check=True, capture_output=True, text=True).stdout


def test_a_shell_reads_the_same_program(tmp_path):
    lean = make_lean(WRAPPER, tmp_path / "edgeq")
    before, after = parsed(WRAPPER), parsed(lean)
    assert len(before) > 1500
    assert [line.lstrip("\t") for line in before] == [line.lstrip("\t") for line in after]
    # where tabs went, they stood in a string: awk's programs, to which they are nothing
    for at, line in enumerate(before):
        if line != after[at] and before[at - 1] == after[at - 1]:
            assert re.search(r"^function \w+\(.*\) \{$|^BEGIN \{$|awk '$", before[at - 1]), line
    assert lean.read_bytes().startswith(b"#!/bin/sh\n") and lean.stat().st_size < 0.8 * WRAPPER.stat().st_size


def test_the_guard_finds_the_same_text_in_it(tmp_path):
    lean = make_lean(WRAPPER, tmp_path / "edgeq")
    assert "guard() {" in guard_text(lean)
    assert guard_text(lean) == guard_text(WRAPPER)
