"""Every object that the service knows, each of its fields in turn odd: what happened (`Told`), and a service that shows
it oddly in one way, and plainly in all others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from consumer.events import parse_time
from tests.hostile.corpus import PAGE, Record, drawn
from tests.hostile.texts import written

AT = datetime(2026, 1, 1, tzinfo=UTC)
PLAIN_EVERY: Final = 5
ANEW: Final = ""
"""A field that nobody knows, in place of one that is documented."""
_ASKED = ("mode", "success_url", "cancel_url", "price_id", "amount", "description", "line_items", "customer_email",
          "customer_reference", "ui_mode", "metadata")  # fmt: skip
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "order": ("id", "order_id", "status", "session_id", "payment_id", "created_at", *_ASKED, ANEW),
    "session": ("id", "url", "expires_at", "status", "order", "order_id", *_ASKED, ANEW),
    "payment": ("id", "status", "order_id", "amount", "created_at", ANEW),
    "subscription": (
        "id", "status", "end_reason", "cancel_at_period_end", "cancel_reason", "merchant_cancel_requested",
        "customer_reference", "price_id", "product_id", "checkout_session_id", "current_period_end", "past_due_since",
        "ended_at", ANEW,
    ),
    "event": ("id", "type", "created_at", "data", "object", "request", ANEW),
}  # fmt: skip
TIMES: Final = ("created_at", "expires_at", "current_period_end", "past_due_since", "ended_at")
SAYS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "order": (("order.paid", "PAID"), ("order.expired", "PAID")),
    "session": tuple((f"checkout.session.{word.lower()}", word) for word in ("COMPLETED", "CANCELED", "EXPIRED")),
    "payment": (("order.paid", "PAID"),),
    "subscription": (
        ("subscription.created", "ACTIVE"),
        ("subscription.renewed", "ACTIVE"),
        ("subscription.payment_failed", "PAST_DUE"),
        ("subscription.past_due", "PAST_DUE"),
        ("subscription.cancel_scheduled", "ACTIVE"),
        ("subscription.cancel_withdrawn", "ACTIVE"),
        ("subscription.ended", "ENDED"),
    ),
}
"""What each kind's events are (spec, Events), and the state that the service's record is in then."""
KIND_IN: Final = {
    "orders": "order", "payments": "payment", "subscriptions": "subscription", "checkout-sessions": "session",
}  # fmt: skip
SORTS: Final = ("odd", "null", "missing", "twice")


@dataclass(frozen=True, kw_only=True)
class Told:
    """One thing that happened at the service. `subject`: whether it is about an order or a subscription. `odd`: the
    kind of object that is shown oddly, by which `field`; None is a neighbour."""

    number: int
    subject: str
    type: str
    status: str
    odd: str | None = None
    field: str = ANEW
    sort: str = "odd"
    value: Any = None
    name: str = "more"

    @property
    def key(self) -> str:
        """The merchant's order id, or the subscription's."""
        return f"sub_{self.number}" if self.subject == "subscription" else f"A-{self.number}"

    def shown(self, kind: str, *, oddly: bool) -> Record:
        """The object of this kind in the service's words."""
        found = Record(getattr(self, f"_{kind}")())
        return self._oddly(found) if oddly and self.odd == kind else found

    def event(self, at: datetime, *, oddly: bool) -> Record:
        """The event that the service sends and lists. One of a completed session does not name the order: it is read.
        Of a payment no event tells but its order's, which is plain."""
        said = self.shown(self.type.split(".")[-2], oddly=oddly)
        if self.type == "checkout.session.completed":
            for name in {"order", "order_id"} - {self.field}:
                said.pop(name)
        is_odd = oddly and self.odd == "event"
        data = Record({"object": said})
        found = {"id": f"evt_{self.number}", "type": self.type, "created_at": at.isoformat(), "request": None}
        if is_odd and self.field == "object":
            return Record({**found, "data": self._oddly(data)})
        return self._oddly(Record({**found, "data": data})) if is_odd else Record({**found, "data": data})

    def _oddly(self, found: Record) -> Record:
        match self.sort:
            case "missing":
                found.pop(self.field, None)
            case "null":
                found[self.field or self.name] = None
            case _:
                found[self.field or self.name] = self.value
                found.twice = self.sort == "twice"
        return found

    def _order(self) -> dict[str, Any]:
        n = self.number
        ids = {"id": f"ord_{n}", "order_id": f"A-{n}", "session_id": f"cs_{n}", "payment_id": f"pay_{n}"}
        return {
            **ids,
            "status": "PAID",
            "amount": "10.00",
            "created_at": AT.isoformat(),
            "customer_reference": f"c_{n}",
        }

    def _session(self) -> dict[str, Any]:
        at, n = AT.isoformat(), self.number
        found = {"id": f"cs_{n}", "url": None, "expires_at": at, "status": self.status, "mode": "payment"}
        return {**found, "order_id": f"A-{n}", "order": self._order()}

    def _payment(self) -> dict[str, Any]:
        n = self.number
        return {"id": f"pay_{n}", "status": "SUCCEEDED", "amount": "10.00", "order_id": f"A-{n}"}

    def _subscription(self) -> dict[str, Any]:
        n, is_over = self.number, self.status == "ENDED"
        return {
            "id": f"sub_{n}", "status": self.status, "end_reason": "PAYER_CANCELED" if is_over else None,
            "cancel_at_period_end": self.type.endswith("scheduled"), "cancel_reason": None,
            "merchant_cancel_requested": False, "customer_reference": f"c_{n}", "price_id": "svc_price_1",
        }  # fmt: skip


