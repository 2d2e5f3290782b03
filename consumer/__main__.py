"""`python -m consumer`: the same as the console script, also in that nothing is imported from the current folder."""

import sys
from pathlib import Path

if sys.path and not sys.flags.safe_path and sys.path[0] in ("", str(Path.cwd())):
    del sys.path[0]  # Python put it there; a file beside a user's shell is no plugin, and no library

from consumer.cli import main

main()
