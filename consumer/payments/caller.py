"""Caller: what every resource calls through: one transport, one priority, the keys of unfinished writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from consumer.clock import Clock
from consumer.payments.answers import Answer
from consumer.payments.budget import CallKind, Priority
from consumer.payments.errors import ApiError
from consumer.payments.keys import IdempotencyKeys, body_digest
from consumer.payments.models import CheckoutSession
from consumer.payments.requests import idempotency_key
from consumer.payments.terms import SessionTerms
from consumer.payments.transport import Call

EMPTY_BODY = b"{}"
"""Sent where the spec names no payload: every POST body is JSON (spec, Endpoints)."""


OnSession = Callable[[Mapping[str, Any], CheckoutSession], Awaitable[None]]
"""Told each created checkout session, with the fields it was asked for; must not fail."""

OnEvidence = Callable[[Literal["order", "subscription"], str], Awaitable[None]]
"""Told which object the answer to a write spoke of, so that it is read (cases F27, A38, A39); must not fail."""


class Sender(Protocol):
    """What calls go through: the Transport, and what the test kit plays."""

    async def send(self, call: Call, priority: Priority, *, walk: bool = False) -> Answer:
        """The answer to a call. Raises a PaymentsError."""
        ...


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Sends reads and writes of one application at one priority."""

    transport: Sender
    keys: IdempotencyKeys
    terms: SessionTerms
    application: str
    priority: Priority
    clock: Clock
    on_session: OnSession | None = None
    on_evidence: OnEvidence | None = None

    async def read(
        self, route: str, path: str, params: tuple[tuple[str, str], ...] = (), *, walk: bool = False
    ) -> Answer:
        """One GET; `walk` when it is one page of many."""
        call = Call(method="GET", route=route, path=path, params=params)
        return await self.transport.send(call, self.priority, walk=walk)

    async def write(
        self,
        route: str,
        path: str,
        *,
        operation: str,
        body: bytes = EMPTY_BODY,
        key: str | None = None,
        kept: str | None = None,
        kind: CallKind = CallKind.WRITE,
        body_needed: bool = True,
    ) -> Answer:
        """One POST. Its key is known to the store before the first send, and until the outcome is (case C3).

        `key` is the merchant's own idempotency key for the operation; without it one is kept in the store under
        `operation` and the body's digest: the same operation with another body gets another key (case C4). `kept` is
        the one of a try before whose outcome nobody knew; once that is known, it is over as any other (case U17).
        """
        sent_key = (
            idempotency_key(key)
            if key is not None
            else kept or await self.keys.begin(self.application, operation, body_digest(body))
        )
        call = Call(method="POST", route=route, path=path, kind=kind, body=body, key=sent_key, body_needed=body_needed)
        try:
            answer = await self.transport.send(call, self.priority)
        except ApiError as error:
            if not error.retryable and key is None:
                await self.keys.settle(self.application, operation, sent_key)
            raise
        if key is None:
            await self.keys.settle(self.application, operation, sent_key)
        return answer

    def at(self, priority: Priority) -> Caller:
        """The same at another priority."""
        return replace(self, priority=priority)
