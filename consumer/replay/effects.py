"""Effects: what a plan would do, per item and in sum. Values only."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from consumer.ledger.plans.candidates import Pair

KEYS_SHOWN = 20
SUBJECTS_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Emits:
    """A derived event that would be sent for the first time; `later`: it is a timer, and goes off then."""

    id: str
    type: str
    key: str
    later: bool = False

    @property
    def word(self) -> str:
        """What is compared. A timer's id may depend on when it was set, its type and key do not."""
        return f"{self.type} {self.key}" if self.later else f"{self.type} {self.id}"


@dataclass(frozen=True, kw_only=True)
class Call:
    """A handler that would be called for what was derived. `ends`: succeeded (a transactional one), called (an effect),
    parked (`behind` an event of its lane), or how it fails."""

    handler: str
    event_id: str
    key: str
    ends: str
    behind: str | None = None


@dataclass(kw_only=True)
class Effects:
    """What becomes of one item. `ends` as in Call; `key` is the idempotency key of an effect handler, and `replaces`
    the one it had before, where the plan renews it; `behind`: the event whose run the item waits for, an earlier one of
    its lane that is not done by this plan."""

    ends: str
    key: str | None = None
    replaces: str | None = None
    code: str | None = None
    behind: str | None = None
    emits: list[Emits] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    reads: int = 0

    def words(self) -> tuple[str, ...]:
        """What it comes to, for people and for comparing."""
        said = [self.ends, *sorted(one.word for one in self.emits)]
        return (*said, *sorted(f"{one.handler} {one.ends} {one.event_id}" for one in self.calls))

    def compared(self) -> tuple[str, ...]:
        """Everything that matters, for comparing a prediction with a later one: also the key of the item itself, and
        the one it has now. Where that is another, the effect was had under a plan that was made beside this one."""
        replaced = f" instead of {self.replaces}" if self.replaces is not None else ""
        return (*self.words(), *([f"under {self.key}{replaced}"] if self.key is not None else []))

    def keys(self) -> tuple[str, ...]:
        """The idempotency keys under which effect handlers would be called, for the item and for what comes of it."""
        called = [one.key for one in self.calls if one.ends == "called"]
        return (self.key, *called) if self.key is not None else tuple(called)

    def waits(self) -> tuple[str, ...]:
        """The events behind which the item, or what comes of it, would be parked."""
        return tuple(dict.fromkeys(one for one in (self.behind, *(call.behind for call in self.calls)) if one))

    def packed(self) -> str:
        """As JSON, for the ledger."""
        return orjson.dumps(self).decode()

    @classmethod
    def of(cls, packed: str) -> Effects:
        """What was packed."""
        said = orjson.loads(packed)
        emits = [Emits(**one) for one in said.pop("emits")]
        calls = [Call(**one) for one in said.pop("calls")]
        return cls(**said, emits=emits, calls=calls)


Predicted = Sequence[tuple[Pair, Effects]]


def digest(predicted: Predicted) -> str:
    """Over the items and what was predicted for each, in their order."""
    seen = hashlib.sha256()
    for pair, effects in predicted:
        seen.update(orjson.dumps([*pair.id, pair.action.value, *effects.compared()]))
    return seen.hexdigest()


def summary(predicted: Predicted, skipped: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """What is shown of a plan: events, runs, effects by handler, what would be emitted, of whom (contract). `skipped`:
    handler to how many runs are left alone, by their state."""
    effects: dict[str, dict[str, Any]] = {}
    for pair, one in predicted:
        _count(effects, pair.handler, one.ends, one.key)
        for call in one.calls:
            _count(effects, call.handler, call.ends, call.key)
    for handler, states in skipped.items():
        _of(effects, handler)["skipped"] = states.get("succeeded", 0)
    return {
        "events": len({(pair.application, pair.event_id) for pair, _ in predicted}),
        "runs": len(predicted),
        "actions": dict(sorted(Counter(pair.action.value for pair, _ in predicted).items())),
        "effects": dict(sorted(effects.items())),
        "emits": _emits(predicted, later=False),
        "timers": _emits(predicted, later=True),
        "subjects": _subjects(predicted),
        "reads": sum(one.reads for _, one in predicted),
        "left_alone": {handler: dict(states) for handler, states in sorted(skipped.items())},
    }


def _of(effects: dict[str, dict[str, Any]], handler: str) -> dict[str, Any]:
    return effects.setdefault(
        handler, {"calls": 0, "skipped": 0, "parked": 0, "fails": 0, "idempotency_keys": [], "keys_left_out": 0}
    )


def _count(effects: dict[str, dict[str, Any]], handler: str, ends: str, key: str | None) -> None:
    one = _of(effects, handler)
    if ends == "parked":
        one["parked"] += 1
        return
    if ends == "no_handler":
        one["no_handler"] = one.get("no_handler", 0) + 1
        return
    one["calls"] += 1
    if ends not in ("succeeded", "called"):
        one["fails"] += 1
    if key is not None and ends == "called":
        if len(one["idempotency_keys"]) < KEYS_SHOWN:
            one["idempotency_keys"].append(key)
        else:
            one["keys_left_out"] += 1


def _emits(predicted: Predicted, *, later: bool) -> dict[str, int]:
    return dict(sorted(Counter(one.type for one in emitted(predicted) if one.later is later).items()))


def _subjects(predicted: Predicted) -> dict[str, list[str]]:
    """Type to whom it is about, the first few."""
    found: dict[str, list[str]] = {}
    for one in emitted(predicted):
        subjects = found.setdefault(one.type, [])
        if not one.later and one.key not in subjects and len(subjects) < SUBJECTS_SHOWN:
            subjects.append(one.key)
    return {name: subjects for name, subjects in sorted(found.items()) if subjects}


def emitted(predicted: Predicted) -> Iterable[Emits]:
    """All derived events of all items."""
    return (one for _, effects in predicted for one in effects.emits)
