"""Fields: every setting of the process with its default, its bounds and its one-line meaning."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from consumer.settings.application import ApplicationSettings
from consumer.settings.values import (
    BrokerUrl,
    DatabaseUrl,
    HandlerNames,
    HeaderName,
    Host,
    HttpUrl,
    PastDue,
    Renames,
    Retention,
    RoleNames,
    Tables,
    servers,
)

RECORD_OVERHEAD_BYTES = 64 * 1024
LogLevel = Literal["debug", "info", "warning", "error"]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
YEAR_S = 366 * 86400.0


class Role(StrEnum):
    """What a process does; `operate` is every command that reads or repairs the ledger and ends."""

    DEMO = "demo"
    DEV = "dev"
    SERVE = "serve"
    WORK = "work"
    SYNC = "sync"
    CONSOLE = "console"
    SANDBOX = "sandbox"
    OPERATE = "operate"


def _setting(name: str, default: Any, meaning: str, **bounds: Any) -> Any:
    return Field(default=default, alias=name, description=meaning, validate_default=False, **bounds)


class Settings(BaseModel):
    """The settings of one process: frozen, complete, checked. Secrets are `SecretStr`, never in `repr`.
    `load_settings` reads and merges what they come from."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_by_name=True, validate_by_alias=True
    )

    role: Role = Role.OPERATE
    applications: tuple[ApplicationSettings, ...] = ()

    # --- storage
    database_url: DatabaseUrl = _setting(
        "CONSUMER_DATABASE_URL",
        SecretStr("sqlite+aiosqlite:///data/consumer.db"),
        "the ledger; or `postgresql+asyncpg://…`",
    )
    broker_url: BrokerUrl = _setting(
        "CONSUMER_BROKER_URL", "embedded:data/log.db", "the log; or `kafka://host:9092,host:9092`"
    )
    topic_prefix: str = _setting(
        "CONSUMER_TOPIC_PREFIX",
        "payments",
        "topics `payments.deliveries`, `payments.events`, `payments.events.dead`",
        pattern=r"^[a-zA-Z0-9._-]{1,200}$",
    )
    topic_partitions: int = _setting(
        "CONSUMER_TOPIC_PARTITIONS", 6, "partitions of a topic that has to be created", ge=1, le=1000
    )
    topic_replication: int = _setting(
        "CONSUMER_TOPIC_REPLICATION",
        0,
        "copies of each partition of a topic made in Kafka; never fewer than 3, or than there are brokers",
        ge=0,
        le=10,
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = _setting(
        "CONSUMER_KAFKA_SECURITY_PROTOCOL", "PLAINTEXT", "`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`"
    )
    kafka_ca_file: Path | None = _setting(
        "CONSUMER_KAFKA_CA_FILE", None, "certificates that sign the brokers' (PEM); the system's when left out"
    )
    kafka_cert_file: Path | None = _setting("CONSUMER_KAFKA_CERT_FILE", None, "our client certificate (PEM)")
    kafka_key_file: Path | None = _setting("CONSUMER_KAFKA_KEY_FILE", None, "the key of our client certificate (PEM)")
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = _setting(
        "CONSUMER_KAFKA_SASL_MECHANISM", "SCRAM-SHA-512", "`PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`"
    )
    kafka_sasl_username: str | None = _setting("CONSUMER_KAFKA_SASL_USERNAME", None, "user name for SASL")
    kafka_sasl_password: SecretStr | None = _setting(
        "CONSUMER_KAFKA_SASL_PASSWORD", None, "password for SASL; or `CONSUMER_KAFKA_SASL_PASSWORD_FILE`"
    )

    # --- receive
    host: Host = _setting(
        "CONSUMER_HOST",
        "127.0.0.1",
        "address of the public webhook port; `::` is every one, of IPv4, too",
        min_length=1,
    )
    port: Port = _setting("CONSUMER_PORT", 8080, "the public webhook port")
    max_body_bytes: int = _setting(
        "CONSUMER_MAX_BODY_BYTES",
        1024 * 1024,
        "largest webhook body, also after decompression; more is answered 413",
        ge=1024,
        le=16 * 1024 * 1024,
    )
    publish_timeout_s: Seconds = _setting(
        "CONSUMER_PUBLISH_TIMEOUT_S", 5.0, "longest wait for the broker's acknowledgement before 503", le=60
    )
    body_timeout_s: Seconds = _setting(
        "CONSUMER_BODY_TIMEOUT_S",
        10.0,
        "longest wait for the rest of a webhook body, and for the first head of a connection",
        le=300,
    )
    keepalive_s: Seconds = _setting(
        "CONSUMER_KEEPALIVE_S",
        130.0,
        "how long an idle connection of the webhook port stays open; longer than the proxy before it keeps one",
        le=86400,
    )
    receive_max_in_flight: int = _setting(
        "CONSUMER_RECEIVE_MAX_IN_FLIGHT", 1000, "webhook requests held at once; more is answered 503", ge=1, le=100_000
    )
    body_min_bytes_per_s: int = _setting(
        "CONSUMER_BODY_MIN_BYTES_PER_S",
        1024,
        "slowest a webhook body may arrive after 2 seconds; 0 means as slowly as CONSUMER_BODY_TIMEOUT_S lets it",
        ge=0,
        le=1024 * 1024,
    )
    unproved_bytes_per_minute: int = _setting(
        "CONSUMER_UNPROVED_BYTES_PER_MINUTE",
        8 * 1024 * 1024,
        "bytes of unproved webhooks stored per application and minute, eight times as many at once; more is 503",
        ge=64 * 1024,
        le=64 * 1024**3,
    )
    unproved_max_bytes: int = _setting(
        "CONSUMER_UNPROVED_MAX_BYTES",
        256 * 1024 * 1024,
        "bytes of one application's waiting hints, and of its unproved quarantine, kept in the database",
        ge=1024 * 1024,
        le=1024**4,
    )
    receive_max_in_flight_bytes: int = _setting(
        "CONSUMER_RECEIVE_MAX_IN_FLIGHT_BYTES",
        64 * 1024 * 1024,
        "webhook bodies held at once, in bytes; more is answered 503",
        ge=1024 * 1024,
        le=16 * 1024**3,
    )
    linger_s: float = _setting(
        "CONSUMER_LINGER_S",
        3.0,
        "how long a stopping `serve` still answers after it turned unready, for the load balancer to notice",
        ge=0,
        le=120,
    )
    signature_tolerance_s: Seconds = _setting(
        "CONSUMER_SIGNATURE_TOLERANCE_S", 300.0, "how far a signed timestamp may be from now, both ways", le=86400
    )
    signature_scheme: Literal["standard-webhooks", "hmac"] = _setting(
        "CONSUMER_SIGNATURE_SCHEME", "standard-webhooks", "`standard-webhooks`, or `hmac` with the layout below"
    )
    signature_header: HeaderName = _setting(
        "CONSUMER_SIGNATURE_HEADER", None, "`hmac`: header that carries the signature (several, comma-separated)"
    )
    signature_prefix: str = _setting(
        "CONSUMER_SIGNATURE_PREFIX", "", "`hmac`: what stands before each signature, like `sha256=` or `v1=`"
    )
    signature_algorithm: Literal["sha256", "sha512"] = _setting(
        "CONSUMER_SIGNATURE_ALGORITHM", "sha256", "`hmac`: `sha256` or `sha512`"
    )
    signature_encoding: Literal["hex", "base64"] = _setting(
        "CONSUMER_SIGNATURE_ENCODING", "hex", "`hmac`: `hex` or `base64`"
    )
    signature_timestamp: str | None = _setting(
        "CONSUMER_SIGNATURE_TIMESTAMP",
        None,
        "`hmac`: header with the signed timestamp in epoch seconds, or `param:t` for a `t=` beside the signature",
        pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$|^param:[A-Za-z0-9_-]+$",
    )
    signature_content: str = _setting(
        "CONSUMER_SIGNATURE_CONTENT",
        "{timestamp}.{body}",
        "`hmac`: what is signed; `{body}` once, `{timestamp}` and `{header:NAME}` as needed",
    )

    # --- the internal port
    internal_host: Host = _setting(
        "CONSUMER_INTERNAL_HOST",
        "127.0.0.1",
        "address of the internal port; beyond loopback, console and query API need authentication",
        min_length=1,
    )
    internal_port: Port = _setting("CONSUMER_INTERNAL_PORT", 9090, "health, metrics, console, query API")
    api_token: SecretStr | None = _setting(
        "CONSUMER_API_TOKEN", None, "bearer token of the query API, needed when set; or `CONSUMER_API_TOKEN_FILE`"
    )
    console_users: Path | None = _setting(
        "CONSUMER_CONSOLE_USERS",
        None,
        "file of `name role argon2-hash` lines; without it the console is loopback-only, everyone there is operator",
    )

    # --- work
    work_batch: int = _setting(
        "CONSUMER_WORK_BATCH", 200, "records taken at once, and the most that share a transaction", ge=1, le=5000
    )
    work_concurrency: int = _setting(
        "CONSUMER_WORK_CONCURRENCY", 64, "effect handlers that run at once in one process", ge=1, le=5000
    )
    work_cutoff_s: float = _setting(
        "CONSUMER_WORK_CUTOFF_S",
        5.0,
        "how long a transactional handler may block the worker's event loop before it is cut off; 0 means for ever",
        ge=0,
        le=10,
    )
    drain_s: Seconds = _setting("CONSUMER_DRAIN_S", 20.0, "longest time a stop or a rebalance waits for work", le=600)
    handlers: HandlerNames = _setting("CONSUMER_HANDLERS", None, "allow-list of handlers; all found when left out")
    renamed_handlers: Renames = _setting(
        "CONSUMER_RENAMED_HANDLERS", {}, "`old=new` names, so that a renamed handler keeps its runs (or a TOML table)"
    )
    handler_options: Tables = _setting(
        "CONSUMER_HANDLER_OPTIONS", {}, "options of each plugin: a TOML table per plugin, or JSON"
    )
    past_due: PastDue = _setting(
        "CONSUMER_PAST_DUE", "grace:14d", "access while a subscription is `PAST_DUE`: `keep`, `grace:14d`, `revoke`"
    )

    # --- sync
    sync_interval_s: Seconds = _setting("CONSUMER_SYNC_INTERVAL_S", 60.0, "time between two backfills", ge=1, le=YEAR_S)
    reconcile_interval_s: Seconds = _setting(
        "CONSUMER_RECONCILE_INTERVAL_S", 86400.0, "time between two reconcile walks", ge=60, le=YEAR_S
    )
    confirm_patience_s: Seconds = _setting(
        "CONSUMER_CONFIRM_PATIENCE_S",
        900.0,
        "how long an unconfirmed delivery is asked for before quarantine",
        le=YEAR_S,
    )
    api_timeout_s: Seconds = _setting("CONSUMER_API_TIMEOUT_S", 10.0, "longest wait for one answer of the API", le=120)
    api_requests_per_minute: int = _setting(
        "CONSUMER_API_REQUESTS_PER_MINUTE", 300, "requests one egress address may send", ge=1, le=100_000
    )
    api_reads_per_minute: int = _setting(
        "CONSUMER_API_READS_PER_MINUTE", 600, "reads one application may send", ge=1, le=100_000
    )

    # --- operations
    expect: RoleNames = _setting(
        "CONSUMER_EXPECT",
        None,
        "roles that must be alive, comma-separated; `status` names one that is not. Left out: `work`, and who was seen",
    )
    expect_days: float = _setting(
        "CONSUMER_EXPECT_DAYS",
        7.0,
        "days for which a role that was seen is missed, without `CONSUMER_EXPECT`; one that was stopped: one at most",
        gt=0,
        le=7,
    )

    retention: Retention = _setting(
        "CONSUMER_RETENTION",
        None,
        "age from which `sync` archives the bodies of settled events once a day, like `90d`; never when left out",
    )
    archive_dir: Path | None = _setting(
        "CONSUMER_ARCHIVE_DIR", None, "folder of the archives; `sync` needs it with `CONSUMER_RETENTION`"
    )

    # --- telemetry
    log_level: LogLevel = _setting("CONSUMER_LOG_LEVEL", "info", "`debug`, `info`, `warning` or `error`")
    log_format: Literal["json", "console", "auto"] = _setting(
        "CONSUMER_LOG_FORMAT", "auto", "`json`, `console`, or `auto`: console on a terminal"
    )
    traces_endpoint: HttpUrl | None = _setting(
        "CONSUMER_TRACES_ENDPOINT", None, "OTLP/HTTP address for traces; none are sent when left out"
    )
    traces_ratio: float = _setting("CONSUMER_TRACES_RATIO", 1.0, "share of traces that is kept", ge=0, le=1)

    @property
    def kafka_servers(self) -> tuple[str, ...]:
        """`host:port` of each Kafka server; empty for the embedded log."""
        return servers(self.broker_url) if self.broker_url.startswith("kafka://") else ()

    @property
    def log_file(self) -> Path | None:
        """The embedded log's; None on Kafka."""
        kind, _, path = self.broker_url.partition(":")
        return Path(path) if kind == "embedded" else None

    @property
    def max_record_bytes(self) -> int:
        """What a topic must take so that every accepted body fits (case I30)."""
        return self.max_body_bytes + RECORD_OVERHEAD_BYTES

    def application(self, name: str) -> ApplicationSettings | None:
        """The application of this name, or None."""
        return next((found for found in self.applications if found.name == name), None)
