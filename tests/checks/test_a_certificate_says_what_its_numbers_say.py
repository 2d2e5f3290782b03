"""Certificate: its verdict follows from its numbers, its window has sharp ends, and each doubt has its own reason."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.checks.certificate import Certifier, digest, equations, faults, verdict
from consumer.events import Event, Source, Trust
from consumer.ledger.handling import events, outbox, runs
from consumer.ledger.tables import RunStatus
from consumer.lists.bookmark import SERVICE_SKEW
from consumer.lists.progress import Progress
from consumer.plugin import Emission
from tests.sync.backfill.test_refused_cursors_are_said_once import Listed
from tests.sync.conftest import SteppedClock, World
from tests.sync.reconciling import listing
from tests.sync.service import Json

BEGAN = SteppedClock().now()
NONE = dict.fromkeys(
    ("handled", "no_handler", "skipped", "retrying", "parked", "dead", "quarantined", "unconfirmed"), 0
)


def numbers(*done: str, missing: int = 0, unproven: Sequence[str] = (), more: int = 0) -> dict[str, Any]:
    """The numbers of a certificate of events of which became these words; `more` are listed than became anything."""
    return {
        "listed": len(done) + missing + more,
        "received_by_webhook": len(done[:1]),
        "recovered": len(done[1:]) + more,
        "missing": missing,
        "outcomes": NONE | Counter(done),
        "unproven": list(unproven),
    }


def signed(content: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A whole certificate with these numbers, changed, with the digest that fits it."""
    found = {"version": 2, **content, "equations": equations(content), "verdict": verdict(content), **changes}
    return found | {"sha256": digest(found)}


@pytest.mark.parametrize(
    ("of", "wanted"),
    [
        (numbers(), "complete"),
        (numbers("handled", "handled", "no_handler", "skipped"), "complete"),
        *((numbers("handled", word), "open") for word in list(NONE)[3:]),
        (numbers("handled", "dead", missing=1, unproven=["window_not_over"]), "missing"),
        (numbers("handled", "dead", unproven=["window_not_over"]), "unproven"),
        (numbers("handled", more=1), "unproven"),
    ],
)
def test_the_worst_that_the_numbers_say_is_the_verdict(of: dict[str, Any], wanted: str) -> None:
    # case: O7
    assert verdict(of) == wanted


def test_both_sums_are_shown_with_their_sides() -> None:
    # case: O7
    provenance, outcomes = equations(numbers("handled", "handled", "handled", "dead", missing=2, more=1))
    assert (provenance["left"], provenance["right"], provenance["holds"]) == (7, 7, True)
    assert (outcomes["left"], outcomes["right"], outcomes["holds"]) == (7, 6, False)


def test_what_is_wrong_with_a_certificate_is_named() -> None:
    # case: O7
    good = signed(numbers("handled", "handled"))
    assert faults(good) == []
    assert faults(signed(numbers("handled", "handled"), version=1)) == ["it is not of version 2"]
    assert faults(good | {"made_at": "later"}) == ["the digest does not fit the contents"]
    follows = ["the verdict does not follow from the numbers"]
    assert faults(signed(numbers("handled", "handled"), verdict="open")) == follows
    assert faults(signed(numbers("handled", "handled"), equations=[])) == follows
    lacking = numbers("handled", "handled", more=1)
    assert faults(signed(lacking)) == [f"does not add up: {equations(lacking)[1]['says']}"]
    assert faults(signed(numbers("handled"), missing=None)) == ["numbers are missing"]
    assert faults(signed(numbers("handled"), outcomes=[])) == ["numbers are missing"]
    assert faults({"version": 2}) == ["the digest does not fit the contents", "numbers are missing"]


def event(world: World, number: int, at_s: float | None = None) -> Json:
    """One that the service lists; it happened so many seconds after the window's beginning."""
    shown = {} if at_s is None else {"created_at": (BEGAN + timedelta(seconds=at_s)).isoformat()}
    return {**world.service.event(number, order_id=f"A-{number}"), **shown}


async def certified(world: World, listed: Sequence[Json], window_s: tuple[float, float] = (0, 60)) -> dict[str, Any]:
    """The certificate of these seconds, made two hours after the window's beginning."""
    world.service.lists["/v1/events"] = listing([*listed])
    world.clock.advance((BEGAN + timedelta(hours=2) - world.clock.now()).total_seconds())
    since, until = (BEGAN + timedelta(seconds=second) for second in window_s)
    return await Certifier(world.api, world.database, clock=world.clock).certify(since, until)


async def recorded(world: World, *ids: str, source: Source = Source.WEBHOOK, at_s: float = 0) -> None:
    """Events that the ledger has."""
    async with world.database.transaction() as session:
        new = [
            Event(
                application="default", id=one, type="order.paid", key=f"order:{one}", trust=Trust.SIGNED, order_id=one,
                source=source, raw=b"{}", received_at=BEGAN + timedelta(seconds=at_s),
            )
            for one in ids
        ]  # fmt: skip
        await events.record(session, new, world.clock.now())


