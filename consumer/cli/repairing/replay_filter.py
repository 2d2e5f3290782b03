"""What a replay plan is to be about, as it was typed: checked, and told of by what the projections know."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.cli.consent import checked_reason
from consumer.console.belongings import of_customer, of_subscription, require_known
from consumer.errors import UsageError
from consumer.ledger.plans.candidates import PlanFilter
from consumer.ledger.tables import RunStatus

_AGE: Final = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([smhdw]?)\Z", re.ASCII)
_HOURS: Final = {"s": 1 / 3600, "m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}


def parse_age(text: str) -> timedelta:
    """An age like `90m` or `2h`; a bare number is hours. Raises UsageError."""
    found = _AGE.match(text)
    if found is None:
        raise UsageError("an age is like 90m, 2h or 1d; a bare number is hours", given=text[:40])
    return timedelta(hours=float(found.group(1)) * _HOURS[found.group(2) or "h"])


def check_words(
    status: str | None, handler: str | None, reason: str | None, *, force: bool, new_effect_key: bool
) -> None:
    """Raises UsageError for words that do not fit together."""
    if status is not None and status not in list(RunStatus):
        raise UsageError(f"--status is one of {', '.join(RunStatus)}")
    if status == RunStatus.PARKED:
        raise UsageError("a parked run waits behind another of its key (plan that one, and it follows), or for a pause")
    if status in (RunStatus.SUCCEEDED, RunStatus.SKIPPED) and not force:
        raise UsageError(f"what is {status} runs again with --force only")
    if force and (handler is None or not (reason or "").strip()):
        raise UsageError("--force needs --handler and --reason")
    if reason is not None and reason.strip():
        checked_reason(reason)
    if new_effect_key and not force:
        raise UsageError("--new-effect-key goes with --force, --handler and --reason, also for what is dead")


async def with_belongings(session: AsyncSession, wanted: PlanFilter) -> PlanFilter:
    """With what belongs to the customer and to the subscription. Raises NotFound for a name that nothing has,
    UsageError."""
    also: tuple[tuple[str, str], ...] = ()
    for kind in ("event", "order", "subscription", "customer"):
        name: str | None = getattr(wanted, kind)
        if name is not None:
            await require_known(session, kind, name, wanted.application, so="nothing was planned")
    if wanted.customer is not None:
        also += await of_customer(session, wanted.customer, wanted.application)
    if wanted.subscription is not None:
        also += await of_subscription(session, wanted.subscription, wanted.application)
    return replace(wanted, also=also)
