"""Endpoints: what each of the 20 addresses does with an authenticated request. Pure of HTTP: values in, values out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from consumer.sandbox.api import lists
from consumer.sandbox.api.fields import CANCEL_FIELDS, SESSION_FIELDS, Field, parse_object
from consumer.sandbox.api.requests import cancel_request, empty_request, lookup_request, session_request
from consumer.sandbox.engine import records as r
from consumer.sandbox.engine import views
from consumer.sandbox.engine.engine import Engine
from consumer.sandbox.errors import Refusal
from consumer.sandbox.webhooks.envelopes import envelope, list_item


@dataclass(frozen=True)
class Call:
    """One authenticated request."""

    engine: Engine
    application: r.Application
    link: Callable[[str], str]
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def app_id(self) -> str:
        """The application that calls."""
        return self.application.id

    def document(self) -> dict[str, Any]:
        """The body as a JSON object. Raises validation_failed."""
        return parse_object(self.body, last_counts=self.engine.assumptions.text("repeated_names") == "last")


@dataclass(frozen=True)
class Answer:
    """HTTP status and JSON body."""

    status: int
    body: Any


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One row of the spec's endpoint table. `problems` are the documented codes beside 401 and 429."""

    number: int
    method: str
    path: str
    run: Callable[[Call], Answer]
    summary: str
    answer: str
    fields: tuple[Field, ...] | None = None
    listing: bool = False
    query: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    success: tuple[int, ...] = (200,)

    @property
    def parameters(self) -> tuple[str, ...]:
        """What it takes behind the `?`."""
        return lists.PARAMETERS if self.listing else self.query


def _shown(call: Call, document: Any, status: int = 200) -> Answer:
    return Answer(status, views.present(document, call.engine.assumptions))


# --- application, webhook --------------------------------------------------------------------------------------


def read_application(call: Call) -> Answer:
    """The calling application."""
    merchant = call.engine.applications.merchant(call.application.merchant_id)
    return _shown(call, views.application_view(call.application, merchant))


def send_test_event(call: Call) -> Answer:
    """Send a test event to the application's webhook address."""
    empty_request(call.document(), call.engine.assumptions)
    event = call.engine.send_test_event(call.app_id)
    if call.engine.assumptions.text("test_event_answer") == "empty":
        return Answer(200, {})
    return Answer(200, {"event_id": event.id.rpartition("/")[2], "status": "queued"})


# --- sessions --------------------------------------------------------------------------------------------------


def _session(call: Call, session: r.Session, url: str | None = None) -> dict[str, Any]:
    order = call.engine.world.seen(call.engine.world.orders, session.order_ref)
    view = views.session_view(session, order, url)
    if session.mode == "subscription" and call.engine.assumptions.text("subscription_session_order") == "absent":
        del view["order"]
    return view if call.engine.assumptions.flag("expose_terms") else views.without_terms(view)


def create_session(call: Call) -> Answer:
    """A new session, or the one that the same order has already."""
    engine = call.engine
    request = session_request(call.document(), engine.assumptions)
    created = engine.sessions.create(call.application, request)
    url = call.link(created.session.token) if created.new else None
    status = engine.assumptions.status("create_status" if created.new else "create_again_status")
    return _shown(call, _session(call, created.session, url), status)


def read_session(call: Call) -> Answer:
    """One session, without its link."""
    world = call.engine.world
    return _shown(call, _session(call, lists.own(world, world.sessions, call.app_id, call.path["id"])))


def cancel_session(call: Call) -> Answer:
    """Cancel an open session."""
    empty_request(call.document(), call.engine.assumptions)
    session = call.engine.sessions.cancel(call.engine.sessions.get(call.app_id, call.path["id"]))
    return _after_cancel(call, _session(call, session))


def reissue_link(call: Call) -> Answer:
    """A new link for an open session."""
    empty_request(call.document(), call.engine.assumptions)
    engine = call.engine
    session = engine.sessions.get(call.app_id, call.path["id"])
    reachable = not engine.faults.strikes("checkout_unavailable")
    session = engine.sessions.reissue(session, chain_reachable=reachable)
    return _shown(call, _session(call, session, call.link(session.token)))


def _after_cancel(call: Call, view: dict[str, Any]) -> Answer:
    empty = call.engine.assumptions.text("cancel_answer") == "empty"
    return _shown(call, {} if empty else view)


# --- orders, payments ------------------------------------------------------------------------------------------


def list_orders(call: Call) -> Answer:
    """A page of orders."""
    world = call.engine.world
    page = lists.numeric_list(world, world.orders, call.app_id, lists.page_query(call.query))
    return _shown(call, page | {"items": [views.order_view(order) for order in page["items"]]})


