"""What money and access cannot be is told by `status`, from what `console` found twice in a row, with the command."""

from __future__ import annotations

from datetime import timedelta

import pytest

from consumer.app.alarms.accounting import Accounting, lasting
from consumer.cli.looking.evidence.accounts import judge_accounts
from consumer.cli.looking.status_finding import Grade
from consumer.clock import DrivenClock
from consumer.console.invariants import kept
from consumer.console.invariants.kept import Account
from consumer.console.invariants.report import Class, Problem, Report
from consumer.ledger import Database
from consumer.ledger.archiving import derivation
from consumer.ledger.engine.database_time import shared_time
from consumer.telemetry.metrics import Metrics
from tests.cli.looking.test_what_is_healthy_degraded_or_stuck import NOW
from tests.console.invariants.shop import Shop


async def told(database: Database, later: timedelta = timedelta()) -> list[tuple[str, str]]:
    async with database.reading() as session:
        found = await kept.wrong(session, await shared_time(session) + later)
    return [(one.code, one.text) for one in judge_accounts(found)]


async def test_what_two_looks_find_is_told_until_one_finds_it_whole(database: Database) -> None:
    shop = Shop(database)
    accounting = Accounting(database, Metrics(), DrivenClock(NOW), ["default"], {}, rest_s=0)
    assert await accounting.look("default")
    await shop.pays("pay_x", None, "0.000007", subscription_id="sub_of_nobody")
    assert not await accounting.look("default")
    assert await told(database) == [], "it may be under way"
    assert not await accounting.look("default")
    (money, said), (code, text) = await told(database)
    assert (money, code) == ("money_unexplained", "invariants_broken")
    assert "0.000007 USDC" in said
    assert "1 unknown_subscription_paid (pay_x); `consumer invariants` names each with its cure" in text
    assert await told(database, kept.TRUE_FOR + timedelta(minutes=1)) == [], "what is old proves nothing"
    await shop.subscribes("sub_of_nobody", "cus_1")
    assert "unknown_subscription_paid" not in str(await _look_twice(accounting, database))


# case: G9, G12
async def test_a_rebuild_that_is_owed_is_told_without_an_account(database: Database) -> None:
    """Who moved a ledger, and forgot that step, would be told of gifts and holds that are gone an hour later."""
    async with database.transaction() as session:
        await derivation.owe(session, {"shop"})
    [(code, text)] = await told(database)
    assert code == "invariants_broken"
    assert "1 not_derived (all); `consumer invariants` names each with its cure" in text
    async with database.transaction() as session:
        await derivation.settle(session, await derivation.marks(session))
    assert await told(database) == []


async def _look_twice(accounting: Accounting, database: Database) -> list[tuple[str, str]]:
    await accounting.look("default")
    await accounting.look("default")
    return await told(database)


async def test_a_console_that_begins_forgets_nothing_by_one_look(database: Database) -> None:
    shop = Shop(database)
    await shop.pays("pay_x", None, "1.00", subscription_id="sub_of_nobody")
    await _look_twice(Accounting(database, Metrics(), DrivenClock(NOW), ["default"], {}, rest_s=0), database)
    before = await told(database)
    assert before
    await Accounting(database, Metrics(), DrivenClock(NOW), ["default"], {}, rest_s=0).look("default")
    assert await told(database) == before


def report(*names: tuple[str, str]) -> Report:
    found = Report(application="shop")
    for code, subject in names:
        found.name(Problem(code=code, application="shop", kind="order", subject=subject, says="", cure=""))
    return found


def test_only_the_same_about_the_same_lasts() -> None:
    before = report(("request_lost", "A1"), ("request_lost", "A2"))
    after = report(("request_lost", "A2"), ("request_lost", "A3"), ("no_handler", "A1"))
    assert lasting(before, after) == Account(broken={"request_lost": 1}, subjects={"request_lost": ("A2",)})


def test_money_of_another_payment_at_each_look_only_just_came() -> None:
    looks = []
    for number in (1, 2):
        found = report(("request_lost", "A1"))
        found.add(Class.UNEXPLAINED, 10_000_000)
        found.name(Problem(code="payment_unrecorded", application="shop", kind="payment", subject=f"pay_{number}",
                           says="", cure=""))  # fmt: skip
        looks.append(found)
    assert lasting(*looks) == Account(broken={"request_lost": 1}, subjects={"request_lost": ("A1",)})
    assert lasting(looks[0], looks[0]).residual == 10_000_000


@pytest.mark.parametrize(
    ("account", "grade"),
    [
        (Account(at=NOW, broken={"request_lost": 4}), Grade.STUCK),
        (Account(at=NOW, broken={"not_derived": 1}), Grade.STUCK),
        (Account(at=NOW, broken={"access_withheld": 4}), Grade.DEGRADED),
        (Account(at=NOW, residual=1), Grade.STUCK),
    ],
)
def test_what_leaves_a_customer_without_it_is_stuck(account: Account, grade: Grade) -> None:
    assert [one.grade for one in judge_accounts({"shop": account})] == [grade]
