"""Admission: how much of strangers' bodies is held at once, and whose gives way when there is no room (case I22).

What counts is what has arrived, not what was announced: a sender that promises a megabyte and sends a byte holds a
byte. A body that still arrives gives way to one that is there: when there is no room, the address that holds most loses
its oldest. A webhook that came whole never waits for those that come slowly.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from consumer.receive.answers import BUSY, Refused

GRACE_S: Final = 2.0
"""So long a body may be slow before the least rate counts: a handshake, a packet sent again."""
USUAL_BYTES: Final = 4096
"""A webhook of usual size, at most."""


class ArrivingBody:
    """A body that still arrives: how much of it is here, and until when its next part is waited for."""

    def __init__(self, remote: str, timeout_s: float, min_bytes_per_s: int) -> None:
        self.remote = remote
        self.size = 0
        self.gave_way = False
        self._timeout_s = timeout_s
        self._min_bytes_per_s = min_bytes_per_s
        self._began = asyncio.get_running_loop().time()
        self._limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """The time limit to wait under; later with every part that arrives, up to the whole body's. Raises
        TimeoutError, also when it gives way; a body that is here whole waits for nothing any more."""
        try:
            async with asyncio.timeout_at(self._until()) as self._limit:
                yield
        finally:
            self._limit = None

    def postpone(self) -> None:
        """A part arrived."""
        if self._limit is not None and not self.gave_way:
            self._limit.reschedule(self._until())

    def give_way(self) -> None:
        """Nothing more is waited for."""
        self.gave_way = True
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    def _until(self) -> float:
        whole = self._began + self._timeout_s
        if not self._min_bytes_per_s:
            return whole
        return min(whole, self._began + GRACE_S + self.size / self._min_bytes_per_s)


class Admission:
    """The room of one process. `max_requests` bodies are worked on at once, as many more may arrive, and all of them
    hold `max_bytes` together."""

    def __init__(self, *, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._usual_bytes = max(1, min(USUAL_BYTES, max_bytes // 100))
        self._worked_on = 0
        self._arriving: dict[ArrivingBody, None] = {}
        self.held_bytes = 0
        self.displaced = 0

    @property
    def arriving(self) -> int:
        """Bodies that still arrive."""
        return len(self._arriving)

    @property
    def is_full(self) -> bool:
        """Whether the next webhook would be refused, however quickly it came: no place, or no room for one of usual
        size, even if all that still arrive gave way."""
        staying = self.held_bytes - sum(one.size for one in self._arriving)
        return not self._has_place or staying + self._usual_bytes > self._max_bytes

    @property
    def _has_place(self) -> bool:
        return self._worked_on < self._max_requests

    def enter(self, size: int) -> None:
        """Room for a body that is here, while it is worked on, until it leaves. Raises Refused when there is none."""
        if not self._has_place:
            raise Refused(BUSY, "too many requests in flight")
        if self.held_bytes + size > self._max_bytes:
            self._make_room(size, None)
        self._worked_on += 1
        self.held_bytes += size

    def leave(self, size: int) -> None:
        """One that had entered is answered."""
        self._worked_on -= 1
        self.held_bytes -= size

    @contextmanager
    def arriving_body(self, remote: str, timeout_s: float, min_bytes_per_s: int) -> Iterator[ArrivingBody]:
        """A body that begins to arrive; what of it came is held until the block ends."""
        if len(self._arriving) >= self._max_requests:
            self._displace(self._greediest(Counter(one.remote for one in self._arriving)))
        found = ArrivingBody(remote, timeout_s, min_bytes_per_s)
        self._arriving[found] = None
        try:
            yield found
        finally:
            self._leave(found)

    def grow(self, body: ArrivingBody, size: int) -> None:
        """So many bytes more arrived. Raises Refused when it is this body that has to give way."""
        if not body.gave_way:
            self._make_room(size, body)
        if body.gave_way:
            raise Refused(BUSY, "the body gave way to others")
        self.held_bytes += size
        body.size += size
        body.postpone()

    def _make_room(self, size: int, wanted_by: ArrivingBody | None) -> None:
        while self.held_bytes + size > self._max_bytes:
            by_remote: Counter[str] = Counter()
            for one in self._arriving:
                by_remote[one.remote] += one.size
            if wanted_by is not None:
                by_remote[wanted_by.remote] += size
            if not by_remote.total():
                raise Refused(BUSY, "too many bytes in flight")
            victim = self._greediest(by_remote)
            self._displace(victim)
            if victim is wanted_by:
                return

    def _greediest(self, by_remote: Counter[str]) -> ArrivingBody:
        [(remote, _)] = by_remote.most_common(1)
        return next(one for one in self._arriving if one.remote == remote)

    def _displace(self, body: ArrivingBody) -> None:
        self.displaced += 1
        self._leave(body)
        body.give_way()

    def _leave(self, body: ArrivingBody) -> None:
        if self._arriving.pop(body, body) is None:
            self.held_bytes -= body.size
            body.size = 0
