"""MeasuredBroker: the log with its publishing counted and timed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

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
from consumer.errors import BrokerError, TopicForbidden, TopicUnknown, again
from consumer.telemetry.metrics import Metrics

Publishing = Coroutine[Any, Any, None]
PASSING_S = 60.0
"""What is refused no longer than this may have been the election of a leader: it says nothing once it is so old."""
REFUSAL_COUNTS_S = 600.0
PROBE_EVERY_S = 15.0
PROBED = (TopicForbidden, TopicUnknown)
"""What a probe shows on any log, and therefore also that it is over."""


class MeasuredBroker:
    """Does what `broker` does, and tells `metrics` how many records were acknowledged (`published`) or not (the error's
    code; some of them may be durable all the same), and how long that took. `writes`: the topics this process publishes
    to; whether they take a record is asked before the first one, too. `seconds`: a clock that never goes back."""

    def __init__(self, broker: Broker, metrics: Metrics, seconds: Callable[[], float] = perf_counter) -> None:
        self.writes: set[str] = set()
        self._broker = broker
        self._probed = (BrokerError,) if isinstance(broker, EmbeddedBroker) else PROBED  # a file's probe is a record
        self._probed_at = float("-inf")
        self._published = metrics.publishes
        self._not_started: BrokerError | None = None
        self._refused: BrokerError | None = None
        self._refused_since = self._refused_at = 0.0
        self._now = seconds
        self._seconds = metrics.publish_seconds

    @property
    def identity(self) -> str | None:
        """See Broker."""
        return self._broker.identity

    async def start(self) -> None:
        """See Broker. Why it could not is what `check` tells until it can."""
        try:
            await self._broker.start()
        except BrokerError as error:
            self._not_started = error
            raise
        self._not_started = None

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

    async def probe(self, topics: Iterable[str]) -> None:
        """See Broker. What refuses it counts as a refused record."""
        try:
            await self._broker.probe(topics)
        except BrokerError as error:
            self._refuse(error)
            raise

    def publish(self, topic: str, message: Message, timeout_s: float = 5.0) -> Publishing:
        """See Broker."""
        return self._measured(topic, 1, self._broker.publish(topic, message, timeout_s))

    def publish_many(self, topic: str, messages: Sequence[Message], timeout_s: float = 30.0) -> Publishing:
        """See Broker."""
        return self._measured(topic, len(messages), self._broker.publish_many(topic, messages, timeout_s))

    def subscribe(
        self,
        topics: Sequence[str],
        group: str,
        *,
        on_assigned: AssignmentListener | None = None,
        on_revoked: AssignmentListener | None = None,
        on_replaced: AssignmentListener | None = None,
        drain_s: float = 20.0,
    ) -> Subscription:
        """See Broker."""
        return self._broker.subscribe(
            topics, group, on_assigned=on_assigned, on_revoked=on_revoked, on_replaced=on_replaced, drain_s=drain_s
        )

    async def check(self) -> bool:
        """See Broker."""
        if not await self._broker.check():
            if (why := self._not_started) is not None:
                raise again(why)
            return False
        await self._probe_now_and_then()
        return True

    async def _probe_now_and_then(self) -> None:
        """Every PROBE_EVERY_S, and each time while it is refused. Raises what refuses it."""
        if self._now() - self._probed_at < PROBE_EVERY_S and not isinstance(self._refused, self._probed):
            return
        await self.probe(sorted(self.writes))
        self._probed_at = self._now()
        if isinstance(self._refused, self._probed):
            self._refused = None

    @property
    def refusal(self) -> BrokerError | None:
        """What the last record was refused with, lately; None when it was taken. A broker that answers may refuse."""
        lasted_s = self._refused_at - self._refused_since
        counts_s = REFUSAL_COUNTS_S if lasted_s >= PASSING_S else PASSING_S
        return self._refused if self._now() - self._refused_at <= counts_s else None

    async def _measured(self, topic: str, records: int, publishing: Awaitable[None]) -> None:
        began = self._now()
        try:
            await publishing
        except BrokerError as error:
            if durable := len(error.durable):
                self._published.inc((topic, "published"), durable)
            self._published.inc((topic, error.code), records - durable)
            # A record that is too large says nothing of the log.
            if error.retryable:
                self._refuse(error)
            raise
        self._refused = None
        self._published.inc((topic, "published"), records)
        self._seconds.observe(self._now() - began, (topic,))

    def _refuse(self, error: BrokerError) -> None:
        self._refused_at = self._now()
        if self._refused is None:
            self._refused_since = self._refused_at
        self._refused = error
