"""Log: a broker in the simulation's memory. It keeps what `broker/base.py` promises, and no more: an answer may be lost
after the deed, a batch may be as small as it likes, and who is silent for too long is declared dead."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from consumer.broker.base import AssignmentListener, Broker, Lag, Message, Partition, Record, TopicConfig
from consumer.broker.membership import Membership
from consumer.clock import Clock
from consumer.errors import BrokerUnavailable
from tests.simulation.loop import Process

PARTITIONS = 3
SESSION_S = 4.0
LOOK_S = 0.5


class Log:
    """What lies in it, and who reads. `trouble`: the share of calls that fail, half of them after the deed, or a part
    of it; `is_away`: all do, before it."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self.clock = clock
        self.random = random
        self.trouble = 0.0
        self.is_away = False
        self._records: dict[Partition, list[Record]] = {}
        self._groups: dict[str, Group] = {}
        self.news = asyncio.Event()

    def records(self, topic: str) -> list[Record]:
        """All of a topic."""
        return [one for partition, records in self._records.items() if partition.topic == topic for one in records]

    def of(self, partition: Partition) -> list[Record]:
        """What lies in one partition."""
        return self._records.setdefault(partition, [])

    def group(self, name: str, topics: Sequence[str]) -> Group:
        """The readers of that name."""
        if name not in self._groups:
            places = [Partition(topic, number) for topic in topics for number in range(PARTITIONS)]
            self._groups[name] = Group(self, places)
        return self._groups[name]

    def append(self, topic: str, messages: Iterable[Message]) -> None:
        """Keep them."""
        for one in messages:
            partition = Partition(topic, zlib.crc32(one.key) % PARTITIONS)
            records = self.of(partition)
            records.append(
                Record(
                    partition=partition, offset=len(records), key=one.key, value=one.value,
                    headers=dict(one.headers), published_at=self.clock.now(),
                )
            )  # fmt: skip
        self.news.set()
        self.news = asyncio.Event()

    def fails(self) -> bool:
        """Whether a call fails here."""
        return self.is_away or self.random.random() < self.trouble

    async def asked(self, deed: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        """A call over a network: it takes a while, and may fail before the deed or after it, or after `half` of it.
        Raises BrokerUnavailable."""
        await asyncio.sleep(self.random.uniform(0, 0.02))
        fails = self.fails()
        if fails and (self.is_away or self.random.random() < 0.5):
            raise BrokerUnavailable("the network is down")
        found = (half if fails and half is not None else deed)()
        await asyncio.sleep(self.random.uniform(0, 0.02))
        if fails:
            raise BrokerUnavailable("the answer was lost")
        return found


class Group:
    """Readers that share the partitions: each has one at a time, or is declared dead."""

    def __init__(self, log: Log, places: Sequence[Partition]) -> None:
        self.log = log
        self.offsets = dict.fromkeys(places, 0)
        self.members: list[Member] = []
        self.owners: dict[Partition, Member] = {}
        self._changed = asyncio.Event()
        self._shares = asyncio.get_running_loop().create_task(self._share())

    @property
    def is_done(self) -> bool:
        """Whether everything was read and committed."""
        return all(offset == len(self.log.of(place)) for place, offset in self.offsets.items())

    def close(self) -> None:
        """The log is gone."""
        self._shares.cancel()

    def change(self) -> None:
        """Share anew."""
        self._changed.set()

    async def _share(self) -> None:
        while True:
            self._bury()
            wanted = self._wanted()
            if any(self.owners.get(place) is not one for place, one in wanted.items()):
                await self._move(wanted)
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue
            self._changed.clear()

    def _bury(self) -> None:
        now = self.log.clock.monotonic()
        for member in [one for one in self.members if one.was_silent_since_s + SESSION_S < now]:
            self.members.remove(member)
            lost = frozenset(place for place, owner in self.owners.items() if owner is member)
            self.owners = {place: owner for place, owner in self.owners.items() if owner is not member}
            member.declared_dead(lost)

    def _wanted(self) -> dict[Partition, Member]:
        members = [one for one in self.members if not one.process.is_stopped]
        if not members:
            return {}
        first = self.log.random.randrange(len(members)) if len(self.owners) < len(self.offsets) else 0
        return {place: members[(first + n) % len(members)] for n, place in enumerate(self.offsets)} | {
            place: owner for place, owner in self.owners.items() if self._keeps(owner, members)
        }

    def _keeps(self, owner: Member, members: Sequence[Member]) -> bool:
        most = -(-len(self.offsets) // len(members))
        return owner in members and sum(one is owner for one in self.owners.values()) <= most

    async def _move(self, wanted: Mapping[Partition, Member]) -> None:
        moving = [place for place, one in wanted.items() if self.owners.get(place) is not one]
        for member in dict.fromkeys(self.owners[place] for place in moving if place in self.owners):
            places = frozenset(place for place in moving if self.owners.get(place) is member)
            await member.lets_go(places)
            for place in places:
                self.owners.pop(place, None)
        for place in moving:
            if wanted[place] in self.members:
                self.owners[place] = wanted[place]
        for member in dict.fromkeys(wanted[place] for place in moving):
            await member.gets(frozenset(place for place in moving if self.owners.get(place) is member))


class Member:
    """See `consumer.broker.base.Subscription`."""

    def __init__(self, log: Log, process: Process, membership: Membership) -> None:
        self.process = process
        self.was_silent_since_s = 0.0
        self._log = log
        self._membership = membership
        self._group = log.group(membership.group, membership.topics)
        self._cursors: dict[Partition, int] = {}
        self._beats: asyncio.Task[None] | None = None
        self._is_over = False

    # --- what the group does -----------------------------------------------------------------------------------

    async def lets_go(self, places: frozenset[Partition]) -> None:
        """It reads them no more; it hears of it, and may commit."""
        for place in places:
            self._cursors.pop(place, None)
        await self._told(self._membership.revoked(places))

    async def gets(self, places: frozenset[Partition]) -> None:
        """It reads them, after it has heard of it."""
        if not places or self._is_over:
            return
        await self._told(self._membership.assigned(places))
        for place in places:
            if self._group.owners.get(place) is self:
                self._cursors[place] = self._group.offsets[place]
        self._log.append(places.__iter__().__next__().topic, ())

    def declared_dead(self, places: frozenset[Partition]) -> None:
        """Others have its partitions. It hears of it when it can, and joins again."""
        self._cursors.clear()
        if not self._is_over and not self.process.is_dead:
            self.process.start(self._join_again(places))

    async def _join_again(self, places: frozenset[Partition]) -> None:
        await self._membership.revoked(places)
        if not self._is_over:
            self._join()

    async def _told(self, telling: Coroutine[Any, Any, None]) -> None:
        if self.process.is_dead:
            telling.close()
            return
        task = self.process.start(telling)
        while not task.done() and not self.process.is_dead:
            await asyncio.wait({task}, timeout=LOOK_S)
            if self.process.is_stopped:
                return

    # --- what a reader does ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """See the Protocol."""
        await self._log.asked(lambda: None)
        self._beats = asyncio.create_task(self._beat())
        self._join()

    def _join(self) -> None:
        self.was_silent_since_s = self._log.clock.monotonic()
        if self not in self._group.members:
            self._group.members.append(self)
        self._group.change()

    async def _beat(self) -> None:
        while True:
            self.was_silent_since_s = self._log.clock.monotonic()
            await asyncio.sleep(1.0)

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """See the Protocol."""
        if self._is_over:
            raise BrokerUnavailable("stopped")
        if self._log.fails():
            raise BrokerUnavailable("the network is down")
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := self._next(max_records)):
                    if self._is_over:
                        return []
                    await self._log.news.wait()
        except TimeoutError:
            return []
        return found

    def _next(self, most: int) -> list[Record]:
        found: list[Record] = []
        places = sorted(self._cursors)
        self._log.random.shuffle(places)
        for place in places:
            if room := most - len(found):
                first = self._cursors[place]
                new = self._log.of(place)[first : first + self._log.random.randint(1, room)]
                self._cursors[place] += len(new)
                found += new
        return found

    async def commit(self, offsets: Mapping[Partition, int], timeout_s: float = 10.0) -> frozenset[Partition]:
        """See the Protocol."""

        def deed() -> frozenset[Partition]:
            mine = frozenset(place for place in offsets if self._group.owners.get(place) is self)
            for place in mine:
                self._group.offsets[place] = max(self._group.offsets[place], offsets[place])
            return mine

        return frozenset(await self._log.asked(deed))

    async def stands(self) -> Mapping[Partition, int]:
        """See the Protocol."""
        return dict(await self._log.asked(lambda: {place: self._group.offsets[place] for place in self.assignment()}))

    async def rewind(
        self, offsets: Mapping[Partition, int], *, anyway: Collection[Partition] = ()
    ) -> frozenset[Partition]:
        """See the Protocol."""

        def deed() -> frozenset[Partition]:
            back = set()
            for place, offset in offsets.items():
                if place not in self._cursors:
                    continue
                if place in anyway or self._group.offsets[place] > offset:
                    self._group.offsets[place] = min(self._group.offsets[place], offset)
                    self._cursors[place] = offset
                    back.add(place)
            return frozenset(back)

        return frozenset(await self._log.asked(deed))

    def assignment(self) -> frozenset[Partition]:
        """See the Protocol."""
        return frozenset(place for place, owner in self._group.owners.items() if owner is self)

    async def lag(self) -> Mapping[Partition, Lag]:
        """See the Protocol."""
        return {place: Lag(len(self._log.of(place)) - self._group.offsets[place], 0.0) for place in self.assignment()}

    async def stop(self, timeout_s: float = 10.0) -> None:
        """See the Protocol."""
        if self._is_over or self.process.is_dead:
            return
        self._is_over = True
        if self._beats is not None:
            self._beats.cancel()
        self._cursors.clear()
        if self in self._group.members:
            self._group.members.remove(self)
        self._group.owners = {place: owner for place, owner in self._group.owners.items() if owner is not self}
        self._group.change()
        self._log.append("", ())


class Client(Broker):
    """The log as one process sees it."""

    def __init__(self, log: Log, process: Process) -> None:
        self._log = log
        self._process = process

    @property
    def identity(self) -> str | None:
        """There is one log."""
        return None

    async def publish(self, topic: str, message: Message, timeout_s: float = 5.0) -> None:
        """See the Protocol."""
        await self.publish_many(topic, (message,), timeout_s)

    async def publish_many(self, topic: str, messages: Sequence[Message], timeout_s: float = 30.0) -> None:
        """See the Protocol. Where half of them went, it is told which."""
        some = [place for place in range(len(messages)) if self._log.random.random() < 0.5]
        durable = set[int]()

        def half() -> None:
            self._log.append(topic, [messages[place] for place in some])
            durable.update(some)

        try:
            await self._log.asked(lambda: self._log.append(topic, messages), half)
        except BrokerUnavailable as error:
            error.durable = frozenset(durable)
            raise

    def subscribe(
        self,
        topics: Sequence[str],
        group: str,
        *,
        on_assigned: AssignmentListener | None = None,
        on_revoked: AssignmentListener | None = None,
        on_replaced: AssignmentListener | None = None,
        drain_s: float = 20.0,
    ) -> Any:
        """See the Protocol."""
        told: dict[str, Callable[[frozenset[Partition]], Awaitable[None]] | None] = {
            "on_assigned": on_assigned, "on_revoked": on_revoked, "on_replaced": on_replaced,
        }  # fmt: skip
        membership = Membership(
            topics=tuple(topics), group=group, drain_s=drain_s, heartbeat_s=1.0, session_s=SESSION_S, **told
        )
        return Member(self._log, self._process, membership)

    async def start(self) -> None:
        """It runs already."""

    async def stop(self, timeout_s: float = 10.0) -> None:
        """It belongs to nobody."""

    async def ensure_topics(self, topics: Iterable[TopicConfig]) -> None:
        """All are there."""

    async def ready(self) -> bool:
        """Always."""
        return True

    async def check(self) -> bool:
        """Always."""
        return True

    async def probe(self, topics: Iterable[str]) -> None:
        """They take it."""

    async def look(self, topics: Iterable[TopicConfig]) -> Any:
        """Nobody looks here."""
        raise NotImplementedError

    async def look_at_groups(self, groups: Mapping[str, str]) -> Any:
        """Nobody looks here."""
        raise NotImplementedError
