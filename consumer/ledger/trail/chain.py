"""Chain: each entry of the audit trail carries a hash over its content and the entry before. Pure.

An export is a file of JSON lines: a head, the entries by their numbers, the plans, an end. Whoever changes, takes out
or puts in anything has to write all hashes after it anew, and then an anchor, which is kept elsewhere, tells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

FORMAT: Final = "consumer-audit"
VERSION: Final = 1
START: Final = hashlib.sha256(FORMAT.encode()).hexdigest()
"""What stands before the first entry."""
CONTENT: Final = ("id", "at", "application", "actor", "action", "subject", "before", "after", "reason", "code_version")
ENTRY: Final = ("number", *CONTENT, "hash")


def linked(before: str, number: int, content: Mapping[str, Any]) -> str:
    """The hash of an entry: over the hash before, its number and its content."""
    return hashlib.sha256(orjson.dumps([before, number, *(content[name] for name in CONTENT)])).hexdigest()


def sealed(document: Mapping[str, Any]) -> str:
    """The hash of a document, whatever the order of its names."""
    return hashlib.sha256(orjson.dumps(dict(document), option=orjson.OPT_SORT_KEYS)).hexdigest()


class Export:
    """Writes an export line by line. `number` and `hash` are the last entry's, as the ledger has them."""

    def __init__(self, number: int, last_hash: str) -> None:
        self._number = number
        self._hash = last_hash
        self._whole = hashlib.sha256()

    def begin(self) -> bytes:
        """The first line."""
        return self._line({"format": FORMAT, "version": VERSION, "entries": self._number})

    def entry(self, entry: Mapping[str, Any]) -> bytes:
        """The next entry."""
        return self._line({name: entry[name] for name in ENTRY})

    def plan(self, plan: Mapping[str, Any]) -> bytes:
        """A plan, after all entries."""
        return self._line({"plan": dict(plan)})

    def end(self) -> bytes:
        """The last line."""
        return self._line({"end": self._number, "hash": self._hash, "sha256": self._whole.hexdigest()})

    def _line(self, document: Mapping[str, Any]) -> bytes:
        line = orjson.dumps(document) + b"\n"
        self._whole.update(line)
        return line
