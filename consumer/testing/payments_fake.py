"""PaymentsFake: what `ctx.payments` is on the workbench: the consumer's own client, on a service that lives in memory.

Requests are checked, errors typed and records read by the real client; only what answers is played. It keeps what the
document says of orders, sessions and subscriptions, as far as a handler can see it; time does nothing to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import orjson

from consumer.clock import Clock, SystemClock
from consumer.payments.answers import Answer, understood
from consumer.payments.budget import Priority
from consumer.payments.caller import Caller
from consumer.payments.client import Resources
from consumer.payments.keys import MemoryIdempotencyKeys
from consumer.payments.shared_budget import MemoryBudgetStore
from consumer.payments.terms import SessionTerms
from consumer.payments.transport import Call

OPEN_FOR: Final = timedelta(days=365)
"""For good, unless a test says when: the assertions let days pass between two attempts."""
COLLECTIONS: Final = ("orders", "subscriptions", "checkout-sessions", "payments", "products", "prices", "events")

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PaymentsCall:
    """One request that a handler made by `ctx.payments`."""

    method: str
    path: str
    body: Mapping[str, Any] | None
    idempotency_key: str | None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What the service says instead: a documented code, with its status (spec, Errors)."""

    code: str
    status: int = 409


class PaymentsFake(Resources):
    """`calls` in the order they came, `changes` what they changed. `refuse` may be set to a function of the call."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.calls: list[PaymentsCall] = []
        self.changes: list[tuple[str, str]] = []
        self.refuse: Callable[[PaymentsCall], Refusal | None] = lambda _: None
        self._clock = clock or SystemClock()
        self._records: dict[str, dict[str, Record]] = {name: {} for name in COLLECTIONS}
        self._answered: dict[str, tuple[bytes | None, bytes]] = {}
        self._numbers = itertools.count(1)
        super().__init__(
            Caller(
                transport=self,
                keys=MemoryIdempotencyKeys(),
                terms=SessionTerms(MemoryBudgetStore(self._clock), "svc_app_workbench"),
                application="default",
                priority=Priority.LIVE,
                clock=self._clock,
            )
        )

    # --- what there is -----------------------------------------------------------------------------------------

    def add_order(self, order_id: str, *, status: str = "PENDING", **fields: Any) -> Record:
        """An order that is there, by the merchant's own id."""
        return self.add("orders", {"id": f"ord_{order_id}", "order_id": order_id, "status": status, **fields})

    def add_subscription(self, subscription_id: str, *, status: str = "ACTIVE", **fields: Any) -> Record:
        """A subscription that is there."""
        said = {"end_reason": None, "cancel_at_period_end": False, "merchant_cancel_requested": False}
        return self.add("subscriptions", {"id": subscription_id, "status": status, **said, **fields})

    def add(self, collection: str, record: Mapping[str, Any]) -> Record:
        """A record of `payments`, `products`, `prices`, `events`, … with an `id`."""
        found = dict(record)
        self._records[collection][str(found["id"])] = found
        return found

    def pay(self, order_id: str) -> None:
        """The payer pays: the order is PAID, its open session COMPLETED."""
        order = self._order(order_id) or self.add_order(order_id)
        order["status"] = "PAID"
        for session in self._sessions(order_id):
            if session["status"] == "OPEN":
                session["status"] = "COMPLETED"

    def fresh(self) -> PaymentsFake:
        """The same records and refusals, as before anything was asked."""
        other = PaymentsFake(self._clock)
        other.refuse = self.refuse
        for name, records in self._records.items():
            for record in records.values():
                other.add(name, record)
        return other

    # --- what answers ------------------------------------------------------------------------------------------

    async def send(self, call: Call, priority: Priority, *, walk: bool = False) -> Answer:
        """The answer to one request, as the client's own transport gives it. Raises the documented errors."""
        del priority, walk
        body = orjson.loads(call.body) if call.body else None
        made = PaymentsCall(method=call.method, path=call.path, body=body, idempotency_key=call.key)
        self.calls.append(made)
        if call.key is not None and call.key in self._answered:
            before, raw = self._answered[call.key]  # played back, as for a repeated request
            return self._said(call, 200, orjson.loads(raw)) if before == call.body else self._refused(call, "conflict")
        refusal = self.refuse(made)
        if refusal is not None:
            return self._refused(call, refusal.code, refusal.status)
        answer = self._answer(call, body or {})
        if call.key is not None:
            self._answered[call.key] = (call.body, answer.raw)
        return answer

    def _answer(self, call: Call, body: Mapping[str, Any]) -> Answer:
        parts = call.path.removeprefix("/v1/").split("/")
        match call.method, parts:
            case "GET", ["orders", "lookup"]:
                return self._one(call, self._order(dict(call.params)["order_id"]))
            case "GET", [collection]:
                return self._said(call, 200, self._page(collection, dict(call.params)))
            case "GET", [collection, record_id]:
                found = self._records.get(collection, {}).get(record_id)
                shown = found if found is None or "url" not in found else {**found, "url": None}
                return self._one(call, shown)
            case "POST", ["checkout-sessions"]:
                return self._create(call, body)
            case "POST", ["checkout-sessions", session_id, "cancel"]:
                return self._cancel_session(call, session_id)
            case "POST", ["checkout-sessions", session_id, "link"]:
                return self._reissue(call, session_id)
            case "POST", ["subscriptions", subscription_id, "cancel"]:
                return self._cancel_subscription(call, subscription_id, body["at"])
        return self._refused(call, "not_found", 404)

    def _page(self, collection: str, asked: Mapping[str, str]) -> dict[str, Any]:
        """A page as the document says: by number, and a full last one has a cursor; events by the id before."""
        records, limit, cursor = self._records.get(collection, {}), int(asked["limit"]), asked.get("cursor")
        following: int | str | None
        if collection == "events":
            begin = 0 if cursor is None else list(records).index(cursor) + 1
            following = list(records)[begin + limit - 1] if begin + limit < len(records) else None
        else:
            begin = int(cursor or 0)
            following = begin + limit if begin + limit <= len(records) else None
        return {"items": list(records.values())[begin : begin + limit], "next_cursor": following}

    def _create(self, call: Call, body: Mapping[str, Any]) -> Answer:
        order_id, is_once = str(body["order_id"]), body["mode"] == "payment"
        order = self._order(order_id)
        if order is not None and order["status"] == "PAID":
            return self._refused(call, "order_already_paid")
        open_ones = [one for one in self._sessions(order_id) if one["status"] == "OPEN"]
        if open_ones:
            return self._said(call, 200, {**open_ones[0], "url": None})
        if is_once and order is None:
            order = self.add_order(order_id, amount=body.get("amount"))
        number = next(self._numbers)
        session = self.add(
            "checkout-sessions",
            {
                **body,
                "id": f"session-{number}",
                "status": "OPEN",
                "url": f"https://pay.example/{number}",
                "expires_at": body.get("expires_at") or (self._clock.now() + OPEN_FOR).isoformat(),
                "order": order if is_once else None,
            },
        )
        self.changes.append(("create", order_id))
        return self._said(call, 200, session)

    def _cancel_session(self, call: Call, session_id: str) -> Answer:
        session = self._records["checkout-sessions"].get(session_id)
        if session is None:
            return self._refused(call, "not_found", 404)
        if session["status"] != "OPEN":
            return self._refused(call, "session_not_cancelable")
        session["status"] = "CANCELED"
        self.changes.append(("cancel", session_id))
        return self._said(call, 200, {})

    def _reissue(self, call: Call, session_id: str) -> Answer:
        session = self._records["checkout-sessions"].get(session_id)
        if session is None or session["status"] != "OPEN":
            return self._refused(call, "session_not_reissuable")
        session["url"] = f"https://pay.example/{next(self._numbers)}"
        self.changes.append(("reissue", session_id))
        return self._said(call, 200, session)

    def _cancel_subscription(self, call: Call, subscription_id: str, at: str) -> Answer:
        subscription = self._records["subscriptions"].get(subscription_id)
        if subscription is None:
            return self._refused(call, "not_found", 404)
        if subscription["status"] == "ENDED":
            return self._refused(call, "subscription_already_ended")
        ended = {"status": "ENDED", "end_reason": "MERCHANT_CANCELED"}
        scheduled = {"cancel_at_period_end": True, "merchant_cancel_requested": True}
        subscription |= ended if at == "now" else scheduled
        self.changes.append((f"cancel {at}", subscription_id))
        return self._said(call, 200, {})

    def _order(self, order_id: str) -> Record | None:
        return next((one for one in self._records["orders"].values() if one.get("order_id") == order_id), None)

    def _sessions(self, order_id: str) -> list[Record]:
        return [one for one in self._records["checkout-sessions"].values() if one.get("order_id") == order_id]

    def _one(self, call: Call, record: Record | None) -> Answer:
        return self._refused(call, "not_found", 404) if record is None else self._said(call, 200, record)

    def _refused(self, call: Call, code: str, status: int = 409) -> Answer:
        return self._said(call, status, {"statusCode": status, "code": code, "message": code})

    def _said(self, call: Call, status: int, document: Mapping[str, Any]) -> Answer:
        raw = orjson.dumps(document, default=str)
        return understood(status, {}, raw, self._clock.now(), body_needed=call.body_needed)
