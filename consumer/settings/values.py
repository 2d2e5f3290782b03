"""Values: how single settings are read and judged. No message repeats a value."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import orjson
from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic_core import to_json

SECRET_FILE_MAX_BYTES = 64 * 1024
CERTIFICATES_MAX_BYTES = 4 * 1024 * 1024
EXPECTABLE = ("serve", "work", "sync", "console")
DATABASE_SCHEMES = ("sqlite+aiosqlite", "postgresql+asyncpg")
DATABASE_WORDS = frozenset(
    {"ssl", "host", "port", "user", "password", "target_session_attrs", "direct_tls", "krbsrvname", "gsslib",
     "passfile", "service", "servicefile", "prepared_statement_cache_size"}
)  # fmt: skip
"""What may stand behind the '?' of a PostgreSQL's URL: what asyncpg and SQLAlchemy know there."""
TAKES_WRITES = frozenset({"any", "primary", "read-write"})

_AGE = re.compile(r"([0-9]{1,5})([hdw])\Z")
_PAST_DUE = re.compile(r"(keep|revoke|grace:[1-9][0-9]{0,3}d)\Z")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}\Z")
_HANDLER_NAME = re.compile(r"[\x21-\x2b\x2d-\x3c\x3e-\x7e]+\Z")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?\Z")


def split(value: Any) -> Any:
    """Comma-separated text as a list without empty parts; anything else unchanged."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def split_secrets(value: Any) -> Any:
    """Comma-separated secrets; an empty one is refused, because anyone could sign with it."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if isinstance(parts, list | tuple) and any(isinstance(part, str) and not part.strip() for part in parts):
        raise ValueError("holds an empty secret: anyone could use it")
    return parts


def decode_json(value: Any) -> Any:
    """JSON text (as the environment gives it) as a value; anything else (as TOML gives it) unchanged."""
    if isinstance(value, str):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValueError("must be JSON when it comes from the environment") from error
    return value


