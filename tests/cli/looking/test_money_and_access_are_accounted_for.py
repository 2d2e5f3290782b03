"""`consumer invariants` says whether all is explained, names what is not with the command that cures it, and shows the
same as metrics."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from consumer.app.alarms.accounting import Accounting
from consumer.cli.looking import invariants
from consumer.clock import DrivenClock
from consumer.console.invariants.service import LastObservations, Seen, Service
from consumer.ledger import Database
from consumer.ledger.reading.observation import ObjectKind, Observation
from consumer.telemetry.metrics import Metrics
from tests.console.invariants.shop import NOW, OPTIONS, Shop
from tests.support.desk import Desk


@pytest.fixture
def ledger(tmp_path: Path, sqlite_template: Path) -> str:
    shutil.copyfile(sqlite_template, tmp_path / "consumer.db")
    return f"sqlite+aiosqlite:///{tmp_path}/consumer.db"


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    """With the shop's own policy."""
    return environ | {"CONSUMER_HANDLER_OPTIONS": json.dumps(OPTIONS)}


def in_shop(url: str, do: Callable[[Shop], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        database = Database(url)
        try:
            return await do(Shop(database))
        finally:
            await database.stop()

    return asyncio.run(run())


async def sells(shop: Shop) -> None:
    await shop.paid("A1", "12.50")
    await shop.subscribes("sub_1", "cus_1")


async def breaks(shop: Shop) -> None:
    shop._version = 100
    await shop.paid("A 2", "1.00", ships="dead")
    await shop.paid("A3", "1.00", ships="dead")
    await shop.sql("DELETE FROM access_entitlement")


# case: G8
def test_an_application_that_is_set_up_no_more_is_accounted_for(
    environ: dict[str, str], desk: Desk, ledger: str
) -> None:
    """What it sold is paid all the same: nobody heard that it was not shipped."""
    in_shop(ledger, sells)
    in_shop(ledger, breaks)
    renamed = Desk(environ | {"CONSUMER_APPLICATIONS": '{"shop": {}}'})
    done = renamed.call("invariants", "--json")
    assert done.returncode == 3, done.stderr
    shop, default = json.loads(done.stdout)["applications"]
    assert (shop["application"], shop["set_up"], shop["holds"]) == ("shop", True, True)
    assert (default["application"], default["set_up"], default["broken"]["fulfilment_dead"]) == ("default", False, 2)
    done = renamed.call("invariants", "--application", "default")
    assert done.returncode == 3
    assert "\nit is set up no more: compared with what was observed last" in done.stdout
    assert "shop: " not in done.stdout
    assert renamed.ask("invariants", "--application", "shop")["applications"] == [shop]
    assert "set up no more" not in desk.call("invariants").stdout
    for known in (desk, renamed):
        assert known.ask("invariants", "--application", "nobody", code=2).startswith("error[usage]")


# case: G8
def test_an_application_that_cannot_be_asked_is_accounted_for_beside_one_that_is_read(
    environ: dict[str, str], ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a signed one without API credentials nothing was said, and what is broken there hidden by exit 0."""

    async def walked(_: object, __: object, database: Database, ___: object) -> tuple[Service, list[str]]:
        return LastObservations(database), ["shop"]

    in_shop(ledger, sells)
    in_shop(ledger, breaks)
    monkeypatch.setattr(invariants, "_walked", walked)
    two = Desk(environ | {"CONSUMER_APPLICATIONS": '{"shop": {}, "default": {}}'})
    done = two.call("invariants", "--read", "--json")
    assert done.returncode == 3
    shop, default = json.loads(done.stdout)["applications"]
    assert (shop["application"], shop["read"], shop["holds"]) == ("shop", True, True)
    assert (default["application"], default["read"], default["holds"]) == ("default", False, False)
    assert two.call("invariants", "--read").stdout.count("it has no API credentials here") == 1


class Selling:
    """The service of a shop that sells: each walk meets an order and its payment that nobody here has heard of yet, and
    one that was lost."""

    def __init__(self, database: Database) -> None:
        self._observed = LastObservations(database)
        self.walks: Counter[ObjectKind] = Counter()

    async def pages(self, application: str, kind: ObjectKind) -> AsyncIterator[Sequence[Seen]]:
        async for page in self._observed.pages(application, kind):
            yield page
        self.walks[kind] += 1
        if kind != "subscription":
            yield [self._shown(application, kind, name) for name in ("lost", f"new-{self.walks[kind]}")]

    def _shown(self, application: str, kind: ObjectKind, name: str) -> Seen:
        id_, status = (name, "PAID") if kind == "order" else (f"pay_{name}", "SUCCEEDED")
        record = {"id": id_, "order_id": name, "status": status, "amount": "2.00"}
        seen = Observation(
            application=application, kind=kind, object_id=id_, version=900, read_at=NOW, record=record
        )  # fmt: skip
        return Seen(
            object_id=id_, status=status, read_at=NOW, event=seen.event(), observed=None, is_recorded=False
        )  # fmt: skip


# case: G8
def test_what_is_just_paid_is_not_broken_and_what_two_looks_name_is(
    desk: Desk, ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shop that sells has always something on its way: `--read` ended with 3 at each look."""

    async def walked(_: object, __: object, database: Database, ___: object) -> tuple[Service, list[str]]:
        return Selling(database), ["default"]

    in_shop(ledger, sells)
    monkeypatch.setattr(invariants, "_walked", walked)
    monkeypatch.setattr(invariants, "AGAIN_S", 0.0)
    done = desk.call("invariants", "--read", "--json")
    assert done.returncode == 3
    [found] = json.loads(done.stdout)["applications"]
    assert {(one["code"], one["subject"]) for one in found["problems"]} == {
        ("paid_not_taken", "lost"), ("payment_unseen", "pay_lost"),
    }  # fmt: skip
    assert found["broken"] == {"paid_not_taken": 1, "payment_unseen": 1}
    assert (found["classes"]["arriving"], found["residual_micro_usdc"]) == (
        {"payments": 1, "micro": 2_000_000, "usdc": "2"}, 2_000_000,
    )  # fmt: skip
    assert found["micro_usdc"] == 26_500_000


def test_the_command(desk: Desk, ledger: str) -> None:
    in_shop(ledger, sells)
    told = desk.ask("invariants")
    assert told["holds"] is True
    [found] = told["applications"]
    assert (found["payments"], found["micro_usdc"], found["residual_micro_usdc"]) == (2, 22_500_000, 0)
    assert found["classes"]["fulfilled"] == {"payments": 1, "micro": 12_500_000, "usdc": "12.5"}
    assert found["classes"]["period"]["usdc"] == "10"
    assert "all of it is explained" in desk.call("invariants").stdout

    in_shop(ledger, breaks)
    done = desk.call("invariants")
    assert done.returncode == 3
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "fulfilment_dead: 2 order(s): paid, and its fulfilment is dead" in lines
    assert "cure: consumer replay plan --status dead --application default" in lines
    assert "cure: consumer say access.recheck default --application default --reason …" in lines
    assert lines[-1] == "broken: 3"
    [found] = json.loads(desk.call("invariants", "--json").stdout)["applications"]
    assert [one["cure"] for one in found["problems"] if one["subject"] == "A 2"] == [
        "consumer replay plan --status dead --order 'A 2' --application default"
    ]
    assert desk.ask("invariants", "--application", "nobody", code=2).startswith("error[usage]")


def test_what_was_there_before_us_is_read_when_asked(desk: Desk, ledger: str) -> None:
    """Of the first walk only the status is kept: the command says for what `--read` is needed."""

    async def begins(shop: Shop) -> None:
        await shop.read("payment", "pay_old", is_baseline=True, order_id="old", status="SUCCEEDED", amount="5.00")

    in_shop(ledger, begins)
    [found] = desk.ask("invariants")["applications"]
    assert (found["classes"]["before"]["payments"], found["without_amount"], found["unread"]) == (1, 1, 1)
    told = desk.call("invariants").stdout
    assert "1 payment(s) were there at the first walk" in told
    assert "`consumer invariants --read` reads what they were for, and how much" in told
    assert "show no amount" not in told


async def test_the_metrics(sqlite_ledger: Database) -> None:
    shop, metrics = Shop(sqlite_ledger), Metrics()
    await sells(shop)
    accounting = Accounting(sqlite_ledger, metrics, DrivenClock(NOW), ["default"], OPTIONS, rest_s=0)
    await accounting.look("default")
    assert "consumer_invariants_broken{" not in metrics.render().decode()
    await shop.pays("pay_x", None, "0.000007", subscription_id="sub_of_nobody")
    await accounting.look("default")
    shown = metrics.render().decode()
    assert 'consumer_invariants_residual_micro_usdc{application="default"} 7.0' in shown
    assert 'consumer_invariants_broken{application="default",code="unknown_subscription_paid"} 1.0' in shown
    await shop.subscribes("sub_of_nobody", "cus_1")
    await accounting.look("default")
    assert 'code="unknown_subscription_paid"} 0.0' in metrics.render().decode()
