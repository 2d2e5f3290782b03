"""Exposition: what the stages count is on the metrics page, under a name and with its application."""

from __future__ import annotations

import re
from pathlib import Path

from consumer.clock import DrivenClock
from consumer.reason import Reason
from consumer.sync.canary.stage import KINDS
from consumer.sync.health import prometheus as exposition
from consumer.sync.health.prometheus import APART, COUNTERS, GAUGES, Exposition
from consumer.sync.health.stalled import STAGES
from consumer.sync.metrics import StageMetrics
from consumer.sync.observation import STATUSES
from consumer.telemetry.metrics import Metrics


def test_figures_show_as_metrics_and_nothing_is_counted_twice() -> None:
    # case: B7, B11, B29, O6
    stage_metrics, metrics, clock = StageMetrics(), Metrics(), DrivenClock()
    Exposition(stage_metrics, metrics, clock)
    stage_metrics.count("body_mismatch", "shop", 2)
    stage_metrics.count("reads_answered", "shop", 3)
    stage_metrics.gauge("webhooks_silent", "shop", 1)
    stage_metrics.gauge("leads", "shop", 1)
    stage_metrics.gauge("last_walk_at", "shop", clock.now().timestamp())
    stage_metrics.gauge("held_up_backfill", "shop", 1)
    stage_metrics.count("cursors_refused", "shop")
    stage_metrics.count("walk_s", "shop", 7.5)
    clock.advance(90)
    text = metrics.render().decode()
    assert 'consumer_confirm_mismatches_total{application="shop"} 2.0' in text
    assert 'consumer_sync_reads_answered_total{application="shop"} 3.0' in text
    assert 'consumer_sync_webhooks_silent{application="shop"} 1.0' in text
    assert 'consumer_sync_leader{lease="sync/shop"} 1.0' in text
    assert 'consumer_sync_bookmark_age_seconds{application="shop"} 90.0' in text
    assert 'consumer_sync_held_up{application="shop",stage="backfill"} 1.0' in text
    assert 'consumer_sync_cursors_refused_total{application="shop"} 1.0' in text
    assert 'consumer_sync_walk_seconds_sum{walk="events"} 7.5' in text
    assert 'consumer_sync_walk_seconds_count{walk="events"} 1.0' in text
    assert "consumer_sync_walk_s_total" not in text
    assert "body_mismatch" not in text
    assert "held_up_backfill" not in text


def test_every_figure_of_the_stages_has_a_declared_metric() -> None:
    # case: O6
    names = {
        "reason": tuple(Reason),
        "drift.value": ("changed", "unknown"),
        "stage": STAGES,
        "one.kind": tuple(STATUSES),
        "kind": tuple(STATUSES),
        "listed": KINDS,
    }
    counted = re.compile(r"metrics\.(?:gauge|count)\(f?\"([a-z_{}.]+)\"")
    found = set()
    for path in Path(exposition.__file__).parents[1].rglob("*.py"):
        for name in counted.findall(path.read_text()):
            _, _, what = name.partition("{")
            values = names[what.rstrip("}")] if what else ("",)
            found |= {re.sub(r"\{.*\}", str(value), name) for value in values}
    assert {"webhooks_silent", "hints_taken", "drift_changed", "held_up_credentials"} <= found
    assert found <= {*COUNTERS, *GAUGES, *APART}


def test_a_gauge_that_nobody_knows_any_more_is_not_shown() -> None:
    # case: O6, B26
    stage_metrics, metrics, clock = StageMetrics(), Metrics(), DrivenClock()
    Exposition(stage_metrics, metrics, clock)
    for name in ("last_walk_at", "last_reconcile_at", "made_up"):
        stage_metrics.gauge(name, "shop", 1)
        stage_metrics.forget(name, "shop")
        stage_metrics.forget(name, "shop")
    text = metrics.render().decode()
    assert 'application="shop"' not in text
    stage_metrics.gauge("last_walk_at", "shop", clock.now().timestamp())
    assert 'consumer_sync_bookmark_age_seconds{application="shop"} 0.0' in metrics.render().decode()
