"""Why a delivery lies in quarantine is a closed set of codes; the ledger's README lists each with its sentence."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import consumer.ledger
from consumer.broker import EmbeddedBroker
from consumer.clock import SystemClock
from consumer.events import Delivery, Locators
from consumer.ledger import Database
from consumer.reason import Reason, reason_of
from consumer.sync.confirm.hints import HintConsumer
from consumer.telemetry.metrics import Metrics
from consumer.wire import pack_delivery, unpack_delivery

README = Path(consumer.ledger.__file__).with_name("README.md")


def test_every_code_is_documented_and_nothing_else() -> None:
    section = README.read_text().partition("\n## Quarantine\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^`].*) \|$", section, re.MULTILINE)
    assert rows == [(reason.value, reason.detail) for reason in Reason]


async def test_every_code_is_a_value_of_the_metric(tmp_path: Path, sqlite_ledger: Database) -> None:
    metrics = Metrics()
    log = EmbeddedBroker(tmp_path / "log.db")
    HintConsumer(log, sqlite_ledger, topic="deliveries", applications=["shop"], clock=SystemClock(), metrics=metrics)
    page = metrics.render().decode()
    assert set(re.findall(r'quarantine_total{application="shop",reason="(\w+)"} 0.0', page)) == {*Reason}


def test_codes_and_sentences_are_short_and_fit_their_column() -> None:
    assert all(re.fullmatch(r"[a-z_]{1,60}", reason.value) for reason in Reason)
    assert len({reason.detail for reason in Reason}) == len(Reason)


@pytest.mark.parametrize(
    ("stored", "code"),
    [
        ("the body is not JSON", Reason.NOT_JSON),
        ("the body is JSON, but not an object", Reason.NOT_AN_OBJECT),
        ("no event id (evt_...) was found in the body", Reason.NO_EVENT_ID),
        ("the content type is not JSON", Reason.UNSUPPORTED_CONTENT_TYPE),
        ("flooded", Reason.FLOODED),
        ("something nobody ever wrote", Reason.NOT_UNDERSTOOD),
    ],
)
def test_what_older_versions_wrote_is_read_as_its_code(stored: str, code: Reason) -> None:
    # case: O9
    given = Delivery(application="a", id="dlv_1", raw=b"x", received_at=datetime(2026, 1, 1, tzinfo=UTC))
    packed = pack_delivery(given, Locators())
    found = unpack_delivery(packed.key, packed.value, {**packed.headers, "problem": stored.encode()})
    assert found.problem is reason_of(stored) is code


@pytest.mark.parametrize("reason", Reason)
def test_a_code_comes_through_the_log(reason: Reason) -> None:
    given = Delivery(
        application="a", id="dlv_1", raw=b"x", received_at=datetime(2026, 1, 1, tzinfo=UTC), problem=reason
    )
    packed = pack_delivery(given, Locators())
    assert packed.headers["problem"] == reason.value.encode()
    assert unpack_delivery(packed.key, packed.value, packed.headers) == given
