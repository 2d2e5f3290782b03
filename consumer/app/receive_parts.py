"""Receive parts: how settings become the values that the role `serve` is built from. Pure."""

from __future__ import annotations

from consumer.events import Authenticity
from consumer.receive.authenticity import HmacLayout, Signature, StandardWebhooks
from consumer.receive.decide import Endpoint
from consumer.receive.web import Limits as ReceiveLimits
from consumer.settings import ApplicationSettings, Settings


def endpoint(application: ApplicationSettings, settings: Settings) -> Endpoint:
    """The webhook address of an application."""
    is_signed = application.authenticity is Authenticity.SIGNATURE
    return Endpoint(
        application=application.name,
        authenticity=application.authenticity,
        locators=application.locators,
        signature=_signature(application, settings) if is_signed else None,
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
        keepalive_s=settings.keepalive_s,
        max_in_flight=settings.receive_max_in_flight,
        max_in_flight_bytes=settings.receive_max_in_flight_bytes,
        min_bytes_per_s=settings.body_min_bytes_per_s,
        unproved_bytes_per_minute=settings.unproved_bytes_per_minute,
    )
