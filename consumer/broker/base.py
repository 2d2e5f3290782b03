"""Broker: an append-only log with topics, partitions and groups. Two implementations share one contract suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple, Protocol

from consumer.broker.groups import GroupReport

STANDS_WITHIN_S = 10.0
"""How long who asks, or moves, where a group stands waits for it."""


class Message(NamedTuple):
    """What is published: the key decides the partition, the value is kept byte for byte."""

    key: bytes
    value: bytes
    headers: Mapping[str, bytes] = MappingProxyType({})

    @property
    def size_bytes(self) -> int:
        """Key, value, header names and values: what Kafka holds against a topic's largest record."""
        headers = self.headers
        return len(self.key) + len(self.value) + len("".join(headers)) + len(b"".join(headers.values()))


@dataclass(frozen=True, order=True)
class Partition:
    """One partition of one topic."""

    topic: str
    number: int


@dataclass(frozen=True, kw_only=True)
class Record:
    """A message as it lies in the log."""

    partition: Partition
    offset: int
    key: bytes
    value: bytes
    headers: Mapping[str, bytes]
    published_at: datetime


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """A topic as the consumer needs it. `retention_s` None keeps records for ever; 0 partitions means the default.
    `copies`: so many at least when it is made, where the log has several servers."""

    name: str
    partitions: int
    retention_s: float | None
    max_record_bytes: int
    copies: int = 0


@dataclass(frozen=True, kw_only=True)
class TopicReport:
    """A topic as somebody who only looks finds it. `partitions` None: it is not there.

    `wrong`: what could lose records or keeps them out; no role starts on it. `thin`: what works, and does not when one
    broker more is lost. `odd`: what works, otherwise than on a topic made by us. `remedies`: the commands that mend it.
    `newest_at`: when the newest record was stored by the log's own clock; None when there is none, or when the topic
    keeps its publishers' times.
    """

    name: str
    partitions: int | None
    wrong: tuple[str, ...] = ()
    thin: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    newest_at: datetime | None = None


@dataclass(frozen=True)
class Lag:
    """How far a group is behind in one partition: records, and seconds since the oldest unread one was published."""

    records: int
    oldest_s: float | None


AssignmentListener = Callable[[frozenset[Partition]], Awaitable[None]]


class Subscription(Protocol):
    """One member of a group. Not safe for concurrent polls; everything else may be called at any time.

    At a rebalance: records of the partitions concerned are not handed out any more, `on_revoked` is awaited (a commit
    in it counts), the partitions go; the new ones come, `on_assigned` is awaited, their records are handed out. Kafka
    revokes all partitions and gives some back, the embedded log moves only what has to move: be ready for both. A
    member that was declared dead hears `on_revoked` too, after the fact; its commits are then left out.
    """

    async def start(self) -> None:
        """Join the group. Raises BrokerUnavailable when the broker does not answer in time, TopicUnknown."""
        ...

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Up to `max_records` records in offset order per partition; empty after `timeout_s` without any, and when
        the subscription is stopped meanwhile. Cancelling it loses nothing.

        Raises BrokerUnavailable when not started or stopped, BrokerError when the log cannot be read (the subscription
        mends itself: pause and poll again). Poll at least every few minutes, or the member is declared dead.
        """
        ...

    async def commit(self, offsets: Mapping[Partition, int], timeout_s: float = 10.0) -> frozenset[Partition]:
        """Store the next offset to read, per partition. Returns the partitions for which it was stored; those that
        belong to another member by now are left out. An offset never goes back here: one lower than stored counts as
        stored. Raises BrokerUnavailable after `timeout_s` (it may have been stored all the same)."""
        ...

    async def stands(self) -> Mapping[Partition, int]:
        """Where the group stands in the partitions of this member: the next offset to read, as it is stored or, before
        the first commit, where the log begins. Not during a `poll`. Raises BrokerUnavailable."""
        ...

    async def rewind(
        self, offsets: Mapping[Partition, int], *, anyway: Collection[Partition] = ()
    ) -> frozenset[Partition]:
        """The group goes back to these offsets, where it stands behind them, and reads on from there; `anyway`: this
        member does, wherever its group stands: what it read was never committed. Returns the partitions in which it
        did: records of theirs that were handed out and not dealt with come again, in order. Not during a `poll`.
        Raises BrokerUnavailable."""
        ...

    def assignment(self) -> frozenset[Partition]:
        """The partitions this member reads now, without those it is letting go."""
        ...

    async def lag(self) -> Mapping[Partition, Lag]:
        """How far the group is behind, for the partitions of this member. Raises BrokerUnavailable."""
        ...

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Leave the group, bounded by `timeout_s`. Does not commit and does not call `on_revoked`: drain and commit
        first. Safe to call twice and before `start`; it cannot be started again."""
        ...


