"""`python -m consumer`: the same as the console script, also in that nothing is imported from the current folder."""

import os
import sys

# Both are loaded already: whatever else were imported here would be looked for in the current folder first.
try:
    here = os.getcwd()  # noqa: PTH109 - pathlib is not loaded
except OSError:  # that folder was removed, so Python put none there
    here = ""
if sys.path and not sys.flags.safe_path and sys.path[0] in ("", here):
    del sys.path[0]  # Python put it there; a file beside a user's shell is no plugin, and no library

from consumer.cli import main

main()
