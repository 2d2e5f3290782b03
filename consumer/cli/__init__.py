"""The command line: thin commands over the stages. `main` is the console script `consumer`."""

import sys
from typing import Final

INTERRUPTED: Final = 130


def main() -> None:
    """Run the command that was called. Ctrl-C while it is still imported is no traceback either."""
    try:
        from consumer.cli import entry  # most of what a start takes

        entry.main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
