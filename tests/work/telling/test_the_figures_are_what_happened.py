"""The worker's figures are what happened, each by its own labels; of a burst of failures one line says how many."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from consumer.broker.base import Lag, Partition, Record
from consumer.events import Event
from consumer.ledger.handling.attempts import Attempt
from consumer.ledger.handling.runs import ClaimedRun, Finish, Run
from consumer.ledger.tables import RunStatus
from consumer.plugin import Payload
from consumer.telemetry.metrics import Metrics
from consumer.telemetry.traces import Tracing
from consumer.work import observer
from consumer.work.dispatch.result_writer import Result
from consumer.work.ingest.ingest import Taken
from consumer.work.observer import Observer
from tests.work.workshop import order_paid, service_event

AT = datetime(2026, 1, 1, tzinfo=UTC)
HANDLER = "shop:ship"


def run(event_id: str, status: RunStatus, *, attempts: int = 1, code: str | None = None) -> Run:
    return Run(application="default", event_id=event_id, handler=HANDLER, seq=1, key="order:1", status=status,
               blocking=False, attempts=attempts, code=code)  # fmt: skip


def taken(*runs: Run, recorded: tuple[Event, ...] = (), again: tuple[Event, ...] = (), duplicates: int = 0,
          refused: int = 0) -> Taken:  # fmt: skip
    return Taken(recorded=recorded, again=again, duplicates=duplicates, refused=refused, runs=runs, emitted=0, reads=0)


def result(status: RunStatus, code: str | None = None, trace: str | None = None) -> Result:
    claimed = ClaimedRun(application="default", event_id="evt_1", handler=HANDLER, seq=1, key="order:1", attempts=0,
                         plan=None, created_at=AT, due_at=AT)  # fmt: skip
    attempt = Attempt(application="default", event_id="evt_1", handler=HANDLER, number=1, outcome=status.value,
                      code=code, reason=code, fingerprint="f", trace=trace, code_version="v1", worker="w",
                      started_at=AT, finished_at=AT)  # fmt: skip
    finish = Finish(run=claimed, status=status, blocking=False, attempts=1, code=code, reason=code)
    return Result(finish=finish, attempt=attempt if code else None, seconds=2.5, ended_at=AT,
                  event=order_paid(1))  # fmt: skip


class Page:
    """The metrics page, by name and labels."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.observer = Observer(self.metrics, Tracing())

    def says(self, name: str, **labels: str) -> float | None:
        """What stands there; None when nothing does."""
        return self.metrics.registry.get_sample_value(f"consumer_{name}", labels)

    def events(self, result: str, event_type: str = "all", trust: str = "all", source: str = "all") -> float | None:
        """How many events were taken with this result."""
        application = "all" if event_type == "all" else "default"
        return self.says("work_events_total", application=application, type=event_type, trust=trust, source=source,
                         result=result)  # fmt: skip

    def outcomes(self) -> dict[str, float | None]:
        """How many attempts ended how."""
        found = {status.value: self.says("work_runs_total", handler=HANDLER, outcome=status.value)
                 for status in RunStatus}  # fmt: skip
        return {status: count for status, count in found.items() if count is not None}


@pytest.fixture
def page() -> Page:
    return Page()


def test_a_batch_is_counted_by_what_was_new_known_and_refused(page: Page) -> None:
    records = [Record(partition=Partition("t", 0), offset=number, key=b"", value=b"", headers={}, published_at=AT)
               for number in range(3)]  # fmt: skip
    recorded = (order_paid(1), order_paid(2), service_event("evt_3", "made.up", "order-3"))
    page.observer.batch(taken(recorded=recorded, duplicates=2, refused=4), records, 0.25)
    assert page.events("new", "order.paid", "signed", "webhook") == 2
    assert page.events("new", "other", "signed", "webhook") == 1
    assert (page.events("duplicate"), page.events("refused")) == (2, 4)
    assert (page.says("work_batch_records_count"), page.says("work_batch_records_sum")) == (1, 3)
    assert page.says("work_commit_seconds_sum") == 0.25


