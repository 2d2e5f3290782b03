"""EventPublisher: the one way of the sync stages to the rest: topic `events`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from consumer.broker import Broker, Message
from consumer.errors import RecordTooLarge
from consumer.events import Event
from consumer.ledger.engine.chunks import portions
from consumer.ledger.reading.observation import Observation, reduced
from consumer.telemetry import way
from consumer.wire import pack_event

LOG = structlog.get_logger()

CHUNK_EVENTS = 500
TIMEOUT_S = 30.0
IDS_MAX = 50_000


class EventPublisher:
    """Publishes events on one topic, each durable when `publish` returns."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic

    async def publish(
        self, events: Sequence[Event], *, plan: str | None = None, smaller: Callable[[Event], Event] | None = None
    ) -> Sequence[Event]:
        """Return when all are durable, in order per key. Raises BrokerUnavailable, after which any of them may be.

        `plan` marks them as part of a plan (`seed`, or a replay's) for the workers. What is larger than the topic takes
        is published as `smaller` makes it, where that is given. Returned are those that are too large all the same:
        they are not published, and must not hold up all the others for ever (case U1).
        """
        refused: list[Event] = []
        for some in portions(events, CHUNK_EVENTS):
            try:
                await self._send(some, plan)
            except RecordTooLarge:
                refused += await self._singly(some, plan, smaller)
        return refused

    async def tell(self, seen: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
        """Publish what was read, `reduced` where it is too large: those that are told, and those that are too large all
        the same. Raises as `publish`."""
        refused = {event.id for event in await self.publish([one.event() for one in seen], smaller=reduced)}
        told = [one for one in seen if one.event_id not in refused]
        return told, [one for one in seen if one.event_id in refused]

    async def _singly(
        self, events: Sequence[Event], plan: str | None, smaller: Callable[[Event], Event] | None
    ) -> list[Event]:
        refused = []
        for event in events:
            if await self._fits(event, plan) or (smaller is not None and await self._fits(smaller(event), plan)):
                continue
            refused.append(event)
            LOG.error(
                "event_too_large", hint="the topic takes none so large: it is not published",
                application=event.application, event_id=event.id, trace_id=way.trace_id(event), type=event.type,
            )  # fmt: skip
        return refused

    async def _fits(self, event: Event, plan: str | None) -> bool:
        try:
            await self._send([event], plan)
        except RecordTooLarge:
            return False
        return True

    async def _send(self, events: Sequence[Event], plan: str | None) -> None:
        packed = [pack_event(event, plan=plan) for event in events]
        messages = [Message(key=one.key, value=one.value, headers=one.headers) for one in packed]
        await self._broker.publish_many(self._topic, messages, TIMEOUT_S)


class PublishedIds:
    """The ids published a short while ago, which the workers may not have recorded yet. Bounded."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def add(self, ids: Sequence[str]) -> None:
        """Remember these; the oldest are forgotten."""
        for one in ids:
            self._ids.pop(one, None)
            self._ids[one] = None
        while len(self._ids) > IDS_MAX:
            del self._ids[next(iter(self._ids))]

    def __contains__(self, one: object) -> bool:
        return one in self._ids