class Broker(Protocol):
    """The log. `start` before use, `stop` after it; both are safe to call twice."""

    @property
    def identity(self) -> str | None:
        """Which log this is, whatever its address: its kind, and the id it got when it was made. As it was last heard;
        None before `start`, and where the log has none. Asks nobody."""
        ...

    async def start(self) -> None:
        """Connect. Raises BrokerUnavailable when nothing answers in time; it may be called again."""
        ...

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the subscriptions, flush what is pending, bounded by `timeout_s`, and disconnect."""
        ...

    async def ensure_topics(self, topics: Iterable[TopicConfig]) -> None:
        """Create what is missing; raise TopicMisconfigured for a topic that exists and could lose records."""
        ...

    async def look(self, topics: Iterable[TopicConfig]) -> Sequence[TopicReport]:
        """How these topics stand, in this order. Changes nothing, makes nothing, needs no `start`. Raises
        BrokerUnavailable when the broker does not answer, BrokerError when the log cannot be read."""
        ...

    async def look_at_groups(self, groups: Mapping[str, str]) -> Sequence[GroupReport]:
        """How far each group (name to topic) is, as the log itself says; a topic that is not there is left out. Changes
        nothing, needs no `start`. Raises BrokerUnavailable, and by its own code what the broker refuses."""
        ...

    async def probe(self, topics: Iterable[str]) -> None:
        """Whether these topics take a record of ours, as far as that can be asked without leaving one; bounded. Raises
        by its own code what refuses it."""
        ...

    async def publish(self, topic: str, message: Message, timeout_s: float = 5.0) -> None:
        """Return when the record is durable. Raises BrokerUnavailable after `timeout_s` (the record may still
        become durable later: expect a duplicate) or at once when too much is pending, RecordTooLarge when it can never
        be taken, RecordRefused while the topic's limit is lower than it was, TopicUnknown. Many calls at once share
        transactions and requests: do not queue in front of it."""
        ...

    async def publish_many(self, topic: str, messages: Sequence[Message], timeout_s: float = 30.0) -> None:
        """The same for many, in order per key. Each has an outcome of its own: one that is refused, for its size or by
        its partition, takes those of its key behind it along, which are not sent, and no other. Raises when all have
        an outcome: that of a record that is too large before any other, with those that are `durable`."""
        ...

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
        """A new member of `group`, not started. `on_revoked` is awaited before the partitions go to another member,
        for at most `drain_s`; a new group starts at the oldest record.

        `on_replaced` is awaited in a `poll`, which raises what it raises, where the log has lost records that the group
        had read and committed, however far it has grown again: other records stand there now. The group goes back to
        the oldest record of those partitions, so that it skips none; what comes again it has seen."""
        ...

    async def check(self) -> bool:
        """Whether the broker answers now, False before `start`; bounded. Raises the BrokerError that says why it
        cannot be used."""
        ...


def next_offsets(records: Sequence[Record]) -> dict[Partition, int]:
    """Where to go on in each partition after these records, which came in order."""
    return {record.partition: record.offset + 1 for record in records}
