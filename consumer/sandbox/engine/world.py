"""World: the state all nouns of the engine share - records, clock, chance, assumptions, timers."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from consumer.sandbox.assumptions import Assumptions
from consumer.sandbox.clock import SandboxClock
from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.shelf import R, Shelf
from consumer.sandbox.engine.timers import Timers

_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"
_FREE_FORMATS = {"session": "cs", "order": "ord", "payment": "pay", "subscription": "sub", "product": "prod"}
_FIXED_FORMATS = {
    "event": "evt", "application": "svc_app", "secret": "svc_sk_live", "price": "svc_price", "request": "req",
    "merchant": "mer", "plan": "plan", "delivery": "dlv",
}  # fmt: skip


class World:
    """Everything the simulated service knows. Each shelf holds one kind of record."""

    def __init__(self, clock: SandboxClock, assumptions: Assumptions, *, seed: int | None, max_records: int) -> None:
        self.clock = clock
        self.assumptions = assumptions
        self.timers = Timers()
        self.chance = random.Random(seed)  # noqa: S311 - a simulator's dice, reproducible by seed
        self.seq = 0
        self.merchants = Shelf(r.Merchant, max_records)
        self.applications = Shelf(r.Application, max_records)
        self.products = Shelf(r.Product, max_records)
        self.prices = Shelf(r.Price, max_records)
        self.plans = Shelf(r.Plan, max_records)
        self.sessions = Shelf(r.Session, max_records)
        self.orders = Shelf(r.Order, max_records)
        self.payments = Shelf(r.Payment, max_records)
        self.subscriptions = Shelf(r.Subscription, max_records)
        self.events = Shelf(r.Event, max_records)
        self.deliveries = Shelf(r.Delivery, max_records)
        self.answers = Shelf(r.StoredAnswer, max_records)
        self.started_at = clock.now()
        self.on_event: Callable[[r.Event], None] = lambda _event: None

    def shelves(self) -> Iterator[tuple[str, Shelf[Any]]]:
        """Every shelf with its name."""
        for name, value in vars(self).items():
            if isinstance(value, Shelf):
                yield name, value

    def now(self) -> datetime:
        """The simulated wall time."""
        return self.clock.now()

    def in_seconds(self, seconds: float) -> datetime:
        """The simulated wall time so many seconds from now."""
        return self.clock.now() + timedelta(seconds=seconds)

    def next_seq(self) -> int:
        """The next place in the order of creation."""
        self.seq += 1
        return self.seq

    def opaque(self, length: int = 20) -> str:
        """An opaque string."""
        return "".join(self.chance.choices(_ALPHABET, k=length))

    def new_id(self, kind: str) -> str:
        """A new id; the documented prefixes are fixed, the others follow the assumption `ids` (case U11)."""
        if kind in _FIXED_FORMATS:
            return f"{_FIXED_FORMATS[kind]}_{self.opaque()}"
        style = self.assumptions.text("ids")
        if style == "uuid":
            return str(uuid.UUID(int=self.chance.getrandbits(128), version=4))
        if style == "numeric":
            return str(self.chance.randrange(10**15, 10**16))
        return f"{_FREE_FORMATS[kind]}_{self.opaque()}"

    def put(self, shelf: Shelf[R], record: R) -> R:
        """Keep the record, or its new version, as of now."""
        return shelf.put(record, self.clock.now())

    def seen(self, shelf: Shelf[R], record_id: str | None) -> R | None:
        """The record as a read shows it: behind by the assumption `read_lag_s` (case X64)."""
        if record_id is None:
            return None
        lag_s = self.assumptions.number("read_lag_s")
        if not lag_s:
            return shelf.get(record_id)
        return shelf.as_of(record_id, self.in_seconds(-lag_s))
