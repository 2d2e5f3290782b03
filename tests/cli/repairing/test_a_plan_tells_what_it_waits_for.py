"""A plan and its `apply` tell what they wait for: a handler that is not here, a run that stands before, a worker; who
goes on with what was begun; and which commands move a plan that is half applied."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import text

from consumer.broker import Broker
from consumer.cli.repairing import replay
from consumer.cli.repairing.replay_bar import ReplayBar
from consumer.cli.repairing.replay_filter import parse_age
from consumer.cli.walking import progress
from consumer.errors import ReplayStalled, Terminated, UsageError
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.ledger.plans import plans
from consumer.replay import apply
from consumer.replay.apply import ReplayProgress
from consumer.replay.send_rate import SendRate
from tests.replay.stage import Shop
from tests.support.desk import Desk
from tests.support.ports import eventually
from tests.work.workshop import order_paid


# case: R15
async def test_who_goes_on_with_a_plan_is_told_and_how(
    sqlite_ledger: Database, broker: Broker, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def soon(_: SendRate, __: int) -> float:
        return 1.0

    monkeypatch.setattr(SendRate, "left_s", soon)
    shop = Shop(sqlite_ledger, broker)
    async with shop.with_dead_mail() as work:
        plan = await shop.replaying().plan(handler="shop:mail")
        async with sqlite_ledger.transaction() as session:
            await plans.begin(session, plan["id"], by="bob", reason="first", now=work.clock.now())

        listed = await asyncio.to_thread(desk.call, "replay", "list")
        for verb in ("apply", "cancel"):
            assert f"consumer replay {verb} {plan['id']} --reason" in listed.stdout
        [found] = (await asyncio.to_thread(desk.ask, "find", plan["id"]))["found"]
        assert (found["kind"], found["detail"]) == ("replay plan", f"applying; consumer replay show {plan['id']}")

        steps: list[ReplayProgress] = []
        assert (await shop.replaying().apply(plan, told=steps.append)).is_as_planned
    assert {step.left_s for step in steps if not step.done} == {None}, "nobody can tell before the first is done"
    assert steps[-1] == ReplayProgress(1, 1, 1.0)
    async with sqlite_ledger.reading() as session:
        rows = await session.execute(text("SELECT action, actor, reason FROM audit WHERE action LIKE 'replay.%'"))
        told = {(row.action, row.actor, row.reason) for row in rows}
    assert {("replay.applied", "bob", "first"), ("replay.resumed", "ann", "why")} <= told


# case: R7, O6
async def test_a_plan_that_is_left_half_applied_is_told(sqlite_ledger: Database, broker: Broker, desk: Desk) -> None:
    def told() -> list[str]:
        found = json.loads(desk.call("status", "--json").stdout)["findings"]
        return [one["text"] for one in found if one["code"] == "plan_half_applied"]

    shop = Shop(sqlite_ledger, broker, broken={"mail"})
    work = shop.workshop()
    await work.publish(order_paid(1))
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "dead", 1))
    plan = (await shop.replaying().plan(handler="shop:mail"))["id"]
    applied = asyncio.create_task(shop.replaying().apply({"id": plan}))  # nobody works: it waits
    await eventually(lambda: is_being_applied(sqlite_ledger, plan))
    assert await asyncio.to_thread(told) == [], "somebody is at it"
    applied.cancel()
    await asyncio.gather(applied, return_exceptions=True)
    [line] = await asyncio.to_thread(told)
    for verb in ("apply", "cancel"):
        assert f"consumer replay {verb} {plan} --reason" in line
    await asyncio.to_thread(desk.ask, "replay", "cancel", plan, "--reason", "a drill", "--yes")
    assert await asyncio.to_thread(told) == []


# case: R7, R15
@pytest.mark.parametrize(
    ("words", "told", "listed"), [([], "", ""), (["--application", "default"], " for default", " of default")]
)
async def test_a_handler_of_the_plan_that_is_paused_is_named(
    sqlite_ledger: Database,
    broker: Broker,
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    told: str,
    listed: str,
) -> None:
    monkeypatch.setattr(apply, "STALLED_S", 0.5)
    shop = Shop(sqlite_ledger, broker)
    async with shop.with_dead_mail():
        plan = await shop.replaying().plan(handler="shop:mail")
        paused = await asyncio.to_thread(desk.call, "handlers", "pause", "shop:mail", "--reason", "x", *words)
        assert paused.returncode == 0, paused.stderr
        steps: list[ReplayProgress] = []
        monkeypatch.setattr(apply, "STILL_S", 0.1)
        with pytest.raises(ReplayStalled):
            await shop.replaying().apply(plan, told=steps.append)
        assert (steps[0].paused, steps[-1].paused) == ((), (f"shop:mail{listed}",))
        done = await asyncio.to_thread(desk.call, "replay", "apply", plan["id"], "--reason", "why", "--yes")
        assert done.returncode == 1
        cure = " ".join(["consumer handlers resume shop:mail", *words, "--reason …"])
        assert f"shop:mail is paused{told}: this waits for `{cure}`" in done.stderr
        last = done.stderr.splitlines()[-1]
        assert last.startswith("error[replay_stalled]: A handler of the plan is paused"), last
        assert f"paused=shop:mail{listed}" in last.replace('"', "")
        monkeypatch.setattr(apply, "STALLED_S", 60.0)
        resumed = await asyncio.to_thread(desk.call, "handlers", "resume", "shop:mail", "--reason", "done", *words)
        assert resumed.returncode == 0, resumed.stderr
        assert (await shop.replaying().apply(plan)).is_as_planned


# case: R7
def test_how_long_it_takes_is_not_told_while_it_waits_for_who_is_paused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SAY_EVERY_S", 0.0)
    with ReplayBar("rpl_1") as bar:
        bar.told(1, 3, 61.0)
        bar.told(1, 3, None, ("shop:mail",))
        bar.told(1, 3, None, ("shop:mail", "shop:ship of far"))
    assert capsys.readouterr().err.splitlines() == [
        "rpl_1: 1 of 3, 1:01 left",
        "rpl_1: 1 of 3, waits: shop:mail is paused",
        "rpl_1: 1 of 3, waits: shop:mail, shop:ship of far are paused",
    ]


# case: R8
async def test_no_time_is_told_while_nothing_moves(
    sqlite_ledger: Database, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grows(_: SendRate, __: int) -> float:
        return 1.0

    monkeypatch.setattr(SendRate, "left_s", grows)
    monkeypatch.setattr(apply, "STALLED_S", 0.5)
    monkeypatch.setattr(apply, "STILL_S", 0.1)
    monkeypatch.setattr(apply.Apply, "_left", _one_fewer())
    shop = Shop(sqlite_ledger, broker)
    async with shop.with_dead_mail() as work:
        plan = await shop.replaying().plan(handler="shop:mail")
        async with sqlite_ledger.transaction() as session:
            await handlers.pause(session, "shop:mail", by="ann", reason="x", now=work.clock.now())
        steps: list[ReplayProgress] = []
        with pytest.raises(ReplayStalled):
            await shop.replaying().apply(plan, told=steps.append)
    assert 1.0 in {step.left_s for step in steps if not step.paused}
    assert {step.left_s for step in steps if step.paused} == {None}


def _one_fewer() -> Callable[..., int]:
    """As many as there are at first, then one fewer for good: something was done, then nothing more."""
    given = iter((1, 0))
    return lambda *_: next(given, 0)


async def is_being_applied(database: Database, plan: str) -> bool:
    async with database.reading() as session:
        row = await plans.applying(session)
    return row is not None and row.id == plan


# case: R2
async def test_what_would_be_parked_is_told_with_the_event_before_it(
    sqlite_ledger: Database, broker: Broker, desk: Desk
) -> None:
    shop = Shop(sqlite_ledger, broker, broken={"mail"})
    work = shop.workshop()
    await work.publish(order_paid(1, "order-1"), order_paid(2, "order-1"))
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "dead", 1))
        await eventually(lambda: work.count("shop:mail", "parked", 1))
    async with sqlite_ledger.transaction() as session:
        await session.execute(text("UPDATE runs SET status = 'dead' WHERE event_id = 'evt_2' AND status = 'parked'"))
    plan = await shop.replaying().plan(event="evt_2")
    shown = await asyncio.to_thread(desk.ask, "replay", "show", plan["id"], "--items")
    [item] = shown["each"]
    assert (item["predicted"]["ends"], item["predicted"]["behind"]) == ("parked", "evt_1")
    whole = await shop.replaying().plan(handler="shop:mail")
    [key, *_] = whole["effects"]["shop:mail"]["idempotency_keys"]
    said = await asyncio.to_thread(desk.call, "replay", "show", whole["id"], "--items")
    assert key in said.stdout

    words = ("replay", "plan", "--event", "evt_1")
    told = await asyncio.to_thread(desk.ask, *words, code=2)
    assert "`work` has this handler, and it is not installed here" in told
    async with sqlite_ledger.transaction() as session:  # and then another deploy's workers alone live
        await session.execute(text("UPDATE handlers SET last_seen_at = '2026-01-01' WHERE name = 'shop:mail'"))
    elsewhere = await asyncio.to_thread(desk.call, *words)
    assert "shop:mail: no such handler is installed here; 1 run(s) would wait for it" in elsewhere.stdout


# case: R7
@pytest.mark.parametrize(("ended", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
async def test_who_ends_an_apply_is_told_how_it_goes_on(
    sqlite_ledger: Database, broker: Broker, desk: Desk, monkeypatch: pytest.MonkeyPatch, ended: type[BaseException],
    code: int,
) -> None:  # fmt: skip
    async def ends(*_: object) -> None:
        raise ended

    monkeypatch.setattr(replay, "_apply", ends)
    shop = Shop(sqlite_ledger, broker)
    plan = (await shop.replaying().plan())["id"]
    words = ["replay", "apply", plan, "--reason", "a drill", "--yes"]
    told = await asyncio.to_thread(desk.call, *words)
    assert told.returncode == code
    assert "goes on with it" not in told.stderr, "nothing was begun"
    async with sqlite_ledger.transaction() as session:
        assert await plans.begin(session, plan, by="ann", reason="a drill", now=shop.replaying().shop.clock.now())
    told = await asyncio.to_thread(desk.call, *words)
    assert told.returncode == code
    assert f"`consumer replay apply {plan} --reason …` goes on with it" in told.stderr
    assert told.stdout == ""


# case: R2
async def test_who_sees_some_of_the_items_is_told(
    sqlite_ledger: Database, broker: Broker, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(sqlite_ledger, broker)
    work = shop.workshop()
    await work.publish(*[order_paid(number) for number in range(3)])
    async with work.working():
        await eventually(lambda: work.count("shop:mail", "succeeded", 3))
    plan = (await shop.replaying().plan(handler="shop:mail", forced=True, reason="all"))["id"]
    assert (await asyncio.to_thread(desk.ask, "replay", "show", plan, "--items"))["more"] is False
    monkeypatch.setattr(replay, "ITEMS_SHOWN", 2)
    told = await asyncio.to_thread(desk.call, "replay", "show", plan, "--items")
    assert told.returncode == 0
    assert "1 more: these are the first 2" in told.stdout


async def test_that_no_worker_lives_is_said_at_once(sqlite_ledger: Database, broker: Broker, desk: Desk) -> None:
    plan = (await asyncio.to_thread(desk.ask, "replay", "plan"))["id"]
    words = ("replay", "apply", plan, "--reason", "a drill", "--yes", "--max-age", "90m")
    done = await asyncio.to_thread(desk.call, *words)
    assert done.stderr.startswith("no worker lives")
    assert done.returncode == 0


def test_an_age_has_a_unit() -> None:
    ages = {"90m": 1.5, "2h": 2, "1d": 24, "1": 1, "0.5": 0.5, "0": 0}
    assert {one: parse_age(one) / timedelta(hours=1) for one in ages} == ages
    for wrong in ("", "nan", "-1", "2 h", "h"):
        with pytest.raises(UsageError):
            parse_age(wrong)
