"""Checks: what single values cannot show, because it lies between two of them or depends on the role. Pure, but for
looking whether named files can be read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from consumer.events import Authenticity
from consumer.settings.application import (
    DEFAULT,
    SANDBOX_WEBHOOK_SECRET,
    ApplicationSettings,
    is_of_loopback,
    proof_problem,
)
from consumer.settings.fields import Role, Settings
from consumer.settings.values import (
    CERTIFICATES_MAX_BYTES,
    SECRET_FILE_MAX_BYTES,
    is_loopback,
    read_secret_text,
    signing_key,
)

FACES = frozenset({Role.CONSOLE, Role.DEV, Role.DEMO})
SECRET_MIN_BYTES = 16
RECEIVERS = frozenset({Role.SERVE, Role.DEV, Role.DEMO})
ARCHIVERS = frozenset({Role.SYNC, Role.DEV, Role.DEMO})

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_HEADER_PLACEHOLDER = re.compile(r"header:[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_HMAC_ONLY = ("header", "prefix", "algorithm", "encoding", "timestamp", "content")


def cross_problems(settings: Settings) -> list[str]:
    """Every problem that lies between settings."""
    return [
        *_credential_problems(settings),
        *_proof_problems(settings),
        *_weak_secret_problems(settings),
        *_double_problems(settings),
        *_signature_problems(settings),
        *_internal_problems(settings),
        *_kafka_problems(settings),
        *_retention_problems(settings),
    ]


def _retention_problems(settings: Settings) -> Iterator[str]:
    """Roles share their settings, and only who archives has the folder."""
    if settings.role in ARCHIVERS and settings.retention is not None and settings.archive_dir is None:
        yield "CONSUMER_ARCHIVE_DIR: missing; CONSUMER_RETENTION says that bodies are archived, and not where"


def _credential_problems(settings: Settings) -> Iterator[str]:
    # Where others can be read, one without any credentials does not keep them from it: `status` shows it degraded.
    others = any(application.has_credentials for application in settings.applications)
    for application in settings.applications:
        given = {
            _called(application, "base_url", "SVC_BASE_URL"): application.base_url,
            _called(application, "app_id", "SVC_APP_ID"): application.app_id,
            _called(application, "app_secret", "SVC_APP_SECRET"): application.app_secrets,
        }
        missing = [name for name, value in given.items() if not value]
        if not missing or (others and len(missing) == len(given)):
            continue
        if _needs_credentials(settings.role, application) or _half_given(settings.role, given):
            yield from (f"{name}: missing; role '{settings.role}' needs it" for name in missing)


def _called(application: ApplicationSettings, item: str, name: str) -> str:
    return name if application.name == DEFAULT else f"CONSUMER_APPLICATIONS.{application.name}.{item}"


def _needs_credentials(role: Role, application: ApplicationSettings) -> bool:
    """Who reads the service needs credentials; who does everything, for `api`, where a read is the proof. `serve` reads
    nothing: strangers reach it, so the API's key is better not there."""
    if role is Role.SYNC:
        return True
    return role in (Role.DEV, Role.DEMO) and application.authenticity is Authenticity.API


def _half_given(role: Role, given: Mapping[str, object]) -> bool:
    """Some, but not all: a slip, wherever the role could use them."""
    return role in (Role.WORK, Role.DEV) and any(given.values())


def _proof_problems(settings: Settings) -> Iterator[str]:
    for application in settings.applications:
        if settings.role in RECEIVERS or application.authenticity is Authenticity.NONE:
            problem = proof_problem(application, settings.host)
            if problem:
                yield problem


def _weak_secret_problems(settings: Settings) -> Iterator[str]:
    """Anybody may guess: what is short, published, or known to another application's owner proves nothing. Only of a
    simulator does it not matter, on this machine: before a loopback there may be a proxy."""
    if settings.role not in RECEIVERS:
        return
    at_home = is_loopback(settings.host)
    signing = [
        one
        for one in settings.applications
        if one.authenticity is Authenticity.SIGNATURE and not (at_home and is_of_loopback(one.base_url or ""))
    ]
    scheme = settings.signature_scheme
    published = {signing_key(SANDBOX_WEBHOOK_SECRET, one) for one in (scheme, "standard-webhooks")}
    owners: dict[bytes, set[str]] = {}
    for application in signing:
        label = "" if application.name == DEFAULT else f" (application {application.name})"
        for secret in application.webhook_secrets:
            key = signing_key(secret.get_secret_value(), scheme)
            owners.setdefault(key, set()).add(application.name)
            if key in published:
                yield f"CONSUMER_WEBHOOK_SECRETS: holds the sandbox's own secret, which everybody knows{label}"
            elif (size := len(key)) < SECRET_MIN_BYTES:
                needed = f"{SECRET_MIN_BYTES} are needed but for a simulator on this machine"
                yield f"CONSUMER_WEBHOOK_SECRETS: a secret has {size} byte(s); at least {needed}{label}"
    for names in owners.values():
        if len(names) > 1:
            who = " and ".join(sorted(names))
            yield f"CONSUMER_WEBHOOK_SECRETS: {who} have the same secret: each could sign for the other"


