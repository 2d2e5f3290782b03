"""Metrics: every figure of the project, declared in one place. No label takes a value from the outside.

Applications and handlers are configured, topics and endpoints are constants, event types that nobody declared are
`other`. Nothing here is personal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from consumer.telemetry.hot_path import CountedElsewhere, PlainCounter, PlainGauge, PlainHistogram
from consumer.telemetry.logs import lines_lost

Labels = TypeVar("Labels", bound=tuple[str, ...])

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SLOW_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_RECORDS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 5000)


class Metrics:
    """All metrics of one process, with a registry of their own. Made once by `app` and handed to whoever counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._declare_receive()
        self._declare_log()
        self._declare_work()
        self._declare_sync()
        self._declare_api()
        self._declare_business()
        self._declare_process()

    def render(self) -> bytes:
        """The exposition text; its content type is CONTENT_TYPE."""
        return generate_latest(self.registry)

    def listed(self) -> list[tuple[str, str, tuple[str, ...], str]]:
        """(name, kind, labels, help) of every metric, for the README and its test."""
        return [shown for value in vars(self).values() if (shown := _shown(value)) is not None]

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"consumer_{name}", meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"consumer_{name}", meaning, labels, registry=self.registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"consumer_{name}", meaning, labels, buckets=buckets, registry=self.registry)

    def _declare_receive(self) -> None:
        self.receive_requests = PlainCounter(
            "consumer_receive_requests", "Webhook requests by outcome", ("application", "outcome"), self.registry
        )
        self.receive_seconds = PlainHistogram(
            "consumer_receive_seconds", "Time to answer a webhook request", _FAST_S, self.registry
        )
        self.receive_body_bytes = PlainCounter(
            "consumer_receive_body_bytes", "Bytes of webhook bodies that became durable", (), self.registry
        )
        self.receive_in_flight = self._gauge("receive_in_flight", "Webhook requests being answered now")
        self.receive_arriving = self._gauge("receive_arriving", "Webhook bodies that still arrive")
        self.receive_held_bytes = self._gauge("receive_held_bytes", "Bytes of webhook bodies held now")
        self.receive_displaced = self._gauge("receive_displaced", "Slow bodies that gave way to others since the start")
        self.receive_unproved_share = self._gauge(
            "receive_unproved_share", "Share used up of the unproved bytes that may be stored at once", "application"
        )
        self.receive_unproved_bytes = PlainCounter(
            "consumer_receive_unproved_bytes",
            "Bytes of unproved webhooks that were stored in the log",
            ("application",),
            self.registry,
        )
        self.receive_last_accepted = self._gauge(
            "receive_last_accepted_timestamp_seconds", "When a webhook was last accepted", "application"
        )

    def _declare_log(self) -> None:
        self.publishes = PlainCounter(
            "consumer_broker_publishes",
            "Records published, by outcome (published, or why not)",
            ("topic", "outcome"),
            self.registry,
        )
        self.publish_seconds = PlainHistogram(
            "consumer_broker_publish_seconds", "Time until the broker acknowledged", _FAST_S, self.registry, ("topic",)
        )
        self.lag_records = self._gauge("lag_records", "Records not yet committed by the group", "topic", "partition")
        self.lag_seconds = self._gauge(
            "lag_seconds", "Age of the oldest record not yet committed", "topic", "partition"
        )

        self.group_lag_records = self._gauge("group_lag_records", "Records a group has not committed", "group")
        self.group_members = self._gauge("group_members", "Processes that read as this group", "group")
        self.group_oldest = self._gauge(
            "group_oldest_timestamp_seconds",
            "When the oldest record not committed was stored; 0: there is none",
            "group",
        )

    def _declare_work(self) -> None:
        self.events = self._counter(
            "work_events",
            "Events taken from the log, by result (new, duplicate, refused)",
            "application",
            "type",
            "trust",
            "source",
            "result",
        )
        self.runs = self._counter("work_runs", "Attempts of handlers, by outcome", "handler", "outcome")
        self.run_seconds = self._histogram("work_run_seconds", "Time of one attempt", _SLOW_S, "handler")
        self.retries = self._counter("work_retries", "Attempts that will be tried again", "handler")
        self.dead = self._counter("work_dead", "Runs that became dead", "handler")
        self.waiting = self._gauge("work_waiting_runs", "Runs by state (retrying, parked, dead)", "handler", "state")
        self.paused = self._gauge("work_handler_paused", "1 while the handler is paused, for all or some", "handler")
        self.breaker_open = self._gauge(
            "work_breaker_open", "1 while the handler waits because what it depends on does not answer", "handler"
        )
        self.stopped = self._counter(
            "work_handler_stopped", "Times a handler was paused by its guard (dead runs, hanging, blocking)", "handler"
        )
        self.handler_blocked = self._counter(
            "work_handler_blocked", "Times a handler blocked the event loop it ran on", "handler"
        )
        self.batch_records = self._histogram("work_batch_records", "Events that shared a transaction", _RECORDS)
        self.commit_seconds = self._histogram("work_commit_seconds", "Time of one transaction of the ledger", _FAST_S)
        self.rebalances = self._counter("work_rebalances", "Changes of the partitions this member reads", "change")
        self.outbox_waiting = self._gauge("outbox_waiting", "Derived events not yet published")
        self.outbox_seconds = self._gauge("outbox_oldest_seconds", "Age of the oldest derived event not yet published")

    def _declare_sync(self) -> None:
        self.confirmed = self._counter("confirm", "Hints by outcome of their read", "application", "outcome")
        self.hints_waiting = self._gauge("confirm_waiting", "Hints that wait for their read", "application")
        self.read_seconds = self._gauge(
            "reads_oldest_due_seconds", "How long the read that waits for longest has been due", "application"
        )
        self.hint_seconds = self._gauge(
            "confirm_oldest_seconds", "Age of the oldest hint that the service was not yet asked about", "application"
        )
        self.mismatches = self._counter(
            "confirm_mismatches", "Webhook bodies that state something else than the service", "application"
        )
        self.quarantined = self._counter("quarantine", "Deliveries put into quarantine", "application", "reason")
        self.quarantine_open = self._gauge("quarantine_open", "Deliveries in quarantine now", "application")
        self.walked = self._counter("sync_events", "Listed events, by result", "application", "result")
        self.walk_seconds = self._histogram("sync_walk_seconds", "Time of one complete walk", _SLOW_S, "walk")
        self.bookmark_seconds = self._gauge(
            "sync_bookmark_age_seconds",
            "Leader only: time since the last complete walk, or since it began to try for the first one",
            "application",
        )
        self.last_reconcile = self._gauge(
            "sync_last_reconcile_timestamp_seconds", "Leader only: when reconcile last came to an end", "application"
        )
        self.retention_gaps = self._counter(
            "sync_retention_gaps", "Walks that found the list younger than the bookmark", "application"
        )
        self.cursors_refused = self._counter("sync_cursors_refused", "Cursors the service did not take", "application")
        self.held_up = self._gauge(
            "sync_held_up", "1 while a stage of the leader fails again and again", "application", "stage"
        )
        self.drift = self._counter("sync_drift", "Differences a reconcile walk found", "application", "kind")
        self.leader = self._gauge("sync_leader", "1 while this process holds the lease", "lease")
        self._declare_sync_alarms()
        self._declare_reads()

    def _declare_sync_alarms(self) -> None:
        """What only the leader knows is 0 in a process that does not lead."""
        self.webhooks_silent = self._gauge(
            "sync_webhooks_silent", "1 while the list finds events and no webhook comes", "application"
        )
        self.gap_open = self._gauge(
            "sync_gap_open", "1 while events were forgotten unread and state is not yet reconciled", "application"
        )
        self.reconcile_braked = self._gauge(
            "sync_reconcile_braked", "1 while reconcile finds too many changes and makes none", "application"
        )
        self.unproved_bytes = self._gauge(
            "sync_unproved_bytes",
            "Bytes kept of what nobody vouches for yet, or at all (hints, quarantine)",
            "application",
            "state",
        )
        self.reconcile_unplaced = self._gauge(
            "sync_reconcile_unplaced",
            "Listed records without the id they are kept by, which nothing is done about (paid, other)",
            "application",
            "state",
        )
        self.missing_here = self._gauge(
            "sync_missing_here",
            "The service's newest events, and newest paid orders, that the ledger lacks (event, order)",
            "application",
            "kind",
        )
        self.missing_here_seconds = self._gauge(
            "sync_missing_here_seconds",
            "How long the oldest of them has been missing; 0 below 20 s",
            "application",
        )
        self.last_seen = self._gauge(
            "sync_last_seen_timestamp_seconds",
            "Leader only: when the newest of the list were last looked at (event, order)",
            "application",
            "kind",
        )
        self.wrong_application = self._gauge(
            "sync_wrong_application", "1 while the credentials are another application's", "application"
        )
        self.credentials_missing = self._gauge(
            "sync_credentials_missing", "1 for an application without API credentials", "application"
        )
        self.events_history = self._gauge(
            "sync_events_history",
            "Events from before the first walk, at least, that were left alone and that nobody has seen to",
            "application",
        )

    def _declare_reads(self) -> None:
        self.hints_taken = self._counter("sync_hints_taken", "Deliveries that became hints", "application")
        self.reads_answered = self._counter("sync_reads_answered", "Asked-for reads that were answered", "application")
        self.reads_unreadable = self._counter(
            "sync_reads_unreadable", "Asked-for reads answered with: there is no such object", "application"
        )
        self.reads_failed = self._counter(
            "sync_reads_failed", "Asked-for reads that failed and are made again later", "application"
        )
        self.reads_not_found = self._counter("sync_reads_not_found", "Those of them answered 404", "application")
        self.reads_without_order_id = self._counter(
            "sync_reads_without_order_id", "Order records that show no order id of the merchant", "application"
        )

    def _declare_api(self) -> None:
        self.api_calls = self._counter(
            "api_calls", "Calls of the service, by status", "application", "endpoint", "code"
        )
        self.api_seconds = self._histogram("api_seconds", "Time of one call of the service", _FAST_S, "endpoint")
        self.api_waits = self._histogram("api_budget_wait_seconds", "Time a call waited for the budget", _SLOW_S, "use")
        self.circuit_open = self._gauge("api_circuit_open", "1 while credentials are refused", "application")
        self.unknown_enums = self._counter(
            "unknown_enums", "Status words of the service that are not known, as they were read", "application", "field"
        )

    def _declare_business(self) -> None:
        self.findings = self._gauge(
            "findings_open", "What waits for an operator's decision, by kind", "application", "plugin", "kind"
        )
        self.paid_unfulfilled = self._gauge("paid_unfulfilled", "Orders paid and not fulfilled", "application")
        self.paid_unfulfilled_seconds = self._gauge(
            "paid_unfulfilled_oldest_seconds", "Age of the oldest order paid and not fulfilled", "application"
        )
        self.invariants_residual = self._gauge(
            "invariants_residual_micro_usdc", "Money of payments that nothing explains, in millionths", "application"
        )
        self.invariants_broken = self._gauge(
            "invariants_broken", "What is not as it should be about money and access, by code", "application", "code"
        )
        self.invariants_checked_at = self._gauge(
            "invariants_checked_timestamp_seconds", "When money and access were last accounted for", "application"
        )

        self.ledger_bytes = PlainGauge(
            "consumer_ledger_bytes", "Size of the ledger's database; `console` tells it", self.registry
        )
        self.log_bytes = PlainGauge(
            "consumer_log_bytes", "Size of the embedded log's files; `sync` tells it, and Kafka its own", self.registry
        )
        self.archived = self._counter("archived_events", "Events whose body was archived and taken out of the ledger")
        self.archive_failing = self._gauge("archive_failing", "1 while the daily archiving does not come to its end")
        self.archive_done_at = self._gauge(
            "archive_last_done_timestamp_seconds", "When the daily archiving last came to its end; 0: never"
        )

    def _declare_process(self) -> None:
        self.check_failing = self._gauge(
            "check_failing", "1: a check of this process's readiness fails, by the code of why", "check", "code"
        )
        self.status_code = self._gauge(
            "status_code", "1 while `status` says this code, of those that no other metric tells", "code", "plugin"
        )
        self.loop_lag = self._gauge("loop_lag_seconds", "How late the event loop was, at worst, in the last seconds")
        self.loop_blocked = self._counter("loop_blocked", "Times the event loop stood still")
        self.lines_lost = CountedElsewhere(
            "consumer_log_lines_lost", "Lines of this process's own log that could not be written", lines_lost,
            self.registry,
        )  # fmt: skip
        ProcessCollector(registry=self.registry)
        self.build = Info("consumer_build", "Version and role", registry=self.registry)


