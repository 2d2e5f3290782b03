"""Since when something is missing here, what of it is late, and what is forgotten or was history. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from consumer.payments import PaymentsError
from consumer.sync.backfill.cutover import FirstWalk
from consumer.sync.canary import stage as module
from consumer.sync.canary.sightings import (
    EVENTS_FORGOTTEN_AFTER,
    HISTORY_MAX,
    LATE,
    MISSED,
    MISSING_MAX,
    SHOWN,
    Missed,
    Shown,
    Sightings,
    after,
)
from consumer.sync.canary.stage import Canary
from tests.sync.conftest import World

NOW = datetime(2026, 1, 9, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)


def seen(*names: str, since: timedelta = timedelta(0), looked: timedelta = MINUTE) -> Sightings:
    """These were missing at the last look, `looked` ago, and had been for `since`."""
    return Sightings(missing=dict.fromkeys(names, NOW - since), looked_at=NOW - looked)


def looked(before: Sightings, *news: str, here: Sequence[str] = (), undated: Sequence[str] = (),
           expects: bool = True) -> Sightings:  # fmt: skip
    """After a look now."""
    return after(before, Shown(news=list(news), undated=list(undated)), here, NOW, expects=expects)


# case: B27
def test_late_is_what_was_missing_for_three_minutes_at_the_last_look() -> None:
    found = Sightings(looked_at=NOW, missing={"event:a": NOW - LATE, "order:b": NOW - LATE + MOMENT})
    assert [found.is_late(name) for name in ("event:a", "order:b", "order:c")] == [True, False, False]
    assert not Sightings(missing={"event:a": NOW - LATE}).is_late("event:a")


# case: B27
def test_what_was_missed_first_by_a_clock_that_was_ahead_is_missing_from_now_on() -> None:
    assert looked(seen("order:a", since=-timedelta(days=1))).missing == {"order:a": NOW}


# case: B27
def test_missed_is_what_was_missing_for_half_a_minute_at_the_last_look_and_late_later() -> None:
    found = Sightings(looked_at=NOW, missing={"event:a": NOW - MISSED, "order:b": NOW - MISSED + MOMENT})
    missed = found.missed()
    assert missed == Missed(0, 1, MISSED.total_seconds(), ("a",))
    assert [Missed(0, 1, age.total_seconds(), ("a",)).is_late for age in (LATE - MOMENT, LATE)] == [False, True]
    assert Sightings(missing={"event:a": NOW - LATE}).missed() is None


# case: B27
def test_the_oldest_of_what_is_missed_is_named_and_orders_come_first() -> None:
    ages = {"event:a": 9, "order:b": 5, "event:c": 7, "order:d": 6, "event:e": 0.25}
    found = Sightings(looked_at=NOW, missing={name: NOW - minutes * MINUTE for name, minutes in ages.items()})
    assert found.missed() == Missed(2, 2, 9 * 60.0, ("d", "b", "a"))
    assert SHOWN == 3
    assert found.late_events == ["a", "c"]


# case: B27, B30
def test_what_is_new_and_not_here_is_missing_from_now_on_if_it_should_be_here() -> None:
    found = looked(seen(), "event:a", "order:b", "event:a", here=["order:b"])
    assert (found.missing, found.looked_at) == ({"event:a": NOW}, NOW)
    assert looked(seen(), "event:a", expects=False).missing == {}


# case: B27
def test_what_was_missing_stays_so_until_it_is_here_shown_or_not() -> None:
    before = seen("event:a", "order:b", since=2 * MINUTE)
    assert looked(before, here=["event:a"]).missing == {"order:b": NOW - 2 * MINUTE}
    assert looked(before, expects=False).missing == {"order:b": NOW - 2 * MINUTE, "event:a": NOW - 2 * MINUTE}


# case: B27
@pytest.mark.parametrize(("away", "anew"), [(LATE, False), (LATE + MOMENT, True)])
def test_where_nobody_looked_for_long_it_counts_anew_but_for_what_was_late(away: timedelta, anew: bool) -> None:
    before = Sightings(
        looked_at=NOW - away, missing={"order:late": NOW - away - LATE, "order:not": NOW - away - LATE + MOMENT}
    )
    found = looked(before).missing
    assert found["order:late"] == NOW - away - LATE
    assert found["order:not"] == (NOW if anew else NOW - away - LATE + MOMENT)


# case: B27
def test_an_event_is_forgotten_after_a_week_and_an_order_never() -> None:
    old, young = NOW - EVENTS_FORGOTTEN_AFTER, NOW - EVENTS_FORGOTTEN_AFTER + MOMENT
    before = Sightings(looked_at=NOW, missing={"event:old": old, "event:young": young, "order:old": old})
    assert looked(before).missing == {"order:old": old, "event:young": young}


def test_so_many_are_kept_and_orders_before_events() -> None:
    events = [f"event:{number}" for number in range(MISSING_MAX)]
    found = looked(seen(), *events, "order:a").missing
    assert list(found) == ["order:a", *events[: MISSING_MAX - 1]]
    history = looked(seen(), undated=[f"order:{number}" for number in range(HISTORY_MAX + 1)]).history
    assert len(history) == HISTORY_MAX


# case: B30
def test_what_stood_at_the_end_without_a_time_is_history_until_it_is_here() -> None:
    shown = Shown()
    shown.add("order:a", None, floor=NOW, is_first=True)
    shown.add("order:b", None, floor=NOW, is_first=False)
    shown.add("event:c", NOW, floor=NOW, is_first=True)
    shown.add("event:d", NOW - MOMENT, floor=NOW, is_first=False)
    assert (shown.undated, shown.news) == (["order:a"], ["order:b", "event:c"])
    assert shown.names == ("order:b", "event:c", "order:a")
    found = after(seen(), shown, ["event:c"], NOW, expects=True)
    assert (list(found.history), list(found.missing)) == (["order:a"], ["order:b"])
    assert looked(found, "order:a").missing.keys() == {"order:b"}
    assert looked(found, here=["order:a"]).history == frozenset()


async def test_where_neither_list_can_be_read_the_first_failure_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: B27
    failures = iter([PaymentsError("the events"), PaymentsError("the orders")])

    async def fails(*_: Any) -> None:
        raise next(failures)

    monkeypatch.setattr(module, "look", fails)
    stage = Canary(world.app, world.settlement(), first_walk=FirstWalk(world.app, timedelta(days=1)))
    with pytest.raises(PaymentsError, match="the events"):
        await stage.look()
