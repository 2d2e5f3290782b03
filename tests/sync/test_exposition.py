"""Exposition: what the stages count is on the metrics page, under a name and with its application."""

from __future__ import annotations

from consumer.clock import DrivenClock
from consumer.sync.exposition import Exposition
from consumer.sync.figures import Figures
from consumer.telemetry.metrics import Metrics


def test_figures_show_as_metrics_and_nothing_is_counted_twice() -> None:
    # case: B7, B11, B29, O6
    figures, metrics, clock = Figures(), Metrics(), DrivenClock()
    Exposition(figures, metrics, clock)
    figures.count("body_mismatch", "shop", 2)
    figures.count("reads_answered", "shop", 3)
    figures.gauge("webhooks_silent", "shop", 1)
    figures.gauge("leads", "shop", 1)
    figures.gauge("last_walk_at", "shop", clock.now().timestamp())
    figures.gauge("held_up_backfill", "shop", 1)
    figures.count("cursors_refused", "shop")
    clock.advance(90)
    text = metrics.render().decode()
    assert 'consumer_confirm_mismatches_total{application="shop"} 2.0' in text
    assert 'consumer_sync_reads_answered_total{application="shop"} 3.0' in text
    assert 'consumer_sync_webhooks_silent{application="shop"} 1.0' in text
    assert 'consumer_sync_leader{lease="sync/shop"} 1.0' in text
    assert 'consumer_sync_bookmark_age_seconds{application="shop"} 90.0' in text
    assert 'consumer_sync_held_up{application="shop",stage="backfill"} 1.0' in text
    assert 'consumer_sync_cursors_refused_total{application="shop"} 1.0' in text
    assert "body_mismatch" not in text
    assert "held_up_backfill" not in text
