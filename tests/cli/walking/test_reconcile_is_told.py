"""What `reconcile` says of its walks: in words, with what there is to do, and also when it failed half way."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from consumer.cli.output import Output
from consumer.cli.tree import tree
from consumer.cli.walking import reconcile as command
from consumer.errors import BrokerUnavailable
from consumer.sync.reconcile.drift import Difference, Drift, DriftReport


def said(report: DriftReport, capsys: pytest.CaptureFixture[str]) -> list[str]:
    command.say_report(report, Output(as_json=False))
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def report(**more: Any) -> DriftReport:
    return DriftReport(application="shop", complete=True, listed=Counter(order=600, subscription=1), **more)


def test_states_are_words_and_a_brake_says_how_many_and_what_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    # case: B31
    ended = Difference("subscription", "sub_1", Drift.CHANGED, "ACTIVE", "ENDED, end_reason PAYER_CANCELED")
    never = Difference("order", "A-1", Drift.UNKNOWN, "", "PAID")
    changes = Counter(order=523, subscription=1)
    found = report(braked=True, published=4, differences=[ended, never], changes=changes)
    lines = said(found, capsys)
    assert lines[0] == "shop: 600 order(s), 1 subscription(s) listed, 4 observation(s) published, in 0:00"
    assert lines[2:4] == [
        "subscription sub_1 changed ACTIVE ENDED, end_reason PAYER_CANCELED",
        "order A-1 unknown never read PAID",
    ]
    assert lines[4] == (
        "braked: 524 change(s) of what is paid or who has access (523 order(s), 1 subscription(s)) are more than "
        "allowed: none of these was made; `--dry-run` shows them, `--max-changes 524` makes them"
    )
    tried = said(report(braked=True, dry_run=True, changes=changes, weighing=530), capsys)
    assert tried[-1].endswith("a walk would make none of them; `--max-changes 530` makes them")
    half = said(report(braked=True, made=30, changes=changes), capsys)
    assert "30 of these were made before the limit was reached" in half[-1]


def test_what_nothing_is_done_about_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    # case: B21, B22, B30
    lines = said(
        report(unplaced=2, unplaced_paid=1, unplaced_ids=["ord_9", "ord_8"], baseline=523, adopted=3, absent=1), capsys
    )
    assert lines[1].startswith("the first walk here: 523 order(s) and payment(s) remembered as they are and not acted")
    assert lines[2].endswith("1 of them PAID: nothing is done about them: ord_9, ord_8")
    assert lines[3] == "1 live subscription(s) not listed: each is read singly"
    large = said(report(unplaced=1, too_large=2, too_large_paid=1, too_large_ids=["A-1", "sub_1"]), capsys)
    assert large[1].endswith("0 of them PAID: nothing is done about them")
    assert large[2] == (
        "2 record(s) larger than topic events takes, 1 of them PAID: not published until it takes them "
        "(max.message.bytes): A-1, sub_1"
    )
    assert said(report(dry_run=True, baseline=523), capsys)[1] == "no drift"
    lines = said(report(dry_run=True, found=Counter({Drift.FIRST: 7, Drift.NONE: 2})), capsys)
    assert lines[0].endswith("listed, 7 observation(s) would be published, in 0:00")
    assert lines[1] == "no drift: none of these changes what is paid or who has access"
    assert "would be remembered" in said(report(dry_run=True, baseline=523), capsys)[2]


class Fails:
    """An application whose walk is cut after something was published."""

    application = "broken"
    reconcile = SimpleNamespace(report=DriftReport(application="broken", published=7, listed=Counter(order=100)))

    async def reconcile_once(self, **_: object) -> DriftReport:
        raise BrokerUnavailable()


class Walks:
    """An application whose walk comes to its end."""

    application = "shop"

    async def reconcile_once(self, **_: object) -> DriftReport:
        return report(found=Counter({Drift.CHANGED: 1}))


@asynccontextmanager
async def syncing(*_: object, **__: object) -> AsyncIterator[SimpleNamespace]:
    yield SimpleNamespace(applications={"broken": Fails(), "shop": Walks()}, unread=())


def test_a_walk_that_fails_tells_what_it_did_and_keeps_nobody_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # case: B31, S7
    monkeypatch.setattr(command, "open_syncing", syncing)
    monkeypatch.setattr(command, "settings_for", lambda _: None)
    done = CliRunner().invoke(tree(), ["reconcile", "--dry-run"])
    assert done.exit_code == 1
    assert "shop: 600 order(s), 1 subscription(s) listed, 0 observation(s) published, in 0:00" in done.stdout
    assert "broken: 100 order(s) listed, 7 observation(s) published, and then it failed" in done.stdout
    assert done.stderr.startswith("error[broker_unavailable]: broken: ")
    answer = orjson.loads(CliRunner().invoke(tree(), ["reconcile", "--json"]).stdout)
    walked, broken = answer["walks"]
    assert (walked["application"], walked["complete"], walked["drifted"]) == ("shop", True, True)
    assert (broken["application"], broken["published"], broken["error"]) == ("broken", 7, "broker_unavailable")
