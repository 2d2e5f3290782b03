"""Outlet: the one way of the sync stages to the rest: topic `events`."""

from __future__ import annotations

from collections.abc import Sequence

from consumer.broker import Broker, Message
from consumer.events import Event
from consumer.wire import pack_event

CHUNK_EVENTS = 500


class Outlet:
    """Publishes events on one topic, each durable when `publish` returns."""

    def __init__(self, broker: Broker, topic: str, *, timeout_s: float = 30.0) -> None:
        self._broker = broker
        self._topic = topic
        self._timeout_s = timeout_s

    async def publish(self, events: Sequence[Event], *, plan: str | None = None) -> None:
        """Return when all are durable, in order per key. Raises BrokerUnavailable, after which any of them may be.

        `plan` marks them as part of a plan (`seed`, or a replay's) for the workers.
        """
        for start in range(0, len(events), CHUNK_EVENTS):
            packed = [pack_event(event, plan=plan) for event in events[start : start + CHUNK_EVENTS]]
            messages = [Message(key=one.key, value=one.value, headers=one.headers) for one in packed]
            await self._broker.publish_many(self._topic, messages, self._timeout_s)
