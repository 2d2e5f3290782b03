"""Kept: what the last account said, for `status`, which has no time for one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.archiving import derivation
from consumer.ledger.reading import key_values
from consumer.ledger.reading.sync_state import KeptState

BEGINS: Final = "account/"
TRUE_FOR: Final = timedelta(hours=3)
"""`console` looks every hour. What an older account said proves nothing, either way."""
SUBJECTS_MAX: Final = 3
NOT_DERIVED: Final = "not_derived"
IMPORT_CUT: Final = "import_cut"
ORDERS_WAIT: Final = frozenset({
    "paid_not_taken", "paid_not_requested", "request_lost", "requested_ahead", "no_handler", "fulfilment_dead",
    "projection_dead", NOT_DERIVED, IMPORT_CUT,
})  # fmt: skip
"""What of it leaves somebody without what was paid."""


@dataclass(frozen=True, kw_only=True)
class Account(KeptState):
    """As of `at`. `broken`: how often, by code, and `subjects` a few of each; `residual`: what no class explains, in
    millionths of a USDC."""

    at: datetime | None = None
    residual: int = 0
    broken: Mapping[str, int] = field(default_factory=dict)
    subjects: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


async def keep(session: AsyncSession, application: str, account: Account) -> None:
    """Remember it; the last one counts."""
    await key_values.keep(session, f"{BEGINS}{application}", orjson.dumps(account.dump()).decode())


async def wrong(session: AsyncSession, now: datetime) -> dict[str, Account]:
    """By application, those that say lately that something is not as it should be. That a rebuild is owed is known
    without an account, and at once: who moves a ledger is told before anybody misses what was paid."""
    found = {
        name.removeprefix(BEGINS): Account.load(orjson.loads(text))
        for name, text in (await key_values.beginning(session, BEGINS)).items()
    }
    lately = {
        name: one
        for name, one in sorted(found.items())
        if (one.broken or one.residual) and one.at is not None and now - one.at <= TRUE_FOR
    }
    lacking = await not_derived(session)
    for name, code in sorted(lacking.items()):
        one = lately.get(name, Account(at=now))
        lately[name] = replace(one, broken={**one.broken, code: 1}, subjects={**one.subjects, code: ("all",)})
    return lately


async def not_derived(session: AsyncSession) -> Mapping[str, str]:
    """By application, what it lacks of what came in from archives: a rebuild, or first the rest of an import."""
    code = IMPORT_CUT if await derivation.lacking(session) else NOT_DERIVED
    return dict.fromkeys(await derivation.owed(session), code)
