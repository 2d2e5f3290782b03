"""PaymentsClient: the v1 API of the payments service as typed async methods, grouped by resource."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from consumer.clock import Clock, SystemClock
from consumer.payments.budget import Priority, Scope
from consumer.payments.caller import Caller, OnEvidence, OnSession
from consumer.payments.checkout import CheckoutSessions
from consumer.payments.circuit import CircuitState, CredentialCircuit
from consumer.payments.credentials import Credentials
from consumer.payments.keys import IdempotencyKeys, MemoryIdempotencyKeys
from consumer.payments.resources import (
    ApplicationResource,
    Events,
    Orders,
    Payments,
    Prices,
    Products,
    Subscriptions,
    Webhook,
)
from consumer.payments.shared_budget import Budget, MemoryBudgetStore
from consumer.payments.terms import SessionTerms
from consumer.payments.transport import Attempt, Transport

if TYPE_CHECKING:
    import aiohttp


class Resources:
    """All 20 endpoints at one priority."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.application = ApplicationResource(caller)
        self.checkout_sessions = CheckoutSessions(caller)
        self.orders = Orders(caller)
        self.payments = Payments(caller)
        self.subscriptions = Subscriptions(caller)
        self.products = Products(caller)
        self.prices = Prices(caller)
        self.events = Events(caller)
        self.webhook = Webhook(caller)

    @property
    def priority(self) -> Priority:
        """The priority these calls are made with."""
        return self._caller.priority

    def with_priority(self, priority: Priority) -> Resources:
        """The same client, budget and circuit at another priority."""
        return Resources(self._caller.at(priority))


class PaymentsClient(Resources):
    """Client of one application. Use as `async with`, or `start` and `close`.

    `budget` and `key_store` are in memory unless given; several processes behind one address share a stored budget.
    `priority` is what calls are made with unless `with_priority` says otherwise. `timeout_s` bounds one request.
    `on_attempt` is told every request as it went, `on_circuit` each opening and closing of the credential circuit.
    `on_session` is told each checkout session that was created, before `create` returns; `on_evidence` each order that
    is paid already and each subscription whose cancel was tried: they are to be read.
    Raises SettingsError when `base_url` is neither https nor on loopback.
    """

    def __init__(
        self,
        base_url: str,
        credentials: Credentials,
        *,
        application: str = "default",
        clock: Clock | None = None,
        budget: Budget | None = None,
        priority: Priority = Priority.LIVE,
        session: aiohttp.ClientSession | None = None,
        timeout_s: float = 10.0,
        key_store: IdempotencyKeys | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
        on_circuit: Callable[[CircuitState], None] | None = None,
        on_session: OnSession | None = None,
        on_evidence: OnEvidence | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.name = application
        self.credentials = credentials
        self.budget = budget or Budget(
            MemoryBudgetStore(clock),
            Scope(ip=urlsplit(base_url).netloc.rpartition("@")[2], application=credentials.app_id),
            clock,
        )
        self.circuit = CredentialCircuit(
            application, app_id=credentials.app_id, store=self.budget.store, clock=clock, on_change=on_circuit
        )
        self._transport = Transport(
            base_url,
            credentials,
            application=application,
            clock=clock,
            budget=self.budget,
            circuit=self.circuit,
            session=session,
            timeout_s=timeout_s,
            on_attempt=on_attempt,
        )
        super().__init__(
            Caller(
                transport=self._transport,
                keys=key_store or MemoryIdempotencyKeys(),
                terms=SessionTerms(self.budget.store, credentials.app_id),
                application=application,
                priority=priority,
                clock=clock,
                on_session=on_session,
                on_evidence=on_evidence,
            )
        )

    @property
    def service_clock(self) -> tuple[datetime, datetime] | None:
        """What the service's clock showed at its last answer, to the second, and what ours did; None: never told."""
        return self._transport.service_clock

    def __repr__(self) -> str:
        return f"PaymentsClient(application={self.name!r}, credentials={self.credentials!r})"

    async def start(self) -> Self:
        """Open the pool of connections; nothing is sent."""
        await self._transport.start()
        return self

    async def close(self) -> None:
        """Close the pool of connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
