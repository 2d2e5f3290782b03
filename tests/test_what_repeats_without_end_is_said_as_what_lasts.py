"""Every line of level warning or worse is a lasting condition, or an event whose number is bounded by what happens: a
new one that would be said for ever has to be told apart here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.test_names_of_log_events_are_stable_words import ROOT, logged, sources

LOUD = frozenset({"warning", "error", "exception", "critical"})
CONDITION, LASTING = "Condition", "Lasting"
OWN = {
    "stage_held_up", "stage_broke", "status_code_differs_from_status",
}  # fmt: skip
"""Said by what holds a `Lasting` itself, since their lines are made otherwise."""
LAST = {
    "archive_failed", "archive_not_looked_at", "batch_not_stored", "broker_not_ready", "claim_failed",
    "claims_not_renewed", "console_sign_in_refused", "console_users_broken", "CursorsRefused.code",
    "dead_letters_wait", "deaths_unknown",
    "file_descriptors_used_up", "group_not_followed", "handler_waits", "heartbeat_not_stored",
    "hints_flooded", "hints_not_settled_by_walking", "history_left_alone", "housekeeping_failed", "identity_not_read",
    "invariants_broken", "invariants_unknown", "lag_unknown", "lead_given_back",
    "leading_failed", "ledger_and_log_not_compared", "ledger_not_ready",
    "listed_events_not_understood", "log_not_looked_at", "log_not_watched", "member_not_heard",
    "member_not_started_again", "member_not_watched", "member_replaced", "missing_here", "offsets_not_committed",
    "old_records_not_deleted", "one_run_at_a_time", "poll_failed", "producer_not_started_again", "producer_replaced",
    "quarantine_pruned",
    "readiness_check_failed", "receive_failed", "reconcile_braked", "reconcile_found_unplaced", "record_not_kept",
    "records_not_kept", "relay_waits", "results_not_stored", "taken_unknown",
    "topic_settings_not_read", "topics_not_looked_at", "traces_not_sent", "trail_not_sealed", "unfulfilled_unknown",
    "webhook_refused", "webhooks_silent",
}  # fmt: skip
EVENTS = {
    "once for a process, at its start or its end": {
        "addresses_not_told", "another_upgrade_is_at_work", "application_without_credentials",
        "built_in_left_out", "claims_not_given_back",
        "handler_not_paused", "lease_not_released", "not_derived", "part_stopped_hard", "plugin_broken",
        "process_stopped_hard", "receive_stop_timeout", "role_died", "worker_gave_up", "worker_stopped_hard",
    },
    "once for an edit of a plugin under `dev`": {
        "plugin_problem", "plugin_warning", "plugins_not_reloaded", "worker_ended", "worker_failed",
    },
    "once for what is replaced, lost or found again, by then it is another": {
        "clock_differs", "clock_set_back", "clock_was_ahead", "handler_may_be_renamed",
        "kafka_client_abandoned", "kafka_client_stopped_badly",
        "ledger_files_moved", "ledger_restored", "log_read_again",
        "listener_cancelled", "listener_failed", "log_files_moved", "log_records_lost", "log_replaced",
        "loss_not_noted", "member_declared_dead",
        "no_longer_leads", "published_again", "topic_has_fewer_partitions",
    },
    "once for a record, which is kept, put aside or read no further": {
        "asked_again", "dead_letter_too_large", "deliveries_not_confirmed", "delivery_differs_from_record",
        "event_breaks_its_transaction", "event_cannot_be_stored", "event_taken_as_listed", "event_too_large",
        "late_event_brought",
        "listed_record_broke_its_reading", "missing_here_given_up", "object_unreadable", "order_without_merchants_id",
        "other_body_of_a_known_event",
        "paid_order_held", "paid_order_unidentified", "read_of_unknown_kind", "record_broke_its_reading",
        "requested_order_unreadable", "revocations_stopped", "subscription_unidentified", "subscription_unreadable",
        "unknown_enum",
        "unmapped_price", "unresolved_subscriber", "batch_taken_singly",
    },
    "once for a walk that found something, and moves on; its end is told by reconcile": {
        "reconcile_found_drift", "retention_gap", "seed_took_events_without_time",
    },
    "once for a request that somebody of the house made": {
        "checkout_not_registered", "finding_left_open", "internal_request_failed", "order_left_alone", "query_failed",
        "query_refused", "read_not_asked_for",
    },
    "once for an attempt, of which a run has few; `run_failed` also at most every ten seconds": {
        "attempt_broke", "run_dead", "run_failed", "run_not_stored", "timer_is_spent", "transaction_broke",
    },
    "once for a handler that did harm, which then pauses or moves": {
        "handler_blocks_its_loop", "handler_blocks_the_worker", "handler_cannot_be_cut_off", "handler_cut_off",
        "handler_holds_threads", "handler_ignores_cancellation", "handler_loop_disturbed", "handler_loop_left_behind",
        "handler_lost_its_loop",
        "handler_moved_to_its_own_loop", "handler_paused_itself", "loop_blocked", "network_in_transaction",
    },
}  # fmt: skip


def _name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def _word(node: ast.Call) -> str:
    return str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else ast.unparse(node.args[0])


def found() -> Iterator[tuple[str, bool]]:
    """(word, whether it is said by a Condition) of each line that is loud."""
    for path, node in logged():
        if path == ROOT / "consumer" / "telemetry" / "logs.py":
            continue  # the mechanism
        if _name(node) in LOUD or _name(node) == CONDITION:
            yield _word(node), _name(node) == CONDITION


# case: O1
def test_each_loud_line_lasts_or_is_an_event() -> None:
    events = {word for words in EVENTS.values() for word in words}
    told = {word for word, lasts in found() if not lasts}
    woven = {"broke"}  # `provenance.as_read`: by the word of who reads, `record_broke_its_reading` among them
    assert told - woven - OWN - events == set(), "use Condition, or say above why their number is bounded"
    assert events - told - {"record_broke_its_reading"} == set(), "nobody says these any more"


def test_each_condition_is_known() -> None:
    assert {word for word, lasts in found() if lasts} == LAST


def test_nothing_is_both() -> None:
    events = [word for words in EVENTS.values() for word in words]
    assert len(events) == len(set(events))
    assert not set(events) & (LAST | OWN)


def test_each_condition_has_an_end() -> None:
    """Who says that something lasts says also that it is over: by `over`, or by `lapse` after a quiet time."""
    a_command = ROOT / "consumer" / "checks" / "certificate.py"  # which ends before what it found
    without = []
    for path in sources():
        if path == a_command:
            continue
        if "lasts" not in (text := path.read_text()):
            continue
        names = {
            re.sub(r"^self\.", "", ast.unparse(call.func.value))
            for call in ast.walk(ast.parse(text))
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "lasts"
        }
        if names and not re.search(r"\.(over|lapse)\(", text):
            without.append((str(path.relative_to(ROOT)), sorted(names)))
    assert without == []


def test_who_holds_a_lasting_itself_is_known() -> None:
    """Its lines have a level or a trace that a Condition has not, or a web shop imports it."""
    holders = {
        str(path.relative_to(ROOT))
        for path in sources()
        if LASTING in (text := path.read_text())
        and any(isinstance(node, ast.Call) and _name(node) == LASTING for node in ast.walk(ast.parse(text)))
    }
    assert holders == {
        "consumer/payments/transport.py", "consumer/runtime/loop.py", "consumer/telemetry/logs.py",
    }  # fmt: skip
