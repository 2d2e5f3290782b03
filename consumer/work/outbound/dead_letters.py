"""Dead letters: copies dead letters to topic `events.dead`: the raw bytes, why, every attempt, and with which code.

The letter is written in the transaction in which the run dies, published afterwards, then marked: after a crash in
between it goes out twice, nothing is lost. The ledger stays the place to act on a dead run; the topic is for others.

Those that a lowered limit refuses, or whose partition takes nothing, wait in the ledger, however many they are. Younger
ones go before them; then they are tried again in turn, until one is refused, every few seconds: each refusal costs a
producer, or seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import orjson
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker.base import Broker, Message
from consumer.clock import Clock, is_set_within, until_tick
from consumer.errors import TOO_LARGE, BrokerError, LedgerError, PartitionAway, RecordRefused, RecordTooLarge
from consumer.ledger import Database
from consumer.ledger.handling import dead
from consumer.ledger.handling.dead import Letter
from consumer.ledger.handling.events import to_event
from consumer.ledger.tables import AttemptRow
from consumer.telemetry.logs import Condition
from consumer.telemetry.way import on_the_way_of
from consumer.wire import pack_event

LOOK_EVERY_S = 2.0
RETRY_S = 5.0
BATCH = 50
AGAIN = 10
HISTORY_MAX_BYTES = 32 * 1024

_log = structlog.get_logger(__name__)


class DeadLetters:
    """Publishes while `leads` says that this process is the one to. `wake()` it when a run died here."""

    def __init__(
        self, *, database: Database, broker: Broker, topic: str, clock: Clock, leads: Callable[[], bool]
    ) -> None:
        self._database = database
        self._broker = broker
        self._topic = topic
        self._clock = clock
        self._leads = leads
        self._wake = asyncio.Event()
        self._waits = Condition("dead_letters_wait")
        self._refused = 0  # the number of the youngest letter that is refused for now; 0: none is
        self._tried = 0  # up to which of these they were tried again
        self._again_s = 0.0  # when they may be, by the clock

    def wake(self) -> None:
        """There may be letters: look now."""
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop`."""
        while not stop.is_set():
            self._wake.clear()
            wait_s = LOOK_EVERY_S
            try:
                published = await self.once() if self._leads() else self._forget()
                if not self._refused:
                    self._waits.over()
                if published == BATCH or (published and self._refused):
                    continue
            except (BrokerError, LedgerError) as error:
                wait_s = RETRY_S
                self._waits.lasts(error)
            await self._wait(wait_s, stop)

    async def once(self) -> int:
        """Publish what waits, at most BATCH letters; returns how many. Raises BrokerError, LedgerError, when those that
        are published are marked: they do not go out again. One that the topic does not take for now waits alone."""
        letters = await self._next()
        published, failure = await self._publish_all(letters)
        if published:
            async with self._database.transaction() as session:
                await dead.mark_published(session, published, self._clock.now())
        if failure is not None:
            raise failure
        return len(letters)

    def _forget(self) -> int:
        """Another process leads: what it finds refused is its own."""
        self._refused = self._tried = 0
        return 0

    async def _next(self) -> Sequence[Letter]:
        """Those that were not refused yet; behind them some that were, each in its turn."""
        async with self._database.reading() as session:
            letters = await dead.unpublished(session, BATCH, self._refused)
            is_early = self._clock.monotonic() < self._again_s
            if not self._refused or is_early or len(letters) == BATCH:
                return letters
            again = await self._again(session)
            if not again and self._tried:
                self._tried = 0
                again = await self._again(session)
        if not again:
            self._refused = 0
        return [*letters, *again]

    async def _again(self, session: AsyncSession) -> Sequence[Letter]:
        found = await dead.unpublished(session, AGAIN, self._tried)
        return [letter for letter in found if letter.row.id <= self._refused]

    async def _publish_all(self, letters: Sequence[Letter]) -> tuple[list[Letter], BrokerError | None]:
        published: list[Letter] = []
        failure: BrokerError | None = None
        refused = self._refused
        for letter in letters:
            try:
                await self._publish(letter)
            except (RecordRefused, PartitionAway) as error:
                failure = error
                self._again_s = self._clock.monotonic() + RETRY_S
                if letter.row.id <= refused:
                    self._tried = letter.row.id
                    break
                self._refused = letter.row.id
                if isinstance(error, PartitionAway):
                    break
            except BrokerError as error:
                return published, error
            else:
                published.append(letter)
        return published, failure

    async def _publish(self, letter: Letter) -> None:
        try:
            await self._broker.publish(self._topic, message(letter))
        except TOO_LARGE:
            try:
                await self._broker.publish(self._topic, message(letter, with_attempts=False))
            except RecordTooLarge:
                # The event alone is as large as the topic takes: the ledger keeps all of it.
                with on_the_way_of(to_event(letter.event)):
                    _log.error("dead_letter_too_large", handler=letter.row.handler)

    async def _wait(self, seconds: float, stop: asyncio.Event) -> None:
        if not stop.is_set():
            await is_set_within(self._wake, until_tick(self._clock, seconds))


def message(letter: Letter, *, with_attempts: bool = True) -> Message:
    """The letter as a record: the event as it came, and `dead_…` headers. Pure."""
    packed = pack_event(to_event(letter.event))
    row = letter.row
    why = {
        "dead_handler": row.handler,
        "dead_at": row.died_at.isoformat(),
        "dead_code": row.code or "",
        "dead_reason": row.reason or "",
        "dead_fingerprint": row.fingerprint or "",
        "dead_code_version": row.code_version,
        "dead_attempts": str(row.attempts),
    }
    headers = dict(packed.headers) | {name: value.encode() for name, value in why.items()}
    if with_attempts:
        headers["dead_history"] = _history(list(letter.attempts))
    return Message(key=packed.key, value=packed.value, headers=headers)


def _history(attempts: list[AttemptRow]) -> bytes:
    """All attempts as JSON, oldest first; the oldest are left out when they are too many to travel."""
    while True:
        packed = orjson.dumps([_attempt(row) for row in attempts], option=orjson.OPT_UTC_Z)
        if len(packed) <= HISTORY_MAX_BYTES:
            return packed
        attempts = attempts[len(attempts) // 4 + 1 :]


def _attempt(row: AttemptRow) -> dict[str, object]:
    return {
        "number": row.number,
        "outcome": row.outcome,
        "code": row.code,
        "reason": row.reason,
        "fingerprint": row.fingerprint,
        "trace": row.trace,
        "code_version": row.code_version,
        "worker": row.worker,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }
