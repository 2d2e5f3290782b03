"""Output: what a command prints: text for people, or with `--json` one JSON document on stdout and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from consumer.cli.printable import printable, printable_json

TABLE_WIDTH = 1000

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]


class Paper(Console):
    """A console that goes on when nobody reads any more (`consumer status | head -1`): the exit code is the answer's,
    and not the pipe's."""

    def on_broken_pipe(self) -> None:
        """What is still to be said goes nowhere. Rich would end the process with 1, which says `degraded`."""
        nobody_listens()


class Output:
    """Where a command's answer goes."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        # Words are printed as they are: a handler `shop:ship:` is no ship, a reason in brackets is no style.
        self._console = Paper(highlight=False, markup=False, emoji=False, soft_wrap=True)

    def document(self, value: Any) -> None:
        """The answer as JSON; nothing when people read."""
        if self.as_json:
            try:
                document = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z)
                sys.stdout.buffer.write(printable_json(document) + b"\n")
                sys.stdout.flush()
            except BrokenPipeError:
                nobody_listens()

    def line(self, text: str) -> None:
        """A line for people; blank lines may stand before it."""
        if not self.as_json:
            own = text.lstrip("\n")
            self._console.print("\n" * (len(text) - len(own)) + printable(own))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> None:
        """A table for people; `empty` when there is nothing to show."""
        if self.as_json:
            return
        if not rows:
            self.line(empty)
            return
        table = Table(*[printable(column) for column in columns], box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*[printable(shown(cell)) for cell in row])
        # As wide as it needs to be: an id that is cut cannot be copied. A terminal wraps by itself.
        Paper(highlight=False, markup=False, emoji=False, width=TABLE_WIDTH).print(table)

    def fields(self, values: Mapping[str, Any]) -> None:
        """Names and values for people, one a line."""
        width = max((len(name) for name in values), default=0)
        for name, value in values.items():
            self.line(f"{name:<{width}}  {shown(value)}")


def nobody_listens() -> None:
    """From here on stdout goes nowhere, also what Python writes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, tuple | list):
        return ", ".join(shown(item) for item in value) or "-"
    if isinstance(value, dict):
        return " ".join(f"{name}={shown(item)}" for name, item in value.items()) or "-"
    return str(value)
