"""Output: what a command prints: text for people, or with `--json` one JSON document on stdout and nothing else.

Lines and tables are few words here: a library for them would be a tenth of what a command's start costs.
"""

from __future__ import annotations

import os
import select
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from io import BufferedWriter
from typing import Annotated, Any, TextIO

import orjson
import typer

from consumer.document import label, printable, printable_json
from consumer.document import shown as shown
from consumer.errors import OutputUnwritable

GAP = "  "
BLOCK_BYTES = 64 * 1024

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]


class Output:
    """Where a command's answer goes."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def document(self, value: Any) -> None:
        """The answer as JSON; nothing when people read."""
        if self.as_json:
            written(printable_json(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z)) + b"\n")

    def line(self, text: str) -> None:
        """A line for people; blank lines may stand before it."""
        if not self.as_json:
            own = text.lstrip("\n")
            _print("\n" * (len(text) - len(own)) + printable(own))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> None:
        """A table for people; `empty` when there is nothing to show."""
        if self.as_json:
            return
        if not rows:
            self.line(empty)
            return
        lines = [[printable(shown(cell)) for cell in row] for row in ([label(one) for one in columns], *rows)]
        # As wide as it needs to be: an id that is cut cannot be copied. A terminal wraps by itself.
        widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
        for number, line in enumerate(lines):
            text = GAP.join(cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True))
            _print(_bold(text.rstrip()) if number == 0 else text.rstrip())

    def fields(self, values: Mapping[str, Any]) -> None:
        """Names and values for people, one a line."""
        lines = [(label(name), shown(value)) for name, value in values.items()]
        width = max((len(name) for name, _ in lines), default=0)
        for name, value in lines:
            self.line(f"{name:<{width}}  {value}")


def _print(text: str) -> None:
    """A line as it is; letters that stdout does not have stand there as their escape."""
    written(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace") + b"\n")


def written(text: bytes) -> None:
    """All of it to stdout. Goes on when nobody reads any more (`consumer status | head -1`): the exit code is the
    answer's, and not the pipe's. Raises OutputUnwritable when the disk takes no more."""
    try:
        _put(text)
    except BrokenPipeError:
        to_nowhere(sys.stdout)
    except OSError as error:
        to_nowhere(sys.stdout)
        raise OutputUnwritable(reason=error.strerror) from error


class Whole:
    """The way to stdout for what is worth nothing when it was cut (an export): block by block, and an error as soon as
    nobody reads any more."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def write(self, text: bytes) -> None:
        """More of it. Raises OutputUnwritable."""
        self._kept += text
        if len(self._kept) >= BLOCK_BYTES:
            self.end()

    def end(self) -> None:
        """That was all of it: what is kept goes out. Raises OutputUnwritable."""
        kept, self._kept = bytes(self._kept), bytearray()
        try:
            _put(kept)
        except OSError as error:
            to_nowhere(sys.stdout)
            raise OutputUnwritable(reason=error.strerror) from error


def _put(text: bytes) -> None:
    sys.stdout.flush()
    # The bare file, as it is by PYTHONUNBUFFERED (the image) in any case: it may take a part, and says how much.
    file, rest = sys.stdout.buffer, memoryview(text)
    file = file.raw if isinstance(file, BufferedWriter) else file
    while rest:
        taken = file.write(rest)
        if taken is None:  # whoever has the pipe's other end, or this terminal, too made it non-blocking
            select.select((), (file,), ())
        rest = rest[taken or 0 :]


def _width(text: str) -> int:
    """How many columns of a terminal it takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else not unicodedata.combining(one) for one in text)


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" else text


def to_nowhere(stream: TextIO) -> None:
    """From here on stdout, or stderr, goes nowhere, also what Python writes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
