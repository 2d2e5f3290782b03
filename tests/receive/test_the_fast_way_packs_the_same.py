"""Intake: the fast way to pack a signed webhook says exactly what the general way says."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumer.events import Authenticity, Locators, Source, Trust, build_event, identify, locate, parse_json
from consumer.receive.authenticity import StandardWebhooks
from consumer.receive.decide import HEADERS_MAX_BYTES, Endpoint, decide, kept_headers, new_delivery_id
from consumer.telemetry.traces import Tracing
from consumer.wire import pack_event, signed_headers, signed_key, unpack_event
from tests.receive.rig import SECRET

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
TYPES = st.sampled_from(["order.paid", "checkout.session.expired", "subscription.ended", "other.thing", "Bad", None])
IDS = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=30) | st.none() | st.integers(0, 10**12)


@given(TYPES, IDS, IDS)
def test_the_fast_way_equals_the_general_way(event_type: str | None, order_id: object, subscription_id: object) -> None:
    # case: I6, I23
    raw = orjson.dumps(
        {"id": "evt_1", "type": event_type, "data": {"order_id": order_id, "subscription_id": subscription_id}}
    )
    document, locators = parse_json(raw), Locators()
    found = identify(document, locators)
    assert found.key == locate(document, locators).key
    event = build_event(
        raw,
        locators,
        application="shop",
        trust=Trust.SIGNED,
        source=Source.WEBHOOK,
        received_at=NOW,
        delivery_id="dlv_1",
        traceparent="tp",
    )
    headers = signed_headers("shop", found, NOW, "dlv_1", "tp", {"a": "b"})
    assert headers.pop("http") == b'{"a":"b"}'
    general = pack_event(event)
    assert (signed_key("shop", found), headers) == (general.key, general.headers)
    assert unpack_event(general.key, raw, headers, locators) == event


@pytest.mark.parametrize("said", [{"subscription": "sub_1"}, {"subscription": {"id": "sub_1"}}])
@pytest.mark.parametrize("envelope", [("data", "object"), ("data",), ()])
def test_an_event_whose_object_is_a_charge_is_of_the_subscription_it_names(
    said: dict[str, object], envelope: tuple[str, ...]
) -> None:
    # case: U1, A5
    about: dict[str, object] = {**said, "amount": "10", **({"id": "pay_1"} if envelope else {})}
    for name in reversed(envelope):
        about = {name: about}
    found = identify({"id": "evt_1", "type": "subscription.renewed", **about}, Locators())
    assert (found.subscription_id, found.key) == ("sub_1", "subscription:sub_1")


@pytest.mark.parametrize("own", ["hook_1", {"id": "hook_1"}])
@pytest.mark.parametrize(
    "about",
    [
        {"data": {"object": {"id": "sub_1"}}},
        {"data": {"id": "sub_1"}},
        {"object": {"id": "sub_1"}},
        {"object_id": "sub_1"},
    ],
)
def test_the_subscription_of_a_webhook_puts_not_all_events_under_one_key(own: object, about: dict[str, object]) -> None:
    # case: U1, A5
    found = identify({"id": "evt_1", "type": "subscription.active", "subscription": own, **about}, Locators())
    assert found.key == "subscription:sub_1"


@given(st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - made aware
@example(datetime(2026, 3, 1, 11, 59, 59, 999999, UTC))
@example(datetime(2026, 3, 1, 12, 0, 0, 0, UTC))
def test_the_time_of_arrival_is_kept_to_the_microsecond(at: datetime) -> None:
    # case: I6
    found = identify({"id": "evt_1"}, Locators())
    headers = signed_headers("shop", found, at, "dlv_1", "tp", {})
    assert datetime.fromisoformat(headers["received_at"].decode()) == at


def test_an_endpoint_has_a_scheme_exactly_when_it_checks_signatures() -> None:
    with pytest.raises(ValueError, match="signature"):
        Endpoint(application="a", authenticity=Authenticity.SIGNATURE)
    with pytest.raises(ValueError, match="signature"):
        Endpoint(application="a", authenticity=Authenticity.API, signature=StandardWebhooks([SECRET]))


def test_a_hint_that_names_a_real_id_is_only_a_hint() -> None:
    # case: I16, I17
    decision = decide(Endpoint(application="a"), b'{"id":"evt_1"}', {}, NOW, Tracing().root("receive").traceparent)
    assert decision.topic == "deliveries"
    assert decision.message.headers["trust"] == b"claimed"


def test_a_delivery_id_leads_to_its_trace() -> None:
    traceparent = Tracing().root("receive").traceparent
    assert new_delivery_id(NOW.timestamp(), traceparent).endswith(traceparent[3:23])


@given(st.dictionaries(st.text(max_size=80), st.text(max_size=600), max_size=60))
def test_kept_headers_are_few_short_and_clean(headers: dict[str, str]) -> None:
    kept = kept_headers({**headers, "Authorization": "x", "Webhook-Id": "m"})
    assert len(kept) <= 24
    assert len(orjson.dumps(kept)) <= HEADERS_MAX_BYTES
    assert "authorization" not in kept
    orjson.dumps(kept)
    assert all(len(value) <= 512 for value in kept.values())


@pytest.mark.parametrize(
    "name",
    ["X-Webhook-Key", "X-Webhook-Auth", "X-Event-Signing-Key", "Webhook-Credential", "X-Webhook-Pass", "X-Event-Token"],
)
def test_a_secret_by_which_a_sender_is_known_is_not_kept(name: str) -> None:
    # case: I19
    others = {"Idempotency-Key": "ik_1", "X-Webhook-Signature": "v1=a"}
    assert kept_headers({name: "s3cr3t", **others}) == {key.lower(): value for key, value in others.items()}


@pytest.mark.parametrize("value", ["x" * 512, "\ufffd" * 170, '"' * 512, "x"])
def test_what_a_signature_needs_is_kept_before_the_rest(value: str) -> None:
    # case: I22
    signing = {"webhook-id": "msg_1", "X-Shop-Timestamp": "1772366400", "X-Shop-Signature": "v1=" + "a" * 64}
    kept = kept_headers({f"webhook-x-{number}": value for number in range(60)} | signing)
    assert {name.lower(): said for name, said in signing.items()}.items() <= kept.items()
    assert len(kept) > 3
    assert len(kept) <= 24
    assert len(orjson.dumps(kept)) <= HEADERS_MAX_BYTES