async def test_every_field_says_what_was_seen(world: World) -> None:
    # case: O7
    await recorded(world, "evt_000001")
    await recorded(world, "evt_000002", source=Source.BACKFILL)
    listed = [event(world, 3, 30), event(world, 2, 20), event(world, 1, 10), event(world, 0, -10)]
    found = await certified(world, listed)
    of_events = "evt_000001 no_handler\nevt_000002 no_handler\nevt_000003 missing\n"
    assert {name: value for name, value in found.items() if name not in ("followed", "equations", "sha256")} == {
        "version": 2,
        "application": "default",
        "since": "2026-01-01T00:00:00+00:00",
        "until": "2026-01-01T00:01:00+00:00",
        "made_at": "2026-01-01T02:00:00+00:00",
        "list_order": "newest_first",
        "list_reaches_back_to": "2025-12-31T23:59:50+00:00",
        "without_time": 0,
        "listed": 3,
        "received_by_webhook": 1,
        "recovered": 1,
        "missing": 1,
        "outcomes": NONE | {"no_handler": 2},
        "unproven": [],
        "verdict": "missing",
        "missing_ids": ["evt_000003"],
        "open_ids": [],
        "events_sha256": hashlib.sha256(of_events.encode()).hexdigest(),
    }
    assert found["sha256"] == digest(found)


async def test_a_window_has_its_first_moment_and_lacks_its_last(world: World) -> None:
    # case: O7
    times = {1: -1, 2: 0, 3: 1, 4: 59, 5: 60, 6: 61}
    found = await certified(world, [event(world, number, at_s) for number, at_s in times.items()])
    assert found["missing_ids"] == ["evt_000002", "evt_000003", "evt_000004"]
    assert found["list_reaches_back_to"] == "2025-12-31T23:59:59+00:00"


async def test_an_event_without_a_time_belongs_to_every_window(world: World) -> None:
    # case: O7, U22
    found = await certified(world, [event(world, 1, -60), event(world, 2), event(world, 3), event(world, 4, 30)])
    assert found["missing_ids"] == ["evt_000002", "evt_000003", "evt_000004"]
    assert (found["without_time"], found["unproven"]) == (2, [])


async def test_a_list_that_shows_no_time_at_all_proves_nothing(world: World) -> None:
    # case: O7, U22
    hidden = await certified(world, [event(world, 1)])
    assert (hidden["unproven"], hidden["list_reaches_back_to"]) == (["times_not_found"], None)
    strange = await certified(world, [{"strange": True}])
    assert (strange["unproven"], strange["listed"]) == (["times_not_found"], 1)


@pytest.mark.parametrize(
    ("before_s", "oldest_s", "doubts"),
    [
        (0, 10, []),
        (1, 10, ["list_does_not_reach_back"]),
        (3600, 0, []),
        (3600, -10, []),
        (3600, 1, ["list_does_not_reach_back"]),
    ],
)
async def test_what_came_well_before_the_list_begins_was_forgotten_there(
    world: World, before_s: float, oldest_s: float, doubts: list[str]
) -> None:
    # case: B13, O7
    await recorded(world, "evt_000001", at_s=oldest_s)
    await recorded(world, "evt_forgotten", at_s=oldest_s - SERVICE_SKEW.total_seconds() - before_s)
    found = await certified(world, [event(world, 1, oldest_s)])
    assert found["unproven"] == doubts


@pytest.mark.parametrize(
    ("own", "derived", "word"),
    [
        (RunStatus.DEAD, RunStatus.RETRYING, "dead"),
        (RunStatus.RETRYING, RunStatus.PARKED, "parked"),
        (RunStatus.SUCCEEDED, RunStatus.DEAD, "dead"),
    ],
)
async def test_the_worse_of_an_events_own_work_and_what_it_derived_counts(
    world: World, own: RunStatus, derived: RunStatus, word: str
) -> None:
    # case: O7, O5
    await recorded(world, "evt_000001")
    emission = Emission(id="drv_1", type="fulfilment.requested", key="order:A-1", data={})
    async with world.database.transaction() as session:
        [cause] = (await events.load(session, [("default", "evt_000001")])).values()
        await outbox.put(session, [outbox.Emitted(emission=emission, cause=cause, handler="h")], BEGAN)
        await outbox.mark_published(session, await outbox.due(session, BEGAN, 10), BEGAN)
        await events.record(session, [replace(cause, id="drv_1", source=Source.RELAY)], BEGAN)
        for number, (one, status) in enumerate((("evt_000001", own), ("drv_1", derived))):
            new = runs.Run(
                application="default", event_id=one, handler="h", seq=number, key="order:A-1", status=status,
                blocking=status is not RunStatus.SUCCEEDED,
            )  # fmt: skip
            await runs.add(session, [new], BEGAN)
    found = await certified(world, [event(world, 1, 10)])
    assert found["outcomes"] == NONE | {word: 1}
    assert found["open_ids"] == ["evt_000001"]


async def test_how_far_it_is_counts_what_is_not_understood_as_well(world: World) -> None:
    # case: O7, B29
    world.service.lists["/v1/events"] = listing([event(world, 1, 10), event(world, 2, 20), {"strange": True}])
    told = list[Progress]()
    world.clock.advance(3600)
    await Certifier(world.api, world.database, clock=world.clock).certify(BEGAN, world.clock.now(), told.append)
    assert [(one.pages, one.listed) for one in told] == [(1, 3)]


class RefusedOnce(Listed):
    """Each cursor is refused once."""

    def page(self, cursor: str | None, limit: int) -> dict[str, Any] | int:
        found = super().page(cursor, limit)
        self.refuses.discard(str(cursor))
        return found


async def test_cursors_that_the_service_refuses_are_said(world: World) -> None:
    # case: B11, O7
    listed = RefusedOnce(world)
    certifier = Certifier(world.api, world.database, clock=world.clock)
    with capture_logs() as lines:
        whole = await certifier.certify(BEGAN - timedelta(hours=1), BEGAN)
        assert lines == []
        listed.refuses = {"100"}
        again = await certifier.certify(BEGAN - timedelta(hours=1), BEGAN)
    assert [line["event"] for line in lines] == ["cursors_refused"]
    assert (again["listed"], again["events_sha256"]) == (whole["listed"], whole["events_sha256"])
