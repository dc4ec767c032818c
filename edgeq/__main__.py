"""`python3 -m edgeq`, `python3 edgeq.pyz`. The zipapp's own head calls `main` directly (see tools/build_pyz.py)."""

import sys

from edgeq.cli import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout = sys.stderr = None  # what Python itself could not tell (of a wake-up pipe that fails) would make it exit 120
    sys.exit(code)
