"""`python3 -m edgeq`, `python3 edgeq.pyz`. The zipapp's own head calls `main` directly (see tools/build_pyz.py)."""

import sys

from edgeq.cli import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout = sys.stderr = None  # as in tools/build_pyz.py
    sys.exit(code)
