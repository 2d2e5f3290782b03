"""Credentials: one app id with its one or two secrets, literal or in a file that is re-read when it changes."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from consumer.errors import SettingsError

APP_ID_PREFIX = "svc_app_"
SECRET_PREFIX = "svc_sk_live_"  # noqa: S105 - the documented prefix, not a secret
APP_ID_MAX_CHARS = 128
MAX_SECRETS = 2
FILE_MAX_BYTES = 4096

_OPAQUE = re.compile(r"[\x21-\x39\x3b-\x7e]+\Z")  # visible ASCII without ':', which would split the Basic pair


def app_id_problem(app_id: str) -> str | None:
    """Why this cannot be an app id, or None (case S11). The value itself is not part of the text."""
    if not app_id:
        return "the app id is missing"
    if len(app_id) > APP_ID_MAX_CHARS:
        return f"the app id must have at most {APP_ID_MAX_CHARS} characters"
    if not app_id.startswith(APP_ID_PREFIX) or not _OPAQUE.match(app_id[len(APP_ID_PREFIX) :]):
        return f"the app id must be {APP_ID_PREFIX} followed by visible characters (got {masked(app_id)})"
    return None


def secrets_problems(secrets: Sequence[str]) -> list[str]:
    """What is wrong with these secrets; empty when they are one or two well-formed ones (cases S11, S12)."""
    problems = []
    if not secrets:
        problems.append("an app secret is missing")
    if len(secrets) > MAX_SECRETS:
        problems.append(f"at most {MAX_SECRETS} app secrets can be valid at once, {len(secrets)} are given")
    for number, secret in enumerate(secrets, start=1):
        if not secret.startswith(SECRET_PREFIX) or not _OPAQUE.match(secret[len(SECRET_PREFIX) :]):
            problems.append(f"app secret {number} must be {SECRET_PREFIX} followed by visible characters")
    return problems


def split_secrets(text: str) -> tuple[str, ...]:
    """The secrets in a setting or a file: separated by commas or line ends, blanks dropped, doubles once."""
    return tuple(dict.fromkeys(part.strip() for part in re.split(r"[,\r\n]", text) if part.strip()))


def masked(value: str) -> str:
    """The value's kind without its content: prefix at most, never the opaque part."""
    for prefix in (APP_ID_PREFIX, SECRET_PREFIX):
        if value.startswith(prefix):
            return f"{prefix}***"
    return "***"


def basic(app_id: str, secret: str) -> str:
    """The Authorization header's value (spec, Authentication 1; case C1)."""
    return "Basic " + base64.b64encode(f"{app_id}:{secret}".encode()).decode("ascii")


@dataclass(frozen=True)
class _FileStamp:
    mtime_ns: int
    inode: int
    size: int


class Credentials:
    """One application's app id and its one or two secrets.

    Either `secrets` (literal) or `secret_file` is given. The file holds one or two secrets, one a line or
    comma-separated; it is looked at before every call (one stat) and re-read when it changed, so a rolled secret is
    used without restart (case S4). While the file is missing or malformed the last good secrets stay in use and
    `problem` says why. Raises SettingsError when app id or secrets are malformed at the start.
    """

    def __init__(self, app_id: str, secrets: Sequence[str] = (), *, secret_file: Path | None = None) -> None:
        problems = [found] if (found := app_id_problem(app_id)) else []
        self.app_id = app_id
        self.problem: str | None = None
        self._file = secret_file
        self._stamp: _FileStamp | None = None
        self._secrets: tuple[str, ...] = tuple(secrets)
        self._generation = 0
        self._preferred = 0
        if secret_file is not None and secrets:
            problems.append("app secrets are given both literally and by file: give one of them")
        elif secret_file is not None:
            self._look()
            if self.problem:
                problems.append(self.problem)
        else:
            problems += secrets_problems(self._secrets)
        if problems:
            raise SettingsError(problems)

    def __repr__(self) -> str:
        source = "file" if self._file is not None else "literal"
        return f"Credentials(app_id={masked(self.app_id)!r}, secrets={len(self._secrets)} ({source}))"

    @property
    def generation(self) -> int:
        """Grows each time the file brought other secrets; looking re-reads a changed file."""
        self._look()
        return self._generation

    def authorizations(self) -> list[tuple[int, str]]:
        """(number, Authorization header) of each secret, the one that worked last first (cases C14, S2)."""
        self._look()
        order = sorted(range(len(self._secrets)), key=lambda number: number != self._preferred)
        return [(number, basic(self.app_id, self._secrets[number])) for number in order]

    def worked(self, number: int, generation: int) -> None:
        """Remember that the secret of this number was accepted, unless the secrets were replaced meanwhile."""
        if generation == self._generation and number < len(self._secrets):
            self._preferred = number

    def look(self) -> str | None:
        """Look at the file now. Why it cannot be used (safe to print: no secret in it), or None."""
        self._look()
        return self.problem

    def _look(self) -> None:
        if self._file is None:
            return
        try:
            status = self._file.stat()
            stamp = _FileStamp(status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp == self._stamp and self.problem is None:
                return
            with self._file.open("rb") as opened:
                found = split_secrets(opened.read(FILE_MAX_BYTES + 1).decode("utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            self.problem = f"the secret file cannot be read: {type(error).__name__}"
            return
        if status.st_size > FILE_MAX_BYTES:
            self.problem = f"the secret file is larger than {FILE_MAX_BYTES} bytes"
            return
        if problems := secrets_problems(found):
            self.problem = "in the secret file: " + "; ".join(problems)
            return
        self.problem = None
        self._stamp = stamp
        if found != self._secrets:
            self._secrets = found
            self._preferred = 0
            self._generation += 1
