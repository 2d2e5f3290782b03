"""Drift: how a record that was read differs from the last observation of it. Pure (cases B18-B20, B31)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from consumer.ledger.reads import Observed
from consumer.sync.observation import Observation

LISTED_MAX = 1000


class Drift(StrEnum):
    """`none`: as observed last. `first`: never observed, known by its events. `unknown`: neither observed nor any
    event of it. `told`: another state than observed last, and an event has said so. `changed`: another state, and no
    event told. `detail`: the same state, other details."""

    NONE = "none"
    FIRST = "first"
    UNKNOWN = "unknown"
    TOLD = "told"
    CHANGED = "changed"
    DETAIL = "detail"

    @property
    def is_publishable(self) -> bool:
        """Whether an observation goes out."""
        return self is not Drift.NONE


def compare(found: Observation, last: Observed | None, *, has_events: bool, is_told: bool = False) -> Drift:
    """What a read shows against the last published observation. `is_told`: an event in the ledger says the same.

    A list may show fewer fields than a single read (case B22): details are compared only between records of the same
    shape, states always.
    """
    if last is None:
        return Drift.FIRST if has_events else Drift.UNKNOWN
    now = found.observed
    if last.version > now.version:
        return Drift.NONE  # a later read was published meanwhile
    if now.digest == last.digest:
        return Drift.NONE
    if last.state and now.state != last.state:
        return Drift.TOLD if is_told else Drift.CHANGED
    return Drift.DETAIL if now.shape == last.shape or not last.state else Drift.NONE


@dataclass(frozen=True)
class Difference:
    """One line of the drift report; states are documented words only, never a payload."""

    kind: str
    object_id: str
    drift: Drift
    before: str
    after: str


@dataclass(kw_only=True)
class DriftReport:
    """What a reconcile walk found. `braked`: nothing of what changed was published, an operator is asked (B31).

    `baseline`: how many were only remembered (see Reconcile.once). `unplaced`: records without the id they are kept
    by. `absent`: live ones that the list does not show; they are read singly and never judged by their absence (B21).
    `differences` are the first thousand.
    """

    application: str
    dry_run: bool = False
    listed: Counter[str] = field(default_factory=Counter)
    found: Counter[Drift] = field(default_factory=Counter)
    published: int = 0
    baseline: int = 0
    unplaced: int = 0
    absent: int = 0
    braked: bool = False
    seconds: float = 0.0
    differences: list[Difference] = field(default_factory=list)

    @property
    def drifted(self) -> bool:
        """Whether the ledger's view differed from the service's state (exit code 3 of a dry run)."""
        return bool(self.found[Drift.CHANGED] or self.found[Drift.UNKNOWN])

    def note(self, found: Observation, last: Observed | None, drift: Drift) -> None:
        """Count one comparison."""
        self.found[drift] += 1
        if drift in (Drift.CHANGED, Drift.UNKNOWN) and len(self.differences) < LISTED_MAX:
            before = last.state if last else ""
            self.differences.append(Difference(found.kind, found.object_id, drift, before, found.observed.state))

    def add(self, other: DriftReport) -> None:
        """Take over what another pass found, and whether it was too much."""
        self.listed += other.listed
        self.found += other.found
        self.unplaced += other.unplaced
        self.braked = self.braked or other.braked
        self.differences += other.differences[: LISTED_MAX - len(self.differences)]
