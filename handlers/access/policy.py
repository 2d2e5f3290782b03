"""The access policy of a deployment: what a price grants, what PAST_DUE means, how long we wait for what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from handlers.pointers import TEST_MARKERS, Markers, Pointers

DEFAULT_ENTITLEMENT = "default"
ENTITLEMENT_MAX_CHARS = 100
_DURATION = re.compile(r"([0-9]{1,9})([smhd])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
DURATION_MAX = timedelta(days=36_500)  # a time that is reckoned with it stays a time


def duration(text: object) -> timedelta:
    """`90s`, `10m`, `6h`, `14d`, of at most a hundred years. Raises ValueError for anything else."""
    if isinstance(text, timedelta):
        return text
    found = _DURATION.match(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError("a duration is a number and one of s, m, h, d: 14d")
    length = timedelta(**{_UNITS[found[2]]: int(found[1])})
    if length > DURATION_MAX:
        raise ValueError("a duration is at most a hundred years")
    return length


def past_due(text: object) -> str:
    """`keep`, `revoke` or `grace:14d`. Raises ValueError for anything else."""
    if text in ("keep", "revoke"):
        return str(text)
    if isinstance(text, str) and text.startswith("grace:"):
        duration(text.removeprefix("grace:"))
        return text
    raise ValueError("past_due is keep, revoke or grace:<duration>, as in grace:14d")


Duration = Annotated[timedelta, BeforeValidator(duration)]
PastDue = Annotated[str, BeforeValidator(past_due)]
EntitlementName = Annotated[str, StringConstraints(max_length=ENTITLEMENT_MAX_CHARS, pattern=r"^[^\x00]+$")]
"""One that is stored as it is: what stands is found by it."""


class Brake(BaseModel):
    """Revocations that rest on reads alone stop beyond max(`minimum`, `share` of the live grants) per `window`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    minimum: int = Field(default=5, ge=0)
    share: float = Field(default=0.02, ge=0, le=1)
    window: Duration = timedelta(hours=1)


class Policy(BaseModel):
    """The plugin's own settings.

    `entitlements`: price id or product id to what it grants; without it every price grants `default`, with it an
    unmapped price waits in a queue (case A32). `past_due`: `keep`, `revoke` or `grace:<duration>`, also per price.
    `provisional_after`: how long `subscription.created` waits for a read before it grants by itself; None: never.
    `resubscribe`, `settle`: how long an end that looks like a re-subscription, or whose reason is unknown, waits for
    the successor (case A25). `lease`, `lease_slack`, `past_due_lease`: when a live subscription is read again.
    The rest are JSON pointers inside a record or an event's object.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    past_due: PastDue = "grace:14d"
    past_due_by_price: Mapping[str, PastDue] = Field(default_factory=dict)
    entitlements: Mapping[str, Sequence[EntitlementName]] | None = None
    brake: Brake | None = Brake()
    provisional_after: Duration | None = timedelta(seconds=3)
    resubscribe: Duration = timedelta(minutes=10)
    settle: Duration = timedelta(seconds=5)
    lease: Duration = timedelta(days=7)
    lease_slack: Duration = timedelta(hours=1)
    past_due_lease: Duration = timedelta(days=1)
    unmapped_retry: Duration = timedelta(minutes=5)
    unmapped_retry_max: Duration = timedelta(hours=1)
    test_markers: Markers = TEST_MARKERS
    customer: Pointers = (
        "/customer_reference",
        "/customer/reference",
        "/metadata/customer_reference",
        "/checkout_session/customer_reference",
        "/session/customer_reference",
    )
    session_customer: Pointers = ("/customer_reference", "/customer/reference", "/metadata/customer_reference")
    price: Pointers = ("/price_id", "/price/id", "/price")
    product: Pointers = ("/product_id", "/product/id", "/product", "/price/product_id")
    session: Pointers = (
        "/checkout_session_id",
        "/session_id",
        "/checkout_session/id",
        "/session/id",
        "/checkout_session",
    )
    order: Pointers = ("/order_id", "/checkout_session/order_id", "/session/order_id")
    period_end: Pointers = ("/current_period_end", "/period_end", "/current_period/end", "/renews_at")
    past_due_since: Pointers = ("/past_due_since", "/past_due_at")
    ended_at: Pointers = ("/ended_at", "/end_at")

    def grants_of(self, price_id: str | None, product_id: str | None) -> tuple[str, ...] | None:
        """The entitlements of a price (or its product); None when it is not mapped."""
        if self.entitlements is None:
            return (DEFAULT_ENTITLEMENT,)
        found = self.entitlements.get(price_id or "", self.entitlements.get(product_id or ""))
        return None if found is None else tuple(found)

    def grace(self, price_id: str | None) -> timedelta | None:
        """How long access outlives the start of PAST_DUE; None: as long as PAST_DUE lasts."""
        rule = self.past_due_by_price.get(price_id or "", self.past_due)
        if rule == "keep":
            return None
        return timedelta(0) if rule == "revoke" else duration(rule.removeprefix("grace:"))

    @cached_property
    def every_entitlement(self) -> frozenset[str]:
        """All that prices can grant."""
        if self.entitlements is None:
            return frozenset({DEFAULT_ENTITLEMENT})
        return frozenset(name for names in self.entitlements.values() for name in names)
