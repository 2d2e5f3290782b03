"""Models of how the service might count its limits (not documented), and a check of a whole trace."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol


class Limiter(Protocol):
    """One limit of the service's side."""

    def refuse(self, now: float) -> float | None:
        """None and the request is counted; or the seconds of a Retry-After."""
        ...


class FixedWindow:
    """Counts anew at every full minute (plus a phase)."""

    def __init__(self, requests: int, window_s: float = 60.0, phase_s: float = 0.0) -> None:
        self._requests, self._window_s, self._phase_s = requests, window_s, phase_s
        self._window, self._used = -1, 0

    def refuse(self, now: float) -> float | None:
        window = math.floor((now + self._phase_s) / self._window_s)
        if window != self._window:
            self._window, self._used = window, 0
        if self._used >= self._requests:
            return (window + 1) * self._window_s - now - self._phase_s
        self._used += 1
        return None


class SlidingWindow:
    """Never more than the limit in any window, to the instant. The strictest reading."""

    def __init__(self, requests: int, window_s: float = 60.0) -> None:
        self._requests, self._window_s = requests, window_s
        self._times: deque[float] = deque()

    def refuse(self, now: float) -> float | None:
        while self._times and self._times[0] <= now - self._window_s:
            self._times.popleft()
        if len(self._times) >= self._requests:
            return self._times[0] + self._window_s - now
        self._times.append(now)
        return None


class TokenBucket:
    """A bucket of the whole limit, refilled evenly."""

    def __init__(self, requests: int, window_s: float = 60.0) -> None:
        self._requests, self._rate = requests, requests / window_s
        self._tokens, self._at = float(requests), 0.0

    def refuse(self, now: float) -> float | None:
        self._tokens = min(self._requests, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return (1 - self._tokens) / self._rate
        self._tokens -= 1
        return None


LIMITERS: dict[str, Callable[[int], Limiter]] = {
    "fixed window": FixedWindow,
    "fixed window, out of phase": lambda requests: FixedWindow(requests, phase_s=23.4),
    "sliding window": SlidingWindow,
    "token bucket": TokenBucket,
}


def most_in_a_window(times: Sequence[float], window_s: float = 60.0) -> int:
    """The largest number of these (ascending) times in any half-open window of that length."""
    most = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - window_s:
            first += 1
        most = max(most, last - first + 1)
    return most
