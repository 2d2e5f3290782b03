"""Clock: the one source of time, so that tests and the sandbox can drive it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

AGREES = timedelta(seconds=2)
SET_BACK = timedelta(seconds=30)
"""A time that is later than now by more was written by a clock that was ahead, and has been set back since."""

PACE_SHARE = 0.1
TICK_S, TICKS_FROM_S = 1.0, 0.25
_STARTED_S = time.monotonic()
_STEPS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Seconds that passed; on Linux those for which the machine slept, too."""


class Clock(Protocol):
    """Where the time comes from. One implementation ticks by itself, one is driven."""

    def now(self) -> datetime:
        """The wall time, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait that many seconds of this clock."""
        ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        """See Clock."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See Clock. A lease runs out while the machine sleeps, too."""
        return time.clock_gettime(_STEPS)

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await asyncio.sleep(seconds)


class SharedClock:
    """The machine's steps, by the time that all processes agree on: whoever asked somebody else what time it is says so
    with `follow`. A machine whose clock is wrong then delays nothing, and does nothing too soon. One whose clock is set
    while this one runs moves it no more than that: until it is followed again, the seconds that passed tell the time.
    `ahead`: how much the machine's time is later than that."""

    def __init__(self, machine: Clock | None = None) -> None:
        self._machine: Clock = machine or SystemClock()
        self._followed: tuple[datetime, float] | None = None
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        """See Clock."""
        wall = self._machine.now()
        if self._followed is not None:
            seen, seen_s = self._followed
            steady = seen + timedelta(seconds=self._machine.monotonic() - seen_s)
            wall = wall if -AGREES < wall - steady < AGREES else steady
        return wall - self.ahead

    def monotonic(self) -> float:
        """See Clock."""
        return self._machine.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See Clock."""
        await self._machine.sleep(seconds)

    async def follow(self, ask: Callable[[], Awaitable[datetime]]) -> bool:
        """Ask what time it is; whether this clock was moved for the answer. It was true at some moment between the
        question and now: what those two leave possible moves nothing, however long the answer took."""
        asked = self._machine.now()
        shared = await ask()
        seen = (self._machine.now(), self._machine.monotonic())
        earliest, latest = sorted((asked - shared, seen[0] - shared))
        moves = not earliest - AGREES < self.ahead < latest + AGREES
        if moves:
            agrees = earliest - AGREES < timedelta(0) < latest + AGREES
            self.ahead = timedelta(0) if agrees else (earliest + latest) / 2
        if moves or self._followed is None or latest - earliest < AGREES:  # else it may have been set meanwhile
            self._followed = seen
        return moves


class Leaps:
    """By how much a clock was set since it was asked last: what it says has passed, less the seconds that did."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at, self._at_s = clock.now(), clock.monotonic()

    def since(self) -> timedelta:
        """Negative where it was set back. A machine that was stopped and does not know it leaps, too."""
        at, at_s = self._at, self._at_s
        self._at, self._at_s = self._clock.now(), self._clock.monotonic()
        return self._at - at - timedelta(seconds=self._at_s - at_s)


class DrivenClock:
    """A clock that stands still until `advance` is called; sleepers wake when their time is reached."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._elapsed_s = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """See Clock."""
        return self._now

    def monotonic(self) -> float:
        """See Clock."""
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has come that far."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._elapsed_s + seconds, waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        """Move the time forward and wake who waited for it."""
        self._elapsed_s += seconds
        self._now += timedelta(seconds=seconds)
        due = [waiter for at, waiter in self._sleepers if at <= self._elapsed_s]
        self._sleepers = [(at, waiter) for at, waiter in self._sleepers if at > self._elapsed_s]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def sleepers(self) -> int:
        """How many coroutines wait for this clock."""
        return len(self._sleepers)


async def rest(clock: Clock, seconds: float, *signals: asyncio.Event) -> None:
    """Wait that many seconds of the clock, or until one of the signals is set."""
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(signal.wait()) for signal in signals]
    waits.append(asyncio.create_task(clock.sleep(seconds)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def is_set_within(signal: asyncio.Event, seconds: float) -> bool:
    """Wait that many seconds of this machine, or until the signal is set; whether it is."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await signal.wait()
    return signal.is_set()


def until_tick(clock: Clock, most_s: float) -> float:
    """So many seconds or a little less: until a moment at which the other looks of this process are due, too. A look
    for which an idle process wakes up takes a millisecond of CPU, one beside others half of that. Each process has
    moments of its own; a clock that is driven is taken at its word."""
    if most_s < TICKS_FROM_S or not isinstance(clock, SystemClock | SharedClock):
        return most_s
    return most_s - (clock.monotonic() - _STARTED_S + most_s) % min(most_s, TICK_S)


class Pace:
    """How soon to look again at what nobody in this process tells of: `first_s` while things happen, up to `most_s`
    after a quiet time, a tenth of it."""

    def __init__(self, clock: Clock, *, first_s: float, most_s: float) -> None:
        self._clock = clock
        self._first_s = first_s
        self._most_s = most_s
        self._stirred_s = clock.monotonic()

    def stir(self) -> None:
        """Something happened."""
        self._stirred_s = self._clock.monotonic()

    @property
    def wait_s(self) -> float:
        """Seconds until the next look."""
        quiet_s = self._clock.monotonic() - self._stirred_s
        return until_tick(self._clock, min(self._most_s, max(self._first_s, quiet_s * PACE_SHARE)))
