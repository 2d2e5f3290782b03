"""GivingWay: a leader whose credentials are refused gives the lead back where another `sync` could have better ones: a
secret that was forgotten on one of two hosts stopped all reading while the good one stood by (cases S3, B26)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from consumer.clock import rest
from consumer.errors import ConsumerError
from consumer.ledger import processes
from consumer.ledger.engine.database_time import shared_time
from consumer.telemetry.logs import Condition

if TYPE_CHECKING:
    from consumer.sync.application import Application

LOOK_EVERY_S: Final = 5.0
PATIENCE_S: Final = 60.0
PATIENCE_MAX_S: Final = 600.0


class GivingWay:
    """Ends the lead of one application once its credentials were refused for `patience_s`, while another `sync` lives
    that reads it. Where both are refused, each keeps the lead twice as long the next time, PATIENCE_MAX_S at most; who
    was away for longer than the other could be refused begins anew. `holder`: the name of this process."""

    def __init__(self, app: Application, *, holder: str) -> None:
        self._app = app
        self._holder = holder
        self.patience_s = PATIENCE_S
        self._away_since_s: float | None = None
        self._gave_way = Condition("lead_given_back", monotonic=app.clock.monotonic, application=app.name)

    @property
    def has_given_way(self) -> bool:
        """Whether this process gave the lead back and, as far as it knows, is refused still."""
        return self._away_since_s is not None and self._app.client.circuit.is_open

    async def run(self, ending: asyncio.Event) -> bool:
        """While this process leads, until `ending`; sets it where another is to lead, and says so."""
        clock = self._app.clock
        since_s: float | None = None
        if self._away_since_s is not None and clock.monotonic() - self._away_since_s > 2 * self.patience_s:
            self.patience_s = PATIENCE_S
        while not ending.is_set():
            now_s = clock.monotonic()
            if not self._app.client.circuit.is_open:
                since_s, self._away_since_s, self.patience_s = None, None, PATIENCE_S
                self._gave_way.over()
            else:
                since_s = now_s if since_s is None else since_s
                if now_s - since_s >= self.patience_s and await self._another_lives():
                    self._gave_way.lasts("credentials_refused", after_s=round(now_s - since_s, 1))
                    self._away_since_s = now_s
                    self.patience_s = min(2 * self.patience_s, PATIENCE_MAX_S)
                    ending.set()
                    return True
            await rest(clock, LOOK_EVERY_S, ending)
        return False

    async def ask_again(self, stop: asyncio.Event) -> None:
        """Until `stop`: who gave way makes no call, and would not hear that its credentials are right (case S6)."""
        while not stop.is_set():
            await rest(self._app.clock, PATIENCE_S, stop)
            if self.has_given_way:
                self._app.client.credentials.look()
                with suppress(ConsumerError):
                    await self._app.client.application.retrieve()

    async def _another_lives(self) -> bool:
        try:
            async with self._app.database.reading() as session:
                now = await shared_time(session)
                living = await processes.living(session, "sync", now)
        except ConsumerError:
            return False  # the stages say that the ledger is away
        return any(
            one.process != self._holder and one.ready and self._app.name in one.said.get(processes.READS, "").split()
            for one in living
        )
