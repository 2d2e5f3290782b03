"""ApplicationApi: one application's API as the sync stages use it, and what its failures mean to them."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from consumer.clock import Clock
from consumer.errors import again
from consumer.events import Locators
from consumer.payments import (
    ApiError,
    AuthenticationError,
    BudgetExhausted,
    CallKind,
    CircuitOpen,
    PaymentsClient,
    PaymentsError,
    Priority,
    RateLimitError,
    ResourceNotFound,
    ServiceUnreachable,
    ValidationError,
)

HELD_UP_S: Final = 30.0
PAUSED_S: Final = 60.0
LOOK_AGAIN_S: Final = 5.0
PATIENCE_S: Final = 900.0
"""So long one object is asked for again that the service denies, or cannot show."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ApplicationApi:
    """One application: its name, its client, and where facts lie in its bodies."""

    application: str
    client: PaymentsClient
    locators: Locators = field(default_factory=Locators)

    @property
    def address(self) -> str:
        """The API address, whose limit per IP all applications there share (case C15)."""
        return self.client.budget.scope.ip

    async def predict_s(self, pages: int) -> float:
        """Seconds that many pages of a walk take within the budget, if nothing more urgent asks."""
        return await self.client.budget.predict_s(CallKind.READ, Priority.BACKFILL, pages)


async def shown(reading: Awaitable[T]) -> T | None:
    """What a single read shows; None where the service refuses it: it has no such object, or not for us, or none that
    can be read. Any other failure says nothing of the object, be it one that may be over the next time, or the word of
    what stands before the service: it is raised."""
    try:
        return await reading
    except ApiError as error:
        if not refuses(error):
            raise
        return None


def refuses(error: PaymentsError) -> bool:
    """Whether it is an answer about the object. A refusal that the document knows is; so is one with a code of the
    service's, and a record that breaks its reading."""
    if error.retryable or not isinstance(error, ApiError):
        return False
    said = isinstance(error, ResourceNotFound | ValidationError) or error.service_code is not None
    return said or (error.status is not None and error.status < 300)


def held_up_s(error: PaymentsError) -> float | None:
    """Seconds for which no call of this application is worth making, or None when only this one call failed.

    Refused credentials, an exhausted budget, a 429 and an unreachable service say nothing about what was asked for:
    nobody's attempt is counted (cases S3, S5, S14, G7). All of these are retryable.
    """
    match error:
        case CircuitOpen():
            return min(max(error.retry_after_s, 0.1), LOOK_AGAIN_S)  # other secrets may be there any moment (case S4)
        case BudgetExhausted():
            return min(max(error.retry_after_s, 0.1), HELD_UP_S)
        case AuthenticationError():
            return LOOK_AGAIN_S  # from now on the circuit answers, and knows when a probe is due
        case RateLimitError():
            return min(max(error.retry_after_seconds, 1.0), PAUSED_S)  # then the budget knows when one may try
        case ServiceUnreachable():
            return LOOK_AGAIN_S
    return None


class Cooldown:
    """Keeps one application's calls back after a failure that concerns all of them. `error`: that failure, the first
    since `check` went through."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.error: PaymentsError | None = None
        self._until = 0.0

    def check(self) -> None:
        """Raise the failure again while it holds."""
        if self.error is not None and self._clock.monotonic() < self._until:
            raise again(self.error)
        self.error = None

    def take(self, error: PaymentsError) -> bool:
        """Whether this failure concerns all calls; it holds from now on if it does."""
        seconds = held_up_s(error)
        if seconds is None:
            return False
        self.error, self._until = self.error or error, self._clock.monotonic() + seconds
        return True
