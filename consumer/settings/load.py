"""Load: the environment and the TOML file become `Settings`, or one error that lists every problem.

The environment wins over the file, name by name. An empty variable counts as not set, except where it would be an
empty secret. Nothing here looks at `os.environ`: the caller hands it over.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from consumer.errors import SettingsError
from consumer.settings.application import (
    APPLICATIONS,
    DEFAULT,
    DEFAULT_NAMES,
    ApplicationSettings,
    build_application,
    default_table,
    reason,
    sandbox_table,
)
from consumer.settings.checks import cross_problems
from consumer.settings.fields import Role, Settings
from consumer.settings.values import decode_json, read_secret_text

CONFIG = "CONSUMER_CONFIG"
# Settings that may also come from a file of their own, so that a secret need not be in the environment.
FROM_FILE = {
    f"{name}_FILE": name for name in ("CONSUMER_DATABASE_URL", "CONSUMER_API_TOKEN", "CONSUMER_KAFKA_SASL_PASSWORD")
}
NO_TEXT = "is not UTF-8 text, or holds a NUL"
SLIP = 0.88
"""So alike a name must be to be taken for another one that was mistyped."""
TO_FIND_THE_LEDGER = frozenset({CONFIG, "CONSUMER_DATABASE_URL", "CONSUMER_DATABASE_URL_FILE"})
SECRETS = frozenset(
    {"SVC_APP_SECRET", "CONSUMER_WEBHOOK_SECRETS", "CONSUMER_API_TOKEN", "CONSUMER_KAFKA_SASL_PASSWORD"}
)
FIELDS = {str(field.alias): field for field in Settings.model_fields.values() if field.alias}
KNOWN = frozenset({CONFIG, APPLICATIONS, *FROM_FILE, *FIELDS, *DEFAULT_NAMES.values()})

# What Kubernetes puts into every pod for a Service whose name begins with `consumer`; not meant for us.
_SERVICE_LINK = re.compile(r"_SERVICE_HOST\Z|_SERVICE_PORT(_[A-Z0-9_]+)?\Z|_PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?\Z")
_PREFIX = re.compile(r"\A(CONSUMER|SVC)_")
_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


def load_settings(environ: Mapping[str, str], role: Role) -> Settings:
    """The checked settings for a role. Raises SettingsError that lists all problems, none of them with a value.

    `environ`: usually `os.environ`. Roles differ in what they need: `demo` and `sandbox` nothing, `dev` nothing
    unless `SVC_BASE_URL` is set, `sync` the API credentials, which `serve` has no use for; of several applications
    some may have none.
    """
    settings, problems = _gathered(environ, role)
    if problems:
        raise SettingsError(problems)
    return settings


def settings_to_look(environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """The settings of a command that only looks, as far as they are usable, and the problems of the rest: a broken
    secret must not blind who asks how things stand. Raises SettingsError when it is not known where the ledger is."""
    settings, problems = _gathered(environ, Role.OPERATE)
    fatal = [problem for problem in problems if problem.partition(":")[0] in TO_FIND_THE_LEDGER]
    if fatal:
        raise SettingsError(fatal)
    return settings, problems


def problems_for(environ: Mapping[str, str], role: Role) -> list[str]:
    """What keeps this role from starting on these settings; none of it holds a value."""
    return _gathered(environ, role)[1]


def _gathered(environ: Mapping[str, str], role: Role) -> tuple[Settings, list[str]]:
    """The settings as far as they are usable, and everything that is wrong with them."""
    problems: list[str] = []
    from_environment = _from_environment(environ, problems)
    from_file = _from_toml(from_environment.pop(CONFIG, None), problems)
    merged = {name: _trimmed(name, value) for name, value in {**from_file, **from_environment}.items()}
    for name in [name for name, value in merged.items() if isinstance(value, str) and not _is_text(value)]:
        problems.append(f"{name}: {NO_TEXT}")
        del merged[name]
    problems += [_unknown(name, KNOWN) for name in sorted(environ) if _is_slip(name, merged)]
    _read_files(merged, problems)
    applications = _applications(merged, role, problems)
    flat = {name: value for name, value in merged.items() if name in FIELDS}
    settings = _settings({**flat, "role": role, "applications": applications}, problems)
    if "CONSUMER_PAST_DUE" in merged or "past_due" not in settings.handler_options.get("access", {}):
        access = {**settings.handler_options.get("access", {}), "past_due": settings.past_due}
        settings = settings.model_copy(update={"handler_options": {**settings.handler_options, "access": access}})
    reported = {problem.partition(":")[0] for problem in problems}
    problems += [found for found in cross_problems(settings) if found.partition(":")[0] not in reported]
    return settings, list(dict.fromkeys(problems))


def _trimmed(name: str, value: Any) -> Any:
    """Without white space around it, which is a slip, as of a file's last line; a password may have some."""
    return value.strip() if isinstance(value, str) and name != "CONSUMER_KAFKA_SASL_PASSWORD" else value


def _is_text(value: str) -> bool:
    """Whether it can be written down: bytes of the environment that are not UTF-8 are halves of pairs to Python."""
    return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    ours = {name: value for name, value in environ.items() if name.startswith(("CONSUMER_", "SVC_"))}
    links = {
        name
        for name, value in ours.items()
        if name not in KNOWN and (_SERVICE_LINK.search(name) or (name.endswith("_PORT") and _LINK_VALUE.match(value)))
    }
    for name in sorted(ours.keys() - links):
        if name.startswith("CONSUMER_") and name not in KNOWN:
            problems.append(_unknown(name, KNOWN))
        if name.endswith("_PORT") and name in KNOWN and _LINK_VALUE.match(ours[name]):
            problems.append(f"{name}: was set by Kubernetes for a Service; set enableServiceLinks: false in the pod")
            links.add(name)
    return {
        name: value
        for name, value in ours.items()
        if name in KNOWN and name not in links and (value.strip() or name in SECRETS)
    }


