"""Unproved: how many bytes that nobody vouches for are stored, per application and minute (case I22).

Anyone may send to an address whose webhooks are proved by a later read. So what is stored of them is bounded, per
application: the flood of one leaves the others their room. Large bodies share a quarter, and what is refused anyway an
eighth: a webhook of usual size is the last to be told to come again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import orjson

LARGE_BYTES: Final = 64 * 1024
BURST_MINUTES: Final = 8.0
SHARES: Final = {"refused": 1 / 8, "large": 1 / 4, "all": 1.0}
HOUR_MINUTES: Final = 60
MUCH: Final = 1 / 2
"""Of what an hour allows: more is told, since the log keeps it for a day."""


class Unproved:
    """`bytes_per_minute` may be stored on average, `BURST_MINUTES` times as many at once."""

    def __init__(self, bytes_per_minute: int, monotonic: Callable[[], float]) -> None:
        self._per_s = bytes_per_minute / 60
        self._monotonic = monotonic
        self._used: dict[tuple[str, str], tuple[float, float]] = {}

    def take(self, application: str, size: int, *, is_refused: bool = False) -> bool:
        """Whether so many bytes may be stored now; they are counted then. What is larger than a whole share takes all
        of it: packed, it may be small (`settle`)."""
        now = self._monotonic()
        used = {
            name: self._used_now((application, name), now) + min(size, self._burst(name))
            for name in _shares(size, is_refused=is_refused)
        }
        if not self._fit(used):
            return False
        self._note(application, used, now)
        return True

    def settle(self, application: str, taken: int, used: int) -> bool:
        """Of the bytes taken only these are needed, packed; the others are room again. False, and all are room again,
        when even these are too many."""
        now = self._monotonic()
        others = {
            name: max(0.0, self._used_now((application, name), now) - min(taken, self._burst(name)))
            for name in _shares(taken)
        }
        together = {name: amount + used for name, amount in others.items()}
        fits = self._fit(together)
        self._note(application, together if fits else others, now)
        return fits

    def share(self, application: str) -> float:
        """How much of the burst is used up, 0 to 1."""
        return self._used_now((application, "all"), self._monotonic()) / self._burst("all")

    def _fit(self, used: Mapping[str, float]) -> bool:
        return all(amount <= self._burst(name) for name, amount in used.items())

    def _note(self, application: str, used: Mapping[str, float], now: float) -> None:
        self._used.update({(application, name): (amount, now) for name, amount in used.items()})

    def _burst(self, name: str) -> float:
        return self._per_s * 60 * BURST_MINUTES * SHARES[name]

    def _used_now(self, key: tuple[str, str], now: float) -> float:
        amount, at = self._used.get(key, (0.0, now))
        return max(0.0, amount - (now - at) * self._per_s * SHARES[key[1]])


def _shares(size: int, *, is_refused: bool = False) -> list[str]:
    return ["all", *(["large"] if size > LARGE_BYTES else []), *(["refused"] if is_refused else [])]


class StoredLately:
    """How many unproved bytes of each application were stored in the last hour, for the heartbeat."""

    def __init__(self, bytes_per_minute: int, monotonic: Callable[[], float]) -> None:
        self._much = bytes_per_minute * HOUR_MINUTES * MUCH
        self._monotonic = monotonic
        self._minutes: dict[str, deque[tuple[int, int]]] = {}

    def note(self, application: str, size: int) -> None:
        """So many bytes more were stored."""
        minutes = self._minutes.setdefault(application, deque(maxlen=HOUR_MINUTES))
        now = self._minute()
        before = minutes.pop()[1] if minutes and minutes[-1][0] == now else 0
        minutes.append((now, before + size))

    def told(self) -> str | None:
        """As JSON: application to its bytes, of those that use much of what an hour allows; None where none does."""
        much = {name: size for name in self._minutes if (size := self._lately(name)) > self._much}
        return orjson.dumps(much).decode() if much else None

    def _lately(self, application: str) -> int:
        now = self._minute()
        return sum(size for minute, size in self._minutes[application] if now - minute < HOUR_MINUTES)

    def _minute(self) -> int:
        return int(self._monotonic() // 60)
