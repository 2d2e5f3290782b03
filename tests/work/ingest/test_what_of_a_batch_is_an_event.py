"""What of a batch of records is an event, once each; another body under the same id is kept beside it, and a record
that breaks its reading is an error of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumer.broker.base import Partition, Record
from consumer.clock import DrivenClock
from consumer.errors import HandlerTimeout, NotUnderstood
from consumer.events import Event, Locators, Source, Trust, build_event
from consumer.ledger.handling import runs
from consumer.ledger.handling.runs import ClaimedRun, Run
from consumer.ledger.tables import RunStatus
from consumer.reason import Reason
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.executor import Executor
from consumer.work.ingest import arrivals
from consumer.work.ingest.arrivals import each_once, understood
from consumer.work.ingest.claiming import Claiming
from consumer.work.ingest.ingest import Ingest
from consumer.work.outcome import Failed, Outcome, Succeeded, failed
from consumer.work.registry import Registry
from tests.contract.ledger.facts import run
from tests.work.workshop import AT, message, order_paid


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
def test_an_event_comes_once_and_another_body_stands_beside_it(amounts: list[int], others: list[int]) -> None:
    batch = records(*map(said, amounts), said(9, "evt_2"))
    arrived, refused = each_once([understood(record, {"default": Locators()}) for record in batch])
    assert [(one.event.id, one.event.raw) for one in arrived] == [
        ("evt_1", said(amounts[0]).raw),
        ("evt_2", said(9, "evt_2").raw),
    ]
    assert [one.raw for one in arrived[0].others] == [said(amount).raw for amount in others]
    assert refused == []


# case: I10
@pytest.mark.parametrize(("error", "is_said"), [(NotUnderstood("odd"), False), (ValueError("ours"), True)])
def test_a_record_that_breaks_its_reading_is_refused_and_said(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_said: bool
) -> None:
    def breaks(*_: object) -> Event:
        raise error

    monkeypatch.setattr(arrivals, "unpack_event", breaks)
    with capture_logs() as logs:
        arrived, refused = each_once([understood(record, {"default": Locators()}) for record in records(said(1))])
    assert arrived == []
    assert [reason for _, reason in refused] == [Reason.NOT_UNDERSTOOD]
    assert [(line["event"], line["error"]) for line in logs] == [("record_broke_its_reading", "ValueError")] * is_said


LATE, CUT = failed(HandlerTimeout()), failed(ValueError("cut"))


# case: H4, G2
@pytest.mark.parametrize(
    ("alone", "known", "performed", "is_slow", "concluded"),
    [
        (False, None, Succeeded(), False, Succeeded()),
        (False, None, LATE, False, LATE),
        (False, None, Succeeded(), True, Succeeded()),
        (False, None, LATE, True, None),
        (True, None, Succeeded(), False, None),
        (True, CUT, Succeeded(), False, CUT),
        (False, CUT, Succeeded(), False, CUT),
    ],
)
async def test_a_call_is_concluded_by_what_is_known_of_it_and_left_where_it_was_cut_off_early(
    ingest: Ingest,
    monkeypatch: pytest.MonkeyPatch,
    alone: bool,
    known: Failed | None,
    performed: Outcome,
    is_slow: bool,
    concluded: Outcome | None,
) -> None:
    ended: list[Outcome | None] = []

    async def performs(*_: object) -> Outcome:
        assert known is None
        assert not alone
        return performed

    monkeypatch.setattr(ingest, "_is_ready", lambda *_: True)
    monkeypatch.setattr(ingest, "_perform", performs)
    monkeypatch.setattr(ingest, "_leave", lambda *_: ended.append(None))
    monkeypatch.setattr(ingest, "_conclude", lambda _unit, _lanes, _call, outcome, _at: ended.append(outcome))
    call: Any = SimpleNamespace(id="call", handler=SimpleNamespace(name="shop:note"))
    if is_slow:
        ingest._slow_handlers.add("shop:note")
    if known is not None:
        ingest._cut[call.id] = known
    nobody: Any = None
    await ingest._handle(nobody, nobody, set(), call, alone=alone)
    assert ended == [concluded]


# --- what is claimed --------------------------------------------------------------------------------------------


SHIP, NOTE = "shop:ship", "shop:note"


@pytest.mark.parametrize(
    ("room", "claimed"),
    [
        ({SHIP: 9, NOTE: 9}, ["evt_1 shop:ship", "evt_2 shop:ship", "evt_1 shop:note"]),
        ({SHIP: 1, NOTE: 9}, ["evt_1 shop:ship", "evt_1 shop:note"]),
        ({SHIP: 0, NOTE: 0}, []),
    ],
)
async def test_each_handlers_room_is_filled_in_order(
    monkeypatch: pytest.MonkeyPatch, room: dict[str, int], claimed: list[str]
) -> None:
    asked: list[tuple[str, int]] = []

    def rooms(handler: str, new: int) -> int:
        asked.append((handler, new))
        return room[handler]

    async def claim_new(_: object, added: Sequence[Run], **__: object) -> Sequence[ClaimedRun]:
        return [
            ClaimedRun(application=one.application, event_id=one.event_id, handler=one.handler, seq=one.seq,
                       key=one.key, attempts=0, plan=None, created_at=AT, due_at=AT)
            for one in added
        ]  # fmt: skip

    monkeypatch.setattr(runs, "claim_new", claim_new)
    added = [run(1, handler=SHIP), run(2, handler=SHIP), run(1, handler=NOTE), run(3, handler=SHIP),
             replace(run(2, handler=NOTE), status=RunStatus.PARKED)]  # fmt: skip
    fresh = {("default", f"evt_{number}"): order_paid(number) for number in (1, 2)}
    nobody: Any = None
    found = await Claiming(rooms, DrivenClock(), "w").claim(nobody, added, fresh)
    assert [f"{one.run.event_id} {one.run.handler}" for one in found] == claimed
    assert all(one.event.id == one.run.event_id for one in found)
    assert asked == [(SHIP, 2), (NOTE, 1)]


@pytest.mark.parametrize(("ahead_s", "stays"), [(-3600.0, True), (1.0, True), (3600.0, False)])
def test_no_event_is_received_later_than_it_is_taken(ahead_s: float, stays: bool) -> None:
    """`serve` may have a clock that is ahead, and no ledger that would tell it so."""
    now = AT - timedelta(seconds=ahead_s)
    arrived, _ = each_once([understood(record, {"default": Locators()}) for record in records(said(1))])
    [one] = arrivals.not_ahead(arrived, now)
    assert one.event.received_at == (AT if stays else now)
    assert (one.event.id, one.event.raw, one.event.data) == ("evt_1", said(1).raw, said(1).data)
