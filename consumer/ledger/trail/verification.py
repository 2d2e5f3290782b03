"""Verification: whether an export of the audit trail is whole and unchanged, from the file alone; it names the first
line that was changed, taken out or put in. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from consumer.ledger.trail.chain import ENTRY, FORMAT, START, VERSION, linked, sealed

PLANNED: Final = "replay.planned"
ANCHOR: Final = frozenset({"number", "hash"})
LINE_MAX: Final = 8 * 1024 * 1024
"""More of a line is not read at once: what is longer is none of ours."""


@dataclass(frozen=True)
class Verified:
    """`entries` and `plans` that are right, up to the first `fault`; None where all of it is."""

    entries: int
    plans: int
    hash: str
    fault: str | None


class _Fault(Exception):
    """What is wrong first."""


@dataclass(frozen=True)
class _Line:
    """One line of the file: its number, its document (empty where it is not as an export writes it), and the digest of
    all lines before it."""

    number: int
    document: Mapping[str, Any]
    before: str


def verified(file: Iterable[bytes], anchor: Mapping[str, Any] | None = None) -> Verified:
    """Whether the lines are an export as it was written. With an `anchor` (`number`, `hash`), also whether it is the
    same trail and not a shorter one."""
    reader = _Reader(file)
    fault = None
    try:
        reader.read(anchor)
    except _Fault as error:
        fault = str(error)
    return Verified(reader.entries, reader.plans, reader.hash, fault)


class _Reader:
    def __init__(self, file: Iterable[bytes]) -> None:
        self._file = iter(file)
        self._whole = hashlib.sha256()
        self._count = 0
        self._at = self._next()
        self._following = self._next()
        self._planned: dict[str, str] = {}
        self.entries = 0
        self.plans = 0
        self.hash = START

    def _next(self) -> _Line | None:
        line = next(self._file, None)
        if line is None:
            return None
        self._count += 1
        before = self._whole.hexdigest()
        self._whole.update(line)
        return _Line(self._count, _document(line), before)

    def _step(self) -> None:
        self._at, self._following = self._following, self._next()

    def read(self, anchor: Mapping[str, Any] | None) -> None:
        """Raises _Fault."""
        total = self._begin()
        if anchor is not None and anchor["number"] == 0 and anchor["hash"] != START:
            raise _Fault("the anchor is of no trail: before the first entry there is one hash only")
        while self._at is not None and not ({"plan", "end"} & self._at.document.keys()):
            self._entry(self._at)
            if anchor is not None and self.entries == anchor["number"] and self.hash != anchor["hash"]:
                number, self.entries = self.entries, 0  # nobody can tell from where on
                raise _Fault(
                    f"entry {number} is not the anchor's: the trail was written anew, or its ledger was restored from "
                    "a backup made before the anchor (`ledger.restored` in it)"
                )
            self._step()
        if self.entries < total:
            raise _Fault(f"entry {self.entries + 1} was taken out before {self._here()}")
        if anchor is not None and self.entries < anchor["number"]:
            raise _Fault(f"the trail ends at entry {self.entries}, and the anchor is of entry {anchor['number']}")
        while self._at is not None and self._at.document.keys() == {"plan"}:
            self._plan(self._at)
            self._step()
        if self._planned:
            raise _Fault(f"plan {next(iter(self._planned))} was taken out before {self._here()}")
        self._end(total)

    def _begin(self) -> int:
        found = self._at.document if self._at is not None else {}
        total = found.get("entries")
        if found != {"format": FORMAT, "version": VERSION, "entries": total} or not isinstance(total, int):
            raise _Fault("line 1 was changed, or this is no export of the audit trail")
        self._step()
        return total

    def _entry(self, line: _Line) -> None:
        wanted = self.entries + 1
        if self._goes_on(line):
            self.entries, self.hash = wanted, line.document["hash"]
            if line.document["action"] == PLANNED and (noted := _noted(line.document)):
                self._planned[str(line.document["subject"]).partition(":")[2]] = noted
            return
        following, number = self._following, line.document.get("number")
        if following is not None and self._goes_on(following):
            raise _Fault(f"line {line.number} was put in")
        after = following.document.get("number") if following is not None else None
        if isinstance(number, int) and number > wanted and after in (None, number + 1):
            raise _Fault(f"entry {wanted} was taken out before line {line.number}")
        raise _Fault(f"line {line.number} (entry {wanted}) was changed")

    def _goes_on(self, line: _Line) -> bool:
        """Whether this line is the next entry."""
        found = line.document
        if tuple(found) != ENTRY or found["number"] != self.entries + 1:
            return False
        return bool(found["hash"] == linked(self.hash, self.entries + 1, found))

    def _plan(self, line: _Line) -> None:
        plan = line.document["plan"]
        name = str(plan.get("id")) if isinstance(plan, dict) else ""
        if self._planned.pop(name, None) != (sealed(plan) if name else ""):
            raise _Fault(f"line {line.number} was changed or put in: no entry is of this plan")
        self.plans += 1

    def _end(self, total: int) -> None:
        if self._at is None:
            raise _Fault(f"the end was taken out after line {self._count}")
        if self._at.document != {"end": total, "hash": self.hash, "sha256": self._at.before}:
            raise _Fault(f"line {self._at.number} was changed")
        if self._following is not None:
            raise _Fault(f"line {self._following.number} was put in")

    def _here(self) -> str:
        return f"line {self._at.number}" if self._at is not None else "the end of the file"


def _document(line: bytes) -> Mapping[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) and orjson.dumps(found) + b"\n" == line else {}


def _noted(entry: Mapping[str, Any]) -> str | None:
    """The hash of the plan that this entry notes; plans of older versions have none."""
    try:
        after = orjson.loads(entry["after"] or "{}")
    except orjson.JSONDecodeError:
        return None
    found = after.get("sealed") if isinstance(after, dict) else None
    return found if isinstance(found, str) else None
