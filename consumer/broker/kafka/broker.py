"""KafkaBroker: the log on Apache Kafka, through aiokafka. See README.md for the traps it steps around."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from aiokafka.errors import KafkaError

from consumer.broker.base import AssignmentListener, Message, TopicConfig, TopicReport
from consumer.broker.groups import GroupReport
from consumer.broker.kafka.causes import probe, why_unreachable
from consumer.broker.kafka.connection import KafkaConnection, KafkaSecurity
from consumer.broker.kafka.groups import inspect_groups
from consumer.broker.kafka.inspection import inspect
from consumer.broker.kafka.lanes import TopicLanes, too_large
from consumer.broker.kafka.member import KafkaSubscription
from consumer.broker.kafka.publisher import KafkaPublisher
from consumer.broker.kafka.topics import RECORD_OVERHEAD_BYTES, FoundTopic, KafkaTopics
from consumer.broker.membership import Membership
from consumer.broker.outcomes import Outcomes
from consumer.clock import Clock, SystemClock
from consumer.errors import BrokerError, BrokerUnavailable, TopicUnknown, again

LOOKUP_WITHIN_S = 10.0
READY_WITHIN_S, CHECK_WITHIN_S = 1.0, 1.8
"""How long a look waits for an answer, and at most in all, with why there is none: less than those wait who ask."""
PROBE_WITHIN_S = 1.0
MAX_PENDING_BYTES = 64 * 1024 * 1024
CHUNK_RECORDS = 2_000
CHUNK_BYTES = 4 * 1024 * 1024


class KafkaBroker:
    """See `consumer.broker.base.Broker`.

    `max_pending` messages and MAX_PENDING_BYTES bound what waits for an acknowledgement; `heartbeat_s` is how often
    a member says that it lives, and how soon it notices a rebalance: at 1 s, 99 of 100 records waited for up to 1.6 s
    when members left, at 0.3 s for 0.5 s. `session_s` after how long without it the broker gives its partitions to
    others.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        security: KafkaSecurity | None = None,
        clock: Clock | None = None,
        client_id: str = "consumer",
        heartbeat_s: float = 0.3,
        session_s: float = 15.0,
        max_pending: int = 20_000,
        start_within_s: float = 10.0,
    ) -> None:
        self._connection = KafkaConnection(
            servers=tuple(servers), client_id=client_id, security=security or KafkaSecurity()
        )
        self._clock: Clock = clock or SystemClock()
        self._heartbeat_s = heartbeat_s
        self._session_s = session_s
        self._max_pending = max_pending
        self._start_within_s = start_within_s
        self._admin = KafkaTopics(self._connection)
        self._topics: dict[str, TopicLanes] = {}
        self._lookups: dict[str, asyncio.Task[TopicLanes]] = {}
        self._publisher: KafkaPublisher | None = None
        self._subscriptions: list[KafkaSubscription] = []

    @property
    def identity(self) -> str | None:
        """See the Protocol."""
        found = None if self._publisher is None else self._publisher.cluster_id
        return None if found is None else f"Kafka {found}"

    async def start(self) -> None:
        """Connect. Raises BrokerUnavailable when nothing answers in `start_within_s`; it may be called again."""
        if self._publisher is not None:
            return
        publisher = KafkaPublisher(self._connection, max_pending=self._max_pending, max_pending_bytes=MAX_PENDING_BYTES)
        await publisher.start(self._start_within_s)
        self._publisher = publisher

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the subscriptions that still run, wait for acknowledgements, disconnect; all within `timeout_s`."""
        publisher, self._publisher = self._publisher, None
        if publisher is None:
            return
        running = [subscription for subscription in self._subscriptions if subscription.running]
        self._subscriptions.clear()
        for looking in self._lookups.values():
            looking.cancel()
        await asyncio.gather(publisher.stop(timeout_s), *(member.stop(timeout_s) for member in running))
        self._topics.clear()

    async def ensure_topics(self, topics: Iterable[TopicConfig]) -> None:
        """Create what is missing; raise TopicMisconfigured listing what is wrong with what exists."""
        self._started()
        wanted = list(topics)
        found = await self._admin.ensure(wanted)
        for topic in wanted:
            self._topics[topic.name] = _lanes(topic.name, found[topic.name], topic.max_record_bytes)

    async def look(self, topics: Iterable[TopicConfig]) -> Sequence[TopicReport]:
        """See the Protocol."""
        return await inspect(self._connection, list(topics))

    async def look_at_groups(self, groups: Mapping[str, str]) -> Sequence[GroupReport]:
        """See the Protocol."""
        return await inspect_groups(self._connection, groups)

    async def probe(self, topics: Iterable[str]) -> None:
        """See the Protocol: it asks for grants and topics. A broker that does not answer in time refuses nothing."""
        try:
            for topic in topics:
                await self._exists(topic, PROBE_WITHIN_S)
                client = self._started().client
                if client is not None:
                    await probe(client, topic, PROBE_WITHIN_S)
        except BrokerUnavailable as error:
            if type(error) is not BrokerUnavailable:
                raise

    def publish(self, topic: str, message: Message, timeout_s: float = 5.0) -> Coroutine[Any, Any, None]:
        """See the Protocol (cases I1, I2, I3, I22)."""
        publisher, lanes = self._publisher, self._topics.get(topic)
        if publisher is None or lanes is None:
            return self._publish_elsewhere(topic, message, timeout_s)
        return publisher.send(lanes, message, timeout_s)

    async def _publish_elsewhere(self, topic: str, message: Message, timeout_s: float) -> None:
        publisher = self._started()
        await publisher.send(await self._lookup(topic, timeout_s), message, timeout_s)

    async def publish_many(self, topic: str, messages: Sequence[Message], timeout_s: float = 30.0) -> None:
        """See the Protocol."""
        publisher = self._started()
        lanes = self._topics.get(topic) or await self._lookup(topic, timeout_s)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        outcomes, sizes = Outcomes(messages), [message.size_bytes for message in messages]
        for place, size in enumerate(sizes):
            if size > lanes.max_record_bytes:
                outcomes.settle(place, too_large(lanes, size))
        for places in outcomes.chunks(sizes, CHUNK_RECORDS, CHUNK_BYTES):
            chunk = [messages[place] for place in places]
            found = await publisher.send_many(lanes, chunk, max(0.0, deadline - loop.time()))
            for place, outcome in zip(places, found, strict=True):
                outcomes.settle(place, outcome)
        outcomes.check()

    def subscribe(
        self,
        topics: Sequence[str],
        group: str,
        *,
        on_assigned: AssignmentListener | None = None,
        on_revoked: AssignmentListener | None = None,
        on_replaced: AssignmentListener | None = None,
        drain_s: float = 20.0,
    ) -> KafkaSubscription:
        """See the Protocol. Assignments are eager: at each rebalance all partitions are revoked, then given anew."""
        self._started()
        self._subscriptions = [member for member in self._subscriptions if not member.stopped]
        membership = Membership(
            topics=tuple(topics),
            group=group,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_replaced=on_replaced,
            drain_s=drain_s,
            heartbeat_s=self._heartbeat_s,
            session_s=self._session_s,
        )
        subscription = KafkaSubscription(
            self._connection,
            membership,
            clock=self._clock,
            exists=self._exists,
        )
        self._subscriptions.append(subscription)
        return subscription

    async def check(self) -> bool:
        """Whether the cluster answers a metadata request within READY_WITHIN_S. Raises BrokerUnavailable when it does
        not, or what the servers refuse, if that can be known in CHECK_WITHIN_S."""
        until = asyncio.get_running_loop().time() + CHECK_WITHIN_S
        if await self._answers():
            return True
        cause = None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                cause = await why_unreachable(self._connection)
        raise cause or BrokerUnavailable("the broker does not answer", servers=",".join(self._connection.servers))

    # --- inside ----------------------------------------------------------------------------------------------

    async def _answers(self) -> bool:
        client = self._publisher.client if self._publisher is not None else None
        if client is None:
            return False
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                return bool(await client.force_metadata_update())
        except (TimeoutError, KafkaError, OSError):
            return False

    def _started(self) -> KafkaPublisher:
        if self._publisher is None:
            raise BrokerUnavailable("the broker is not started")
        return self._publisher

    async def _exists(self, topic: str, within_s: float = LOOKUP_WITHIN_S) -> None:
        if topic not in self._topics:
            await self._lookup(topic, within_s)

    async def _lookup(self, topic: str, timeout_s: float) -> TopicLanes:
        """All who ask at once share one look, which is bounded, and goes on for the others when one gives up."""
        looking = self._lookups.get(topic)
        if looking is None:
            looking = self._lookups[topic] = asyncio.create_task(self._look_up(topic))
            looking.add_done_callback(partial(self._looked_up, topic))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(looking)
        except TimeoutError as error:
            raise BrokerUnavailable("the broker did not describe the topic in time", topic=topic) from error
        except BrokerError as error:
            raise again(error) from error
        except asyncio.CancelledError:
            if not looking.cancelled():
                raise
            raise BrokerUnavailable("the broker was stopped", topic=topic) from None

    async def _look_up(self, topic: str) -> TopicLanes:
        found = await self._admin.describe(topic)
        if found is None:
            raise TopicUnknown(topic=topic)
        lanes = _lanes(topic, found, found.max_message_bytes - RECORD_OVERHEAD_BYTES)
        return self._topics.setdefault(topic, lanes)

    def _looked_up(self, topic: str, looking: asyncio.Task[TopicLanes]) -> None:
        del self._lookups[topic]
        if not looking.cancelled():
            looking.exception()  # looked at: who asked may have given up


def _lanes(name: str, found: FoundTopic, max_record_bytes: int) -> TopicLanes:
    is_bound_known = found.settings is not None
    return TopicLanes(name, found.partitions, max_record_bytes, found.max_message_bytes, is_bound_known=is_bound_known)
