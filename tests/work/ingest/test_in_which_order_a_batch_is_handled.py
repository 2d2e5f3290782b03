"""In which order a batch is handled, how much of the log it stands for, and which webhook says something else. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest

from consumer.broker.base import Partition, Record
from consumer.clock import DrivenClock
from consumer.errors import HandlerTimeout
from consumer.events import Source, Trust
from consumer.ledger.handling.runs import Run
from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Event, Handler
from consumer.retry import Failure
from consumer.work.ingest.arrivals import as_delivery, heard_late, stretch_of
from consumer.work.ingest.ingest import Ingest, Taken, _sum
from consumer.work.ingest.other_bodies import contradicts
from consumer.work.ingest.slow_handlers import SlowHandlers
from consumer.work.ingest.waves import Call, Waves
from consumer.work.outcome import Failed, Outcome, Succeeded, failed
from consumer.work.registry import Registry
from consumer.work.unit_of_work import Incoming, UnitOfWork
from tests.work.workshop import AT, order_paid

MINUTE = timedelta(minutes=1)
NOBODY: Any = None


async def one(event: Event, ctx: Context) -> None:
    return None


async def many(batch: Sequence[tuple[Event, Context]]) -> None:
    return None


A = Handler(name="a", types=("*",), function=one, transactional=True, pause_after=2)
B = replace(A, name="b")
MANY = replace(A, name="m", together=many)


def call(handler: Handler, number: int, key: str = "", application: str = "default") -> Call:
    event = order_paid(number, key or None, application=application)
    return Call(handler, Incoming(event), number)


def waves(*calls: Sequence[Call], slow: str = "") -> list[str]:
    """What is called one after another: handler, and numbers of events."""
    found = Waves(["a", "b", "m"], slow.__contains__)
    for of_event in calls:
        found.add(of_event)
    return [" ".join([some[0].handler.name, *(str(one.seq) for one in some)]) for some in found]


# case: G2
def test_the_first_events_of_all_keys_come_before_the_second_ones_handler_by_handler() -> None:
    first, other, second = ([call(B, n, key), call(A, n, key)] for n, key in ((1, "x"), (2, "y"), (3, "x")))
    assert waves(first, other, second) == ["a 1", "a 2", "b 1", "b 2", "a 3", "b 3"]
    assert waves([], first) == ["a 1", "b 1"]


# case: G2
def test_of_one_key_a_handler_that_is_alone_gets_several_in_a_row_until_another_comes_in_between() -> None:
    alone = [[call(MANY, number, "x")] for number in (1, 2)]
    assert waves(*alone) == ["m 1 2"]
    assert waves(*alone, [call(A, 3, "x")], [call(MANY, 4, "x")]) == ["m 1 2", "a 3", "m 4"]
    assert waves(*alone, [call(MANY, 5, "y")]) == ["m 1 2 5"]


def test_who_takes_many_gets_those_of_one_application_and_one_by_one_while_slow() -> None:
    calls = [[call(MANY, 1)], [call(MANY, 2, application="other")], [call(MANY, 3)]]
    assert waves(*calls) == ["m 1 3", "m 2"]
    assert waves(*calls, slow="m") == ["m 1", "m 2", "m 3"]


# case: H4
def test_a_slow_handler_goes_its_own_way_for_a_minute() -> None:
    clock = DrivenClock()
    slow = SlowHandlers(clock)
    assert (slow.has("a"), slow.limit_s) == (False, 5.0)
    slow.add("a")
    assert (slow.has("a"), slow.has("b")) == (True, False)
    clock.advance(59.9)
    assert slow.has("a")
    clock.advance(0.1)
    assert (slow.has("a"), slow._until) == (False, {})


LATE = failed(HandlerTimeout())
CUT = Failed(Failure("handler_blocked", "it blocked"), "f")
SLIP = failed(ValueError("no"))


# case: H4
@pytest.mark.parametrize(
    ("outcome", "count", "goes_alone", "is_taken_singly", "is_known"),
    [
        (LATE, 1, True, False, False),
        (LATE, 2, False, True, False),
        (CUT, 1, True, False, True),
        (CUT, 2, False, True, False),
        (SLIP, 1, False, False, False),
        (Succeeded(), 1, False, False, False),
    ],
)
def test_who_took_too_long_goes_apart_and_many_at_once_are_called_singly(
    outcome: Outcome, count: int, goes_alone: bool, is_taken_singly: bool, is_known: bool
) -> None:
    ingest = Ingest(database=NOBODY, registry=NOBODY_HAS, locators={}, contexts=NOBODY, executor=NOBODY,
                    clock=DrivenClock(), worker="w")  # fmt: skip
    calls = [call(MANY, number) for number in range(count)]
    ingest._remember(outcome, calls)
    assert (ingest._slow_handlers.has("m"), ingest._slow_batches.has("m")) == (goes_alone, is_taken_singly)
    assert ingest._cut == ({calls[0].id: outcome} if is_known else {})


NOBODY_HAS = Registry([])


def record(partition: int, offset: int) -> Record:
    return Record(
        partition=Partition("t", partition), offset=offset, key=b"", value=b"raw", headers={}, published_at=AT
    )


# case: O7
def test_records_lead_from_their_first_to_behind_their_last() -> None:
    records = [record(0, 4), record(1, 9), record(0, 6)]
    assert stretch_of(records, frozenset()) == {("t", 0): (4, 7), ("t", 1): (9, 10)}
    assert stretch_of(records, frozenset({Partition("t", 0)})) == {("t", 0): (None, 7), ("t", 1): (9, 10)}
    kept = as_delivery(record(1, 9), "x" * 99)
    assert (kept.application, kept.id, kept.raw, kept.received_at) == ("x" * 64, "t/1/9", b"raw", AT)


def heard(number: int, at: datetime | None, *, source: Source = Source.WEBHOOK) -> Incoming:
    return Incoming(replace(order_paid(number), source=source), heard_at=at)


# case: O1
def test_the_newest_webhook_that_is_not_the_first_to_tell_is_noted_and_no_later_than_now() -> None:
    now = AT + 9 * MINUTE
    first, listed = heard(1, AT + 8 * MINUTE), heard(2, AT + 3 * MINUTE, source=Source.BACKFILL)
    again = [heard(3, AT + MINUTE), heard(4, AT + 2 * MINUTE)]
    new = {first.id: 1, listed.id: 2}
    assert heard_late([first], new, now) == {}
    assert heard_late([first, *again], new, now) == {"default": AT + 2 * MINUTE}
    assert heard_late([listed, *again], new, now) == {"default": AT + 3 * MINUTE}
    assert heard_late([heard(5, None)], {}, now) == {}
    assert heard_late([heard(6, AT + 10 * MINUTE)], {}, now) == {"default": now}


# case: I16
def test_a_body_says_something_else_where_both_state_a_thing() -> None:
    signed = order_paid(1)
    digest = sha256(signed.raw).hexdigest()
    assert not contradicts(signed, signed, digest)
    assert contradicts(replace(signed, raw=b"{}"), signed, digest)
    read = replace(signed, trust=Trust.READ, raw=b"other")
    assert not contradicts(signed, read, None)
    assert not contradicts(replace(signed, type="unknown.type"), read, None)
    assert contradicts(replace(signed, type="order.expired"), read, None)
    for name in ("order_id", "subscription_id", "object_id"):
        assert not contradicts(replace(signed, **{name: None}), replace(read, **{name: "x"}), None)  # type: ignore[arg-type]  # by name
        assert not contradicts(replace(signed, **{name: "x"}), replace(read, **{name: "x"}), None)  # type: ignore[arg-type]  # by name
        assert contradicts(replace(signed, **{name: "y"}), replace(read, **{name: "x"}), None)  # type: ignore[arg-type]  # by name


def test_parts_are_one_batch_together() -> None:
    event, run = order_paid(1), run_of(RunStatus.DEAD)
    parts = [Taken(recorded=[event], again=[event], duplicates=number, refused=2 * number, runs=[run],
                   emitted=3 * number, reads=4 * number, others=[f"app-{number}"],
                   let_go=number) for number in (1, 10)]  # fmt: skip
    assert _sum(parts) == Taken(recorded=[event] * 2, again=[event] * 2, duplicates=11, refused=22, runs=[run] * 2,
                                emitted=33, reads=44, others=["app-1", "app-10"], let_go=11)  # fmt: skip


def run_of(status: RunStatus) -> Run:
    return Run(application="default", event_id="evt_1", handler="a", seq=1, key="k", status=status, blocking=False)


# case: H9
def test_so_many_dead_in_a_row_stop_a_batch_and_a_success_in_between_does_not() -> None:
    unit, found = UnitOfWork(AT), list[bool]()
    for status in (RunStatus.DEAD, RunStatus.SUCCEEDED, RunStatus.DEAD, RunStatus.RETRYING, RunStatus.DEAD):
        unit.add(run_of(status))
        found.append(unit.is_too_deadly(A, "default"))
    assert found == [False, False, False, False, True]
    assert not unit.is_too_deadly(B, "default")
    assert not unit.is_too_deadly(A, "far"), "another shop's go on"
    assert not unit.is_too_deadly(replace(A, pause_after=0), "default")
    assert len(unit.runs) == 5
    unit = UnitOfWork(AT)
    for application in ("near", "far"):
        assert not unit.is_too_deadly(A, "other")
        unit.add(replace(run_of(RunStatus.DEAD), application=application))
    assert unit.is_too_deadly(A, "other"), "what dies for several is no shop's own fault"
    unit.add(replace(run_of(RunStatus.SUCCEEDED), application="near"))
    assert not unit.is_too_deadly(A, "other")
