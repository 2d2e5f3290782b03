"""Parts: how settings become the values that stages are built from. Pure."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import urlsplit

from consumer.app.log_parts import groups as groups
from consumer.app.log_parts import kafka_security as kafka_security
from consumer.app.log_parts import topic as topic
from consumer.app.log_parts import topics as topics
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
from consumer.receive.authenticity import Authenticity, HmacLayout, Signature, StandardWebhooks
from consumer.receive.decide import Endpoint
from consumer.receive.web import Limits as ReceiveLimits
from consumer.settings import ApplicationSettings, Settings
from consumer.sync.backfill.policy import BackfillPolicy
from consumer.sync.confirm.stage import ConfirmPolicy
from consumer.sync.reconcile.policy import ReconcilePolicy
from consumer.sync.role import SyncPolicy
from consumer.telemetry.metrics import Metrics


def endpoint(application: ApplicationSettings, settings: Settings) -> Endpoint:
    """The webhook address of an application."""
    authenticity = Authenticity(application.authenticity.value)
    return Endpoint(
        application=application.name,
        authenticity=authenticity,
        locators=application.locators,
        signature=_signature(application, settings) if authenticity is Authenticity.SIGNATURE else None,
    )


def _signature(application: ApplicationSettings, settings: Settings) -> Signature:
    secrets = tuple(secret.get_secret_value() for secret in application.webhook_secrets)
    if settings.signature_scheme == "standard-webhooks":
        return StandardWebhooks(secrets, settings.signature_tolerance_s)
    return HmacLayout(
        secrets=secrets,
        header=settings.signature_header or "",
        prefix=settings.signature_prefix,
        algorithm=settings.signature_algorithm,
        encoding=settings.signature_encoding,
        timestamp=settings.signature_timestamp,
        content=settings.signature_content,
        tolerance_s=settings.signature_tolerance_s,
    )


def receive_limits(settings: Settings) -> ReceiveLimits:
    """The bounds of receiving."""
    return ReceiveLimits(
        max_body_bytes=settings.max_body_bytes,
        body_timeout_s=settings.body_timeout_s,
        publish_timeout_s=settings.publish_timeout_s,
        max_in_flight=settings.receive_max_in_flight,
        max_in_flight_bytes=settings.receive_max_in_flight_bytes,
        min_bytes_per_s=settings.body_min_bytes_per_s,
        unproved_bytes_per_minute=settings.unproved_bytes_per_minute,
    )


def sync_policy(settings: Settings) -> SyncPolicy:
    """How the stages that read the service behave."""
    return SyncPolicy(
        confirm=ConfirmPolicy(patience_s=settings.confirm_patience_s),
        backfill=BackfillPolicy(interval_s=settings.sync_interval_s),
        reconcile=ReconcilePolicy(every=timedelta(seconds=settings.reconcile_interval_s)),
        unproved_max_bytes=settings.unproved_max_bytes,
    )


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
