"""When the next walk is due, what is too much to be made unasked, and what a report keeps. Pure but for a clock."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from consumer.lists.bookmark import Place
from consumer.sync.reconcile.comparison import Comparison
from consumer.sync.reconcile.drift import LISTED_MAX, UNPLACED_MAX, Drift, DriftReport
from consumer.sync.reconcile.lists import Unplaced
from consumer.sync.reconcile.newest_payments import HELD_MAX, SETTLED, Held
from consumer.sync.reconcile.policy import ReconcilePolicy, Terms
from consumer.sync.reconcile.stage import SET_BACK
from consumer.sync.reconcile.state import ReconcileState
from tests.sync.conftest import World
from tests.sync.reconciling import reconcile

AT = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
POLICY = ReconcilePolicy()


# case: B13, B31
@pytest.mark.parametrize(
    ("state", "is_due"),
    [
        (ReconcileState(), True),
        (ReconcileState(began=AT), False),
        (ReconcileState(began=AT - POLICY.every), True),
        (ReconcileState(began=AT + SET_BACK / 2), False),
        (ReconcileState(began=AT + timedelta(days=400)), True),
        (ReconcileState(began=AT - POLICY.every + MOMENT), False),
        (ReconcileState(began=AT - POLICY.braked_again, braked=True), True),
        (ReconcileState(began=AT - POLICY.braked_again + MOMENT, braked=True), False),
        (ReconcileState(began=AT - POLICY.braked_again, refused=1), True),
        (ReconcileState(began=AT - POLICY.braked_again, unplaced=1), False),
        (ReconcileState(began=AT, gap_at=AT), False),
        (ReconcileState(began=AT, gap_at=AT + MOMENT), True),
        (ReconcileState(began=AT, gap_at=AT - MOMENT), False),
        (ReconcileState(began=AT, braked=True, beside="x"), True),
        (ReconcileState(began=AT, braked=True, beside="x", answered="x"), False),
        (ReconcileState(began=AT, braked=False, beside="x"), False),
    ],
)
async def test_a_walk_is_due(world: World, state: ReconcileState, is_due: bool) -> None:
    assert world.clock.now() == AT
    assert reconcile(world)._is_due(state) is is_due


def terms(max_changes: int | None = None) -> Terms:
    return Terms(began=AT, max_changes=max_changes, baseline=False, has_gap=False)


# case: B31
@pytest.mark.parametrize(
    ("changes", "listed", "max_changes", "too_much"),
    [
        ({"order": 5}, {"order": 10}, None, False),
        ({"order": 6}, {"order": 10}, None, True),
        ({"order": 5, "subscription": 5}, {}, None, False),
        ({"subscription": 6}, {}, None, True),
        ({"order": 10}, {"order": 100}, None, False),
        ({"order": 11}, {"order": 100}, None, True),
        ({"order": 10}, {"subscription": 100}, None, True),
        ({"order": 20, "subscription": 20}, {"order": 400, "subscription": 400}, None, False),
        ({"order": 21, "subscription": 20}, {"order": 400, "subscription": 400}, None, True),
        ({"order": 6}, {"order": 10}, 6, False),
        ({"order": 7}, {"order": 1000}, 6, True),
        ({"order": 6, "subscription": 1}, {"order": 1000}, 6, True),
        ({"order": 1}, {"order": 1000}, 0, True),
        ({}, {}, 0, False),
        ({"order": 50}, {"order": 10}, 100, False),
    ],
)
async def test_too_much_is_more_than_a_share_or_than_was_allowed(
    world: World, changes: dict[str, int], listed: dict[str, int], max_changes: int | None, too_much: bool
) -> None:
    policy = ReconcilePolicy(brake_min=5, brake_share=0.1, held_back_max=40)
    report = DriftReport(application="default", changes=Counter(changes), listed=Counter(listed))
    assert Comparison(world.app, world.publisher, policy)._is_too_much(report, terms(max_changes)) is too_much


async def test_a_report_counts_all_and_lists_some(world: World) -> None:
    found = world.app.observation("order", "A-1", 1, {"order_id": "A-1", "status": "PAID"})
    report = DriftReport(application="default")
    for _ in range(LISTED_MAX + 1):
        report.note(found, None, Drift.UNKNOWN, counts=False)
    report.note(found, None, Drift.CHANGED, counts=True)
    report.note(found, None, Drift.DETAIL, counts=False)
    assert (len(report.differences), report.drifts, report.drifted) == (LISTED_MAX, LISTED_MAX + 2, True)
    assert report.differences[0].before == ""
    assert (report.weighing, report.changes) == (LISTED_MAX + 2, {"order": 1})
    assert report.limit == 1
    report.dry_run = True
    assert report.limit == LISTED_MAX + 2
    assert not DriftReport(application="default", found=Counter({Drift.TOLD: 3})).drifted


def test_what_cannot_be_kept_is_counted_and_the_first_are_named() -> None:
    report = DriftReport(application="default")
    report.note_unplaced(Unplaced(None, is_paid=True))
    for number in range(UNPLACED_MAX + 1):
        report.note_unplaced(Unplaced(f"ord_{number}", is_paid=number < 2))
    assert (report.unplaced, report.unplaced_paid) == (UNPLACED_MAX + 2, 3)
    assert report.unplaced_ids == [f"ord_{number}" for number in range(UNPLACED_MAX)]


# case: F29, F38
def test_a_payment_is_told_when_it_has_stood_for_a_while() -> None:
    held = Held(since={"old": AT - SETTLED, "young": AT - SETTLED + MOMENT}, records={"old": {}, "young": {"a": 1}})
    assert held.due(AT) == ["old"]
    left = held.without(["old"])
    assert (left.since, left.records) == ({"young": AT - SETTLED + MOMENT}, {"young": {"a": 1}})


# case: F29
def test_a_payment_whose_status_changes_is_waited_for_anew_and_shown_as_it_is() -> None:
    before = Held(since={"a": AT, "b": AT}, records={"a": {"status": "NEW"}, "b": {"status": "NEW"}})
    later = AT + timedelta(minutes=1)
    shown: dict[str, dict[str, Any]] = {
        "a": {"status": "PAID"}, "b": {"status": "NEW", "more": 1}, "c": {"status": "NEW"}, "told": {}
    }  # fmt: skip
    held = before.seen(Place(), shown, ["c"], later)
    assert held.since == {"a": later, "b": AT, "c": later}
    assert held.records == {"a": {"status": "PAID"}, "b": {"status": "NEW", "more": 1}, "c": {"status": "NEW"}}
    assert before.seen(Place(), {}, [], later).since == before.since
    many = {str(number): {"status": "NEW"} for number in range(HELD_MAX)}
    full = before.seen(Place(), many, list(many), later)
    assert (len(full.since), len(full.records)) == (HELD_MAX, HELD_MAX)
    assert {"a", "b"} <= full.since.keys()