def checked_tables(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tables that can be written down again. Raises ValueError."""
    try:
        to_json(tables)
    except ValueError as error:
        raise ValueError("is nested too deep") from error
    return tables


def split_pairs(value: Any) -> Any:
    """`old=new,old2=new2` as a mapping; a TOML table unchanged."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in split(value)]
    if any(not sign or not old.strip() or not new.strip() for old, sign, new in pairs):
        raise ValueError("must be pairs 'old=new', comma-separated")
    return {old.strip(): new.strip() for old, _, new in pairs}


def checked_handler_names(names: Any) -> Any:
    """Handler names, of printable characters without ',' and '='."""
    for name in names or ():
        if not _HANDLER_NAME.match(name):
            raise ValueError("a handler's name is printable text without spaces, ',' and '='")
    return names


def checked_roles(names: Any) -> Any:
    """Roles that processes play. Raises ValueError for any other word."""
    wrong = sorted(set(names or ()) - set(EXPECTABLE))
    if wrong:
        raise ValueError(f"knows the roles {', '.join(EXPECTABLE)}")
    return names


def age(text: str) -> timedelta:
    """`90d`, `12w`, `36h`: how old something is. Raises ValueError."""
    found = _AGE.match(text)
    if not found:
        raise ValueError("must be an age like 90d, 12w or 36h")
    return timedelta(hours=int(found.group(1)) * {"h": 1, "d": 24, "w": 168}[found.group(2)])


def checked_retention(value: object) -> object:
    """An age of a day at least."""
    if not isinstance(value, str):
        return value
    found = age(value)
    if found < timedelta(days=1):
        raise ValueError("must be a day (1d) at least")
    return found


def checked_past_due(value: str) -> str:
    """`keep`, `grace:Nd` (N from 1 to 9999 days) or `revoke`."""
    if not _PAST_DUE.match(value):
        raise ValueError("must be 'keep', 'revoke' or 'grace:' with a number of days, like 'grace:14d'")
    return value


def checked_database_url(value: SecretStr) -> SecretStr:
    """A database URL of one of the two drivers; its text may hold a password and is never repeated."""
    scheme, colon, rest = value.get_secret_value().partition("://")
    if scheme not in DATABASE_SCHEMES or not colon:
        raise ValueError(f"must begin with '{DATABASE_SCHEMES[0]}:///' or '{DATABASE_SCHEMES[1]}://'{_hint(scheme)}")
    if scheme == "sqlite+aiosqlite" and (not rest.startswith("/") or rest in ("/", "/:memory:")):
        raise ValueError("a SQLite database needs a file: 'sqlite+aiosqlite:///data/consumer.db'")
    if scheme == "postgresql+asyncpg":
        try:
            parts = urlsplit("//" + rest)
            named = bool(parts.hostname or "host=" in parts.query) and parts.port != 0
        except ValueError:
            named = False
        if not named:
            raise ValueError(
                "a PostgreSQL database needs a host: 'postgresql+asyncpg://user@host:5432/name'"
                "; in a password '/' is %2F, '?' %3F, '#' %23"
            )
        if "@" in parts.netloc.rpartition("@")[0].partition(":")[2]:  # the rest would be read, and told, as a host
            raise ValueError("a '@' in the password is written %40")
        _check_words(parse_qs(parts.query, keep_blank_values=True))
    return value


def _check_words(given: Mapping[str, Sequence[str]]) -> None:
    """Providers write there what libpq knows."""
    if "sslmode" in given:
        raise ValueError("behind the '?' write 'ssl=require' (or 'ssl=verify-full'), not 'sslmode=…'")
    if not DATABASE_WORDS.issuperset(given):
        raise ValueError("behind the '?' stands what is not known there (ssl, host, port, target_session_attrs, … are)")
    hosts = given.get("host", ())
    listed = len(hosts) == 1 and "," in hosts[0]
    ports = ",".join(given.get("port", ())).split(",")
    if (listed and len(ports) != len(hosts[0].split(","))) or (len(hosts) > 1 and not all(":" in one for one in hosts)):
        raise ValueError("several hosts have a port each: '?host=db-1:5432&host=db-2:5432'")
    wanted = given.get("target_session_attrs", ["any"])
    if not TAKES_WRITES.issuperset(wanted) or (wanted == ["any"] and (listed or len(hosts) > 1)):
        raise ValueError("the ledger wants the host that takes writes: 'target_session_attrs=read-write'")


def _hint(scheme: str) -> str:
    if scheme.startswith("postgres"):
        return "; did you mean 'postgresql+asyncpg://'?"
    if scheme.startswith("sqlite"):
        return "; did you mean 'sqlite+aiosqlite:///'?"
    return ""


def checked_broker_url(value: str) -> str:
    """`embedded:PATH` or `kafka://host:port,...` without credentials, with the port of each server."""
    if value.startswith("embedded:"):
        if not value.removeprefix("embedded:").strip("/"):
            raise ValueError("the embedded log needs a file: 'embedded:data/log.db'")
        return value
    if not value.startswith("kafka://"):
        raise ValueError("must be 'embedded:PATH' or 'kafka://host:9092,host:9092'")
    if "@" in value:
        raise ValueError("must not hold credentials: use CONSUMER_KAFKA_SASL_USERNAME and _PASSWORD")
    listed = servers(value)
    if not listed or not all(_SERVER.match(one) and 0 < int(one.rpartition(":")[2]) < 65_536 for one in listed):
        raise ValueError("must name its servers: 'kafka://host:9092,host:9092'")
    return f"kafka://{','.join(listed)}"


def servers(broker_url: str) -> tuple[str, ...]:
    """The `host:port` of each Kafka server in a broker URL; 9092 where the port is left out."""
    listed = split(broker_url.removeprefix("kafka://").rstrip("/"))
    return tuple(server if re.search(r":[0-9]+\Z", server) else f"{server}:9092" for server in listed)


def checked_http_url(value: str) -> str:
    """An absolute http(s) address without credentials, query and fragment; no slash at its end."""
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 - raises ValueError for a port that is none
    except ValueError as error:
        raise ValueError("must be an address like 'https://api.example.com'") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an address like 'https://api.example.com'")
    if parts.username or parts.password or "?" in value or "#" in value:  # a path put behind these would be no path
        raise ValueError("must hold no credentials, query or fragment")
    return value.rstrip("/")


def checked_api_url(value: str) -> str:
    """As `checked_http_url`, and https unless it is loopback: credentials travel there (case C28)."""
    value = checked_http_url(value)
    parts = urlsplit(value)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ValueError("must be https: only an address on loopback may be http")
    return value


def checked_header(value: str | None) -> str | None:
    """The name of an HTTP header, in lower case."""
    if value is not None and not _HEADER_NAME.match(value):
        raise ValueError("must be the name of an HTTP header")
    return value.lower() if value is not None else None


def checked_host(value: str) -> str:
    """An address, or a name that a host can have."""
    try:
        value.encode("idna")
    except UnicodeError as error:
        raise ValueError("must be an address, or the name of a host") from error
    return value


def is_loopback(host: str) -> bool:
    """Whether this host is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def webhook_secret_problem(secret: str) -> str | None:
    """Why this is not a Standard Webhooks secret (base64, `whsec_` before it), or None."""
    encoded = secret.removeprefix("whsec_")
    if not encoded:
        return "holds an empty secret: anyone could sign with it"
    if not _BASE64.match(encoded):
        return "holds a secret that is not base64 after 'whsec_'"
    try:
        decoded = base64.b64decode(encoded + "==")
    except binascii.Error:
        return "holds a secret that is not base64 after 'whsec_'"
    return None if decoded else "holds an empty secret: anyone could sign with it"


def signing_key(secret: str, scheme: str) -> bytes:
    """What a webhook secret signs with, however it is spelled: base64 has many ways, and an HMAC key as many as NULs
    can follow. Empty for one that is not base64 where it should be."""
    if scheme != "standard-webhooks":
        return secret.encode().rstrip(b"\0")
    try:
        return base64.b64decode(secret.removeprefix("whsec_") + "==").rstrip(b"\0")
    except binascii.Error:
        return b""


def read_secret_text(path: Path, max_bytes: int = SECRET_FILE_MAX_BYTES) -> str:
    """The content of a secret's file, without white space around it, nor the mark that some editors put first. Raises
    ValueError, naming the reason."""
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ValueError("the file is not UTF-8 text") from error
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror or type(error).__name__}") from error
    if len(content) > max_bytes:
        raise ValueError(f"the file is over {max_bytes} bytes")
    if not text:
        raise ValueError("the file is empty")
    return text


Listed = Annotated[tuple[str, ...], BeforeValidator(split)]
SecretsListed = Annotated[tuple[SecretStr, ...], BeforeValidator(split_secrets)]
RoleNames = Annotated[tuple[str, ...] | None, BeforeValidator(split), AfterValidator(checked_roles)]
HandlerNames = Annotated[tuple[str, ...] | None, BeforeValidator(split), AfterValidator(checked_handler_names)]
Renames = Annotated[dict[str, str], BeforeValidator(split_pairs), AfterValidator(checked_handler_names)]
Tables = Annotated[dict[str, dict[str, Any]], BeforeValidator(decode_json), AfterValidator(checked_tables)]
Retention = Annotated[timedelta | None, BeforeValidator(checked_retention)]
PastDue = Annotated[str, AfterValidator(checked_past_due)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(checked_database_url)]
BrokerUrl = Annotated[str, AfterValidator(checked_broker_url)]
Host = Annotated[str, AfterValidator(checked_host)]
HttpUrl = Annotated[str, AfterValidator(checked_http_url)]
ApiUrl = Annotated[str, AfterValidator(checked_api_url)]
HeaderName = Annotated[str | None, AfterValidator(checked_header)]
