"""Parts: how settings become the values that several roles are built from. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from consumer.clock import Clock
from consumer.payments import (
    Attempt,
    Budget,
    BudgetStore,
    Credentials,
    Limit,
    OnEvidence,
    OnSession,
    PaymentsClient,
    Priority,
    Scope,
    StoredIdempotencyKeys,
)
from consumer.payments import Limits as BudgetLimits
from consumer.settings import ApplicationSettings, Settings
from consumer.telemetry.metrics import Metrics
from consumer.telemetry.traces import Tracing


def budget_limits(settings: Settings) -> BudgetLimits:
    """The service's limits, as documented unless the deployment was granted others."""
    return BudgetLimits(
        ip=Limit(requests=settings.api_requests_per_minute, window_s=60),
        application_reads=Limit(requests=settings.api_reads_per_minute, window_s=60),
    )


def _credentials(app_id: str, application: ApplicationSettings) -> Credentials:
    """From the file where there is one, so that a rolled secret is taken up while running (case S4)."""
    if application.secret_file is not None:
        return Credentials(app_id, secret_file=application.secret_file)
    return Credentials(app_id, [secret.get_secret_value() for secret in application.app_secrets])


def _address(base_url: str) -> str:
    """Host and port, however the address is written: applications at one service share its limit per IP (case C15)."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{(parts.hostname or '').lower()}:{port}"


def payments_client(
    application: ApplicationSettings,
    settings: Settings,
    *,
    store: BudgetStore,
    clock: Clock,
    metrics: Metrics,
    tracing: Tracing,
    on_session: OnSession,
    on_evidence: OnEvidence | None,
) -> PaymentsClient | None:
    """The API client of an application; None for one without credentials (authenticity `signature` needs none)."""
    if application.base_url is None or application.app_id is None:
        return None
    scope = Scope(ip=_address(application.base_url), application=application.app_id)

    def attempted(attempt: Attempt) -> None:
        code = attempt.code or str(attempt.status)
        metrics.api_calls.labels(attempt.application, attempt.route, code).inc()
        metrics.api_seconds.labels(attempt.route).observe(attempt.duration_s)
        if tracing.is_on:
            tracing.called(attempt.duration_s, _about(attempt), failed=attempt.code)

    def waited(priority: Priority, seconds: float) -> None:
        metrics.api_waits.labels(priority.name.lower()).observe(seconds)

    return PaymentsClient(
        application.base_url,
        _credentials(application.app_id, application),
        application=application.name,
        clock=clock,
        budget=Budget(store, scope, clock, budget_limits(settings), on_wait=waited),
        timeout_s=settings.api_timeout_s,
        key_store=StoredIdempotencyKeys(store),
        on_session=on_session,
        on_evidence=on_evidence,
        on_attempt=attempted,
        on_circuit=lambda state: metrics.circuit_open.labels(application.name).set(1 if state.is_open else 0),
    )


def _about(attempt: Attempt) -> dict[str, str]:
    """What a span says of a request: whose it was, for which stage, and what came; the id under which the service knows
    it. Pure."""
    found = {
        "application": attempt.application,
        "method": attempt.method,
        "route": attempt.route,
        "priority": attempt.priority.name.lower(),
        "attempt": str(attempt.number),
        "status": None if attempt.status is None else str(attempt.status),
        "request_id": attempt.request_id,
    }
    return {name: value for name, value in found.items() if value is not None}
