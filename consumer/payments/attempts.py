"""Attempts: how often and how soon a call is tried again. Pure (cases C5-C10, C31)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from consumer.payments.budget import Priority
from consumer.payments.errors import (
    CheckoutUnavailable,
    PaymentsError,
    RateLimitError,
    ServerError,
    ServiceUnreachable,
    UnexpectedAnswer,
    UnreadableAnswer,
)

CHECKOUT_RETRY_AFTER_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a caller waits. Seconds; every bound holds for one call.

    `rate_limit_s`: the longest Retry-After of a 429 that is waited out. `budget_s`: the longest wait for a place in
    the budget. `call_s`: no new try starts later than this after the call began.
    """

    rate_limit_s: float = 10.0
    budget_s: float = 10.0
    call_s: float = 90.0
    rate_limited_tries: int = 5
    failed_tries: int = 4
    unavailable_tries: int = 3
    first_s: float = 0.5
    ceiling_s: float = 8.0


FOREGROUND = Patience()
"""A caller waits: 429 above 10 s is raised at once (spec, Limits; case C6)."""

BACKGROUND = Patience(rate_limit_s=120.0, budget_s=300.0, call_s=900.0)
"""A walk waits out what the service asks for and resumes at the same cursor (case B24)."""

PATIENCE: dict[Priority, Patience] = {
    Priority.LIVE: FOREGROUND,
    Priority.CONFIRM: FOREGROUND,
    Priority.REFRESH: Patience(budget_s=60.0, call_s=180.0),
    Priority.BACKFILL: BACKGROUND,
    Priority.RECONCILE: BACKGROUND,
}


def walking(patience: Patience) -> Patience:
    """The patience of a walk over many pages: it waits for its places in the budget, however urgent its caller is."""
    return replace(
        patience, budget_s=max(patience.budget_s, BACKGROUND.budget_s), call_s=max(patience.call_s, BACKGROUND.call_s)
    )


@dataclass(kw_only=True)
class Failures:
    """What one call has been through."""

    rate_limited: int = 0
    failed: int = 0
    unavailable: int = 0
    ambiguous: bool = False


def wait_after(error: PaymentsError, failures: Failures, patience: Patience, chance: float) -> float | None:
    """Seconds to wait before the same call is tried again, or None when it is not.

    `failures` already counts this error; `chance` is from 0 to 1 and spreads the waits, never below what was asked.
    """
    match error:
        case RateLimitError():
            asked = error.retry_after_seconds
            if error.retry_after_s is None:
                asked *= 1 << (failures.rate_limited - 1)
            return _asked(asked, failures.rate_limited, patience.rate_limited_tries, patience, chance)
        case CheckoutUnavailable():
            asked = CHECKOUT_RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s
            return _asked(asked, failures.unavailable, patience.unavailable_tries, patience, chance)
        case ServerError() | ServiceUnreachable() | UnreadableAnswer():
            asked = (error.retry_after_s if isinstance(error, ServerError) else None) or 0.0
            if failures.failed >= patience.failed_tries or asked > patience.rate_limit_s:
                return None
            full = min(patience.first_s * (1 << (failures.failed - 1)), patience.ceiling_s)
            return max(asked, full * (1 - 0.5 * chance))
        case _:
            return None


def _asked(asked_s: float, tries: int, most: int, patience: Patience, chance: float) -> float | None:
    """What the service asked for and up to a tenth more, so that all who were refused do not come back at once."""
    if asked_s > patience.rate_limit_s or tries >= most:
        return None
    return asked_s + chance * max(0.25, asked_s * 0.1)


def counted(error: PaymentsError, failures: Failures) -> None:
    """Count a failed try; remember when it leaves open whether the service acted."""
    match error:
        case RateLimitError():
            failures.rate_limited += 1
        case CheckoutUnavailable():
            failures.unavailable += 1
        case ServiceUnreachable():
            failures.failed += 1
            failures.ambiguous = failures.ambiguous or error.sent
        case ServerError() | UnreadableAnswer():
            failures.failed += 1
            failures.ambiguous = True
        case UnexpectedAnswer():  # of a success; what a redirect leads to was not asked
            failures.ambiguous = failures.ambiguous or (error.status or 0) < 300
        case _:
            pass
