"""Users: who may see the pages, and who may act. A file of `name role argon2-hash` lines, read again when it changes.

A password is checked in a thread, one at a time: each check takes 64 MiB and a tenth of a second, and strangers may ask
as often as they like. One that was right is remembered (as a keyed digest, in memory only) for as long as its line
stands, so pages are quick, and whoever is taken out of the file is out at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import Argon2Error, InvalidHashError

from consumer.errors import SettingsError
from consumer.telemetry.logs import Condition

SETTING: Final = "CONSUMER_CONSOLE_USERS"
FILE_MAX_BYTES: Final = 256 * 1024
NAME_MAX_CHARS: Final = 40
PASSWORD_MAX_CHARS: Final = 1_000
WAITING_MAX: Final = 20
MEMORY_MAX_KIB: Final = 256 * 1024
TIME_MAX: Final = 20
"""What a hash may cost at most: a line of the file must not bring the process down."""


class UserRole(StrEnum):
    """A viewer looks; an operator acts, too."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True)
class User:
    """Somebody at the console. The audit trail names who acts `operator:NAME`, as it does for a command."""

    name: str
    role: UserRole

    @property
    def may_act(self) -> bool:
        """Whether buttons are theirs."""
        return self.role is UserRole.OPERATOR

    @property
    def actor(self) -> str:
        """As the audit trail has it."""
        return f"operator:{self.name}"


@dataclass(frozen=True)
class Line:
    """A line of the file."""

    user: User
    hash: str


def parsed(text: str) -> tuple[dict[str, Line], list[str]]:
    """The users of a file by name, and what is wrong with its other lines. `#` begins a comment. Pure."""
    found: dict[str, Line] = {}
    problems: list[str] = []
    for number, written in enumerate(text.splitlines(), start=1):
        words = written.split()
        if not words or words[0].startswith("#"):
            continue
        problem = _problem(words, found)
        if problem is None:
            name, role, hash_ = words
            found[name] = Line(User(name, UserRole(role)), hash_)
        else:
            problems.append(f"{SETTING}: line {number}: {problem}")
    return found, problems if found or problems else [f"{SETTING}: names nobody"]


def _problem(words: list[str], known: dict[str, Line]) -> str | None:
    """What is wrong with a line, without a word of what it holds."""
    if len(words) != 3:
        return "is not `name role argon2-hash`; `consumer console-user NAME` makes one"
    name, role, hash_ = words
    if name in known:
        return "names somebody a second time"
    if len(name) > NAME_MAX_CHARS or ":" in name or not name.isprintable():
        return f"the name has a colon, or more than {NAME_MAX_CHARS} characters"
    if role not in set(UserRole):
        return f"the role is none of {', '.join(UserRole)}"
    try:
        cost = extract_parameters(hash_)
    except InvalidHashError:
        return "the hash is none of argon2; `consumer console-user NAME` makes one"
    if cost.memory_cost > MEMORY_MAX_KIB or cost.time_cost > TIME_MAX:
        return f"the hash costs more than {MEMORY_MAX_KIB // 1024} MiB and {TIME_MAX} rounds"
    return None


class Busy(Exception):
    """Too many passwords wait to be checked."""


class Users:
    """Those of a file. Raises SettingsError when it cannot be read, has a line that is none, or names nobody."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._lines: dict[str, Line] = {}
        self._right: dict[str, tuple[Line, bytes]] = {}
        self._key = secrets.token_bytes(32)
        self._checking = asyncio.Lock()
        self._waiting = 0
        self._broken = Condition("console_users_broken", level="error")
        problems = self._read()
        if problems:
            raise SettingsError(problems)

    async def known(self, name: str, password: str) -> User | None:
        """Who this is; None for a name or a password that is wrong. Raises Busy where so many passwords wait to be
        checked that no more should; who was known before is known all the same."""
        self._look_again()
        line = self._lines.get(name)
        if line is not None and self._was_right(line, password):
            return line.user
        if len(password) > PASSWORD_MAX_CHARS:
            return None
        if self._waiting >= WAITING_MAX:
            raise Busy
        self._waiting += 1
        try:
            async with self._checking:
                is_right = await asyncio.to_thread(_is_right, line, password)
        finally:
            self._waiting -= 1
        if line is None or not is_right or self._lines.get(name) is not line:
            return None
        self._right[name] = (line, self._digest(password))
        return line.user

    def _was_right(self, line: Line, password: str) -> bool:
        known = self._right.get(line.user.name)
        return known is not None and known[0] is line and hmac.compare_digest(known[1], self._digest(password))

    def _digest(self, password: str) -> bytes:
        return hashlib.blake2b(as_hashed(password), key=self._key).digest()

    def _look_again(self) -> None:
        """Take up a file that was changed: its good lines count, and what is wrong with the others is said."""
        try:
            stat = self._path.stat()
        except OSError:
            self._broken.lasts("unreadable")  # nobody was taken out of it: as before
            return
        if (stat.st_mtime_ns, stat.st_size, stat.st_ino) != self._seen:
            problems = self._read()
            if problems:
                self._broken.lasts("lines", lines=len(problems), reason=problems[0])
            else:
                self._broken.over()

    def _read(self) -> list[str]:
        """Read the file; returns what is wrong with it."""
        try:
            stat = self._path.stat()
            with self._path.open("rb") as file:
                text = file.read(FILE_MAX_BYTES + 1)
        except OSError as error:
            return [f"{SETTING}: cannot be read ({error.strerror})"]
        if len(text) > FILE_MAX_BYTES:
            return [f"{SETTING}: has more than {FILE_MAX_BYTES // 1024} KiB"]
        before, (found, problems) = self._lines, parsed(text.decode("utf-8-sig", "replace"))
        self._seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        # A line that stands as it stood is the same one: its password need not be checked anew.
        self._lines = {name: before[name] if before.get(name) == line else line for name, line in found.items()}
        self._right = {name: kept for name, kept in self._right.items() if self._lines.get(name) is kept[0]}
        return problems


def as_hashed(password: str) -> bytes:
    """The bytes that are hashed: an umlaut is the same, whether a keyboard gives it as one character or as two."""
    return unicodedata.normalize("NFC", password).encode("utf-8", "replace")


def _is_right(line: Line | None, password: str) -> bool:
    """Takes a tenth of a second; also for a name that nobody has."""
    try:
        return PasswordHasher().verify(_nobodys() if line is None else line.hash, as_hashed(password))
    except (Argon2Error, InvalidHashError):
        return False


@cache
def _nobodys() -> str:
    return PasswordHasher().hash(secrets.token_hex(16))
