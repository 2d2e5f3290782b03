"""Misaddressed: webhooks posted to an address that no application has, for the heartbeat: an application that was taken
out of the settings, a path that was mistyped at the service, or one that a proxy made longer. All of them are 404, and
no walk brings what they told, since nobody has credentials for an application that is not there."""

from __future__ import annotations

import re
from collections.abc import Callable

import orjson

LIKE_OURS = re.compile(r"/+webhook|/.*/webhooks/[a-z0-9_-]{1,64}/?\Z")
"""An address like ours, or one that a proxy put its own path before. What else is posted here is whatever visits any
address of the internet."""
_NAME = re.compile(r"/webhooks/([a-z0-9_-]{1,64})\Z")
NAMES_MAX = 3
TOLD_FOR_S = 3600.0
FORGOTTEN_AFTER_S = 86400.0


class Misaddressed:
    """`monotonic`: seconds that never go backwards. Anybody may post anything: what is kept is bounded, and a path is
    told only where it names what could be an application."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._count = 0
        self._last: float | None = None
        self._names: list[str] = []

    def note(self, path: str) -> bool:
        """Something was posted to this path, which is no application's; whether it looks like a webhook."""
        if not LIKE_OURS.match(path):
            return False
        now = self._monotonic()
        if self._last is not None and now - self._last > FORGOTTEN_AFTER_S:
            self._count, self._names = 0, []
        self._count += 1
        self._last = now
        if named := _NAME.match(path):
            others = [name for name in self._names if name != named[1]]
            self._names = [*others, named[1]][-NAMES_MAX:]
        return True

    def told(self) -> str | None:
        """As JSON: how many they were, how many seconds ago the last one came, and the newest names; None where none
        has come for an hour."""
        if self._last is None or (ago := self._monotonic() - self._last) > TOLD_FOR_S:
            return None
        return orjson.dumps({"count": self._count, "last_s": round(ago, 1), "names": self._names}).decode()
