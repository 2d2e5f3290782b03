"""What of a batch of records is an event, once each; another body under the same id is kept beside it, and a record
that breaks its reading is an error of ours."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.broker.base import Partition, Record
from consumer.clock import DrivenClock
from consumer.errors import NotUnderstood
from consumer.events import Event, Locators, Source, Trust, build_event
from consumer.reason import Reason
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor
from consumer.work.ingest import ingest as module
from consumer.work.ingest.ingest import Ingest
from consumer.work.registry import Registry
from tests.work.workshop import AT, message


def said(amount: int, event_id: str = "evt_1") -> Event:
    raw = b'{"id":"%s","type":"order.paid","data":{"object":{"order_id":"A-1","amount":%d}}}'
    body = raw % (event_id.encode(), amount)
    return build_event(
        body, Locators(), application="default", trust=Trust.SIGNED, source=Source.WEBHOOK, received_at=AT
    )


def records(*events: Event) -> list[Record]:
    packed = [message(one) for one in events]
    return [Record(partition=Partition("events", 0), offset=number, key=one.key, value=one.value, headers=one.headers,
                   published_at=AT) for number, one in enumerate(packed)]  # fmt: skip


@pytest.fixture
def ingest() -> Ingest:
    nobody: Any = None
    return Ingest(database=nobody, registry=Registry([]), locators={"default": Locators()},
                  contexts=Contexts(DrivenClock()), executor=Executor(), clock=DrivenClock(), worker="w")  # fmt: skip


# case: I16
@pytest.mark.parametrize(("amounts", "others"), [([1], []), ([1, 1], []), ([1, 2], [2]), ([1, 2, 1, 3], [2, 3])])
def test_an_event_comes_once_and_another_body_stands_beside_it(
    ingest: Ingest, amounts: list[int], others: list[int]
) -> None:
    arrived, refused = ingest._decode(records(*map(said, amounts), said(9, "evt_2")))
    assert [(one.event.id, one.event.raw) for one in arrived] == [
        ("evt_1", said(amounts[0]).raw),
        ("evt_2", said(9, "evt_2").raw),
    ]
    assert [one.raw for one in arrived[0].others] == [said(amount).raw for amount in others]
    assert refused == []


# case: I10
@pytest.mark.parametrize(("error", "is_said"), [(NotUnderstood("odd"), False), (ValueError("ours"), True)])
def test_a_record_that_breaks_its_reading_is_refused_and_said(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, error: Exception, is_said: bool
) -> None:
    def breaks(*_: object) -> Event:
        raise error

    monkeypatch.setattr(module, "unpack_event", breaks)
    with capture_logs() as logs:
        arrived, refused = ingest._decode(records(said(1)))
    assert arrived == []
    assert [reason for _, reason in refused] == [Reason.NOT_UNDERSTOOD]
    assert [(line["event"], line["error"]) for line in logs] == [("record_broke_its_reading", "ValueError")] * is_said