def test_an_event_type_that_somebody_declared_is_a_label_and_any_other_is_none(page: Page) -> None:
    # case: I7
    class Weighed(Payload, event="figures.weighed"):
        """A plugin's own type."""

    own = [service_event(f"evt_{number}", one, f"order-{number}") for number, one in
           enumerate(["payment.observed", "checkout.registered", *Weighed.event_types])]  # fmt: skip
    strange = [service_event(f"evt_x{number}", f"made.up{number}", f"order-x{number}") for number in range(100)]
    page.observer.batch(taken(recorded=(*own, *strange)), [], 0.0)
    assert [page.events("new", one.type, "signed", "webhook") for one in own] == [1, 1, 1]
    assert page.events("new", "other", "signed", "webhook") == 100


def test_what_did_not_happen_is_not_on_the_page(page: Page) -> None:
    page.observer.batch(taken(recorded=(order_paid(1),)), [], 0.0)
    assert (page.events("duplicate"), page.events("refused"), page.outcomes()) == (None, None, {})


def test_of_a_batch_the_attempts_are_counted_and_what_only_waits_is_not(page: Page) -> None:
    runs = [
        run("evt_1", RunStatus.SUCCEEDED),
        run("evt_2", RunStatus.SUCCEEDED),
        run("evt_3", RunStatus.RETRYING, attempts=0, code="retry_later"),
        run("evt_4", RunStatus.DEAD, code="rejected"),
        run("evt_5", RunStatus.RETRYING, attempts=0),
        run("evt_6", RunStatus.PARKED, attempts=1, code="handler_failed"),
    ]
    page.observer.batch(taken(*runs), [], 0.0)
    assert page.outcomes() == {"succeeded": 2, "retrying": 1, "dead": 1}
    assert page.says("work_retries_total", handler=HANDLER) == 1
    assert page.says("work_dead_total", handler=HANDLER) == 1


def test_an_attempt_of_the_dispatcher_is_counted_with_its_time_and_says_where_it_failed(page: Page) -> None:
    with capture_logs() as logs:
        page.observer.run(result(RunStatus.SUCCEEDED))
        page.observer.run(result(RunStatus.DEAD, "rejected", "ship.py:3"))
    assert page.outcomes() == {"succeeded": 1, "dead": 1}
    assert (page.says("work_retries_total", handler=HANDLER), page.says("work_dead_total", handler=HANDLER)) == (
        None,
        1,
    )
    assert page.says("work_run_seconds_sum", handler=HANDLER) == 5.0
    assert [(line["event"], line["event_id"], line["code"], line["where"]) for line in logs] == [
        ("run_dead", "evt_1", "rejected", "ship.py:3")
    ]