def look_up_order(call: Call) -> Answer:
    """By the merchant's own id; by the service's too, where that is assumed (spec, Order and payment)."""
    wanted = lookup_request(call.query.get("order_id"), call.engine.assumptions)
    world, found = call.engine.world, call.engine.orders.find(call.app_id, wanted)
    if found is None and call.engine.assumptions.text("order_lookup") == "either_id":
        return _shown(call, views.order_view(lists.own(world, world.orders, call.app_id, wanted)))
    order = world.seen(world.orders, found.id if found else None)
    if order is None:
        raise Refusal("not_found")
    return _shown(call, views.order_view(order))


def read_order(call: Call) -> Answer:
    """By the service's id; by the merchant's too, where that is assumed (spec, Order and payment)."""
    world, order_ref = call.engine.world, call.path["id"]
    if call.engine.assumptions.text("order_read") == "either_id" and order_ref not in world.orders:
        found = call.engine.orders.find(call.app_id, order_ref)
        order_ref = found.id if found is not None else order_ref
    return _shown(call, views.order_view(lists.own(world, world.orders, call.app_id, order_ref)))


def _payment(call: Call, payment: r.Payment) -> dict[str, Any]:
    return views.payment_view(payment, call.engine.assumptions.text("payment_status_in_flight"))


def _payment_is_shown(call: Call, payment: r.Payment) -> bool:
    everything = call.engine.assumptions.text("payments_listed") == "all"
    return everything or payment.status is r.PaymentStatus.SUCCEEDED


def list_payments(call: Call) -> Answer:
    """A page of payments."""
    world = call.engine.world
    page = lists.numeric_list(
        world, world.payments, call.app_id, lists.page_query(call.query), lambda p: _payment_is_shown(call, p)
    )
    return _shown(call, page | {"items": [_payment(call, payment) for payment in page["items"]]})


def read_payment(call: Call) -> Answer:
    """One payment."""
    world = call.engine.world
    payment = lists.own(world, world.payments, call.app_id, call.path["id"])
    if not _payment_is_shown(call, payment):
        raise Refusal("not_found")
    return _shown(call, _payment(call, payment))


# --- subscriptions ---------------------------------------------------------------------------------------------


def _subscription(call: Call, subscription: r.Subscription) -> dict[str, Any]:
    return views.subscription_view(subscription, call.engine.assumptions.text("status_after_second_failure"))


def list_subscriptions(call: Call) -> Answer:
    """A page of subscriptions."""
    world = call.engine.world
    page = lists.numeric_list(world, world.subscriptions, call.app_id, lists.page_query(call.query))
    return _shown(call, page | {"items": [_subscription(call, one) for one in page["items"]]})


def read_subscription(call: Call) -> Answer:
    """One subscription."""
    world = call.engine.world
    return _shown(call, _subscription(call, lists.own(world, world.subscriptions, call.app_id, call.path["id"])))


def cancel_subscription(call: Call) -> Answer:
    """Cancel now, or with the paid period."""
    at = cancel_request(call.document(), call.engine.assumptions)
    subscriptions = call.engine.subscriptions
    subscription = subscriptions.cancel(subscriptions.get(call.app_id, call.path["id"]), at)
    return _after_cancel(call, _subscription(call, subscription))


# --- catalog: the merchant's, the same for every application ---------------------------------------------------


def list_products(call: Call) -> Answer:
    """A page of products."""
    world, owner = call.engine.world, call.application.merchant_id
    page = lists.numeric_list(world, world.products, owner, lists.page_query(call.query))
    return _shown(call, page | {"items": [views.product_view(product) for product in page["items"]]})


def read_product(call: Call) -> Answer:
    """One product."""
    world, owner = call.engine.world, call.application.merchant_id
    return _shown(call, views.product_view(lists.own(world, world.products, owner, call.path["id"])))


def list_prices(call: Call) -> Answer:
    """A page of prices."""
    world, owner = call.engine.world, call.application.merchant_id
    page = lists.numeric_list(world, world.prices, owner, lists.page_query(call.query))
    return _shown(call, page | {"items": [views.price_view(price) for price in page["items"]]})


def read_price(call: Call) -> Answer:
    """One price."""
    world, owner = call.engine.world, call.application.merchant_id
    return _shown(call, views.price_view(lists.own(world, world.prices, owner, call.path["id"])))


# --- events ----------------------------------------------------------------------------------------------------


def list_events(call: Call) -> Answer:
    """A page of the events that are still kept."""
    page = lists.event_list(call.engine.world, call.app_id, lists.page_query(call.query))
    return Answer(200, page | {"items": [list_item(call.engine, event) for event in page["items"]]})


