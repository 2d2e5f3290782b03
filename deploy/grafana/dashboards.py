"""Three dashboards: `python -m deploy.grafana.dashboards` writes their JSON beside this file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT, PER_ROW = 8, 8, 3
SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True)
class Panel:
    """A graph: `queries` are (PromQL, legend); `unit` is Grafana's; `bar` is the line it should stay below."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    bar: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """One page, for one question."""

    uid: str
    title: str
    panels: Sequence[Panel]


def _quantiles(metric: str, by: str = "") -> list[tuple[str, str]]:
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return [
        (f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket[5m])))", f"{legend}p{q * 100:g}")
        for q in (0.5, 0.99)
    ]


ON_CALL = Dashboard(
    "consumer-on-call",
    "Consumer: on call",
    [
        Panel(
            "Webhooks by outcome",
            [("sum by (outcome) (rate(consumer_receive_requests_total[5m]))", "{{outcome}}")],
            "reqps",
        ),
        Panel(
            "Share not made durable",
            [("consumer:receive_failures:ratio_rate5m", "5 min"), ("consumer:receive_failures:ratio_rate1h", "1 h")],
            "percentunit",
            0.001,
        ),
        Panel("Time to answer a webhook", _quantiles("consumer_receive_seconds"), "s"),
        Panel("Oldest record that waits", [("max by (topic) (consumer_lag_seconds)", "{{topic}}")], "s", 60),
        Panel(
            "Paid and not fulfilled, oldest",
            [("consumer:paid_unfulfilled_oldest_seconds:max", "{{application}}")],
            "s",
            300,
        ),
        Panel("Oldest derived event unpublished", [("max(consumer_outbox_oldest_seconds)", "outbox")], "s", 120),
        Panel(
            "What `sync` knows",
            [
                ("max by (application) (consumer_api_circuit_open)", "credentials refused {{application}}"),
                ("max by (application) (consumer_sync_webhooks_silent)", "webhooks silent {{application}}"),
                ("max by (application) (consumer_sync_gap_open)", "gap {{application}}"),
                ("max by (application) (consumer_sync_reconcile_braked)", "braked {{application}}"),
                ("max by (application, stage) (consumer_sync_held_up)", "held up {{application}} {{stage}}"),
            ],
        ),
        Panel(
            "Age of the last complete walk",
            [("max by (application) (consumer_sync_bookmark_age_seconds)", "{{application}}")],
            "s",
            900,
        ),
        Panel(
            "Handlers paused or waiting",
            [
                ("max by (handler) (consumer_work_handler_paused)", "paused {{handler}}"),
                ("max by (handler) (consumer_work_breaker_open)", "waits {{handler}}"),
            ],
        ),
        Panel("Runs that wait", [("max by (handler, state) (consumer_work_waiting_runs)", "{{handler}} {{state}}")]),
        Panel("Event loop late", [("max by (instance) (consumer_loop_lag_seconds)", "{{instance}}")], "s"),
        Panel("Who runs", [("count by (role, version) (consumer_build_info)", "{{role}} {{version}}")]),
    ],
)

MONEY = Dashboard(
    "consumer-money",
    "Consumer: money and access",
    [
        Panel(
            "Orders paid and not fulfilled", [("max by (application) (consumer_paid_unfulfilled)", "{{application}}")]
        ),
        Panel("Oldest of them", [("consumer:paid_unfulfilled_oldest_seconds:max", "{{application}}")], "s", 300),
        Panel(
            "Findings that want a decision",
            [
                (
                    (
                        "max by (application, kind) (consumer_findings_open)"
                        " or 0 * max by (application) (consumer_paid_unfulfilled)"  # who tells of both lives
                    ),
                    "{{application}} {{kind}}",
                )
            ],
        ),
        Panel(
            "Events by type",
            [('sum by (type) (rate(consumer_work_events_total{result="new"}[5m]))', "{{type}}")],
            "eps",
        ),
        Panel(
            "Access given and taken",
            [
                (
                    'sum by (type) (increase(consumer_work_events_total{type=~"access.granted|access.revoked"}[1h]))',
                    "{{type}}",
                )
            ],
        ),
        Panel(
            "Attempts of handlers",
            [("sum by (handler, outcome) (rate(consumer_work_runs_total[5m]))", "{{handler}} {{outcome}}")],
            "ops",
        ),
        Panel("Runs given up", [("sum by (handler) (increase(consumer_work_dead_total[1h]))", "{{handler}}")]),
        Panel(
            "Differences reconcile found",
            [("sum by (application, kind) (increase(consumer_sync_drift_total[1d]))", "{{application}} {{kind}}")],
        ),
        Panel("Deliveries in quarantine", [("max by (application) (consumer_quarantine_open)", "{{application}}")]),
        Panel(
            "Into quarantine, by reason", [("sum by (reason) (increase(consumer_quarantine_total[1h]))", "{{reason}}")]
        ),
        Panel("Time of one attempt", _quantiles("consumer_work_run_seconds", "handler"), "s"),
        Panel(
            "Deliveries that wait for their proof",
            [("max by (application) (consumer_confirm_waiting)", "{{application}}")],
        ),
    ],
)