def _double_problems(settings: Settings) -> Iterator[str]:
    counted = Counter(application.app_id for application in settings.applications if application.app_id)
    if any(count > 1 for count in counted.values()):
        yield "CONSUMER_APPLICATIONS: two applications have the same app_id"
    if settings.port and settings.port == settings.internal_port and settings.role in RECEIVERS:
        yield "CONSUMER_INTERNAL_PORT: must differ from CONSUMER_PORT"


def _signature_problems(settings: Settings) -> Iterator[str]:
    if settings.signature_scheme != "hmac":
        for item in _HMAC_ONLY:
            if f"signature_{item}" in settings.model_fields_set:
                yield f"CONSUMER_SIGNATURE_{item.upper()}: has no effect unless CONSUMER_SIGNATURE_SCHEME=hmac"
        return
    if settings.signature_header is None:
        yield "CONSUMER_SIGNATURE_HEADER: missing; CONSUMER_SIGNATURE_SCHEME=hmac needs it"
    names = _PLACEHOLDER.findall(settings.signature_content)
    odd = [name for name in names if name not in ("body", "timestamp") and not _HEADER_PLACEHOLDER.match(name)]
    if odd or names.count("body") != 1:
        yield "CONSUMER_SIGNATURE_CONTENT: must hold {body} once, and may hold {timestamp} and {header:NAME}"
    if "timestamp" in names and settings.signature_timestamp is None:
        yield "CONSUMER_SIGNATURE_TIMESTAMP: missing; CONSUMER_SIGNATURE_CONTENT holds {timestamp}"
    if settings.signature_timestamp is not None and not {
        "timestamp",
        f"header:{settings.signature_timestamp.lower()}",
    } & {name.lower() for name in names}:
        yield (
            "CONSUMER_SIGNATURE_TIMESTAMP: is not signed, and proves nothing; "
            "CONSUMER_SIGNATURE_CONTENT must hold {timestamp}"
        )


def _internal_problems(settings: Settings) -> Iterator[str]:
    if settings.role not in FACES:
        return
    if settings.console_users is not None:
        yield from _unreadable("CONSUMER_CONSOLE_USERS", settings.console_users)
    if settings.api_token is not None and not settings.api_token.get_secret_value().strip():
        yield "CONSUMER_API_TOKEN: is empty: anyone could use it"
    if is_loopback(settings.internal_host):
        return
    beyond = "missing; CONSUMER_INTERNAL_HOST is beyond loopback, so console and query API need authentication"
    if settings.console_users is None:
        yield f"CONSUMER_CONSOLE_USERS: {beyond}"
    if settings.api_token is None:
        yield f"CONSUMER_API_TOKEN: {beyond}"
    elif 0 < (size := len(settings.api_token.get_secret_value().strip())) < SECRET_MIN_BYTES:
        needed = f"{SECRET_MIN_BYTES} are needed where others can reach CONSUMER_INTERNAL_HOST"
        yield f"CONSUMER_API_TOKEN: has {size} character(s); at least {needed}: `openssl rand -hex 32` makes one"


def _kafka_problems(settings: Settings) -> Iterator[str]:
    if not settings.kafka_servers:
        return
    protocol = settings.kafka_security_protocol
    files = {
        "CONSUMER_KAFKA_CA_FILE": settings.kafka_ca_file,
        "CONSUMER_KAFKA_CERT_FILE": settings.kafka_cert_file,
        "CONSUMER_KAFKA_KEY_FILE": settings.kafka_key_file,
    }
    for name, path in files.items():
        if path is not None and "SSL" not in protocol:
            yield f"{name}: has no effect unless CONSUMER_KAFKA_SECURITY_PROTOCOL is SSL or SASL_SSL"
        elif path is not None:
            yield from _unreadable(
                name, path, CERTIFICATES_MAX_BYTES
            )  # a bundle of authorities is larger than a secret
    if (settings.kafka_cert_file is None) is not (settings.kafka_key_file is None):
        yield "CONSUMER_KAFKA_KEY_FILE: a client certificate and its key go together"
    password = settings.kafka_sasl_password
    given = {
        "CONSUMER_KAFKA_SASL_USERNAME": settings.kafka_sasl_username,
        "CONSUMER_KAFKA_SASL_PASSWORD": password.get_secret_value() if password is not None else None,
    }
    for name, value in given.items():
        if protocol.startswith("SASL") and not value:
            yield f"{name}: missing; CONSUMER_KAFKA_SECURITY_PROTOCOL={protocol} needs it"
        elif value and not protocol.startswith("SASL"):
            yield f"{name}: has no effect unless CONSUMER_KAFKA_SECURITY_PROTOCOL begins with SASL"


def _unreadable(name: str, path: Path, max_bytes: int = SECRET_FILE_MAX_BYTES) -> Iterator[str]:
    try:
        read_secret_text(path, max_bytes)
    except ValueError as error:
        yield f"{name}: {error}"
