"""Relay: publishes derived events from the outbox, in the order they were emitted, by one leader at a time.

Publish, then mark: after a crash in between the event goes out twice, which its deterministic id makes harmless.

What the log refuses while it takes others, for its size or because its partition takes nothing, waits with all of its
key, for up to HELD_MAX keys. They are tried again in turn, AGAIN_S after some of them were refused, whatever else is.
Each that is too large costs a producer: one key is tried first, and more for as long as none is refused. A partition
that takes nothing costs ten seconds a try, in which everybody waits, however many keys are tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import structlog
from sqlalchemy import Row

from consumer.broker.base import Broker, Message
from consumer.clock import Clock, Pace, is_set_within
from consumer.errors import ALONE, TOO_LARGE, BrokerError, LedgerError
from consumer.ledger import Database
from consumer.ledger.handling import outbox
from consumer.ledger.leases import RELAY_LEASE_S
from consumer.ledger.tenure import Tenure
from consumer.telemetry import way
from consumer.telemetry.logs import Condition
from consumer.wire import pack_event

ROLE = "relay"
IDLE_S, QUIET_S = 0.25, 2.0
FOLLOWS_S = 1.0
RETRY_S = 0.5
BATCH = 500
AGAIN_S = 5.0
HELD_MAX = 10_000

_log = structlog.get_logger(__name__)


class Relay:
    """Moves due outbox rows to topic `events`. `wake()` it when something was emitted here."""

    def __init__(
        self,
        *,
        database: Database,
        broker: Broker,
        topic: str,
        clock: Clock,
        worker: str,
    ) -> None:
        self._database = database
        self._broker = broker
        self._topic = topic
        self._clock = clock
        self._wake = asyncio.Event()
        self._pace = Pace(clock, first_s=IDLE_S, most_s=QUIET_S)
        self._asked_s = float("-inf")
        self._waits = Condition("relay_waits")
        self._held: dict[tuple[str, str], None] = {}  # keys of which one is refused for now, the longest tried first
        self._again_s = 0.0  # when some of these may be tried again, by the clock
        self._again = 1  # how many of them
        self._is_trying = False  # whether this look does
        self._tenure = Tenure(database, role=ROLE, holder=worker, clock=clock, lease_s=RELAY_LEASE_S)

    def wake(self) -> None:
        """There may be something to publish: look now."""
        self._pace.stir()
        self._wake.set()

    @property
    def leads(self) -> bool:
        """Whether this process is the one that publishes."""
        return self._tenure.holds

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop`, then give the lease back."""
        while not stop.is_set():
            self._wake.clear()
            try:
                published = await self.once()
            except (BrokerError, LedgerError) as error:
                self._waits.lasts(error)
                await self._clock.sleep(RETRY_S)
                continue
            if self.leads and not self._held:  # who neither leads nor has asked knows nothing of it
                self._waits.over()
            if published < BATCH:
                await self._wait()
        await self._step_down()

    async def once(self) -> int:
        """Publish what is due now, if this process leads; returns how many. Raises BrokerError, LedgerError."""
        if not await self._lead():
            self._held.clear()  # another process leads: what it finds refused is its own
            return 0
        self._let_some_go()
        async with self._database.reading() as session:
            rows = await outbox.due(session, self._clock.now(), BATCH, held=self._held)
        if not rows:
            return 0
        self._pace.stir()
        published, refusal = await self._publish(rows)
        await self._mark(published)
        for row in published if way.is_told() else ():
            way.tell("derived_published", outbox.derived_event(row))
        if refusal is not None:
            raise refusal
        return len(rows)

    async def _publish(self, rows: Sequence[Row[Any]]) -> tuple[Sequence[Row[Any]], BrokerError | None]:
        """Which are durable, and why the others are not. Where the log takes others, one that it does not take holds up
        those of its key, which come after it, until it is tried again, and nobody else."""
        try:
            await self._send([self._message(row) for row in rows])
        except BrokerError as error:
            published, refused = _apart(rows, error.durable)
            if published or self._held or self._is_trying or isinstance(error, ALONE):
                self._hold(refused, 1 if isinstance(error, TOO_LARGE) else BATCH)
            return published, error
        return rows, None

    async def _send(self, messages: Sequence[Message]) -> None:
        """Publish, and lead on meanwhile: what is not acknowledged takes as long as the lease, and who leads next would
        know nothing of what is held, and try it first."""
        sending = asyncio.ensure_future(self._broker.publish_many(self._topic, messages))
        try:
            while not (await asyncio.wait([sending], timeout=RELAY_LEASE_S / 4))[0]:
                with suppress(LedgerError):
                    await self._tenure.take()
        finally:
            sending.cancel()
        await sending

    def _hold(self, keys: Iterable[tuple[str, str]], again: int) -> None:
        if self._is_trying or not self._held:  # a refusal of others puts no try off
            self._again_s = self._clock.monotonic() + AGAIN_S
        self._held.update(dict.fromkeys(islice(keys, HELD_MAX - len(self._held))))
        self._again = again

    def _let_some_go(self) -> None:
        self._is_trying = bool(self._held) and self._clock.monotonic() >= self._again_s
        if not self._is_trying:
            return
        for key in list(islice(self._held, self._again)):
            del self._held[key]
        self._again = min(self._again * 2, BATCH)

    async def _lead(self) -> bool:
        """Whether this process leads. One that does not asks for the lease, which is a write, once in FOLLOWS_S."""
        if self._tenure.left_s > self._tenure.lease_s / 2:
            return True
        now_s = self._clock.monotonic()
        if not self.leads and now_s - self._asked_s < FOLLOWS_S * 0.9:
            return False
        self._asked_s = now_s
        if await self._tenure.take():
            return True
        self._waits.over()
        return False

    async def _mark(self, rows: Sequence[Row[Any]]) -> None:
        async with self._database.transaction() as session:
            await outbox.mark_published(session, rows, self._clock.now())

    def _message(self, row: Row[Any]) -> Message:
        packed = pack_event(outbox.derived_event(row), plan=row.plan)
        return Message(key=packed.key, value=packed.value, headers=packed.headers)

    async def _wait(self) -> None:
        """Until woken, or a short while: other processes emit, too."""
        await is_set_within(self._wake, self._pace.wait_s if self.leads else FOLLOWS_S)

    async def _step_down(self) -> None:
        try:
            await self._tenure.give_back()
        except LedgerError as error:
            _log.warning("lease_not_released", lease=ROLE, error=type(error).__name__)


def _apart(rows: Sequence[Row[Any]], durable: Container[int]) -> tuple[list[Row[Any]], dict[tuple[str, str], None]]:
    """Which went out, each with all of its key before it; and the keys of the others. What went out ahead of one of its
    key goes again, behind it. Pure."""
    published, refused = list[Row[Any]](), dict[tuple[str, str], None]()
    for place, row in enumerate(rows):
        key = (row.application, row.key)
        if place in durable and key not in refused:
            published.append(row)
        else:
            refused[key] = None
    return published, refused
