"""One aiokafka consumer, with every default that could lose or double records set right, and its listener."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.client import ConnectionGroup
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.protocol.fetch import FetchRequest

from consumer.broker.kafka.causes import REFUSALS, broker_error, why_unreachable
from consumer.broker.kafka.connection import KafkaConnection, ask_calmly, end
from consumer.broker.kafka.header_names import read_any_names

JOIN_SLACK_S = 30.0
REBALANCE_SLACK_S = 10.0
MAX_POLL_INTERVAL_S = 300.0
PARTITION_FETCH_BYTES = 1024 * 1024
FETCH_BYTES = 16 * 1024 * 1024
FETCH_WAIT_S = 1.0
"""So long an idle broker holds back an empty answer; a record ends it at once."""
REFUSED_WAIT_S = 0.1
END_WITHIN_S = 1.0

OnGain = Callable[[Iterable[TopicPartition]], Awaitable[None]]
OnLose = Callable[[], Awaitable[None]]
OnOther = Callable[[], None]


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Passes aiokafka's callbacks on until it is detached: an abandoned consumer must not speak for the member."""

    def __init__(self, on_gain: OnGain, on_lose: OnLose) -> None:
        self._on_gain = on_gain
        self._on_lose = on_lose
        self._attached = True

    def detach(self) -> None:
        """Pass nothing on any more."""
        self._attached = False

    async def on_partitions_revoked(self, _revoked: Iterable[TopicPartition]) -> None:
        """Eager assignment: whatever is revoked, it is all of it."""
        if self._attached:
            await self._on_lose()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """The new assignment, whole."""
        if self._attached:
            await self._on_gain(assigned)


async def open_consumer(
    connection: KafkaConnection,
    topics: Sequence[str],
    group: str,
    *,
    on_gain: OnGain,
    on_lose: OnLose,
    on_other: OnOther,
    rebalance_s: float,
    heartbeat_s: float,
    session_s: float,
    any_names: bool,
) -> tuple[Any, Listener]:
    """A consumer that has joined its group. `rebalance_s` is how long the others wait for this member to drain.
    `any_names`: it reads headers whose names are not UTF-8, too. `on_other` is called where a partition is fetched over
    another connection than before, before anything of that is handed out: its server may have begun anew meanwhile.

    Raises BrokerUnavailable when the group cannot be joined in that time and some.
    """
    reached = await connection.reached()
    consumer = AIOKafkaConsumer(
        **reached.options(),
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        # Ours are in no transaction. `read_committed` would let a stranger's that hangs hold back what lies behind it.
        isolation_level="read_uncommitted",
        partition_assignment_strategy=(RoundRobinPartitionAssignor,),
        rebalance_timeout_ms=int(rebalance_s * 1000),
        # A JoinGroup is answered only when every member has drained, so a request must be allowed that long.
        request_timeout_ms=int((rebalance_s + REBALANCE_SLACK_S) * 1000),
        session_timeout_ms=int(session_s * 1000),
        heartbeat_interval_ms=int(heartbeat_s * 1000),
        max_poll_interval_ms=int(MAX_POLL_INTERVAL_S * 1000),
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        fetch_max_bytes=FETCH_BYTES,
        fetch_max_wait_ms=int(FETCH_WAIT_S * 1000),
    )
    ask_calmly(consumer._client)
    _fetch_calmly(consumer._client, on_other)
    if any_names:
        read_any_names(consumer._client)
    listener = Listener(on_gain, on_lose)
    consumer.subscribe(list(topics), listener=listener)
    try:
        async with asyncio.timeout(rebalance_s + JOIN_SLACK_S):
            await consumer.start()
    except BaseException as error:
        listener.detach()
        await end(consumer, END_WITHIN_S)
        if isinstance(error, (*REFUSALS, TimeoutError)):
            known = await why_unreachable(connection)
            raise known or broker_error(error, "the group could not be joined", group=group) from error
        raise
    return consumer, listener


def _fetch_calmly(client: Any, on_other: OnOther) -> None:
    """From now on aiokafka's network client waits a moment where a broker refuses to give a partition, and asks who
    leads it. It fetches again as soon as it is answered, from the same one, for up to a minute (case O9)."""
    send = client.send
    over: dict[tuple[str, int], Any] = {}

    async def sent(node: Any, request: Any, **how: Any) -> Any:
        response = await send(node, request, **how)
        if not isinstance(request, FetchRequest):
            return response
        connection = client._conns.get((node, ConnectionGroup.DEFAULT))
        fetched = {(topic, number): connection for topic, parts in response.topics for number, *_ in parts}
        if any(over.get(spot, connection) is not connection for spot in fetched):
            on_other()
        over.update(fetched)
        if any(code for _, parts in response.topics for _, code, *_ in parts):
            client.force_metadata_update()
            await asyncio.sleep(REFUSED_WAIT_S)
        return response

    client.send = sent