class GaugeSeries:
    """What one gauge shows, by its labels. A series that is measured no more goes back to 0: it has ended, and is not
    unknown. `begun`: those that are 0 before anything was measured."""

    def __init__(self, gauge: Gauge, begun: Iterable[tuple[str, ...]] = ()) -> None:
        self._gauge = gauge
        self._shown = set(begun)

    def show(self, measured: Mapping[Labels, float]) -> None:
        """All that was measured now."""
        for labels in self._shown - measured.keys():
            self._gauge.labels(*labels).set(0)
        for labels, value in measured.items():
            self._gauge.labels(*labels).set(value)
        self._shown |= measured.keys()


def _shown(metric: object) -> tuple[str, str, tuple[str, ...], str] | None:
    if isinstance(metric, PlainCounter | CountedElsewhere):
        return f"{metric.name}_total", "counter", metric.label_names, metric.meaning
    if isinstance(metric, PlainGauge):
        return metric.name, "gauge", metric.label_names, metric.meaning
    if isinstance(metric, PlainHistogram):
        return metric.name, "histogram", metric.label_names, metric.meaning
    if isinstance(metric, Counter | Gauge | Histogram | Info):
        suffix = {Counter: "_total", Info: "_info"}.get(type(metric), "")
        return f"{metric._name}{suffix}", type(metric).__name__.lower(), metric._labelnames, metric._documentation
    return None
