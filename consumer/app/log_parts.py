"""Log parts: topics, groups and the way to the broker, from settings."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from consumer.broker import Broker, KafkaSecurity, TopicConfig, open_broker
from consumer.clock import Clock
from consumer.events import Authenticity
from consumer.settings import Role, Settings

LOG_RETENTION_S = 7 * 86400.0
DELIVERIES_RETENTION_S = 86400.0  # anybody may fill it, and what waits to be confirmed is in the ledger
DEAD_RETENTION_S = 30 * 86400.0


def open_log(settings: Settings, *, clock: Clock | None = None, client_id: str = "consumer") -> Broker:
    """The log of these settings, not started."""
    return open_broker(settings.broker_url, security=kafka_security(settings), clock=clock, client_id=client_id)


def topic(settings: Settings, name: str) -> str:
    """A topic (`deliveries`, `events`, `events.dead`) or a group (`work`, `confirm`), with the deployment's prefix."""
    return f"{settings.topic_prefix}.{name}"


def topics(settings: Settings) -> list[TopicConfig]:
    """The topics a deployment needs."""
    events = TopicConfig(
        name=topic(settings, "events"),
        partitions=settings.topic_partitions,
        retention_s=LOG_RETENTION_S,
        max_record_bytes=settings.max_record_bytes,
        copies=settings.topic_replication,
    )
    deliveries = replace(events, name=topic(settings, "deliveries"), retention_s=DELIVERIES_RETENTION_S)
    return [events, deliveries, replace(events, name=topic(settings, "events.dead"), retention_s=DEAD_RETENTION_S)]


def written(settings: Settings, role: Role) -> set[str]:
    """The topics that a role publishes to."""
    if role is Role.SERVE:
        proves = any(one.authenticity is not Authenticity.API for one in settings.applications)
        names = ["deliveries", "events"] if proves else ["deliveries"]
    else:
        names = ["events", "events.dead"] if role is Role.WORK else ["events"]
    return {topic(settings, name) for name in names}


def log_bytes(settings: Settings) -> int | None:
    """What the embedded log's files take now; None where the log is not ours to measure."""
    if (file := settings.log_file) is None:
        return None
    total = 0
    for part in (file, file.with_name(f"{file.name}-wal")):
        with suppress(OSError):  # removed, or not there yet
            total += part.stat().st_size
    return total


def groups(settings: Settings) -> dict[str, str]:
    """The groups that read, and the topic of each: what lies there unread is money that waits."""
    return {
        topic(settings, "work"): topic(settings, "events"),
        topic(settings, "confirm"): topic(settings, "deliveries"),
    }


def kafka_security(settings: Settings) -> KafkaSecurity:
    """TLS and SASL of the broker."""
    password = settings.kafka_sasl_password
    return KafkaSecurity(
        security_protocol=settings.kafka_security_protocol,
        ca_file=settings.kafka_ca_file,
        cert_file=settings.kafka_cert_file,
        key_file=settings.kafka_key_file,
        sasl_mechanism=settings.kafka_sasl_mechanism,
        username=settings.kafka_sasl_username,
        password=password.get_secret_value() if password else None,
    )