def happened(number: int, kinds: Sequence[str]) -> list[Told]:
    """So many odd things about these kinds of objects, each field in turn, each sort in turn; and a plain one before
    every few of them."""
    fields = [(kind, field) for field in range(max(map(len, FIELDS.values()))) for kind in kinds
              if field < len(FIELDS[kind])]  # fmt: skip
    found: list[Told] = []
    for count, (value, name) in enumerate(drawn(number)):
        kind, at = fields[count % len(fields)]
        field, around = FIELDS[kind][at], count // len(fields)
        if count % PLAIN_EVERY == 0:
            found.append(_told(len(found), kind, around))
        is_time = field in TIMES and parse_time(value) is not None  # a time is not odd: it would be believed
        found.append(
            _told(
                len(found), kind, around, odd=kind, field=field, sort=SORTS[(around + at) % len(SORTS)],
                value=[value] if is_time else value, name=name or "more",
            )
        )  # fmt: skip
    return found


def _told(number: int, kind: str, around: int, **odd: Any) -> Told:
    subject = ("order", "subscription")[number % 2] if kind == "event" else kind
    says = SAYS[subject]
    type_, status = says[(around + number) % len(says)]
    about = "subscription" if subject == "subscription" else "order"
    return Told(number=number, subject=about, type=type_, status=status, **odd)


class OddService:
    """Shows what `tell` told it. `oddly`: in which ways it does so oddly: as `events`, in `lists`, or by `reads` of one
    object. `lists`: which lists it has; the newest come first."""

    def __init__(self, oddly: Collection[str], lists: Collection[str]) -> None:
        self.oddly = set(oddly)
        self.shown = set(lists)
        self.told: dict[str, Told] = {}
        self._at: dict[str, datetime] = {}

    def tell(self, one: Told, at: datetime) -> None:
        """This has happened now."""
        self.told[str(one.number)], self._at[str(one.number)] = one, at

    def event(self, one: Told) -> Record:
        """As it is sent by webhook, and listed."""
        return one.event(self._at[str(one.number)], oddly="events" in self.oddly)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Of any address."""
        kind, _, id_ = request.path.removeprefix("/v1/").partition("/")
        if kind == "application":
            return _json({"id": "svc_app_test"})
        if id_:
            return self._one(kind, request.query.get("order_id", id_))
        listed = self._listed(kind) if kind in self.shown else []
        left = int(request.query.get("cursor", "").removeprefix("evt_") or len(listed))
        page = listed[len(listed) - left :][:PAGE]
        rest = left - len(page)
        cursor = None if not rest else f"evt_{rest}" if kind == "events" else rest
        return _json({"items": [self._item(kind, one) for one in page], "next_cursor": cursor})

    def _listed(self, kind: str) -> list[Told]:
        """The newest first."""
        if kind == "events":
            return list(self.told.values())[::-1]
        about = "subscription" if kind == "subscriptions" else "order"
        return [one for one in self.told.values() if one.subject == about][::-1]

    def items(self) -> Iterator[tuple[str, Told, Record]]:
        """What stands in its lists of objects, with the list's name."""
        for kind in ("orders", "subscriptions", "payments"):
            yield from ((kind, one, self._item(kind, one)) for one in self._listed(kind))

    def _item(self, kind: str, one: Told) -> Record:
        return self.event(one) if kind == "events" else one.shown(KIND_IN[kind], oddly="lists" in self.oddly)

    def _one(self, kind: str, id_: str) -> web.Response:
        one = self.told.get(id_.rpartition("-" if kind == "orders" and id_.startswith("A-") else "_")[2])
        if one is None or (kind == "events" and kind not in self.shown):
            return _json({"code": "not_found"}, 404)
        if kind == "events":
            return _json(self.event(one))
        plain = one.shown(KIND_IN[kind], oddly=False)
        if id_ not in (plain["id"], plain.get("order_id")) or (one.subject == "subscription") != (
            kind == "subscriptions"
        ):
            return _json({"code": "not_found"}, 404)
        return _json(one.shown(KIND_IN[kind], oddly="reads" in self.oddly))


def _json(document: Any, status: int = 200) -> web.Response:
    return web.Response(body=written(document), content_type="application/json", status=status)
