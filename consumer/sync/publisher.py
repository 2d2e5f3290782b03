"""EventPublisher: the one way of the sync stages to the rest: topic `events`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from weakref import WeakSet

import structlog

from consumer.broker import Broker, Message
from consumer.errors import TOO_LARGE, BrokerError, PartitionAway, RecordRefused, RecordTooLarge
from consumer.events import Event
from consumer.ledger.engine.chunks import portions
from consumer.ledger.reading.observation import Observation, reduced
from consumer.telemetry import way
from consumer.wire import pack_event

LOG = structlog.get_logger()

CHUNK_EVENTS = 500
TIMEOUT_S = 30.0
IDS_MAX, IDS_OF_ALL, FORGOTTEN_AT_ONCE = 50_000, 200_000, 100
"""Of one set, and of all sets of a process together: some 35 MiB."""


@dataclass(frozen=True, kw_only=True)
class Left:
    """Events that are not published, while others are. `too_large`: the topic takes none like them. `for_now`: it takes
    them when its limit is raised again, or their partition takes records again; `refusal` says of the last one of them
    why."""

    too_large: tuple[Event, ...] = ()
    for_now: tuple[Event, ...] = ()
    refusal: BrokerError | None = None

    @property
    def ids(self) -> set[str]:
        """Of all of them."""
        return {event.id for event in (*self.too_large, *self.for_now)}

    @property
    def away(self) -> BrokerError | None:
        """Why some of them wait, where that is not for their size."""
        return None if isinstance(self.refusal, RecordRefused) else self.refusal

    def with_these(self, events: Sequence[Event], error: BrokerError) -> Left:
        """And these, which were refused so."""
        if isinstance(error, RecordTooLarge):
            return replace(self, too_large=(*self.too_large, *events))
        return replace(self, for_now=(*self.for_now, *events), refusal=error)


class EventPublisher:
    """Publishes events on one topic, each durable when `publish` returns. `vouch` raises where they may be nobody's
    here."""

    def __init__(self, broker: Broker, topic: str, *, vouch: Callable[[], Awaitable[None]] | None = None) -> None:
        self._broker = broker
        self._topic = topic
        self._vouch = vouch
        self._ids = WeakSet[PublishedIds]()

    def vouched_by(self, vouch: Callable[[], Awaitable[None]]) -> EventPublisher:
        """The same for one application, by its own word. The sets of ids of both share their room."""
        found = EventPublisher(self._broker, self._topic, vouch=vouch)
        found._ids = self._ids
        return found

    def ids(self) -> PublishedIds:
        """A set of ids; all of this publisher's share their room."""
        return PublishedIds(self._ids)

    async def publish(
        self, events: Sequence[Event], *, plan: str | None = None, smaller: Callable[[Event], Event] | None = None
    ) -> Left:
        """Return when all are durable, in order per key. Raises BrokerUnavailable where the log takes nothing, after
        which any of them may be.

        `plan` marks them as part of a plan (`seed`, or a replay's) for the workers. What is larger than the topic takes
        is published as `smaller` makes it, where that is given. Returned are those that are too large all the same, or
        of a partition that takes nothing: they are not published, and must not hold up all the others for ever (case
        U1). What `vouch` raises is raised before anything is published.
        """
        left = Left()
        if events and self._vouch is not None:
            await self._vouch()
        for some in portions(events, CHUNK_EVENTS):
            try:
                await self._send(some, plan)
            except BrokerError as error:
                rest = [event for place, event in enumerate(some) if place not in error.durable]
                if isinstance(error, TOO_LARGE):
                    left = await self._one_by_one(rest, plan, smaller, left)
                elif error.durable or isinstance(error, PartitionAway):
                    left = left.with_these(rest, error)
                else:
                    raise
        return left

    async def _one_by_one(
        self, events: Sequence[Event], plan: str | None, smaller: Callable[[Event], Event] | None, left: Left
    ) -> Left:
        for place, event in enumerate(events):
            error = await self._refusal(event, plan, smaller)
            if isinstance(error, PartitionAway):  # each try of such a one costs ten seconds
                return left.with_these(events[place:], error)
            left = left if error is None else left.with_these([event], error)
        return left

    async def tell(self, seen: Sequence[Observation]) -> tuple[list[Observation], Left]:
        """Publish what was read, `reduced` where it is too large: those that are told, and what is left. Raises as
        `publish`."""
        left = await self.publish([one.event() for one in seen], smaller=reduced)
        return [one for one in seen if one.event_id not in left.ids], left

    async def _refusal(
        self, event: Event, plan: str | None, smaller: Callable[[Event], Event] | None
    ) -> BrokerError | None:
        """Publish one, in the form that the topic takes; why not, where it takes none for its size, or its partition
        takes nothing."""
        refusal: BrokerError | None = None
        for form in (event,) if smaller is None else (event, smaller(event)):
            try:
                await self._send([form], plan)
            except TOO_LARGE as error:
                refusal = error
            except PartitionAway as error:
                return error
            else:
                return None
        hint = "it is published when max.message.bytes is raised again"
        if not isinstance(refusal, RecordRefused):
            hint = "the topic takes none so large: it is not published"
        LOG.error(
            "event_too_large", hint=hint,
            application=event.application, event_id=event.id, trace_id=way.trace_id(event), type=event.type,
        )  # fmt: skip
        return refusal

    async def _send(self, events: Sequence[Event], plan: str | None) -> None:
        packed = [pack_event(event, plan=plan) for event in events]
        messages = [Message(key=one.key, value=one.value, headers=one.headers) for one in packed]
        await self._broker.publish_many(self._topic, messages, TIMEOUT_S)


class PublishedIds:
    """The ids published a short while ago, which the workers may not have recorded yet. At most IDS_MAX, and IDS_OF_ALL
    with `others`: of forty busy applications whoever has the most forgets the first, and a quiet one forgets none. What
    is forgotten is asked for, and published, once more: that costs, and changes nothing."""

    def __init__(self, others: WeakSet[PublishedIds] | None = None) -> None:
        # To find the first of a dict takes the longer, the more were taken from before it.
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._all = WeakSet[PublishedIds]() if others is None else others
        self._all.add(self)

    def add(self, ids: Sequence[str]) -> None:
        """Remember these; the oldest are forgotten."""
        for one in ids:
            self._ids[one] = None
            self._ids.move_to_end(one)
        self._forget(len(self) - IDS_MAX)
        while (over := sum(map(len, self._all)) - IDS_OF_ALL) > 0:
            max(self._all, key=len)._forget(min(over, FORGOTTEN_AT_ONCE))

    def _forget(self, how_many: int) -> None:
        for _ in range(how_many):
            self._ids.popitem(last=False)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, one: object) -> bool:
        return one in self._ids
