"""Metrics: declared once, documented, with labels that cannot grow."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from consumer.telemetry.metrics import Metrics
from consumer.telemetry.table import metrics_table

PACKAGE = Path(__file__).resolve().parents[2] / "consumer"
README = PACKAGE / "telemetry" / "README.md"


def test_the_readme_lists_every_metric() -> None:
    assert metrics_table() in README.read_text(), "run: python -m consumer.telemetry.table, and put it into the README"


def test_two_sets_of_metrics_do_not_meet() -> None:
    one, two = Metrics(), Metrics()
    one.receive_requests.inc(("default", "accepted"))
    assert b'outcome="accepted"} 1.0' in one.render()
    assert b'outcome="accepted"' not in two.render()


def test_the_exposition_can_be_parsed_and_names_what_is_listed() -> None:
    metrics = Metrics()
    metrics.build.info({"version": "1", "role": "serve"})
    families = {family.name for family in text_string_to_metric_families(metrics.render().decode())}
    listed = {name.removesuffix("_total") for name, _, _, _ in metrics.listed()}
    of_the_process = {name for name in families if name.startswith("process_")}
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"} <= of_the_process
    assert {name for name in families - of_the_process if not name.endswith("_created")} == listed
    assert all(meaning for _, _, _, meaning in metrics.listed())
    assert {"consumer_receive_requests", "consumer_lag_seconds"} <= families


def test_every_metric_is_set_by_something() -> None:
    declared = PACKAGE / "telemetry" / "metrics.py"
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py") if path != declared)
    names = re.findall(r"self\.(\w+) = (?:self\._(?:counter|gauge|histogram)|Plain\w+)\(", declared.read_text())
    assert len(names) > 50
    used = r"(?:metrics|_m)\.{name}\b|: \(\"{name}\", \("  # by itself, or through a figure of sync
    assert [name for name in names if not re.search(used.format(name=name), source)] == []


def test_no_label_is_free_text() -> None:
    allowed = {
        "application", "outcome", "topic", "partition", "type", "trust", "source", "result", "handler", "state",
        "change", "reason", "walk", "kind", "lease", "stage", "endpoint", "code", "use", "field", "plugin", "group",
        "check",
    }  # fmt: skip
    assert {label for _, _, labels, _ in Metrics().listed() for label in labels} == allowed


def test_what_this_process_does_not_measure_has_no_sample() -> None:
    """0 bytes would be a lie: other roles measure it."""
    metrics = Metrics()
    get = metrics.registry.get_sample_value
    assert get("consumer_log_bytes") is get("consumer_ledger_bytes") is None
    metrics.log_bytes.set(0)
    metrics.ledger_bytes.set(7)
    assert (get("consumer_log_bytes"), get("consumer_ledger_bytes")) == (0, 7)
    assert "# TYPE consumer_log_bytes gauge" in Metrics().render().decode()


def test_a_moment_is_named_as_prometheus_names_it() -> None:
    assert [name for name, _, _, _ in Metrics().listed() if re.search(r"_(at|time|epoch)$", name)] == []


def test_a_tally_shows_what_prometheus_own_metrics_would() -> None:
    metrics = Metrics()
    values = (0.0, 0.001, 0.0011, 0.3, 5.0, 99.0)
    for value in values:
        metrics.receive_seconds.observe(value)
        metrics.publish_seconds.observe(value, ("t",))
        metrics.receive_requests.inc(("a", "accepted"))
    text = metrics.render().decode()
    ours = [line.split()[-2:] for line in text.splitlines() if line.startswith("consumer_receive_seconds_bucket")]
    theirs = [
        line.split()[-2:] for line in text.splitlines() if line.startswith("consumer_broker_publish_seconds_bucket")
    ]
    assert [number for _, number in ours] == [number for _, number in theirs]
    assert [re.findall(r'le="([^"]+)"', line) for line, _ in ours] == [
        re.findall(r'le="([^"]+)"', line) for line, _ in theirs
    ]
    get = metrics.registry.get_sample_value
    assert get("consumer_receive_seconds_count") == len(values)
    assert get("consumer_receive_seconds_sum") == sum(values)
    assert get("consumer_receive_requests_total", {"application": "a", "outcome": "accepted"}) == len(values)
