"""Acts: what handlers did to the world outside, and what may be said of it when all is over."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from consumer.plugin import Context, Event
from tests.simulation.loop import Process, here

LONG_S, LONG_SHARE = 25.0, 0.05
"""Longer than a claim lasts, shorter than a handler may take."""


@dataclass
class Act:
    """One call of a handler that reached the world."""

    handler: str
    event_id: str
    key: str
    idempotency_key: str
    process: Process


class Acts:
    """All acts of one world, in their order."""

    def __init__(self, random: Random, tell: Callable[[str], None]) -> None:
        self.trouble = 0.0
        self._all: list[Act] = []
        self._random = random
        self._tell = tell

    async def act(self, handler: str, event: Event, ctx: Context) -> None:
        """Do it; it takes a while, seldom a long one, and may fail before anything was done."""
        await asyncio.sleep(self._random.uniform(0, 0.1))
        self.stumble()
        process = here()
        assert process is not None
        self._all.append(Act(handler, event.id, event.key, ctx.idempotency_key, process))
        self._tell(f"{process.name} {handler} {event.type} {event.key} {event.id}")
        is_long = self._random.random() < LONG_SHARE
        await asyncio.sleep(LONG_S if is_long else self._random.uniform(0, 0.1))

    def stumble(self, share: float | None = None) -> None:
        """Raises RuntimeError, so often; as often as there is trouble, where that is not said."""
        if self._random.random() < (self.trouble if share is None else share):
            raise RuntimeError("not now")

    def of(self, handler: str) -> list[Act]:
        """Those of one handler."""
        return [one for one in self._all if one.handler == handler]

    def require_no_act_was_done_twice(self) -> None:
        """An act is done again only when the process that did it was killed or stood still before that was stored, or
        who does it again stood still in the middle of it while its claim ran out; and then under the same idempotency
        key (cases G1, H11)."""
        done: dict[tuple[str, str], list[Act]] = defaultdict(list)
        for one in self._all:
            done[one.handler, one.event_id].append(one)
        for acts in done.values():
            assert len({one.idempotency_key for one in acts}) == 1, f"a key of its own each time: {acts}"
            for one, again in pairwise(acts):
                befell = one.process.is_dead or one.process.stood_still or again.process.stood_still
                assert befell, f"done again, and nothing had happened: {acts}"

    def require_order(self, handler: str, places: Mapping[str, int]) -> None:
        """Of one key the acts followed each other as their events did in the ledger (case G5)."""
        last: dict[str, int] = {}
        for one in self.of(handler):
            assert places[one.event_id] >= last.get(one.key, 0) or one.process.stood_still, f"{one} was overtaken"
            last[one.key] = max(places[one.event_id], last.get(one.key, 0))


_current: list[Acts] = []


def current() -> Acts:
    """Those of the world that is played."""
    return _current[-1]


def play(acts: Acts) -> None:
    """From now on these are the world's."""
    _current[:] = [acts]