def read_event(call: Call) -> Answer:
    """One event that is still kept."""
    event = lists.find_event(call.engine.world, call.app_id, call.path["id"])
    if event is None or not event.listed:
        raise Refusal("not_found")
    return Answer(200, envelope(call.engine, event, listed=True))


_CREATE_PROBLEMS = (
    "validation_failed", "amount_or_price_required", "amount_out_of_range", "url_insecure",
    "expires_at_out_of_range", "price_id_required", "amount_not_allowed", "price_not_found", "price_archived",
    "product_archived", "price_type_mismatch", "order_already_paid", "merchant_token_account_missing",
    "price_not_recurring", "plan_limit_reached",
)  # fmt: skip
_LINK_PROBLEMS = ("session_not_reissuable", "payment_in_progress", "checkout_unavailable", "not_found")
_CANCEL_PROBLEMS = ("session_not_cancelable", "payment_in_progress", "not_found")
_SESSION, _ORDERS, _PAYMENTS = "/v1/checkout-sessions", "/v1/orders", "/v1/payments"
_SUBSCRIPTIONS, _PRODUCTS, _PRICES, _EVENTS = "/v1/subscriptions", "/v1/products", "/v1/prices", "/v1/events"
_ONE = ("not_found",)
_LIST = ("validation_failed",)


def _get(number: int, path: str, run: Callable[[Call], Answer], summary: str, answer: str, **more: Any) -> Endpoint:
    return Endpoint(number=number, method="GET", path=path, run=run, summary=summary, answer=answer, **more)


def _post(number: int, path: str, run: Callable[[Call], Answer], summary: str, answer: str, **more: Any) -> Endpoint:
    more.setdefault("fields", ())
    return Endpoint(number=number, method="POST", path=path, run=run, summary=summary, answer=answer, **more)


ENDPOINTS: tuple[Endpoint, ...] = (
    _get(1, "/v1/application", read_application, "The calling application", "application"),
    _post(2, _SESSION, create_session, "Create a checkout session", "session", fields=SESSION_FIELDS,
          problems=_CREATE_PROBLEMS, success=(200, 201)),
    _get(3, f"{_SESSION}/{{id}}", read_session, "Read a session", "session", problems=_ONE),
    _post(4, f"{_SESSION}/{{id}}/cancel", cancel_session, "Cancel a session", "session", problems=_CANCEL_PROBLEMS),
    _post(5, f"{_SESSION}/{{id}}/link", reissue_link, "Reissue the link", "session", problems=_LINK_PROBLEMS),
    _get(6, _ORDERS, list_orders, "List orders", "order", listing=True, problems=_LIST),
    _get(7, f"{_ORDERS}/lookup", look_up_order, "Find an order by the merchant's id", "order", query=("order_id",),
         problems=("validation_failed", "not_found")),
    _get(8, f"{_ORDERS}/{{id}}", read_order, "Read an order", "order", problems=_ONE),
    _get(9, _PAYMENTS, list_payments, "List payments", "payment", listing=True, problems=_LIST),
    _get(10, f"{_PAYMENTS}/{{id}}", read_payment, "Read a payment", "payment", problems=_ONE),
    _get(11, _SUBSCRIPTIONS, list_subscriptions, "List subscriptions", "subscription", listing=True, problems=_LIST),
    _get(12, f"{_SUBSCRIPTIONS}/{{id}}", read_subscription, "Read a subscription", "subscription", problems=_ONE),
    _post(13, f"{_SUBSCRIPTIONS}/{{id}}/cancel", cancel_subscription, "Cancel a subscription", "subscription",
          fields=CANCEL_FIELDS, problems=("validation_failed", "subscription_already_ended", "not_found")),
    _get(14, _PRODUCTS, list_products, "List products", "product", listing=True, problems=_LIST),
    _get(15, f"{_PRODUCTS}/{{id}}", read_product, "Read a product", "product", problems=_ONE),
    _get(16, _PRICES, list_prices, "List prices", "price", listing=True, problems=_LIST),
    _get(17, f"{_PRICES}/{{id}}", read_price, "Read a price", "price", problems=_ONE),
    _get(18, _EVENTS, list_events, "List events", "event", listing=True, problems=_LIST),
    _get(19, f"{_EVENTS}/{{id}}", read_event, "Read an event", "event", problems=_ONE),
    _post(20, "/v1/webhook/test-event", send_test_event, "Send a test event", "test_event"),
)  # fmt: skip


def answer_text(answer: Answer) -> str:
    """The body as it is sent."""
    return json.dumps(answer.body, ensure_ascii=False, separators=(",", ":"))
