"""Drift: how a record that was read differs from the last observation of it, and what of that weighs. Pure (cases
B18-B20, B31).

An event tells of a state: `order.paid` of PAID, `subscription.ended` of ENDED, once and for all. Which status an order
has after its session is over is not documented (U12), so `order.expired` and the session's end tell of any that is not
PAID. What comes and goes is told only by an event that came after the last read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from consumer.ledger.reading.observation import ENDED, PAID, Observation, differing, readable, status_of
from consumer.ledger.reading.observations import Observed
from consumer.sync.reconcile.lists import Unplaced

LISTED_MAX = 1000
UNPLACED_MAX = 20

Told = Mapping[str, datetime]
"""The types of the events that the ledger has of one object, each with when the newest of them was received."""

TELLS_OVER: Final = frozenset({"order.expired", "checkout.session.expired", "checkout.session.canceled"})
TELLS_STATUS: Final = {
    "ACTIVE": frozenset({"subscription.created", "subscription.renewed"}),
    "PAST_DUE": frozenset({"subscription.past_due", "subscription.payment_failed"}),
    ENDED: frozenset({"subscription.ended"}),
}
TELLS_CANCEL: Final = frozenset({"subscription.cancel_scheduled", "subscription.cancel_withdrawn"})
# A second cancel, by the merchant, sets it, and then no event is sent (spec, Subscription cancel).
TOLD_BY_NONE: Final = frozenset({"merchant_cancel_requested"})


class Drift(StrEnum):
    """`none`: as observed last. `first`: never observed; its events say the same, or there is neither money nor access
    in it. `unknown`: paid or live, and neither observed nor any event of it. `told`: another state than observed last,
    and an event has said so. `changed`: another state, and no event told. `detail`: the same state, other details, or
    a state that no event ever tells of; or as observed last, by an observation that was lost with its log."""

    NONE = "none"
    FIRST = "first"
    UNKNOWN = "unknown"
    TOLD = "told"
    CHANGED = "changed"
    DETAIL = "detail"


DRIFTED: Final = (Drift.CHANGED, Drift.UNKNOWN)


def compare(found: Observation, last: Observed | None, told: Told) -> Drift:
    """What a read shows against the last published observation and the events in the ledger.

    A list may show fewer fields than a single read (case B22): details are compared only between records of the same
    shape, states always.
    """
    if last is None:
        return _first(found, told)
    now = found.observed
    if last.version > now.version:
        return Drift.NONE  # a later read was published meanwhile
    if now.digest == last.digest:
        return Drift.NONE
    if last.state and now.state != last.state:
        return _changed(found, last, now.state, told)
    return Drift.DETAIL if now.shape == last.shape or not last.state else Drift.NONE


def weighs(found: Observation, last: Observed | None, drift: Drift) -> bool:
    """Whether this drift, published, changes what is paid or who has access. Only that is braked (case B31); no
    payment does, as none fulfils anything (case F38)."""
    if drift not in DRIFTED or found.kind == "payment":
        return False
    before = None if last is None else status_of(last.state)
    return found.is_paid != (before == PAID) if found.kind == "order" else found.status != before


def _first(found: Observation, told: Told) -> Drift:
    if found.kind == "payment":
        return Drift.FIRST
    if found.kind == "order":
        is_news = found.is_paid and "order.paid" not in told
    elif told:
        is_news = found.status in ("PAST_DUE", ENDED) and TELLS_STATUS[found.status].isdisjoint(told)
    else:
        is_news = found.status != ENDED
    if not is_news:
        return Drift.FIRST
    return Drift.CHANGED if told else Drift.UNKNOWN


def _changed(found: Observation, last: Observed, state: str, told: Told) -> Drift:
    names, before = differing(last.state, state), status_of(last.state)
    if found.kind == "payment" or names <= TOLD_BY_NONE or (found.kind == "order" and "status" not in names):
        return Drift.DETAIL
    if found.is_paid:
        is_told = "order.paid" in told
    elif found.kind == "order":
        is_told = before != PAID and not TELLS_OVER.isdisjoint(told)  # nothing un-pays an order (case F31)
    elif found.status == ENDED:
        is_told = not TELLS_STATUS[ENDED].isdisjoint(told)
    elif before == ENDED:
        is_told = False  # nothing brings a subscription back
    else:
        types = TELLS_STATUS.get(found.status, frozenset()) if "status" in names else TELLS_CANCEL
        is_told = any(told[one] > last.read_at for one in types & told.keys())
    return Drift.TOLD if is_told else Drift.CHANGED


@dataclass(frozen=True)
class Difference:
    """One line of the drift report; states are documented words only, never a payload. `before` is empty for an
    object that was never read."""

    kind: str
    object_id: str
    drift: Drift
    before: str
    after: str


@dataclass(kw_only=True)
class DriftReport:
    """What a reconcile walk found. `braked`: what weighs was too much, and an operator is asked (B31).

    `changes`: by kind, the differences that weigh and are counted; `made`: how many of them were published; `weighing`:
    all that weigh, also what is unknown and is not counted while a gap is open, unless a limit is said.
    `baseline`: how many were only remembered, `early` where no walk of the events had begun here before;
    `adopted`: the live subscriptions of that walk (see Reconcile.once).
    `unplaced`: records without the id they are kept by, `unplaced_ids` the service's ids of the first twenty.
    `too_large`: those that topic events takes in no form, `refused` of them because its limit was lowered. `absent`:
    live ones that the list does not show; they are read singly and never judged by their absence (B21). `seen_live`:
    known live subscriptions that were listed. `complete`: all lists were walked. `differences` are the first thousand.
    """

    application: str
    dry_run: bool = False
    listed: Counter[str] = field(default_factory=Counter)
    found: Counter[Drift] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    weighing: int = 0
    published: int = 0
    made: int = 0
    baseline: int = 0
    early: bool = False
    adopted: int = 0
    unplaced: int = 0
    unplaced_paid: int = 0
    unplaced_ids: list[str] = field(default_factory=list)
    too_large: int = 0
    too_large_paid: int = 0
    too_large_ids: list[str] = field(default_factory=list)
    refused: int = 0
    absent: int = 0
    seen_live: int = 0
    braked: bool = False
    complete: bool = False
    seconds: float = 0.0
    differences: list[Difference] = field(default_factory=list)

    @property
    def drifted(self) -> bool:
        """Whether the ledger's view differed from the service's state (exit code 3 of a dry run)."""
        return self.drifts > 0

    @property
    def drifts(self) -> int:
        """How many differed."""
        return sum(self.found[drift] for drift in DRIFTED)

    @property
    def would_publish(self) -> int:
        """How many observations a walk publishes that finds this: also what is no drift, as what was never observed."""
        differing = sum(count for drift, count in self.found.items() if drift is not Drift.NONE)
        return differing - (self.changes.total() if self.braked else 0)

    @property
    def limit(self) -> int:
        """The `max_changes` with which all of it would be made now."""
        return self.weighing if self.dry_run else self.changes.total()

    @property
    def not_kept(self) -> int:
        """How many records nothing is done about, for whichever reason."""
        return self.unplaced + self.too_large

    @property
    def not_kept_paid(self) -> int:
        """How many of these are paid."""
        return self.unplaced_paid + self.too_large_paid

    def note(self, found: Observation, last: Observed | None, drift: Drift, *, counts: bool) -> None:
        """Count one comparison; whether it `counts` for the brake."""
        self.found[drift] += 1
        self.weighing += weighs(found, last, drift)
        if counts:
            self.changes[found.kind] += 1
        if drift in DRIFTED and len(self.differences) < LISTED_MAX:
            state, before = found.observed.state, last.state if last else ""
            difference = Difference(
                found.kind, found.object_id, drift, readable(before, state) if before else "", readable(state, before)
            )
            self.differences.append(difference)

    def note_unplaced(self, one: Unplaced) -> None:
        """Count a record without the id it is kept by."""
        self.unplaced += 1
        self.unplaced_paid += one.is_paid
        if one.id is not None and len(self.unplaced_ids) < UNPLACED_MAX:
            self.unplaced_ids.append(one.id)

    def note_too_large(self, one: Observation, *, for_now: bool) -> None:
        """Count a record that is not published for its size; `for_now`: it is when the topic's limit is raised."""
        self.too_large += 1
        self.too_large_paid += one.is_paid
        self.refused += for_now
        if len(self.too_large_ids) < UNPLACED_MAX:
            self.too_large_ids.append(one.object_id)
