"""What a worker runs is what it says, whatever the settings of who looks; and workers are compared with each other."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from consumer.app import App
from consumer.cli.looking.evidence.workers import judge_workers
from consumer.cli.looking.status_finding import Grade
from consumer.console.alarms.lives import MIXED_FOR
from consumer.ledger.processes import BROKEN, HANDLERS, Process
from consumer.settings import Role, load_settings
from tests.support.desk import Desk
from tests.support.ports import eventually

NOW = datetime(2026, 5, 1, tzinfo=UTC)
ALL = "access:subscription fulfilment:order_paid shop:ship"


def worker(name: str, handlers: str | None = ALL, *, up: timedelta = MIXED_FOR, broken: str = "") -> Process:
    said = {} if handlers is None else {HANDLERS: handlers, BROKEN: broken}
    return Process(
        process=name,
        role="work",
        host=name,
        pid=7,
        version="0.1.0",
        started_at=NOW - up,
        seen_at=NOW,
        ready=True,
        since=NOW - up,
        said=said,
    )


def told(*workers: Process, **here: Any) -> list[str]:
    found = judge_workers(workers, NOW, **{"left_out": (), "broken_plugins": (), **here})
    assert Grade.HEALTHY not in {one.grade for one in found}
    return [one.code for one in found]


# case: H1
def test_a_built_in_that_no_worker_runs_is_named_whatever_is_set_here() -> None:
    assert told(worker("a", "access:subscription shop:ship")) == ["built_in_left_out"]
    assert told(worker("a"), left_out=["fulfilment (harm)"], broken_plugins=["shop"]) == []
    assert told(worker("a", None), left_out=["fulfilment (harm)"]) == ["built_in_left_out"], "an older version"
    assert told(left_out=["fulfilment (harm)"], broken_plugins=["shop"]) == ["built_in_left_out", "plugins_broken"]


# case: H8
def test_a_plugin_that_a_worker_cannot_load_is_named() -> None:
    assert told(worker("a", "access:subscription", broken="fulfilment")) == ["plugins_broken"]


# case: H1, H8
def test_without_fulfilment_orders_wait() -> None:
    def grade(one: Process) -> Grade:
        [found] = judge_workers([one], NOW, left_out=(), broken_plugins=())
        return found.grade

    assert grade(worker("a", "access:subscription shop:ship")) is Grade.STUCK
    assert grade(worker("a", "fulfilment:order_paid shop:ship")) is Grade.DEGRADED, "perhaps nothing is subscribed to"
    for broken in ("fulfilment", "access"):
        there = "access:subscription" if broken == "fulfilment" else "fulfilment:order_paid"
        assert grade(worker("a", there, broken=broken)) is Grade.STUCK
    both = "access:subscription fulfilment:order_paid"
    assert grade(worker("a", both, broken="shop")) is Grade.DEGRADED
    assert grade(worker("a", both, broken="fulfilment")) is Grade.DEGRADED, "another package's, of the same name"


# case: O9
def test_workers_that_differ_for_longer_than_a_deploy_takes_are_named() -> None:
    less = "access:subscription fulfilment:order_paid"
    assert told(worker("a"), worker("b", less)) == ["workers_differ"]
    assert told(worker("a"), worker("b", less, up=MIXED_FOR - timedelta(seconds=1))) == [], "a rolling deploy"
    assert told(worker("a"), worker("b")) == []
    assert told(worker("a"), worker("b", None)) == [], "an older version"
    [finding] = judge_workers([worker("a"), worker("b", less)], NOW, left_out=(), broken_plugins=())
    assert "some lack shop:ship (pid 7 on b)" in finding.text


@pytest.mark.usefixtures("upgraded")
async def test_a_worker_without_fulfilment_is_no_green_for_a_shell_that_has_it(environ: dict[str, str]) -> None:
    desk = Desk(environ)
    stop = asyncio.Event()
    async with App(load_settings(environ | {"CONSUMER_HANDLERS": "access"}, Role.WORK)) as app:
        await app.work()
        running = asyncio.create_task(app.run(stop))

        async def named() -> bool:
            done = await asyncio.to_thread(desk.call, "status", "--json")
            found = [one for one in json.loads(done.stdout)["findings"] if one["code"] == "built_in_left_out"]
            assert [one["text"].split()[3] for one in found] == ["fulfilment"]
            return done.returncode >= 1

        await eventually(named, within_s=60, every_s=0.5)
        stop.set()
        await running
