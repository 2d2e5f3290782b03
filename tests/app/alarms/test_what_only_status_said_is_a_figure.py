"""What `status` says and no other metric tells is a figure of its own, by its code, and goes back to 0."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import delete, update

from consumer.app import App
from consumer.app.alarms import ledger_figures
from consumer.clock import SystemClock
from consumer.console.alarms import standing
from consumer.console.alarms.late_decisions import LateDecision
from consumer.ledger import Database, leases
from consumer.ledger.plans.plans import HalfApplied
from consumer.ledger.processes import MISADDRESSED, UNPROVED, Process, Proof
from consumer.ledger.reading import hints, quarantine, read_requests
from consumer.ledger.tables import ALARM_AFTER_ATTEMPTS, HintRow, QuarantineRow, ReadRow
from consumer.plugin import ReadRequest
from consumer.reason import Reason
from consumer.settings import Role, load_settings
from consumer.telemetry.metrics import Metrics
from tests.cli.looking.evidence.test_roles_that_are_gone_are_named import living
from tests.cli.looking.test_what_is_healthy_degraded_or_stuck import WELL
from tests.contract.ledger.facts import delivery
from tests.support.ports import eventually


def shown(metrics: Metrics, code: str, plugin: str = "") -> float | None:
    return metrics.registry.get_sample_value("consumer_status_code", {"code": code, "plugin": plugin})


# case: O6
def test_each_code_by_its_figure() -> None:
    room = 1000
    assert standing.wrong(WELL, room) == frozenset()
    for code, figures in {
        "hints_denied": replace(WELL, hints=standing.DENIED_MANY, denied=standing.DENIED_MANY),
        "records_refused": replace(WELL, refused=1),
        "handlers_gone": replace(WELL, gone_handlers={"shop:ship": 3}),
        "plan_half_applied": replace(WELL, half_applied=HalfApplied("rpl_1", renews_keys=False)),
        "objects_unreadable": replace(WELL, unreadable=1),
        "unproved_fills": replace(WELL, unproved_bytes={"shop": 501}),
    }.items():
        assert standing.wrong(figures, room) == {code}
    assert (
        standing.wrong(replace(WELL, hints=standing.DENIED_MANY, denied=standing.DENIED_MANY - 1), room) == frozenset()
    )
    assert standing.wrong(replace(WELL, unproved_bytes={"shop": 500}), room) == frozenset()
    assert standing.wrong(replace(WELL, unproved_bytes={"shop": 501}), 0) == frozenset()


def test_decisions_that_are_put_off_have_a_figure() -> None:
    late = LateDecision(application="shop", handler="door:open", reason="retrying", count=1, oldest_at=WELL.at)
    assert standing.wrong(WELL, 0, [], [late]) == {"decisions_late"}


def test_a_slow_role_has_a_figure() -> None:
    slow = living("work", seen_at=WELL.at, checks={"loop": Proof(code="role_slow")})
    assert standing.wrong(WELL, 0, [living("work", seen_at=WELL.at)]) == frozenset()
    assert standing.wrong(WELL, 0, [slow]) == {"role_slow"}
    assert standing.wrong(WELL, 0, [replace(slow, stopped_at=slow.seen_at)]) == frozenset()


def test_what_a_living_serve_stored_of_strangers_has_a_figure() -> None:
    much = living("serve", seen_at=WELL.at, said={UNPROVED: '{"shop":5,"club":3}'})
    assert standing.wrong(WELL, 0, [much]) == {"unproved_fills"}
    assert standing.wrong(WELL, 0, [replace(much, stopped_at=much.seen_at)]) == frozenset()
    assert standing.stored([much, replace(much, process="other")], WELL.at) == {"shop": 10, "club": 6}


# case: I14, O1
def test_webhooks_to_an_address_that_is_none_have_a_figure() -> None:
    def front(process: str, count: int) -> Process:
        said = {MISADDRESSED: f'{{"count":{count},"last_s":5.0,"names":["{process}"]}}'}
        return living("serve", process=process, seen_at=WELL.at, said=said)

    assert standing.wrong(WELL, 0, [front("a", 2)]) == frozenset()
    assert standing.wrong(WELL, 0, [front("a", 2), front("b", 1)]) == {"webhooks_misaddressed"}
    assert standing.wrong(WELL, 0, [replace(front("a", 9), stopped_at=WELL.at)]) == frozenset()


# case: O6, O1
async def test_the_ledgers_codes_are_shown(sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_figures, "LOOK_EVERY_S", 0.02)
    metrics, stop, now = Metrics(), asyncio.Event(), SystemClock().now()
    waiting = [delivery(number, event_id=f"evt_{number}") for number in range(standing.DENIED_MANY)]
    async with sqlite_ledger.transaction() as session:
        await hints.keep(session, waiting, now)
        await session.execute(update(HintRow).values(attempts=hints.OFTEN))
        await quarantine.put(session, [(delivery(1), Reason.NOT_UNDERSTOOD)], now)
    watch = asyncio.create_task(ledger_figures.watch_ledger_figures(sqlite_ledger, metrics, SystemClock(), stop, 0, ()))
    await eventually(lambda: shown(metrics, "hints_denied") == shown(metrics, "records_refused") == 1, within_s=20)
    assert shown(metrics, "handlers_gone") == 0
    async with sqlite_ledger.transaction() as session:
        await session.execute(delete(HintRow))
        await session.execute(delete(QuarantineRow))
    await eventually(lambda: shown(metrics, "hints_denied") == shown(metrics, "records_refused") == 0, within_s=20)
    stop.set()
    await watch


# case: O6, G7
async def test_a_read_that_always_fails_has_a_figure_until_it_succeeds(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_figures, "LOOK_EVERY_S", 0.02)
    metrics, stop, now = Metrics(), asyncio.Event(), SystemClock().now()
    async with sqlite_ledger.transaction() as session:
        await leases.acquire(session, "sync/default", "one", now, leases.LEASE_S)
        await read_requests.ask(session, "default", [ReadRequest(kind="subscription", object_id="S1")], now)
        await session.execute(update(ReadRow).values(attempts=ALARM_AFTER_ATTEMPTS, code="server_error"))
    watch = asyncio.create_task(ledger_figures.watch_ledger_figures(sqlite_ledger, metrics, SystemClock(), stop, 0, ()))
    await eventually(lambda: shown(metrics, "objects_unreadable") == 1, within_s=20)
    async with sqlite_ledger.transaction() as session:
        await session.execute(delete(ReadRow))
    await eventually(lambda: shown(metrics, "objects_unreadable") == 0, within_s=20)
    stop.set()
    await watch


# case: O6, H1, H8
async def test_a_worker_shows_what_it_does_not_load(tmp_path: Path) -> None:
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_HANDLERS": "fulfilment",
    }
    async with App(load_settings(environ, Role.WORK), plugins={"empty": ModuleType("empty")}) as app:
        app.check_plugins()
        assert shown(app.metrics, "plugins_broken", "empty") == 1
        assert shown(app.metrics, "built_in_left_out", "access") == 1
        assert shown(app.metrics, "built_in_left_out", "fulfilment") == 0