def test_of_many_failures_one_line_now_and_then_says_how_many_it_stands_for(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((100.0, 101.0, 109.9, 110.0, 120.0))
    monkeypatch.setattr(observer, "perf_counter", lambda: next(times))
    with capture_logs() as logs:
        for _ in range(5):
            page.observer.run(result(RunStatus.RETRYING, "handler_failed", "ship.py:3"))
    assert [(line["event"], line["unsaid"]) for line in logs] == [("run_failed", unsaid) for unsaid in (0, 2, 0)]
    assert page.says("work_retries_total", handler=HANDLER) == 5


def test_runs_that_wait_no_more_are_0_and_what_still_waits_is_not(page: Page) -> None:
    page.observer.runs({(HANDLER, "dead"): 3, (HANDLER, "parked"): 2})
    page.observer.runs({(HANDLER, "parked"): 1})
    assert [page.says("work_waiting_runs", handler=HANDLER, state=one) for one in ("dead", "parked")] == [0, 1]
    page.observer.runs({})
    assert page.says("work_waiting_runs", handler=HANDLER, state="parked") == 0


def test_a_handler_is_paused_open_or_neither(page: Page) -> None:
    page.observer.paused(frozenset({"a", "gone"}), ["a", "b"])
    assert [page.says("work_handler_paused", handler=one) for one in ("a", "b", "gone")] == [1, 0, None]
    page.observer.paused(frozenset(), ["a", "b"])
    assert page.says("work_handler_paused", handler="a") == 0
    page.observer.breaker("a", True)
    page.observer.breaker("b", False)
    assert [page.says("work_breaker_open", handler=one) for one in ("a", "b")] == [1, 0]


def test_what_a_handler_did_to_its_loop_and_what_moved_is_counted(page: Page) -> None:
    page.observer.blocked("a")
    page.observer.stopped("b")
    page.observer.moved("assigned", 3)
    page.observer.moved("revoked", 2)
    assert [page.says("work_handler_blocked_total", handler=one) for one in ("a", "b")] == [1, None]
    assert [page.says("work_handler_stopped_total", handler=one) for one in ("a", "b")] == [None, 1]
    assert [page.says("work_rebalances_total", change=one) for one in ("assigned", "revoked")] == [3, 2]


def test_how_far_behind_a_partition_is_leaves_the_page_with_it_and_outlasts_a_rebalance(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a scale-out who had it before showed its last age for ever, and the page that wakes somebody stayed on."""
    seconds = [1000.0]
    monkeypatch.setattr(observer, "perf_counter", lambda: seconds[0])

    def shown() -> list[tuple[float | None, float | None]]:
        pages = [{"topic": "t", "partition": one} for one in ("0", "1")]
        return [(page.says("lag_records", **one), page.says("lag_seconds", **one)) for one in pages]

    page.observer.lag({Partition("t", 0): Lag(5, 900.0), Partition("t", 1): Lag(1, 2.5)})
    seconds[0] += observer.GONE_AFTER_S
    page.observer.lag({})
    assert shown() == [(5, 900), (1, 2.5)], "all were revoked"
    page.observer.lag({Partition("t", 1): Lag(0, None)})
    assert shown() == [(5, 900), (0, 0)]
    seconds[0] += 1
    page.observer.lag({Partition("t", 1): Lag(2, 3.5)})
    assert shown() == [(None, None), (2, 3.5)]


def test_what_waits_to_go_out_and_to_be_read_is_shown_with_its_age(page: Page) -> None:
    page.observer.outbox(7, 12.5)
    page.observer.lag({Partition("t", 0): Lag(5, 2.5), Partition("t", 1): Lag(0, None)})
    assert (page.says("outbox_waiting"), page.says("outbox_oldest_seconds")) == (7, 12.5)
    assert [page.says("lag_records", topic="t", partition=one) for one in ("0", "1")] == [5, 0]
    assert [page.says("lag_seconds", topic="t", partition=one) for one in ("0", "1")] == [2.5, 0]


@pytest.mark.parametrize("is_told", [True, False])
def test_the_way_of_each_event_is_told_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch, is_told: bool) -> None:
    told: list[tuple[object, ...]] = []
    monkeypatch.setattr(observer, "is_told", lambda: is_told)
    monkeypatch.setattr(observer, "tell", lambda step, event, **more: told.append((step, event.id, more)))
    page = Page()
    page.observer.batch(
        taken(run("evt_1", RunStatus.SUCCEEDED), run("evt_2", RunStatus.DEAD), recorded=(order_paid(1), order_paid(2))),
        [],
        0.1,
    )
    recorded = [(step, name, more["runs"]) for step, name, more in told]  # type: ignore[index]  # what is told
    assert recorded == (
        [
            ("event_recorded", "evt_1", {HANDLER: "succeeded"}),
            ("event_recorded", "evt_2", {HANDLER: "dead"}),
        ]
        if is_told
        else []
    )
    told.clear()
    page.observer.run(result(RunStatus.DEAD, "rejected", "ship.py:3"))
    assert told == [
        ("handler_ended", "evt_1", {"handler": HANDLER, "status": "dead", "code": "rejected", "reason": "rejected",
                                    "where": "ship.py:3"})
    ]  # fmt: skip


def test_a_line_about_a_failure_in_a_batch_says_on_whose_way_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    about: list[str] = []

    def notes(event: Event) -> AbstractContextManager[None]:
        about.append(event.id)
        return nullcontext()

    monkeypatch.setattr(observer, "on_the_way_of", notes)
    page = Page()
    page.observer.batch(
        taken(
            run("evt_1", RunStatus.SUCCEEDED),
            run("evt_2", RunStatus.DEAD, code="rejected"),
            run("evt_3", RunStatus.RETRYING, code="retry_later"),
            recorded=(order_paid(1), order_paid(2)),
            again=(order_paid(3),),
        ),
        [],
        0.1,
    )
    assert about == ["evt_2", "evt_3"]
