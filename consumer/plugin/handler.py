"""Handler: what a declared handler is, and what it may raise to say how its attempt ended."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from consumer.errors import ConsumerError
from consumer.retry import OnDead, RetryPolicy

LONGEST_S = 366 * 86400.0
RUNBOOK_CHARS = 200
"""What the ledger's column holds."""


class RetryLater(ConsumerError):
    """The handler asks to be tried again later (seconds, or a timedelta; at most a year); it costs no attempt."""

    code = "retry_later"
    retryable = True

    def __init__(self, after: float | timedelta, reason: str = "asked for later") -> None:
        self.after_s = after.total_seconds() if isinstance(after, timedelta) else float(after)
        if not 0 <= self.after_s <= LONGEST_S:
            raise ValueError("after must not be negative, and at most a year")
        self.reason = reason
        super().__init__(reason, after_s=self.after_s)


class Reject(ConsumerError):
    """The handler refuses the event for good; the run is dead at once."""

    code = "rejected"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, kw_only=True)
class Handler:
    """A declared handler: what it wants, and how it is run. `together` takes many events, `function` always one.
    `is_built_in`: it came with the consumer, and may say what is not a plugin's to say. `runbook`: the author's words
    to the operator who finds a run of it failed. `says_fulfils`: whether its author said that it fulfils, or that it
    does not; None where its kind and types do."""

    name: str
    types: tuple[str, ...]
    function: Callable[..., Coroutine[Any, Any, None]]
    together: Callable[..., Coroutine[Any, Any, None]] | None = None
    transactional: bool = False
    fulfils: bool = False
    says_fulfils: bool | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_s: float = 30.0
    concurrency: int = 16
    on_dead: OnDead = "block"
    breaker_after: int = 5
    pause_after: int = 20
    version: str = ""
    plugin: str = ""
    is_built_in: bool = False
    runbook: str | None = None

    def wants(self, event_type: str) -> bool:
        """Whether an event of this type is for this handler."""
        return any(matches(pattern, event_type) for pattern in self.types)


def matches(pattern: str, event_type: str) -> bool:
    """Whether an event of this type fits what a handler names."""
    if pattern == "*":
        return True
    if pattern.endswith(".*"):
        return event_type.startswith(pattern[:-1])
    return pattern == event_type
