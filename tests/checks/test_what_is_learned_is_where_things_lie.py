"""Learning names the places where a fact really lies, the best one first, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from consumer.checks.discovery import Place, Proposal, listed_order, propose
from consumer.events import Locators
from consumer.lists.bookmark import ListOrder

ORDER = {
    "id": "evt_1",
    "type": "order.paid",
    "created_at": "2026-01-01T00:00:00Z",
    "data": {"id": "ord_1", "order_id": "A-1", "customer": "c1", "paid_at": "2026-01-01T00:00:00Z"},
}
SUBSCRIPTION = {"id": "evt_2", "type": "subscription.active", "data": {"subscription_id": "sub_1", "customer_id": 7}}
NOTHING = Proposal(bodies=0, places={}, fits={}, authenticity="api", signature_headers=())


def places(fact: str, *bodies: Mapping[str, Any]) -> list[str]:
    """Where this fact is proposed to lie."""
    return [place.pointer for place in propose(bodies, [], Locators()).places[fact]]


def test_each_fact_has_its_places_and_no_others() -> None:
    # case: U1, U2
    found = propose([ORDER, SUBSCRIPTION], [], Locators())
    assert {fact: [place.pointer for place in there] for fact, there in found.places.items()} == {
        "id": ["/id"],
        "type": ["/type"],
        "time": ["/created_at", "/data/paid_at"],
        "object": ["/data/id"],
        "order": ["/data/order_id"],
        "subscription": ["/data/subscription_id"],
        "customer": ["/data/customer", "/data/customer_id"],
    }
    assert found.bodies == 2
    assert found.places["id"] == (Place("/id", 1.0),)
    assert found.places["time"] == (Place("/created_at", 0.5), Place("/data/paid_at", 0.5))
    assert found.places["order"] == (Place("/data/order_id", 1.0),), "a subscription need not have an order"


def test_the_place_that_is_found_most_often_stands_first_and_of_equals_the_shallower_one() -> None:
    # case: U1
    often, rarely = {"z": {"z": {"id": "evt_1"}}}, {"a": "evt_1"}
    assert places("id", often, often, rarely) == ["/z/z/id", "/a"]
    assert places("id", {"a": {"b": "evt_1"}, "z": "evt_1"}) == ["/z", "/a/b"]
    assert places("id", dict.fromkeys("edcba", "evt_1")) == ["/a", "/b", "/c"], "three of them"


def test_a_fact_is_looked_for_five_names_deep() -> None:
    # case: U1
    assert places("id", {"a": {"b": {"c": {"d": {"e": "evt_1"}}}}}) == ["/a/b/c/d/e"]
    assert places("id", {"a": {"b": {"c": {"d": {"e": {"f": "evt_1"}}}}}}) == []


def test_a_time_lies_at_most_two_names_deep() -> None:
    # case: U22
    assert places("time", {"at": 1767225600}) == ["/at"]
    assert places("time", {"data": {"sent_at": 1767225600}}) == ["/data/sent_at"]
    assert places("time", {"data": {"object": {"sent_at": 1767225600}}}) == []
    assert places("time", {"at": "noon", "total": 1767225600}) == []


@pytest.mark.parametrize(
    ("rest", "wanted"),
    [
        ({"id": "ord_1"}, ["/id"]),
        ({"id": 17}, ["/id"]),
        ({"object_id": "ord_1"}, ["/object_id"]),
        ({"resource_id": "ord_1"}, ["/resource_id"]),
        ({"object": "ord_1"}, ["/object"]),
        ({"data": {"object": "order"}}, []),
        ({"id": "evt_1"}, []),
        ({"id": 1.5}, []),
        ({"number": "ord_1"}, []),
    ],
)
def test_an_object_is_named_by_an_id_that_is_not_the_events(rest: dict[str, Any], wanted: list[str]) -> None:
    # case: U2
    assert places("object", {"type": "order.paid", **rest}) == wanted


@pytest.mark.parametrize("said", ["sub_1", {"id": "sub_1"}])
def test_a_charge_names_its_subscription(said: object) -> None:
    # case: U1, A5
    charge = {"type": "subscription.renewed", "data": {"object": {"id": "pay_1", "subscription": said}}}
    named = "/data/object/subscription" + ("/id" if isinstance(said, dict) else "")
    assert places("subscription", charge) == [named, "/data/object/id"]
    own = {"type": "subscription.active", "subscription": said, "data": {"id": "sub_2"}}
    assert places("subscription", own)[0] == "/data/id", "the other may be the webhook's"


def test_what_is_learned_of_a_charge_is_what_todays_locators_find() -> None:
    # case: U1, A5
    of_charge = {"id": "pay_1", "subscription": "sub_1"}
    active = {"type": "subscription.active", "data": {"object": {"id": "sub_1"}}}
    charge = {"type": "subscription.renewed", "data": {"object": of_charge}}
    assert places("subscription", active, active, charge) == ["/data/object/subscription", "/data/object/id"]


@pytest.mark.parametrize("nothing", [None, [], {}, ["sub_1"]])
def test_what_holds_no_value_is_no_place(nothing: object) -> None:
    # case: U1
    assert places("subscription", {"type": "subscription.active", "subscription_id": nothing}) == []


def test_an_order_is_named_by_a_text_or_a_number() -> None:
    # case: U1
    assert places("order", {"type": "order.paid", "order_id": 17}) == ["/order_id"]
    assert places("order", {"type": "order.paid", "order_id": True}) == []
    assert places("order", {"type": "order.paid", "order_id": 1.5}) == []
    assert places("order", {"type": "checkout.session.expired", "order_id": "A-1"}) == ["/order_id"]


def test_the_first_type_that_speaks_of_business_is_the_bodys() -> None:
    # case: U1
    assert places("order", {"hook": "webhook.sent", "type": "order.paid", "order_id": "A-1"}) == ["/order_id"]
    mixed = {"type": "subscription.active", "was": "order.paid", "order_id": "A-1", "subscription_id": "sub_1"}
    assert (places("order", mixed), places("subscription", mixed)) == ([], ["/subscription_id"])
    assert places("type", {"type": "Order Paid", "host": "shop.example", "hook": "webhook.sent"}) == ["/hook"]


def test_a_locator_fits_as_often_as_it_finds_something_where_the_fact_belongs() -> None:
    # case: U1
    found = propose([ORDER, SUBSCRIPTION], [], Locators(time=("/created_at",), order=("/order",)))
    assert (found.fits["id"], found.fits["time"], found.fits["order"], found.fits["subscription"]) == (1, 0.5, 0, 1)
    assert propose([ORDER], [], Locators(subscription=("/nowhere",))).fits["subscription"] == 1, "no body needs one"


@pytest.mark.parametrize(
    ("fit", "shares", "settings"),
    [
        ({"id": 0.5}, (0.8, 0.1), {"CONSUMER_LOCATE_ID": "/p0,/p1"}),
        ({"id": 0.0}, (0.1,), {"CONSUMER_LOCATE_ID": "/p0"}),
        ({"id": 0.5}, (0.5, 0.9), {}),
        ({"id": 0.9}, (1.0,), {}),
        ({"id": 0.5}, (), {}),
    ],
)
def test_a_setting_is_proposed_where_todays_misses_and_the_best_place_finds_more(
    fit: dict[str, float], shares: Sequence[float], settings: dict[str, str]
) -> None:
    # case: U1
    there = tuple(Place(f"/p{number}", share) for number, share in enumerate(shares))
    assert replace(NOTHING, places={"id": there}, fits=fit).settings == settings


def test_part_of_the_standard_headers_is_another_scheme() -> None:
    # case: U3
    found = propose([], [{"webhook-id": "a", "Webhook-Signature": "x"}, {"accept": "*/*"}], Locators())
    assert (found.authenticity, found.signature_headers) == ("hmac", ("webhook-id", "webhook-signature"))
    assert (found.bodies, found.deliveries) == (0, 2)


def test_how_much_was_learned_from_is_said_in_words() -> None:
    # case: U3, U8
    assert (
        replace(NOTHING, deliveries=1).authenticity_text == "api (learned from one delivery waiting or in quarantine)"
    )
    assert replace(NOTHING, deliveries=2).authenticity_text.startswith("api (learned from 2 deliveries waiting")
    assert NOTHING.authenticity_text.endswith("in quarantine: `--test-event --learn` has one sent")
    assert replace(NOTHING, test_event="fail").authenticity_text.endswith(", and the test event did not arrive")
    assert replace(NOTHING, test_event="ok").authenticity_text == "no delivery waits or lies in quarantine"


def test_the_order_is_told_by_todays_times_before_the_proposed_ones() -> None:
    # case: U6
    hours = range(10, 16)
    bodies = [{"at": f"2026-01-01T{hour}:00:00Z", "sent": f"2026-01-01T{25 - hour}:00:00Z"} for hour in hours]
    proposed = replace(NOTHING, places={"time": (Place("/sent", 1.0),)})
    assert listed_order(bodies, proposed, Locators(time=("/at",))) is ListOrder.OLDEST_FIRST
    assert listed_order(bodies, proposed, Locators(time=("/nowhere",))) is ListOrder.NEWEST_FIRST
    nowhere = replace(NOTHING, places={"time": ()})
    assert listed_order(bodies, nowhere, Locators(time=("/nowhere",))) is ListOrder.UNKNOWN
