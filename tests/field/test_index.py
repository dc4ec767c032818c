"""tests/field/INDEX.md: every report is in it, every test that it names exists, and says the report's name."""

import ast
import functools
import re
from pathlib import Path

HERE = Path(__file__).parent
REPO = HERE.parents[1]
REPORTS = """B02 B03 B04 B05 B06 B07 B08 B09 B10 B11 B12 B14 B16 B17 B18 B19 B20 B21 B22 B23 B26 B27 B28 B30 B31 B33 B34 B35 B37 B38
B39 B40 B41 B43 B44 B45 B47 B50 B52 B53 B55 B56 B57 B58 B59 B60 B61 B62 B63 B64 B65 B66 B67 B68 B71 B72 B73 B74 B75 B77 B78 B80 B81
B82 B83 B84 B85 B87 B88 B89 B90 B92 B93 B94 B95""".split()


def rows():
    """[(report, what, tests, result)] of the table."""
    found = []
    for line in (HERE / "INDEX.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"B\d\d", cells[0]):
            found.append((cells[0], cells[1], re.findall(r"`([\w/]+\.py)::(test_\w+)`", cells[2]), cells[3]))
    return found


@functools.cache
def docstrings(path):
    """{test: docstring} of a file."""
    return {node.name: ast.get_docstring(node) or "" for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_report_has_its_row():
    assert len(REPORTS) == 75
    assert sorted({row[0] for row in rows()}) == REPORTS and len(rows()) == 75


def test_every_named_test_exists_and_names_its_report():
    for report, _, tests, result in rows():
        assert tests or result.startswith("not here"), report
        assert result in ("holds", "fixed") or result.startswith(("not here: ", "fixed: ", "holds; ")), (report, result)
        for file, name in tests:
            found = docstrings(HERE / file if "/" not in file else HERE.parent / file)
            assert name in found, (report, file, name)
            assert report in found[name].partition(":")[0] or name == "test_a_short_soak", (report, name, found[name])


def test_every_field_test_begins_with_a_report():
    for path in sorted(HERE.glob("test_*.py")):
        if path.name != "test_index.py":
            for name, text in docstrings(path).items():
                assert re.match(r"B\d\d(, (B\d\d|F\d|9\.3))*: ", text), (path.name, name, text)
