"""What people read says names in words, times with their zone and money with its unit; `--json` keeps the names."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from consumer.cli.looking.status import TOLD_APART, Look, _print
from consumer.cli.output import Output
from consumer.console.labels import LEDGER, READING
from consumer.document import label, shown
from consumer.sync.health.status import ApplicationStatus
from tests.cli.looking.test_what_is_healthy_degraded_or_stuck import NOW, WELL

NAME = re.compile(r"[a-z]+_[a-z]")
FOUND = Look(figures=WELL, reading=[ApplicationStatus(application="default", walked_at=NOW)])


def test_each_figure_has_its_words() -> None:
    assert set(LEDGER) == set(asdict(WELL)) - {"runbooks"}
    assert set(READING) == set(asdict(FOUND.reading[0])) - set(TOLD_APART)
    words = [*LEDGER.values(), *READING.values()]
    assert [one for one in words if NAME.search(one)] == []
    assert len(set(LEDGER.values())) == len(LEDGER)


def test_the_command_says_them(capsys: pytest.CaptureFixture[str]) -> None:
    _print(Output(False), FOUND)
    told = capsys.readouterr().out
    assert not NAME.search(told)
    assert re.search(rf"last complete walk of the events began +{re.escape(shown(NOW))}\n", told)
    assert re.search(r"API credentials are set +yes\n", told)


def test_a_time_says_its_zone_and_money_its_unit() -> None:
    assert shown(NOW).endswith("Z")
    assert shown({"ended_at": NOW.isoformat()}) == f"ended_at={shown(NOW)}", "what a finding keeps is text"
    assert label("expected_amount") == "expected amount, USDC"
    assert label("service_order_id") == "service order id"