def _from_toml(given: str | None, problems: list[str]) -> dict[str, Any]:
    if given is None:
        return {}
    path = _trimmed(CONFIG, given)
    if not _is_text(path):
        problems.append(f"{CONFIG}: {NO_TEXT}")
        return {}
    try:
        document = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))  # some editors put a mark before it
        repr(document)  # raises ValueError for a number that Python could not show later
    except OSError as error:
        problems.append(f"{CONFIG}: the file cannot be read: {error.strerror or type(error).__name__}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        where = re.search(r"\(at [a-z0-9 ,]+\)", str(error))
        problems.append(f"{CONFIG}: the file is not TOML {where.group(0) if where else ''}".rstrip())
        return {}
    except RecursionError:
        problems.append(f"{CONFIG}: the file is nested too deep")
        return {}
    except ValueError:
        problems.append(f"{CONFIG}: the file holds a number of thousands of digits")
        return {}
    known = KNOWN - {CONFIG}
    problems += [f"{_unknown(name, known)} (in the file {CONFIG} names)" for name in document if name not in known]
    return {name: value for name, value in document.items() if name in known}


def _unknown(name: str, known: Iterable[str]) -> str:
    shown = name if re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name) else "(unprintable name)"
    near = _near(name.upper(), known)
    return f"{shown}: there is no such setting" + (f"; did you mean {near}?" if near else "")


def _is_slip(name: str, given: Mapping[str, Any]) -> bool:
    """Whether a name that begins with SVC_, as others' may, is one of ours that was mistyped: one that looks like it,
    and is not `given` itself. SVC_APP_ID_STAGING is no SVC_APP_ID; who lists the applications needs none of them."""
    if not name.startswith("SVC_") or name in KNOWN or APPLICATIONS in given:
        return False
    near = difflib.get_close_matches(name, [one for one in KNOWN if one.startswith("SVC_")], n=1, cutoff=SLIP)
    return bool(near) and not name.startswith(f"{near[0]}_") and not {near[0], f"{near[0]}_FILE"} & given.keys()


def _near(name: str, known: Iterable[str]) -> str | None:
    """The setting that looks like it; what all names begin with makes none alike."""
    of_words = {_PREFIX.sub("", one): one for one in sorted(known)}
    near = difflib.get_close_matches(_PREFIX.sub("", name), of_words, n=1, cutoff=0.7)
    return of_words[near[0]] if near else None


def _read_files(merged: dict[str, Any], problems: list[str]) -> None:
    for name, target in FROM_FILE.items():
        path = merged.pop(name, None)
        if path is None:
            continue
        if target in merged:
            problems.append(f"{target}: is given twice: as a value and as a file; give one of them")
            continue
        try:
            merged[target] = read_secret_text(Path(str(path)))
        except ValueError as error:
            problems.append(f"{name}: {error}")


def _applications(merged: Mapping[str, Any], role: Role, problems: list[str]) -> tuple[ApplicationSettings, ...]:
    """The applications; each as far as it is usable, so that the other checks see it too."""
    given = default_table(merged)
    tables = {} if role is Role.DEMO else _tables(merged.get(APPLICATIONS, {}), problems)
    explicit = any(name.startswith("SVC_") for name in merged) or any(
        given.get(one) for one in ("webhook_secrets", "webhook_secrets_file")
    )
    if role is Role.DEMO:  # never with somebody's real credentials
        tables = {DEFAULT: sandbox_table({})}
        given = {}
    elif role is Role.SANDBOX or (role is Role.DEV and "base_url" not in given and DEFAULT not in tables):
        given.pop("base_url", None)
        tables = {DEFAULT: sandbox_table(given), **tables}
    elif DEFAULT not in tables and (explicit or not tables):
        tables = {DEFAULT: given, **tables}
    elif DEFAULT in tables and any(name.startswith("SVC_") for name in merged):
        problems.append(f"{APPLICATIONS}: holds 'default', which SVC_BASE_URL, SVC_APP_ID and SVC_APP_SECRET are too")
    scheme = str(merged.get("CONSUMER_SIGNATURE_SCHEME", "standard-webhooks"))
    return tuple(
        build_application(name, table, inherited=given, problems=problems, scheme=scheme)
        for name, table in tables.items()
    )


def _tables(raw: Any, problems: list[str]) -> dict[str, dict[str, Any]]:
    """`[CONSUMER_APPLICATIONS.shop]`, or `[[CONSUMER_APPLICATIONS]]` with a `name`; or JSON of either."""
    try:
        value = decode_json(raw)
    except ValueError as error:
        problems.append(f"{APPLICATIONS}: {error}")
        return {}
    if isinstance(value, list) and all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in value):
        names = [item["name"] for item in value]
        if len(set(names)) < len(names):
            problems.append(f"{APPLICATIONS}: holds the same name twice")
        return {item["name"]: {key: part for key, part in item.items() if key != "name"} for item in value}
    if isinstance(value, dict) and all(isinstance(item, dict) for item in value.values()):
        return value
    problems.append(f"{APPLICATIONS}: must be a table per application")
    return {}


def _settings(values: dict[str, Any], problems: list[str]) -> Settings:
    """The settings; where a value is bad, the problem is noted and the default stands in for the other checks."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
    bad = {str(item["loc"][0]) for item in found}
    problems.extend(f"{item['loc'][0]}: {reason(item)}" for item in found)
    return Settings.model_validate({name: value for name, value in values.items() if name not in bad})
