"""Application: one app id with its secrets, how its webhooks are proved, and where facts lie in its bodies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from consumer.events import Authenticity, Locators
from consumer.settings.values import (
    ApiUrl,
    Listed,
    SecretsListed,
    is_loopback,
    read_secret_text,
    split_secrets,
    webhook_secret_problem,
)

DEFAULT = "default"
APPLICATIONS = "CONSUMER_APPLICATIONS"
SECRETS_MAX = 2
APP_ID_PREFIX = "svc_app_"
APP_SECRET_PREFIX = "svc_sk_live_"  # noqa: S105 - the documented prefix, no secret

# The sandbox's own application (contract, Sandbox): public, worthless anywhere else.
SANDBOX_BASE_URL = "http://127.0.0.1:4010"
SANDBOX_APP_ID = "svc_app_sandbox"
SANDBOX_APP_SECRET = "svc_sk_live_sandbox"  # noqa: S105 - the contract's fixed sandbox value
SANDBOX_WEBHOOK_SECRET = "whsec_c2FuZGJveC13ZWJob29rLXNlY3JldC0zMi1ieXRlcyE="  # noqa: S105 - the sandbox's own

_NAME = re.compile(r"[a-z0-9_-]{1,64}\Z")
_CREDENTIAL = re.compile(r"[\x21-\x2b\x2d-\x39\x3b-\x7e]+\Z")


@dataclass(frozen=True, kw_only=True)
class ApplicationSettings:
    """One application, checked. `app_secrets` are those known at the start; a `secret_file` is re-read later."""

    name: str
    base_url: str | None = None
    app_id: str | None = None
    app_secrets: tuple[SecretStr, ...] = ()
    secret_file: Path | None = None
    authenticity: Authenticity = Authenticity.API
    webhook_secrets: tuple[SecretStr, ...] = ()
    locators: Locators = field(default_factory=Locators)

    @property
    def has_credentials(self) -> bool:
        """Whether its API can be called."""
        return bool(self.base_url and self.app_id and self.app_secrets)


class ApplicationTable(BaseModel):
    """An application as it is written down: in a TOML table, or as the SVC_* and CONSUMER_* names of `default`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    base_url: ApiUrl | None = Field(None, description="address of the service's API")
    app_id: str | None = Field(None, description="app id, `svc_app_…`")
    app_secret: SecretsListed | None = Field(None, description="app secret, `svc_sk_live_…`; two, comma-separated")
    app_secret_file: Path | None = Field(None, description="file that holds the app secret; re-read when it changes")
    authenticity: Authenticity | None = Field(
        None, description="proof of a webhook: `api`, `signature`, or `none` (loopback only)"
    )
    webhook_secrets: SecretsListed | None = Field(
        None, description="webhook secrets (`whsec_…`), comma-separated, any may match"
    )
    webhook_secrets_file: Path | None = Field(
        None, description="file that holds the webhook secrets; read at the start"
    )
    locators: dict[str, Listed] = Field(default_factory=dict, description="JSON pointers per fact, first hit wins")


LOCATED = tuple(item.name for item in fields(Locators))
# How the fields of the application `default` are called.
DEFAULT_NAMES: Mapping[str, str] = {
    "base_url": "SVC_BASE_URL",
    "app_id": "SVC_APP_ID",
    "app_secret": "SVC_APP_SECRET",
    "app_secret_file": "SVC_APP_SECRET_FILE",
    "authenticity": "CONSUMER_AUTHENTICITY",
    "webhook_secrets": "CONSUMER_WEBHOOK_SECRETS",
    "webhook_secrets_file": "CONSUMER_WEBHOOK_SECRETS_FILE",
    **{f"locators.{name}": f"CONSUMER_LOCATE_{name.upper()}" for name in LOCATED},
}


def default_table(values: Mapping[str, Any]) -> dict[str, Any]:
    """The table of `default`, out of the merged settings."""
    given = {item: values[name] for item, name in DEFAULT_NAMES.items() if name in values}
    locators = {item.removeprefix("locators."): value for item, value in given.items() if "." in item}
    return {**{item: value for item, value in given.items() if "." not in item}, "locators": locators}


def build_application(
    name: str, table: Mapping[str, Any], inherited: Mapping[str, Any], problems: list[str], *, scheme: str
) -> ApplicationSettings:
    """One application as far as it is usable; adds every problem found, under the name the operator used.

    `inherited` is the table of `default`: other applications take its authenticity and locators unless they have
    their own. Secrets are never inherited.
    """

    def called(item: str) -> str:
        return DEFAULT_NAMES.get(item, item) if name == DEFAULT else f"{APPLICATIONS}.{name}.{item}"

    if not _NAME.match(name):
        problems.append(f"{APPLICATIONS}: a name is 1 to 64 of a-z, 0-9, '_' and '-'")
        name = "unnamed"
    written = _written(table, called, problems)
    problems.extend(f"{called(item)}: {reason}" for item, reason in _credential_problems(written))
    app_secrets = _from_file(written.app_secret, written.app_secret_file, called("app_secret_file"), problems)
    if written.app_secret is None:
        problems.extend(f"{called('app_secret_file')}: {reason}" for reason in _secret_problems(app_secrets))
    place = called("webhook_secrets_file" if written.webhook_secrets is None else "webhook_secrets")
    webhook_secrets = _from_file(written.webhook_secrets, written.webhook_secrets_file, place, problems)
    if scheme == "standard-webhooks":
        problems.extend(_webhook_secret_problems(place, webhook_secrets))
    base = _written(inherited, called, [])  # its problems are reported once, under the names of `default`
    locators = _locators(base.locators, called, []) | _locators(written.locators, called, problems)
    return ApplicationSettings(
        name=name,
        base_url=written.base_url,
        app_id=written.app_id,
        app_secrets=app_secrets,
        secret_file=written.app_secret_file,
        authenticity=written.authenticity or base.authenticity or Authenticity.API,
        webhook_secrets=webhook_secrets,
        locators=Locators(**locators),
    )


