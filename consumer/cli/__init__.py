"""The command line: thin commands over the stages. `main` is the console script `consumer`."""

from consumer.cli.entry import main

__all__ = ["main"]
