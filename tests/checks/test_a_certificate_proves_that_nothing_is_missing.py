"""Certificate: it says complete only when every listed event of the window is here and done."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from consumer.broker import EmbeddedBroker
from consumer.checks.certificate import Certifier, digest, equations, faults
from consumer.errors import WrongApplication
from consumer.events import Event, Source, Trust
from consumer.ledger import Database
from consumer.ledger.handling import events, outbox, runs
from consumer.ledger.reading import hints, quarantine, sync_state
from consumer.ledger.tables import RunStatus
from consumer.plugin import Emission
from consumer.reason import Reason
from consumer.sync.backfill.stage import Backfill
from tests.sync.conftest import Simulated, SteppedClock, World, delivery
from tests.sync.service import ScriptedService


@pytest.fixture
def world(world: World, service_side: Simulated) -> World:
    world.api = service_side.api
    return world


def holds(document: dict[str, Any]) -> bool:
    """Whether both sums come out, and the document says so."""
    assert document["equations"] == equations(document)
    assert faults(document) == []
    return all(one["holds"] for one in document["equations"])


async def backfilled(world: World) -> None:
    stage = Backfill(world.app, world.settlement())
    await stage.once()
    await world.work()


async def run_of(world: World, event_ids: Sequence[str], status: RunStatus) -> None:
    """Runs of these events, as the workers leave them."""
    async with world.database.transaction() as session:
        found = await events.load(session, [("default", one) for one in event_ids])
        for number, event in enumerate(found.values()):
            new = runs.Run(
                application="default", event_id=event.id, handler="h", seq=number, key=event.key, status=status,
                blocking=status is not RunStatus.SUCCEEDED,
            )  # fmt: skip
            await runs.add(session, [new], world.clock.now())


async def test_what_is_missing_is_named_and_after_recovery_it_is_complete(
    world: World, service_side: Simulated
) -> None:
    # case: O7, B13
    began = service_side.sandbox.clock.now()
    ids = service_side.emit(150)
    certifier = Certifier(world.api, world.database, clock=world.clock)
    world.clock.advance(600)
    until = world.clock.now()
    before = await certifier.certify(began, until)
    assert (before["verdict"], before["missing"], len(before["missing_ids"])) == ("missing", 150, 150)
    await backfilled(world)
    after = await certifier.certify(began, until)
    assert (after["verdict"], after["listed"], after["recovered"], after["received_by_webhook"]) == (
        "complete",
        150,
        150,
        0,
    )
    assert after["sha256"] == digest(after)
    assert after["events_sha256"] != before["events_sha256"]
    assert set(before["missing_ids"]) == set(ids)


async def test_only_the_window_is_certified(world: World, service_side: Simulated) -> None:
    # case: O7
    service_side.emit(20)
    began = service_side.sandbox.clock.now()
    service_side.emit(30)
    until = service_side.sandbox.clock.now() + timedelta(milliseconds=1)
    service_side.emit(10)
    certifier = Certifier(world.api, world.database, clock=world.clock)
    found = await certifier.certify(began + timedelta(milliseconds=1), until)
    assert found["listed"] == 30
    assert found["verdict"] == "missing"


async def test_events_whose_work_is_not_done_keep_it_open(world: World, service_side: Simulated) -> None:
    # case: O7
    began = service_side.sandbox.clock.now()
    ids = service_side.emit(4)
    await backfilled(world)
    await run_of(world, ids[:1], RunStatus.SUCCEEDED)
    await run_of(world, ids[1:2], RunStatus.DEAD)
    await run_of(world, ids[2:3], RunStatus.PARKED)
    world.clock.advance(7200)
    found = await Certifier(world.api, world.database, clock=world.clock).certify(began, began + timedelta(hours=1))
    assert found["verdict"] == "open"
    assert {word: count for word, count in found["outcomes"].items() if count} == {
        "dead": 1, "handled": 1, "no_handler": 1, "parked": 1,
    }  # fmt: skip
    assert holds(found)
    assert set(found["open_ids"]) == set(ids[1:3])


async def derived(world: World, cause_id: str, status: RunStatus | None) -> None:
    """What an event derived: due and not yet published, or recorded and with a run that stands like this."""
    emission = Emission(id=f"drv_{cause_id}", type="fulfilment.requested", key=f"order:{cause_id}", data={})
    async with world.database.transaction() as session:
        [cause] = (await events.load(session, [("default", cause_id)])).values()
        await outbox.put(session, [outbox.Emitted(emission=emission, cause=cause, handler="h")], world.clock.now())
        if status is None:
            return
        await outbox.mark_published(session, await outbox.due(session, world.clock.now(), 10), world.clock.now())
        event = replace(cause, id=emission.id, type=emission.type, source=Source.RELAY)
        await events.record(session, [event], world.clock.now())
    await run_of(world, [emission.id], status)


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (RunStatus.DEAD, "dead"),
        (RunStatus.PARKED, "parked"),
        (RunStatus.RETRYING, "retrying"),
        (None, "retrying"),
        (RunStatus.SUCCEEDED, "handled"),
        (RunStatus.SKIPPED, "handled"),
    ],
)
async def test_work_that_an_event_derived_keeps_it_open(
    world: World, service_side: Simulated, status: RunStatus | None, word: str
) -> None:
    # case: O7, O5
    began = service_side.sandbox.clock.now()
    ids = service_side.emit(3)
    await backfilled(world)
    await run_of(world, ids, RunStatus.SUCCEEDED)
    await derived(world, ids[1], status)
    world.clock.advance(7200)
    found = await Certifier(world.api, world.database, clock=world.clock).certify(began, began + timedelta(hours=1))
    is_done = word == "handled"
    assert (found["verdict"], found["open_ids"]) == ("complete", []) if is_done else ("open", [ids[1]])
    assert found["outcomes"]["handled"] == (3 if is_done else 2)
    assert is_done or found["outcomes"][word] == 1
    assert holds(found)


async def test_what_lies_in_quarantine_or_waits_is_counted_apart_and_is_not_missing(
    world: World, service_side: Simulated
) -> None:
    # case: O7, G3
    began = service_side.sandbox.clock.now()
    first, second, third, fourth, fifth = service_side.emit(5)
    await heard(world, first)
    await run_of(world, [first], RunStatus.SUCCEEDED)
    async with world.database.transaction() as session:
        now = world.clock.now()
        await quarantine.put(session, [(delivery(b"{}", 2, event_id=second), Reason.FLOODED)], now)
        await quarantine.put(session, [(delivery(b"{}", 9, event_id="evt_forged"), Reason.NOT_CONFIRMED)], now)
        await hints.keep(session, [delivery(b"{}", 3, event_id=third)], now)
    world.clock.advance(600)
    until = world.clock.now()
    certifier = Certifier(world.api, world.database, clock=world.clock)
    found = await certifier.certify(began, until)
    assert (found["listed"], found["received_by_webhook"], found["recovered"], found["missing"]) == (5, 3, 0, 2)
    assert set(found["missing_ids"]) == {fourth, fifth}
    assert {word for word, count in found["outcomes"].items() if count == 1} == {
        "quarantined", "unconfirmed", "handled",
    }  # fmt: skip
    assert found["verdict"] == "missing"
    assert holds(found)
    await backfilled(world)
    after = await certifier.certify(began, until)
    assert (after["missing"], after["outcomes"]["quarantined"], after["received_by_webhook"]) == (0, 0, 2)
    assert after["verdict"] == "complete"
    assert holds(after)


async def heard(world: World, event_id: str) -> None:
    """An event that its webhook brought."""
    event = Event(
        application="default", id=event_id, type="order.paid", key=f"order:{event_id}", trust=Trust.SIGNED,
        source=Source.WEBHOOK, raw=b"{}", received_at=world.clock.now(), order_id="A-1",
    )  # fmt: skip
    async with world.database.transaction() as session:
        await events.record(session, [event], world.clock.now())


async def test_a_listed_record_that_is_not_understood_is_in_quarantine_or_missing(
    broker: EmbeddedBroker, sqlite_ledger: Database, service: ScriptedService, api: Any, clock: SteppedClock
) -> None:
    # case: U1, O7
    world = World(broker=broker, database=sqlite_ledger, service=service, api=api, clock=clock)
    listed = [{"strange": True}, {**service.event(1), "created_at": "2026-01-01T00:00:10Z"}]
    service.lists["/v1/events"] = lambda cursor, limit: {"items": listed, "next_cursor": None}
    began = clock.now()
    clock.advance(3600)
    certifier = Certifier(world.api, world.database, clock=clock)
    before = await certifier.certify(began, clock.now())
    assert (before["listed"], before["missing"], before["verdict"]) == (2, 2, "missing")
    await backfilled(world)
    after = await certifier.certify(began, clock.now())
    assert (after["missing"], after["recovered"], after["outcomes"]["quarantined"]) == (0, 2, 1)
    assert after["verdict"] == "open"
    assert holds(after)


async def test_what_cannot_be_proved_is_called_unproven(world: World, service_side: Simulated) -> None:
    # case: B13, O7
    began = service_side.sandbox.clock.now() - timedelta(hours=3)
    service_side.emit(3)
    await backfilled(world)
    certifier = Certifier(world.api, world.database, clock=world.clock)
    world.clock.advance(60)
    not_over = await certifier.certify(began, world.clock.now() + timedelta(hours=1))
    assert (not_over["verdict"], not_over["unproven"]) == ("unproven", ["window_not_over"])
    whole = await certifier.certify(began, world.clock.now())
    assert (whole["verdict"], whole["unproven"]) == ("complete", []), "the list's first event is the first there was"
    old = Event(
        application="default", id="evt_forgotten", type="order.paid", key="order:old", trust=Trust.SIGNED,
        source=Source.WEBHOOK, raw=b"{}", received_at=began + timedelta(hours=1), order_id="A-0",
    )  # fmt: skip
    async with world.database.transaction() as session:
        await events.record(session, [old], world.clock.now())
    forgotten = await certifier.certify(began, world.clock.now())
    assert (forgotten["verdict"], forgotten["unproven"]) == ("unproven", ["list_does_not_reach_back"])
    assert faults(forgotten) == []


async def test_an_empty_list_proves_nothing_once_there_was_business(
    broker: EmbeddedBroker, sqlite_ledger: Database, service: ScriptedService, api: Any, clock: SteppedClock
) -> None:
    # case: B13, O7
    world = World(broker=broker, database=sqlite_ledger, service=service, api=api, clock=clock)
    service.lists["/v1/events"] = lambda cursor, limit: {"items": [], "next_cursor": None}
    certifier = Certifier(api, sqlite_ledger, clock=clock)
    began = clock.now()
    clock.advance(3600)
    quiet = await certifier.certify(began, clock.now())
    assert (quiet["verdict"], quiet["listed"]) == ("complete", 0), "nothing has ever happened"
    await heard(world, "evt_forgotten")
    clock.advance(3600)
    found = await certifier.certify(began, clock.now())
    assert (found["verdict"], found["unproven"]) == ("unproven", ["list_does_not_reach_back"])
    assert holds(found)


async def test_another_applications_list_is_not_certified(world: World) -> None:
    # case: B32, O7
    async with world.database.transaction() as session:
        state = {"app_id": "svc_app_other", "service_id": None}
        await sync_state.keep(session, "default", "identity", state, token=1, now=world.clock.now())
    began = world.clock.now()
    world.clock.advance(3600)
    with pytest.raises(WrongApplication):
        await Certifier(world.api, world.database, clock=world.clock).certify(began, world.clock.now())


# The recipe of sync's README, word for word: the standard library alone.
RECIPE = """
import hashlib, json, sys
d = json.load(open(sys.argv[1], encoding="utf-8"))
s = d.pop("sha256")
t = json.dumps(d, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
sys.exit(hashlib.sha256(t.encode()).hexdigest() != s)
"""


async def test_anybody_can_check_a_certificate_from_its_file_alone(
    world: World, service_side: Simulated, tmp_path: Path
) -> None:
    # case: O7
    told = (Path(__file__).parents[2] / "deploy/certificate.md").read_text()
    assert all(f"    {line}" in told for line in RECIPE.strip().splitlines()), "the operator's recipe is this one"
    began = service_side.sandbox.clock.now()
    service_side.emit(5)
    await backfilled(world)
    world.clock.advance(7200)
    document = await Certifier(world.api, world.database, clock=world.clock).certify(began, world.clock.now())
    file = tmp_path / "certificate.json"

    def checked(content: dict[str, Any]) -> int:
        file.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        return subprocess.run([sys.executable, "-c", RECIPE, str(file)], check=False).returncode

    assert checked(document) == 0
    assert checked(document | {"missing": 1}) == 1
    read = json.loads(orjson.dumps(document))
    assert faults(read) == []
    forged = read | {"recovered": 4}
    assert faults(forged | {"sha256": digest(forged)}) != [], "a fitting digest does not make wrong sums right"
    rosy = read | {"verdict": "complete", "outcomes": read["outcomes"] | {"handled": 4, "dead": 1, "no_handler": 0}}
    assert faults(rosy | {"sha256": digest(rosy)}) == ["the verdict does not follow from the numbers"]
    assert faults({}) != []
    assert faults({"version": 2}) != []
