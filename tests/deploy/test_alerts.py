"""Alerts: the rules are valid, each fires and is silent when it should, and what they name exists and is set."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumer.receive import answers
from consumer.telemetry.metrics import Metrics
from deploy.grafana import dashboards
from deploy.prometheus import operator
from tests.support.tools import need_program

CHECKOUT = Path(__file__).resolve().parents[2]
RULES = CHECKOUT / "deploy" / "prometheus"
RUNBOOKS = CHECKOUT / "deploy" / "runbooks"
ALERTS: list[dict[str, Any]] = yaml.safe_load((RULES / "alerts.yml").read_text())["groups"][0]["rules"]
RECORDED: list[dict[str, Any]] = yaml.safe_load((RULES / "recording.yml").read_text())["groups"][0]["rules"]

Series = dict[str, str]
SHOP = 'application="shop"'
ACCEPTED = f'consumer_receive_requests_total{{{SHOP},outcome="accepted"}}'
FORGED = f'consumer_receive_requests_total{{{SHOP},outcome="bad_signature"}}'
LOOKED = 'consumer_sync_last_seen_timestamp_seconds{application="shop",kind="%s"}'
LOST = f'consumer_receive_requests_total{{{SHOP},outcome="not_durable"}}'
HELD_UP = 'consumer_sync_held_up{application="shop",stage="%s"}'
LEFT_OUT = 'consumer_status_code{code="built_in_left_out",plugin="%s",instance="%s"}'
RUNNING = 'consumer_build_info{role="%s"}'


def _flag(metric: str, labels: str = SHOP) -> tuple[str, Series, Series]:
    """A gauge that is 1 fires, at 0 it is silent; another process that knows nothing changes neither."""
    name, other = f'{metric}{{{labels},instance="a"}}', f'{metric}{{{labels},instance="b"}}'
    return "30m", {name: "1x60", other: "0x60"}, {name: "0x60", other: "0x60"}


def _above(metric: str, bar: float, labels: str = SHOP) -> tuple[str, Series, Series]:
    name = f"{metric}{{{labels}}}"
    return "30m", {name: f"{bar + 1}x60"}, {name: f"{bar}x60"}


def _says(code: str) -> tuple[str, Series, Series]:
    """Fires while `status` says this code, and no other."""
    name = 'consumer_status_code{code="%s",plugin="%s"}'
    return "30m", {name % (code, ""): "1x60"}, {name % (code, ""): "0x60", name % ("other", ""): "1x60"}


def _of(metric: str, instance: str = "a") -> str:
    return f'{metric}{{instance="{instance}"}}'


def _without_credentials(application: str, instance: str = "a") -> str:
    return f'consumer_sync_credentials_missing{{application="{application}",instance="{instance}"}}'


# Alert: when it is looked at, the series that fire it, the series that do not. A step is a minute, or ten.
EXAMPLES: dict[str, tuple[str, Series, Series]] = {
    # 2 % fail; one failure among few requests is no outage.
    "ConsumerReceiveFailing": ("70m", {ACCEPTED: "0+98x80", LOST: "0+2x80"}, {ACCEPTED: "0+1x80", LOST: "0x60 1x20"}),
    "ConsumerReceiveFailingSlowly": (
        "7h",
        {ACCEPTED: "0+99x480", LOST: "0+1x480"},
        {ACCEPTED: "0+1x480", LOST: "0x410 1x70"},
    ),
    "ConsumerReceiveEroding": (
        "80h",
        {ACCEPTED: "0+998x490", LOST: "0+2x490"},
        {ACCEPTED: "0+100x490", LOST: "0x470 9x20"},
    ),
    "ConsumerStale": (
        "65m",
        {'consumer_lag_seconds{topic="e",partition="0"}': "90x70"},
        {'consumer_lag_seconds{topic="e",partition="0"}': "5x50 90x3 5x20"},
    ),
    "ConsumerStaleSlowly": (
        "6h10m",
        {'consumer_lag_seconds{topic="e",partition="0"}': "5x300 90x80"},
        {'consumer_lag_seconds{topic="e",partition="0"}': "5x360 90x15"},
    ),
    "ConsumerCredentialsRefused": _flag("consumer_api_circuit_open"),
    "ConsumerWrongApplication": _flag("consumer_sync_wrong_application"),
    "ConsumerSecretFileBroken": ("30m", {HELD_UP % "credentials": "1x60"}, {HELD_UP % "events": "1x60"}),
    "ConsumerNoCredentials": _flag("consumer_sync_credentials_missing"),
    "ConsumerWebhooksSilent": _flag("consumer_sync_webhooks_silent"),
    "ConsumerSignaturesRefused": (
        "30m",
        {FORGED: "0+3x60", ACCEPTED: "7x60", f"consumer_sync_webhooks_silent{{{SHOP}}}": "1x60"},
        {FORGED: "0+3x60", ACCEPTED: "7x60", f"consumer_sync_webhooks_silent{{{SHOP}}}": "0x60"},
    ),
    "ConsumerComparisonLate": (
        "90m",
        {LOOKED % "event": "0+60x100", LOOKED % "order": "60x100"},
        {LOOKED % "event": "0+60x100", LOOKED % "order": "0+60x100"},
    ),
    "ConsumerRetentionGap": _flag("consumer_sync_gap_open"),
    "ConsumerPaidThereNotHere": _above("consumer_sync_missing_here_seconds", 180),
    "ConsumerLedgerUnavailable": (
        "30m",
        {
            'consumer_check_failing{check="database",code="ledger_locked"}': "1x60",
            'consumer_check_failing{check="group",code="ledger_disk_full"}': "1x60",
        },
        {'consumer_check_failing{check="group",code="broker_unavailable"}': "1x60"},
    ),
    "ConsumerArchiveFailing": ("45m", {"consumer_archive_failing": "1x60"}, {"consumer_archive_failing": "0x60"}),
    "ConsumerPaidUnplaced": _above("consumer_sync_reconcile_unplaced", 0, f'{SHOP},state="paid"'),
    "ConsumerReconcileBraked": _flag("consumer_sync_reconcile_braked"),
    "ConsumerWalkLate": _above("consumer_sync_bookmark_age_seconds", 900),
    "ConsumerNeverWalked": (
        "30m",
        {RUNNING % "sync": "1x60"},
        {
            _without_credentials("shop"): "0x60",
            f"consumer_sync_bookmark_age_seconds{{{SHOP}}}": "5x60",
            _without_credentials("left", "b"): "1x60",
        },
    ),
    "ConsumerReadingHeldUp": ("30m", {HELD_UP % "events": "1x60"}, {HELD_UP % "credentials": "1x60"}),
    "ConsumerHintsLate": _above("consumer_confirm_oldest_seconds", 300),
    "ConsumerFlooded": (
        "15m",
        {f'consumer_quarantine_total{{{SHOP},reason="flooded"}}': "0x8 5x60"},
        {f'consumer_quarantine_total{{{SHOP},reason="not_json"}}': "0x8 5x60"},
    ),
    "ConsumerQuarantineGrows": (
        "15m",
        {f'consumer_quarantine_total{{{SHOP},reason="not_confirmed"}}': "0x8 30x60"},
        {
            f'consumer_quarantine_total{{{SHOP},reason="not_confirmed"}}': "0x8 10x60",
            f'consumer_quarantine_total{{{SHOP},reason="flooded"}}': "0x8 900x60",
        },
    ),
    "ConsumerMoneyUnexplained": (
        "2h",
        {f"consumer_invariants_residual_micro_usdc{{{SHOP}}}": "1x130"},
        {f"consumer_invariants_residual_micro_usdc{{{SHOP}}}": "0x60 1x60 0x20"},
    ),
    "ConsumerInvariantsBroken": (
        "2h",
        {f'consumer_invariants_broken{{{SHOP},code="{code}"}}': "1x130" for code in ("hold_unseen", "underpaid")},
        {f'consumer_invariants_broken{{{SHOP},code="hold_unseen"}}': "0x60 1x60 0x20"},
    ),
    "ConsumerPaidUnfulfilled": _above("consumer_paid_unfulfilled_oldest_seconds", 300),
    "ConsumerFindingsOpen": _above("consumer_findings_open", 0, f'{SHOP},plugin="p",kind="k"'),
    "ConsumerDeadRuns": (
        "30m",
        {'consumer_work_waiting_runs{handler="h",state="dead"}': "1x60"},
        {'consumer_work_waiting_runs{handler="h",state="retrying"}': "9x60"},
    ),
    "ConsumerHandlerPaused": _flag("consumer_work_handler_paused", 'handler="h"'),
    "ConsumerHandlerWaiting": _flag("consumer_work_breaker_open", 'handler="h"'),
    "ConsumerRunsOverdue": _above("consumer_lag_seconds", 300, 'topic="e",partition="0"'),
    "ConsumerLogBehind": (
        "30m",
        {'consumer_group_oldest_timestamp_seconds{group="g"}': "60x60"},
        {'consumer_group_oldest_timestamp_seconds{group="g"}': "0x60"},
    ),
    "ConsumerGroupWithoutMembers": (
        "30m",
        {'consumer_group_members{group="g"}': "0x60", 'consumer_group_lag_records{group="g"}': "5x60"},
        {'consumer_group_members{group="g"}': "0x60", 'consumer_group_lag_records{group="g"}': "0x60"},
    ),
    "ConsumerOutboxStuck": _above("consumer_outbox_oldest_seconds", 120, 'instance="a"'),
    "ConsumerNoWorker": ("30m", {RUNNING % "serve": "1x60"}, {RUNNING % "work": "1x60"}),
    "ConsumerNoSync": ("30m", {RUNNING % "serve": "1x60"}, {RUNNING % "sync": "1x60"}),
    "ConsumerNobodyReceives": ("30m", {RUNNING % "work": "1x60"}, {RUNNING % "serve": "1x60"}),
    "ConsumerNoConsole": ("30m", {RUNNING % "serve": "1x60"}, {RUNNING % "console": "1x60"}),
    "ConsumerLogUnavailable": (
        "30m",
        {'consumer_check_failing{check="broker",code="broker_unavailable"}': "1x60"},
        {
            'consumer_check_failing{check="database",code="ledger_locked"}': "1x60",
            'consumer_check_failing{check="group",code="ledger_disk_full"}': "1x60",
        },
    ),
    "ConsumerBrokerAway": (
        "30m",
        {
            'consumer_broker_publishes_total{topic="e",outcome="published"}': "7x60",
            'consumer_broker_publishes_total{topic="e",outcome="broker_unavailable"}': "0+3x60",
        },
        {
            'consumer_broker_publishes_total{topic="e",outcome="published"}': "0+7x60",
            'consumer_broker_publishes_total{topic="e",outcome="broker_unavailable"}': "0+3x60",
        },
    ),
    "ConsumerDescriptorsUsedUp": (
        "30m",
        {_of("process_open_fds"): "950x60", _of("process_max_fds"): "1000x60", _of("consumer_build_info"): "1x60"},
        {_of("process_open_fds"): "950x60", _of("process_max_fds"): "1000x60", _of("consumer_build_info", "b"): "1x60"},
    ),
    **{
        alert: _says(code)
        for alert, code in (
            ("ConsumerHintsDenied", "hints_denied"),
            ("ConsumerUnprovedFills", "unproved_fills"),
            ("ConsumerRecordsRefused", "records_refused"),
            ("ConsumerHandlersGone", "handlers_gone"),
            ("ConsumerDecisionsLate", "decisions_late"),
            ("ConsumerRoleRestarts", "role_restarts"),
            ("ConsumerRoleSlow", "role_slow"),
            ("ConsumerUnaccounted", "unaccounted"),
            ("ConsumerWorkersDiffer", "workers_differ"),
            ("ConsumerVersionsDiffer", "versions_differ"),
            ("ConsumerPrefixesDiffer", "prefixes_differ"),
            ("ConsumerLogsDiffer", "logs_differ"),
            ("ConsumerPlanHalfApplied", "plan_half_applied"),
            ("ConsumerObjectsUnreadable", "objects_unreadable"),
            ("ConsumerPluginsBroken", "plugins_broken"),
            ("ConsumerTopicsMissing", "topics_missing"),
            ("ConsumerWebhooksMisaddressed", "webhooks_misaddressed"),
            ("ConsumerTopicMisconfigured", "topic_misconfigured"),
        )
    },
    # Left out by every worker; another that does its work makes it silent.
    "ConsumerBuiltInLeftOut": (
        "30m",
        {LEFT_OUT % ("access", "a"): "1x60", LEFT_OUT % ("access", "b"): "1x60"},
        {LEFT_OUT % ("access", "a"): "1x60", LEFT_OUT % ("access", "b"): "0x60"},
    ),
    "ConsumerHistoryLeftAlone": _above("consumer_sync_events_history", 0),
    "ConsumerUnknownWords": (
        "30m",
        {f'consumer_unknown_enums_total{{{SHOP},field="order.status"}}': "0x20 1x40"},
        {f'consumer_unknown_enums_total{{{SHOP},field="order.status"}}': "3x60"},
    ),
}


@pytest.mark.slow
def test_forged_webhooks_beside_good_ones_page_nobody(tmp_path: Path) -> None:
    asked = [
        _asked("ConsumerSignaturesRefused", "1m", "30m", {FORGED: "0+3x60", ACCEPTED: accepted}, fires)
        for accepted, fires in (("0+1x60", 0), ("7x60", 1))
    ]
    _test_rules(asked, "1m", tmp_path)


@pytest.mark.slow
def test_where_nobody_reads_a_list_a_shop_that_sells_little_is_told_too(tmp_path: Path) -> None:
    """A webhook an hour, each refused: the ten minutes of the others see one."""
    few, silent = "0x59 1x59 2x59 3x59 4x59 5x59", f"consumer_sync_webhooks_silent{{{SHOP}}}"
    asked = [
        _asked("ConsumerSignaturesRefused", "1m", "355m", series, fires)
        for series, fires in (
            ({FORGED: few, ACCEPTED: "7x360"}, 1),
            ({FORGED: few}, 1),
            ({FORGED: few, ACCEPTED: "0x200 1x160"}, 0),
            ({FORGED: few, ACCEPTED: "7x360", silent: "0x360"}, 0),
        )
    ]
    _test_rules(asked, "1m", tmp_path)


def test_every_alert_has_examples() -> None:
    assert set(EXAMPLES) == {rule["alert"] for rule in ALERTS}


def test_no_alert_is_told_apart_by_a_label_that_it_sets_itself() -> None:
    """Two rows that differ in nothing else end the rule with an error, and nothing fires."""
    for rule in ALERTS:
        if not rule["expr"].startswith("topk(1,"):
            kept = {one.strip() for labels in re.findall(r"by \(([^)]*)\)", rule["expr"]) for one in labels.split(",")}
            assert not kept & rule["labels"].keys(), rule["alert"]


def test_the_rules_are_valid() -> None:
    done = _promtool("check", "rules", str(RULES / "alerts.yml"), str(RULES / "recording.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_recorded_rule_is_used() -> None:
    used = {name for query in _queries() for name in re.findall(r"consumer:[a-z_:0-9]+", query)}
    assert {rule["record"] for rule in RECORDED} <= used


@pytest.mark.slow
def test_of_two_applications_the_one_that_nobody_walks_pages(tmp_path: Path) -> None:
    """Two `sync` processes know of both; the leader walks one of them."""
    series = {_without_credentials(shop, instance): "0x60" for shop in ("shop", "other") for instance in ("a", "b")}
    series['consumer_sync_bookmark_age_seconds{application="shop",instance="a"}'] = "5x60"
    asked = _asked("ConsumerNeverWalked", "1m", "30m", series, fires=1)
    exactly = {
        "expr": 'count by (application) (ALERTS{alertname="ConsumerNeverWalked",alertstate="firing"})',
        "eval_time": "30m",
        "exp_samples": [{"labels": '{application="other"}', "value": 1}],
    }
    asked["promql_expr_test"].append(exactly)
    _test_rules([asked], "1m", tmp_path)


@pytest.mark.slow
def test_what_was_never_compared_and_reads_that_come_late_are_told(tmp_path: Path) -> None:
    """The other halves of two alerts: what they are for is told by a second figure."""
    walked, reads = f"consumer_sync_bookmark_age_seconds{{{SHOP}}}", f"consumer_reads_oldest_due_seconds{{{SHOP}}}"
    tests = [
        _asked("ConsumerComparisonLate", "1m", "30m", {walked: "5x60"}, fires=1),
        _asked("ConsumerComparisonLate", "1m", "30m", {walked: "5x60", LOOKED % "event": "0+60x60"}, fires=0),
        _asked("ConsumerReadingHeldUp", "1m", "30m", {reads: "901x60"}, fires=1),
        _asked("ConsumerReadingHeldUp", "1m", "30m", {reads: "900x60"}, fires=0),
    ]
    _test_rules(tests, "1m", tmp_path)


# Windows of days, looked at every ten minutes; the others every minute.
DAYS = {"ConsumerReceiveEroding"}


@pytest.mark.slow
@pytest.mark.parametrize(("names", "step"), [(set(EXAMPLES) - DAYS, "1m"), (DAYS, "10m")], ids=["minutes", "days"])
def test_each_alert_fires_and_is_silent(names: set[str], step: str, tmp_path: Path) -> None:
    tests = [
        _asked(name, step, EXAMPLES[name][0], series, fires)
        for name in sorted(names)
        for series, fires in ((EXAMPLES[name][1], 1), (EXAMPLES[name][2], 0))
    ]
    _test_rules(tests, step, tmp_path)


def _test_rules(tests: list[dict[str, Any]], step: str, folder: Path) -> None:
    """A few at a time, and of the alerts only those that these ask for: Prometheus evaluates every rule it is given, at
    every step, and no alert looks at another."""
    for batch in [tests[first : first + 16] for first in range(0, len(tests), 16)]:
        asked = {name for one in batch for name in re.findall(r'alertname="(\w+)"', str(one["promql_expr_test"]))}
        rules = [alert for alert in ALERTS if alert["alert"] in asked]
        assert asked
        assert {alert["alert"] for alert in rules} == asked
        (folder / "alerts.yml").write_text(yaml.safe_dump({"groups": [{"name": "consumer", "rules": rules}]}))
        written = {
            "rule_files": [str(RULES / "recording.yml"), "alerts.yml"],
            "evaluation_interval": step,
            "group_eval_order": ["consumer-slo", "consumer"],  # else by chance: in steps of ten minutes, too old to see
            "tests": batch,
        }
        (folder / "tests.yml").write_text(yaml.safe_dump(written))
        done = _promtool("test", "rules", str(folder / "tests.yml"))
        assert done.returncode == 0, done.stdout + done.stderr


def _asked(name: str, step: str, at: str, series: Series, fires: int) -> dict[str, Any]:
    """How often the alert fires then, whatever its labels."""
    found = {"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)', "eval_time": at,
             "exp_samples": [{"labels": "{}", "value": fires}]}  # fmt: skip
    return {
        "name": f"{name} {'fires' if fires else 'is silent'}",
        "interval": step,
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [found],
    }


def _promtool(*words: str) -> subprocess.CompletedProcess[str]:
    promtool = need_program("promtool", "Debian's package prometheus")
    return subprocess.run([promtool, *words], capture_output=True, text=True, timeout=300)


def test_the_names_and_helps_of_all_metrics_are_as_prometheus_wants_them() -> None:
    promtool = need_program("promtool", "Debian's package prometheus")
    done = subprocess.run([promtool, "check", "metrics"], input=Metrics().render(), capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def _queries() -> list[str]:
    shown = [query for board in dashboards.DASHBOARDS for panel in board.panels for query, _ in panel.queries]
    return [*[rule["expr"] for rule in (*ALERTS, *RECORDED)], *shown]


def test_every_metric_of_a_rule_or_dashboard_exists_with_its_labels() -> None:
    known: dict[str, set[str]] = {}
    for name, kind, labels, _ in Metrics().listed():
        for suffix in ("_bucket", "_count", "_sum") if kind == "histogram" else ("",):
            known[name + suffix] = set(labels) | ({"le"} if suffix == "_bucket" else set())
    known["consumer_build_info"] |= {"role", "version"}
    recorded = {rule["record"] for rule in RECORDED}
    for query in _queries():
        named = set(re.findall(r"\bconsumer[a-z_:0-9]*", query))
        assert named
        assert named <= set(known) | recorded, query
        of_metrics = {"instance"}.union(*[known.get(name, {"application"}) for name in named])
        used = re.findall(r"by \(([^)]*)\)", query)
        matched = set(re.findall(r"[{,]\s*([a-z]+)\s*(?:=|!=|=~|!~)\"", query))
        assert {label.strip() for labels in used for label in labels.split(",")} | matched <= of_metrics, query


def test_what_counts_as_our_failure_is_every_5xx_answer() -> None:
    ours = {answer.outcome for answer in answers.ALL if answer.status >= 500}
    for query in _queries():
        for outcomes in re.findall(r'consumer_receive_requests_total\{outcome=~"([^"]+)"', query):
            assert set(outcomes.split("|")) == ours


def test_the_queries_of_the_dashboards_are_promql(tmp_path: Path) -> None:
    rules = [{"record": f"q:{number}", "expr": query} for number, query in enumerate(_queries())]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = _promtool("check", "rules", str(tmp_path / "queries.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_generated_is_up_to_date() -> None:
    assert operator.RESULT.read_text() == operator.prometheus_rule(), "run: python -m deploy.prometheus.operator"
    for board in dashboards.DASHBOARDS:
        written = (dashboards.HERE / f"{board.uid}.json").read_text()
        assert written == dashboards.as_json(board), "run: python -m deploy.grafana.dashboards"


def test_every_alert_has_a_summary_a_severity_and_a_runbook_that_tells_of_it() -> None:
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        text = (CHECKOUT / rule["annotations"]["runbook"]).read_text()
        assert f"`{rule['alert']}`" in text
    used = {rule["annotations"]["runbook"] for rule in ALERTS}
    assert {f"deploy/runbooks/{path.name}" for path in RUNBOOKS.glob("*.md")} == used


@pytest.mark.parametrize("alert", ["ConsumerDeadRuns", "ConsumerHandlerPaused", "ConsumerHandlerWaiting"])
def test_of_a_handler_that_fails_the_alert_leads_to_what_its_author_says(alert: str) -> None:
    """A label of it would be one more series a word; the command has it from the ledger."""
    [rule] = [one for one in ALERTS if one["alert"] == alert]
    told = rule["annotations"]["summary"]
    assert re.search(r"`consumer (dead|handlers) list` says .*the runbook of its author", told)


def test_every_code_of_status_has_an_alert_or_a_reason_why_not() -> None:
    table = (CHECKOUT / "deploy/findings.md").read_text().partition("\n\nStart with")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")][2:]
    told = {code: cell for cell in cells for code in re.findall(r"`([a-z_]+)`", cell.partition("(")[0])}
    assert len(told) > 30
    alerted = {rule["labels"].get("code") for rule in ALERTS}
    paged = {rule["labels"].get("code") for rule in ALERTS if rule["labels"]["severity"] == "page"}
    silent = {code for code in told if code not in alerted and "told by the alert" not in told[code]}
    assert {code for code in silent if "no alert of its own: " not in told[code]} == set(), "write an alert"
    assert silent == {"settings_invalid"}
    bold = {code for cell in cells for code in re.findall(r"\*\*`([a-z_]+)`\*\*", cell)}
    assert (bold & alerted) - paged == set(), "bold is a page"
