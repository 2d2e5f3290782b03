"""MeasuredBroker: the log with its publishing counted and timed."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from time import perf_counter

from consumer.broker import (
    AssignmentListener,
    Broker,
    EmbeddedBroker,
    GroupReport,
    Message,
    Subscription,
    TopicConfig,
    TopicReport,
)
from consumer.errors import BrokerError
from consumer.telemetry.metrics import Metrics

REFUSAL_COUNTS_S = 600.0


class MeasuredBroker:
    """Does what `broker` does, and tells `metrics` how many records were acknowledged (`published`) or not (the error's
    code; some of them may be durable all the same), and how long that took."""

    def __init__(self, broker: Broker, metrics: Metrics) -> None:
        self._broker = broker
        self._published = metrics.publishes
        self._refused: BrokerError | None = None
        self._refused_at = 0.0
        self._seconds = functools.cache(metrics.publish_seconds.labels)  # by topic: a look-up costs more than counting

    async def start(self) -> None:
        """See Broker."""
        await self._broker.start()

    async def stop(self, timeout_s: float = 10.0) -> None:
        """See Broker."""
        await self._broker.stop(timeout_s)

    async def ensure_topics(self, topics: Iterable[TopicConfig]) -> None:
        """See Broker."""
        await self._broker.ensure_topics(topics)

    async def look(self, topics: Iterable[TopicConfig]) -> Sequence[TopicReport]:
        """See Broker."""
        return await self._broker.look(topics)

    async def look_at_groups(self, groups: Mapping[str, str]) -> Sequence[GroupReport]:
        """See Broker."""
        return await self._broker.look_at_groups(groups)

    async def publish(self, topic: str, message: Message, timeout_s: float = 5.0) -> None:
        """See Broker."""
        await self._measured(topic, 1, self._broker.publish(topic, message, timeout_s))

    async def publish_many(self, topic: str, messages: Sequence[Message], timeout_s: float = 30.0) -> None:
        """See Broker."""
        await self._measured(topic, len(messages), self._broker.publish_many(topic, messages, timeout_s))

    def subscribe(
        self,
        topics: Sequence[str],
        group: str,
        *,
        on_assigned: AssignmentListener | None = None,
        on_revoked: AssignmentListener | None = None,
        drain_s: float = 20.0,
    ) -> Subscription:
        """See Broker."""
        return self._broker.subscribe(topics, group, on_assigned=on_assigned, on_revoked=on_revoked, drain_s=drain_s)

    async def ready(self) -> bool:
        """See Broker."""
        return await self._broker.ready()

    async def check(self) -> bool:
        """See Broker."""
        if not await self._broker.check():
            return False
        if isinstance(self._broker, EmbeddedBroker):
            self._refused = None  # it has just written
        return True

    @property
    def refusal(self) -> BrokerError | None:
        """What the last record was refused with, lately; None when it was taken. A broker that answers may refuse."""
        if self._refused is None or perf_counter() - self._refused_at > REFUSAL_COUNTS_S:
            return None
        return self._refused

    async def _measured(self, topic: str, records: int, publishing: Awaitable[None]) -> None:
        began = perf_counter()
        try:
            await publishing
        except BrokerError as error:
            self._published.inc((topic, error.code), records)
            # A record that is too large says nothing of the log.
            if error.retryable:
                self._refused, self._refused_at = error, perf_counter()
            raise
        self._refused = None
        self._published.inc((topic, "published"), records)
        self._seconds(topic).observe(perf_counter() - began)
