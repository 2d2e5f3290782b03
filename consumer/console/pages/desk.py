"""Desk: what the pages look at, and the account of how things stand, which several who ask share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from consumer.clock import Clock
from consumer.document import storable
from consumer.errors import NotFound
from consumer.ledger import Database
from consumer.settings import Settings
from handlers.access.policy import Policy

DEFAULT_APPLICATION: Final = "default"
KEPT_S: Final = 5.0

Status = Callable[[], Awaitable[Mapping[str, Any]]]
"""What `consumer status --json` prints."""


@dataclass(kw_only=True)
class Desk:
    """`applications`: their names, each with whether it has API credentials here."""

    database: Database
    clock: Clock
    applications: Mapping[str, bool]
    policy: Policy
    status: Status | None = None
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _told: tuple[float, Mapping[str, Any]] | None = None

    async def standing(self) -> Mapping[str, Any] | None:
        """How things stand, as of the last five seconds: one look at a time, whoever asks. None where nobody says."""
        if self.status is None:
            return None
        async with self._asking:
            if self._told is None or self.clock.monotonic() - self._told[0] >= KEPT_S:
                found = await self.status()
                self._told = (self.clock.monotonic(), found)
            return self._told[1]

    def application(self, given: str | None) -> str:
        """The application that was asked for; where none was, `default`, or the first where there is no such. Raises
        NotFound."""
        name = given or (
            DEFAULT_APPLICATION if DEFAULT_APPLICATION in self.applications else next(iter(self.applications))
        )
        if name not in self.applications:
            raise NotFound("the application is unknown")
        return name

    def looked_at(self, given: str | None) -> str:
        """The same for who only looks: also one that is set up no more, by which something was sold."""
        return given if given and storable(given) == given else self.application(given)


def desk_of(settings: Settings, database: Database, clock: Clock, status: Status | None) -> Desk:
    """What the pages look at. Raises pydantic's ValidationError when the access plugin's options are not usable."""
    return Desk(
        database=database,
        clock=clock,
        applications={one.name: one.has_credentials for one in settings.applications},
        policy=Policy.model_validate(settings.handler_options.get("access", {})),
        status=status,
    )


DESK: Final = web.AppKey("desk", Desk)
