"""Observer: what the worker tells the outside about itself: metrics, and a line for what someone must know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from time import perf_counter

import structlog

from consumer.broker.base import Lag, Partition, Record
from consumer.events import Event
from consumer.ledger.handling.runs import Run
from consumer.ledger.tables import RunStatus
from consumer.payload import Payload, payload_class
from consumer.reason import Reason
from consumer.telemetry.metrics import GaugeSeries, Metrics
from consumer.telemetry.traces import Tracing
from consumer.telemetry.way import is_told, on_the_way_of, tell
from consumer.work.dispatch.result_writer import Result
from consumer.work.ingest.ingest import Taken

SAY_EVERY_S = 10.0
GONE_AFTER_S = 30.0
"""A rebalance takes all partitions and gives some back: an age that left the page in between would end what counts how
long it lasts."""
OTHER = "other"
WAITING = (RunStatus.RETRYING, RunStatus.PARKED, RunStatus.DEAD)

_log = structlog.get_logger(__name__)


class Observer:
    """Counts what happens, and traces it. It decides nothing."""

    def __init__(self, metrics: Metrics, tracing: Tracing) -> None:
        self._metrics = metrics
        self._tracing = tracing
        self._waiting = GaugeSeries(metrics.waiting)
        self._behind: dict[tuple[str, str], float] = {}
        """When the lag of each topic and partition that is shown was last measured."""
        self._said: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def batch(self, taken: Taken, records: Sequence[Record], seconds: float) -> None:
        """A batch was stored."""
        self._metrics.batch_records.observe(len(records))
        self._metrics.commit_seconds.observe(seconds)
        new = Counter((e.application, e.type, e.trust, e.source) for e in taken.recorded)
        for event in taken.recorded if is_told() else ():
            ran = {run.handler: run.status.value for run in taken.runs if run.event_id == event.id}
            tell("event_recorded", event, trust=event.trust.value, source=event.source.value, runs=ran)
        for event in taken.recorded if self._tracing.is_on else ():
            self._tracing.done("take", event.traceparent, seconds, _about(event))
        for (application, event_type, trust, source), count in new.items():
            self._metrics.events.labels(application, type_label(event_type), trust, source, "new").inc(count)
        for result, count in (("duplicate", taken.duplicates), ("refused", taken.refused)):
            if count:
                self._metrics.events.labels("all", "all", "all", "all", result).inc(count)
        for application, count in Counter(taken.others).items():
            self._metrics.quarantined.labels(application, Reason.OTHER_BODY).inc(count)
        ended = [run for run in taken.runs if run.status is not RunStatus.PARKED and (run.attempts or run.code)]
        succeeded = Counter(run.handler for run in ended if run.status is RunStatus.SUCCEEDED)
        for handler, count in succeeded.items():
            self._metrics.runs.labels(handler, RunStatus.SUCCEEDED.value).inc(count)
        if len(ended) > succeeded.total():
            self._others(ended, {event.id: event for event in (*taken.recorded, *taken.again)})

    def moved(self, change: str, partitions: int) -> None:
        """Partitions came to this member (`assigned`) or went from it (`revoked`)."""
        self._metrics.rebalances.labels(change).inc(partitions)

    def run(self, result: Result) -> None:
        """An attempt that the dispatcher made was stored."""
        finish, handler = result.finish, result.finish.run.handler
        self._metrics.run_seconds.labels(handler).observe(result.seconds)
        self._metrics.runs.labels(handler, finish.status.value).inc()
        if finish.status is not RunStatus.SUCCEEDED or is_told():
            trace = result.attempt.trace if result.attempt else None
            told = {"code": finish.code, "reason": finish.reason, "where": trace}
            with on_the_way_of(result.event):
                tell("handler_ended", result.event, handler=handler, status=finish.status.value, **told)
                self._say_failed(handler, finish.status, finish.run.event_id, **told)
        if self._tracing.is_on:
            about = {**_about(result.event), "handler": handler, "status": finish.status.value}
            self._tracing.done("run", result.event.traceparent, result.seconds, about, failed=finish.code)

    def runs(self, waiting: Mapping[tuple[str, str], int]) -> None:
        """How many runs wait, by (handler, status)."""
        self._waiting.show(waiting)

    def paused(self, names: frozenset[str], known: Sequence[str]) -> None:
        """Which handlers are paused now."""
        for name in known:
            self._metrics.paused.labels(name).set(1 if name in names else 0)
            self._begin(name)

    def breaker(self, name: str, is_open: bool) -> None:
        """A handler's breaker opened or closed."""
        self._metrics.breaker_open.labels(name).set(1 if is_open else 0)

    def blocked(self, name: str) -> None:
        """A handler blocked the event loop it ran on."""
        self._metrics.handler_blocked.labels(name).inc()

    def stopped(self, name: str) -> None:
        """A handler paused itself."""
        self._metrics.stopped.labels(name).inc()

    def outbox(self, waiting: int, oldest_s: float) -> None:
        """How many derived events wait to be published, and for how long the oldest."""
        self._metrics.outbox_waiting.set(waiting)
        self._metrics.outbox_seconds.set(oldest_s)

    def lag(self, lags: Mapping[Partition, Lag]) -> None:
        """How far the group is behind, per partition of this worker. One that it has had no more for a while is another
        worker's to show."""
        now = perf_counter()
        for partition, lag in lags.items():
            labels = (partition.topic, str(partition.number))
            self._metrics.lag_records.labels(*labels).set(lag.records)
            self._metrics.lag_seconds.labels(*labels).set(lag.oldest_s or 0.0)
            self._behind[labels] = now
        for labels in [one for one, at in self._behind.items() if now - at > GONE_AFTER_S]:
            del self._behind[labels]
            self._metrics.lag_records.remove(*labels)
            self._metrics.lag_seconds.remove(*labels)

    def _begin(self, handler: str) -> None:
        """What has not happened is 0 and not unknown; a counter that begins with its first count shows no increase."""
        self._metrics.dead.labels(handler)
        self._metrics.breaker_open.labels(handler)
        for status in WAITING:
            self._metrics.waiting.labels(handler, status.value)

    def _say_now_and_then(self, handler: str, event_id: str, **told: str | None) -> None:
        """One line per handler now and then: a burst of failures must be seen, and must not bury the rest."""
        now = perf_counter()
        if now - self._said.get(handler, float("-inf")) < SAY_EVERY_S:
            self._unsaid[handler] += 1
            return
        self._said[handler] = now
        unsaid = self._unsaid.pop(handler, 0)
        _log.warning("run_failed", handler=handler, event_id=event_id, unsaid=unsaid, **told)

    def _others(self, ended: Sequence[Run], by_id: Mapping[str, Event]) -> None:
        """What did not succeed is told one by one."""
        for run in ended:
            if run.status is not RunStatus.SUCCEEDED:
                self._metrics.runs.labels(run.handler, run.status.value).inc()
                event = by_id.get(run.event_id)
                with nullcontext() if event is None else on_the_way_of(event):
                    self._say_failed(
                        run.handler, run.status, run.event_id, code=run.code, reason=run.reason, where=run.trace
                    )

    def _say_failed(self, handler: str, status: RunStatus, event_id: str, **told: str | None) -> None:
        """`told`: code, reason and, in the author's code, where."""
        if status is RunStatus.RETRYING:
            self._metrics.retries.labels(handler).inc()
            self._say_now_and_then(handler, event_id, **told)
        if status is RunStatus.DEAD:
            self._metrics.dead.labels(handler).inc()
            _log.error("run_dead", handler=handler, event_id=event_id, **told)


def type_label(event_type: str) -> str:
    """An event type as a label: one of the catalogue or that a plugin declares by its payload, or `other` (case I7)."""
    return OTHER if payload_class(event_type) is Payload else event_type


def _about(event: Event) -> dict[str, str]:
    """What a span says of an event: ids, and nothing of what it says."""
    return {"application": event.application, "event_id": event.id, "type": event.type, "source": event.source.value}
