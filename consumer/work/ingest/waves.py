"""Waves: in which order a batch's calls are made, so that many of its events reach one handler together. Pure.

Of one key every event is handled before the next one is, by whatever handlers. So the first events of all keys are a
wave, handler by handler; their second ones are the next. Where one handler alone gets several of a key in a row, they
stay in one wave: it gets them in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from consumer.ledger.handling.events import EventKey
from consumer.ledger.handling.lanes import Lane
from consumer.plugin import Handler
from consumer.work.unit_of_work import Incoming


@dataclass(frozen=True)
class Call:
    """One event for one handler, and the event's number in the ledger."""

    handler: Handler
    incoming: Incoming
    seq: int

    @property
    def id(self) -> tuple[EventKey, str]:
        """What makes it unique: event and handler."""
        return (self.incoming.id, self.handler.name)

    @property
    def lane(self) -> Lane:
        """In which it waits for its turn."""
        return (self.incoming.event.application, self.handler.name, self.incoming.event.key)


@dataclass
class Waves:
    """The calls of one batch. `order`: in which handlers get one event; `is_slow`: whether a handler that takes many is
    called one by one for now."""

    order: Sequence[str]
    is_slow: Callable[[str], bool]
    _waves: list[dict[str, list[Call]]] = field(default_factory=list)
    _last: dict[tuple[str, str], tuple[int, list[str]]] = field(default_factory=dict)

    def add(self, calls: Sequence[Call]) -> None:
        """What one event is for; the events come in their order."""
        if not calls:
            return
        event = calls[0].incoming.event
        names = [call.handler.name for call in calls]
        number, before = self._last.get((event.application, event.key), (-1, []))
        if names != before or len(names) > 1:
            number += 1
        self._last[event.application, event.key] = (number, names)
        if number == len(self._waves):
            self._waves.append({})
        for call in calls:
            self._waves[number].setdefault(call.handler.name, []).append(call)

    def __iter__(self) -> Iterator[Sequence[Call]]:
        """What one handler is to be called with, one after another; one that takes many gets those of one application
        at once."""
        for wave in self._waves:
            for name in self.order:
                yield from self._at_once(wave.get(name, ()))

    def _at_once(self, calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
        groups: dict[str, list[Call]] = {}
        for call in calls:
            if call.handler.together is None or self.is_slow(call.handler.name):
                yield [call]
            else:
                groups.setdefault(call.incoming.event.application, []).append(call)
        yield from groups.values()
