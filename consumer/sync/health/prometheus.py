"""Exposition: the stages' numbers as the process's metrics."""

from __future__ import annotations

from typing import Final

from consumer.clock import Clock
from consumer.reason import Reason
from consumer.sync.health.stalled import STAGES
from consumer.sync.metrics import StageMetrics
from consumer.sync.observation import STATUSES
from consumer.telemetry.metrics import Metrics

# Figure to the declared metric that shows it, and its labels after the application's.
COUNTERS: Final = {
    "hints_confirmed": ("confirmed", ("confirmed",)),
    "hints_known": ("confirmed", ("known",)),
    "hints_not_confirmed": ("confirmed", ("not_confirmed",)),
    "body_mismatch": ("mismatches", ()),
    **{f"quarantined_{reason}": ("quarantined", (reason.value,)) for reason in Reason},
    "events_listed": ("walked", ("listed",)),
    "events_recovered": ("walked", ("recovered",)),
    "events_strange": ("walked", ("strange",)),
    "retention_gaps": ("retention_gaps", ()),
    "cursors_refused": ("cursors_refused", ()),
    "drift_changed": ("drift", ("changed",)),
    "drift_unknown": ("drift", ("unknown",)),
    "hints_taken": ("hints_taken", ()),
    "reads_answered": ("reads_answered", ()),
    "reads_unreadable": ("reads_unreadable", ()),
    "reads_failed": ("reads_failed", ()),
    "reads_not_found": ("reads_not_found", ()),
    "reads_without_order_id": ("reads_without_order_id", ()),
    **{f"unknown_status_{kind}": ("unknown_enums", (f"{kind}.status",)) for kind in STATUSES},
}
GAUGES: Final = {
    "hints_waiting": ("hints_waiting", ()),
    "webhooks_silent": ("webhooks_silent", ()),
    "gap_open": ("gap_open", ()),
    "reconcile_braked": ("reconcile_braked", ()),
    "reconcile_unplaced_paid": ("reconcile_unplaced", ("paid",)),
    "reconcile_unplaced_other": ("reconcile_unplaced", ("other",)),
    "wrong_application": ("wrong_application", ()),
    "credentials_missing": ("credentials_missing", ()),
    "circuit_open": ("circuit_open", ()),
    "events_history": ("events_history", ()),
    "unproved_hint_bytes": ("unproved_bytes", ("hints",)),
    "unproved_quarantine_bytes": ("unproved_bytes", ("quarantine",)),
    "last_reconcile_at": ("last_reconcile", ()),
    "missing_event": ("missing_here", ("event",)),
    "missing_order": ("missing_here", ("order",)),
    "last_seen_event": ("last_seen", ("event",)),
    "last_seen_order": ("last_seen", ("order",)),
    "missing_s": ("missing_here_seconds", ()),
    **{f"held_up_{stage}": ("held_up", (stage,)) for stage in STAGES},
}

# Shown in a way of their own.
APART: Final = frozenset({"leads", "last_walk_at", "walk_s"})


class Exposition:
    """Keeps the declared metrics up to date. Each number of a stage has one: a test says so."""

    def __init__(self, stage_metrics: StageMetrics, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        stage_metrics.listen(self._changed)

    def _changed(self, name: str, application: str, by: float | None, value: float | None) -> None:
        if value is None:
            self._gone(name, application)
        elif name in COUNTERS and by is not None:  # 0, too: an alert sees no increase of what was not there before
            metric, labels = COUNTERS[name]
            getattr(self._metrics, metric).labels(application, *labels).inc(by)
        elif name in GAUGES:
            metric, labels = GAUGES[name]
            getattr(self._metrics, metric).labels(application, *labels).set(value)
        elif name == "leads":
            self._metrics.leader.labels(f"sync/{application}").set(value)
        elif name == "walk_s" and by is not None:
            self._metrics.walk_seconds.labels("events").observe(by)
        elif name == "last_walk_at":
            age = self._metrics.bookmark_seconds.labels(application)
            age.set_function(lambda: max(0.0, self._clock.now().timestamp() - value))

    def _gone(self, name: str, application: str) -> None:
        if name in GAUGES:
            metric, labels = GAUGES[name]
            getattr(self._metrics, metric).remove(application, *labels)
        elif name == "last_walk_at":
            self._metrics.bookmark_seconds.remove(application)