LOG_AND_API = Dashboard(
    "consumer-log-and-api",
    "Consumer: Kafka and API budget",
    [
        Panel("Records that wait", [("sum by (topic) (consumer_lag_records)", "{{topic}}")]),
        Panel(
            "Records that wait, by partition",
            [("max by (topic, partition) (consumer_lag_records)", "{{topic}} {{partition}}")],
        ),
        Panel(
            "Published, by outcome",
            [("sum by (topic, outcome) (rate(consumer_broker_publishes_total[5m]))", "{{topic}} {{outcome}}")],
            "ops",
        ),
        Panel("Time until the broker acknowledged", _quantiles("consumer_broker_publish_seconds", "topic"), "s"),
        Panel(
            "Partitions that moved", [("sum by (change) (increase(consumer_work_rebalances_total[5m]))", "{{change}}")]
        ),
        Panel("Time of one transaction", _quantiles("consumer_work_commit_seconds"), "s"),
        Panel("Events that share a transaction", _quantiles("consumer_work_batch_records")),
        Panel(
            "Calls of the service per minute",
            [("60 * sum by (endpoint) (rate(consumer_api_calls_total[5m]))", "{{endpoint}}")],
            "short",
            300,
        ),
        Panel("Calls by status", [("sum by (code) (rate(consumer_api_calls_total[5m]))", "{{code}}")], "reqps"),
        Panel("Wait for the budget", _quantiles("consumer_api_budget_wait_seconds", "use"), "s"),
        Panel("Time of one call", _quantiles("consumer_api_seconds", "endpoint"), "s"),
        Panel(
            "Asked-for reads",
            [
                ("sum(rate(consumer_sync_reads_answered_total[5m]))", "answered"),
                ("sum(rate(consumer_sync_reads_failed_total[5m]))", "failed"),
            ],
            "ops",
        ),
    ],
)

DASHBOARDS = (ON_CALL, MONEY, LOG_AND_API)


def as_json(dashboard: Dashboard) -> str:
    """The document Grafana loads."""
    panels = [_panel(number, panel) for number, panel in enumerate(dashboard.panels)]
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    document = {
        "uid": dashboard.uid, "title": dashboard.title, "tags": ["consumer"], "schemaVersion": 39, "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"}, "templating": {"list": [source]}, "annotations": {"list": []},
        "panels": panels,
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    place = {"x": number % PER_ROW * WIDTH, "y": number // PER_ROW * HEIGHT, "w": WIDTH, "h": HEIGHT}
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.bar is not None:
        steps.append({"color": "red", "value": panel.bar})
    style = {"thresholdsStyle": {"mode": "line" if panel.bar is not None else "off"}}
    defaults = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}, "custom": style}
    targets = [
        {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "datasource": SOURCE}
        for index, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number + 1, "type": "timeseries", "title": panel.title, "datasource": SOURCE, "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []}, "targets": targets,
    }  # fmt: skip


def main() -> None:
    """Write them."""
    for dashboard in DASHBOARDS:
        (HERE / f"{dashboard.uid}.json").write_text(as_json(dashboard))


if __name__ == "__main__":
    main()