def _written(table: Mapping[str, Any], called: Callable[[str], str], problems: list[str]) -> ApplicationTable:
    """The table, validated; a bad part is reported and left out, so that the rest is still looked at."""
    try:
        return ApplicationTable.model_validate(dict(table))
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
    problems.extend(f"{called(_place(item['loc']))}: {reason(item)}" for item in found)
    bad = {str(item["loc"][0]) for item in found}
    return ApplicationTable.model_validate({item: value for item, value in table.items() if item not in bad})


def sandbox_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table of `default` with the sandbox's values wherever nothing was given."""
    filled: dict[str, Any] = {"base_url": SANDBOX_BASE_URL, "app_id": SANDBOX_APP_ID}
    if "app_secret_file" not in table:
        filled["app_secret"] = SANDBOX_APP_SECRET
    if "webhook_secrets_file" not in table:
        filled["webhook_secrets"] = SANDBOX_WEBHOOK_SECRET
    return {**filled, **table}


def is_of_loopback(base_url: str) -> bool:
    """Whether this address is a simulator's on this machine: whatever it says is nobody's money."""
    return is_loopback(re.sub(r"^https?://|(:[0-9]+)?(/.*)?$", "", base_url))


def proof_problem(application: ApplicationSettings, host: str) -> str | None:
    """Why this application cannot prove its webhooks as it says, or None."""
    label = "" if application.name == DEFAULT else f" (application {application.name})"
    if application.authenticity is Authenticity.SIGNATURE and not application.webhook_secrets:
        return f"CONSUMER_WEBHOOK_SECRETS: missing; CONSUMER_AUTHENTICITY=signature needs at least one{label}"
    at_home = is_loopback(host) and is_of_loopback(application.base_url or "http://127.0.0.1")
    if application.authenticity is Authenticity.NONE and not at_home:
        return (
            "CONSUMER_AUTHENTICITY: 'none' is for a sandbox only: "
            f"CONSUMER_HOST and SVC_BASE_URL must be loopback{label}"
        )
    return None


def _credential_problems(written: ApplicationTable) -> list[tuple[str, str]]:
    found = []
    if written.app_id is not None and not _fits(written.app_id, APP_ID_PREFIX):
        swapped = "; it looks like an app secret" if written.app_id.startswith(APP_SECRET_PREFIX) else ""
        found.append(
            ("app_id", f"must begin with '{APP_ID_PREFIX}' (the value has {len(written.app_id)} characters){swapped}")
        )
    found += [("app_secret", reason) for reason in _secret_problems(written.app_secret or ())]
    for item in ("app_secret", "webhook_secrets"):
        if getattr(written, item) is not None and getattr(written, f"{item}_file") is not None:
            found.append((item, "is given twice: as a value and as a file; give one of them"))
    return found


def _secret_problems(secrets: tuple[SecretStr, ...]) -> list[str]:
    found = []
    for secret in secrets:
        value = secret.get_secret_value()
        if not _fits(value, APP_SECRET_PREFIX):
            swapped = "; it looks like an app id" if value.startswith(APP_ID_PREFIX) else ""
            found.append(f"must begin with '{APP_SECRET_PREFIX}' (the value has {len(value)} characters){swapped}")
    if len(secrets) > SECRETS_MAX:
        found.append(f"holds {len(secrets)} secrets; at most {SECRETS_MAX} are valid at once")
    return found


def _webhook_secret_problems(place: str, secrets: tuple[SecretStr, ...]) -> list[str]:
    reasons = [webhook_secret_problem(secret.get_secret_value()) for secret in secrets]
    return [f"{place}: {reason}" for reason in dict.fromkeys(reasons) if reason]


def _fits(value: str, prefix: str) -> bool:
    return value.startswith(prefix) and bool(_CREDENTIAL.match(value[len(prefix) :]))


def _from_file(
    given: tuple[SecretStr, ...] | None, path: Path | None, place: str, problems: list[str]
) -> tuple[SecretStr, ...]:
    if given is not None or path is None:
        return given or ()
    try:
        text = ",".join(read_secret_text(path).splitlines())
        return tuple(SecretStr(part) for part in split_secrets(text))
    except ValueError as error:
        problems.append(f"{place}: {error}")
        return ()


def _locators(
    pointers: Mapping[str, tuple[str, ...]], called: Callable[[str], str], problems: list[str]
) -> dict[str, tuple[str, ...]]:
    chosen: dict[str, tuple[str, ...]] = {}
    for item, listed in pointers.items():
        if item not in LOCATED:
            problems.append(f"{called(f'locators.{item}')}: there is no such fact; there are {', '.join(LOCATED)}")
            continue
        try:
            Locators(**{item: listed})
        except ValueError as error:
            problems.append(f"{called(f'locators.{item}')}: {error}")
            continue
        chosen[item] = listed
    return chosen


def _place(loc: tuple[int | str, ...]) -> str:
    return str(loc[0]) if loc and loc[0] != "locators" else ".".join(str(part) for part in loc[:2])


def reason(item: Any) -> str:
    """A pydantic problem as our words, without the value it speaks of."""
    if item["type"] == "extra_forbidden":
        return "there is no such setting"
    text = str(item["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:] if text.startswith("Input ") else text
