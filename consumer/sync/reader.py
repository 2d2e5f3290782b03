"""Reader: one application's API as the sync stages use it, and what its failures mean to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from consumer.events import Locators
from consumer.payments import (
    AuthenticationError,
    BudgetExhausted,
    CircuitOpen,
    PaymentsClient,
    PaymentsError,
    RateLimitError,
    ServiceUnreachable,
)

HELD_UP_S: Final = 30.0
LOOK_AGAIN_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One application: its name, its client, and where facts lie in its bodies."""

    application: str
    client: PaymentsClient
    locators: Locators = field(default_factory=Locators)


Readers = Mapping[str, Reader]
"""By application."""


def held_up_s(error: PaymentsError) -> float | None:
    """Seconds for which no call of this application is worth making, or None when only this one call failed.

    Refused credentials, an exhausted budget, a 429 and an unreachable service say nothing about what was asked for:
    nobody's attempt is counted (cases S3, S5, S14, G7).
    """
    match error:
        case CircuitOpen():
            return min(max(error.retry_after_s, 0.1), LOOK_AGAIN_S)  # other secrets may be there any moment (case S4)
        case BudgetExhausted():
            return min(max(error.retry_after_s, 0.1), HELD_UP_S)
        case AuthenticationError():
            return LOOK_AGAIN_S  # from now on the circuit answers, and knows when a probe is due
        case RateLimitError():
            return min(max(error.retry_after_seconds, 1.0), 300.0)
        case ServiceUnreachable():
            return LOOK_AGAIN_S
    return None
