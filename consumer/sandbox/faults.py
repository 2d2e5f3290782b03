"""Faults: what goes wrong on demand, on the way out (webhooks) and on the way in (API). Cases X58, X66."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

from consumer.sandbox.errors import SandboxMisconfigured

Value = bool | int | float

# A share is a probability from 0 to 1 (true is 1); `<share>_next` counts how often it still happens for certain.
WEBHOOK_SHARES = ("drop", "duplicate", "truncate", "wrong_signature")
API_SHARES = ("rate_limited", "unauthorized", "server_error", "html", "lost_response", "checkout_unavailable")
SHARES = WEBHOOK_SHARES + API_SHARES
NUMBERS: dict[str, tuple[float, float, float]] = {
    "delay_s": (0, 0, 30 * 86400),
    "reorder_s": (2, 0, 86400),
    "slow_s": (0, 0, 60),
    "parallel": (1, 1, 64),
    "duplicate_copies": (1, 1, 20),
    "api_slow_s": (0, 0, 60),
    "retry_after_s": (1, 1, 3600),
    "plan_failures": (0, 0, 1000),
}
TEXTS: dict[str, str] = {
    "drop": "share of deliveries that never arrive",
    "duplicate": "share of deliveries sent again with the same evt_ id (`duplicate_copies` more times)",
    "reorder": "deliveries are held back for a random time up to `reorder_s` and so overtake each other",
    "reorder_s": "see reorder",
    "delay_s": "every delivery waits this many seconds first",
    "truncate": "share of deliveries whose first attempt carries only half of the body",
    "slow_s": "a body is sent in two halves, this many seconds apart",
    "wrong_signature": "share of deliveries whose first attempt is signed with another secret",
    "parallel": "deliveries of an application sent at the same time",
    "duplicate_copies": "see duplicate",
    "rate_limited": "share of API requests answered 429 with Retry-After `retry_after_s`",
    "retry_after_s": "see rate_limited",
    "unauthorized": "share of API requests answered 401",
    "server_error": "share of API requests answered 503",
    "html": "share of API requests answered with an HTML page and status 502",
    "lost_response": "share of API requests that are carried out and then lose their answer",
    "checkout_unavailable": "share of link reissues answered 409 checkout_unavailable",
    "api_slow_s": "every API answer waits this many seconds",
    "plan_failures": "how many attempts to create a plan fail from now on",
}


class Faults:
    """The present faults, and the dice (seeded, so that a run can be repeated)."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._values: dict[str, Value] = {}
        self.clear()

    def clear(self) -> None:
        """Everything works."""
        self._values = {
            **dict.fromkeys(SHARES, 0),
            **{f"{name}_next": 0 for name in SHARES},
            **{name: default for name, (default, _, _) in NUMBERS.items()},
            "reorder": False,
        }

    def values(self) -> dict[str, Value]:
        """All of them, by name."""
        return dict(self._values)

    def set(self, given: Mapping[str, Any]) -> None:
        """Change some; all or none. Raises SandboxMisconfigured."""
        checked = {name: self._check(name, value) for name, value in given.items()}
        self._values |= checked

    def _check(self, name: str, value: Any) -> Value:
        if name not in self._values:
            raise SandboxMisconfigured(f"unknown fault: {name}; there are {', '.join(sorted(self._values))}")
        if name == "reorder":
            if not isinstance(value, bool):
                raise SandboxMisconfigured("reorder must be true or false")
            return value
        low, high = 0.0, 1.0
        if name.endswith("_next"):
            high = 1_000_000
        elif name in NUMBERS:
            _, low, high = NUMBERS[name]
        elif isinstance(value, bool):
            value = int(value)
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not math.isfinite(value) or not low <= value <= high:
            raise SandboxMisconfigured(f"{name} must be a number from {low:g} to {high:g}")
        whole = name.endswith("_next") or name in ("parallel", "duplicate_copies", "plan_failures")
        return int(value) if whole else float(value)

    def number(self, name: str) -> float:
        """The value of a number."""
        return float(self._values[name])

    def flag(self, name: str) -> bool:
        """Whether a switch is on."""
        return self._values[name] is True

    def take(self, name: str) -> int:
        """Use up one of a count; what was left before."""
        left = int(self._values[name])
        if left:
            self._values[name] = left - 1
        return left

    def strikes(self, name: str) -> bool:
        """Whether this share happens now: first its certain count, then the dice."""
        if self.take(f"{name}_next"):
            return True
        share = self.number(name)
        return bool(share) and self._chance.random() < share

    def random_s(self, up_to_s: float) -> float:
        """Random seconds from 0 to `up_to_s`."""
        return self._chance.uniform(0, up_to_s)
