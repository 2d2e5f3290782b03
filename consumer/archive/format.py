"""Format: an archive is JSON lines: a head, a record each, an end with a hash over all lines before it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from consumer.errors import ArchiveInvalid

FORMAT: Final = "consumer-events"
VERSION: Final = 1
LINE_MAX_BYTES: Final = 64 * 1024 * 1024


class Lines:
    """Makes the lines of one archive. `written_by` is the version of the code."""

    def __init__(self, written_by: str) -> None:
        self._written_by = written_by
        self._whole = hashlib.sha256()
        self.count = 0

    def begin(self) -> bytes:
        """The first line."""
        return self._line({"format": FORMAT, "version": VERSION, "written_by": self._written_by})

    def record(self, record: Mapping[str, Any]) -> bytes:
        """The next record."""
        self.count += 1
        return self._line(record)

    def end(self) -> bytes:
        """The last line."""
        return self._line({"end": self.count, "sha256": self._whole.hexdigest()})

    def _line(self, document: Mapping[str, Any]) -> bytes:
        line = orjson.dumps(document) + b"\n"
        self._whole.update(line)
        return line


def records(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    """The records of an archive, one after the other; only at the end is it known that all is as it was written.
    Raises ArchiveInvalid with the number of the first line that is not."""
    number, whole = 0, hashlib.sha256()
    for number, line in enumerate(lines, 1):
        document = _document(line, number)
        if number == 1:
            _require_head(document)
        elif "end" in document:
            _require_end(document, whole.hexdigest(), number)
            if next(iter(lines), b""):
                raise ArchiveInvalid("something follows its end", line=number + 1)
            return
        else:
            yield document
        whole.update(line)
    raise ArchiveInvalid("it has no end: it was cut", line=number + 1)


def _document(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = orjson.loads(line) if line.endswith(b"\n") else None
    except orjson.JSONDecodeError as error:
        raise ArchiveInvalid("a line is not JSON", line=number) from error
    if not isinstance(found, dict):
        raise ArchiveInvalid("a line is not whole", line=number)
    return found


def _require_head(document: Mapping[str, Any]) -> None:
    if document.get("format") != FORMAT:
        raise ArchiveInvalid("the file is no archive of events", line=1)
    if document.get("version") != VERSION:
        raise ArchiveInvalid("an archive of a version that this code does not know", line=1)


def _require_end(document: Mapping[str, Any], whole: str, number: int) -> None:
    if document.get("end") != number - 2 or document.get("sha256") != whole:
        raise ArchiveInvalid("a line was changed, taken out or put in", line=number)
