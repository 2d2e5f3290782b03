"""No secret and no personal data reaches a log line (cases I25, S9)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.events import Source
from consumer.telemetry.redaction import REDACTED, is_private, masked, redacted, redacted_fields, scrub
from consumer.wire import own_event


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("bad whsec_c2VjcmV0/+x== here", "c2VjcmV0"),
        ("svc_sk_live_abc.DEF-1!", "abc.DEF"),
        ("Authorization: Basic c3ZjX2FwcDpzdmNfc2s=", "c3ZjX2FwcDpzdmNfc2s"),
        ("authorization: bearer abcdefgh", "abcdefgh"),
        ("postgresql+asyncpg://user:hush@db:5432/x", "hush"),
        ("write to ada@example.com now", "ada@example"),
        ("key customer:ada-17 held", "ada-17"),
        ("$argon2id$v=19$m=65536$c2FsdA$aGFzaA", "aGFzaA"),
        ("postgresql+asyncpg://user:hu/sh'hush@db:5432/x", "hush"),
        ("connect(password='hush hush', port=1)", "hush"),
        ("host=db password=hush user=x", "hush"),
        ('{"api_key": "hush", "n": 1}', "hush"),
        ("401, message='Unauthorized', url='https://api.example/x?Access_Token=hush&n=1'", "hush"),
        ("https://api.example/x?customer=hush&n=1", "hush"),
    ],
)
def test_secrets_in_any_text_are_masked(text: str, hidden: str) -> None:
    # case: I25, S9
    assert hidden not in scrub(text)
    assert REDACTED in scrub(text)


@pytest.mark.parametrize(
    "name",
    ["body", "Authorization", "app_secret", "CONSUMER_API_TOKEN", "customer_email", "customer_reference", "Set-Cookie"],
)
def test_private_fields_lose_their_value(name: str) -> None:
    assert is_private(name)
    assert redacted_fields({name: "x", "nested": {name: ["x"]}}) == {name: REDACTED, "nested": {name: REDACTED}}


@pytest.mark.parametrize("name", ["event_id", "key", "application", "idempotency_key", "order_id", "handler", "at"])
def test_what_an_operator_needs_stays(name: str) -> None:
    assert redacted_fields({name: "evt_1"}) == {name: "evt_1"}


@pytest.mark.parametrize(
    "text",
    [
        "{'customer': 'Ada Lovelace', 'id': 'evt_1'}",
        '{"customer_reference":"Ada \\"Countess\\" Lovelace","id":"evt_1"}',
        "{'description': \"for Ada's and Lovelace\", 'id': 'evt_1'}",
        "{'metadata': {'to': 'Ada} Lovelace', 'by': \"it's Lovelace\"}, 'id': 'evt_1'}",
        "{'line_items': [{'name': 'Ada] Lovelace', 'quantity': 1}], 'id': 'evt_1'}",
        "key='customer:Ada Lovelace', id='evt_1'",
    ],
)
def test_what_a_payer_wrote_is_masked_to_its_end_and_no_further(text: str) -> None:
    # case: S9
    shown = scrub(f"RuntimeError: cannot ship {text} now")
    assert "Lovelace" not in shown
    assert "evt_1" in shown
    cut = text[: text.index("Lovelace") + 8]
    assert "Lovelace" not in scrub(cut), "cut where it was too long"
    assert scrub(shown) == shown


def test_the_key_of_a_customer_hides_all_of_the_reference() -> None:
    # case: S9
    assert redacted_fields({"key": "customer:Ada Lovelace"}) == {"key": f"customer:{REDACTED}"}


def test_an_event_that_an_author_logs_holds_no_body_and_no_customer() -> None:
    # case: S9, H12
    event = own_event(
        application="default", id="drv_1", type="access.granted", key="customer:Ada Lovelace", source=Source.RELAY,
        at=datetime(2026, 1, 2, tzinfo=UTC), data={"customer": "Ada Lovelace", "note": "Lovelace"},
    )  # fmt: skip
    assert "drv_1" in str(redacted(event))
    assert "Lovelace" not in str(redacted(event))
    assert "Lovelace" not in scrub(f"cannot ship {event!r}")


def test_a_fixture_names_nobody() -> None:
    # case: S9
    body = {"customer_id": "Ada", "payer": "Ada", "from_wallet": "Ada", "customerReference": "Ada", "phone": "Ada",
            "shipping_address": {"city": "Ada"}, "order_id": "o1", "amount": "5.00"}  # fmt: skip
    shown = masked(body)
    assert "Ada" not in str(shown)
    assert (shown["order_id"], shown["amount"]) == ("o1", "5.00")


def test_bytes_are_shown_as_their_length_and_nothing_is_endless() -> None:
    assert redacted(b"secret body") == "<11 bytes>"
    assert len(redacted("x" * 100_000)) < 17_000
    assert len(redacted(list(range(1000)))) == 100
    deep: Any = "end"
    for _ in range(50):
        deep = {"a": deep}
    assert "end" not in str(redacted(deep))


def test_masking_takes_a_bounded_time() -> None:
    before = time.perf_counter()
    odd = ("'metadata':{'" * 1_300, "token='" * 2_300, "secret=" * 2_300, "'line_items':[" + "'a'," * 4_000)
    for text in ("a" * 16_000 + "@", "a." * 8_000 + "@", "@" * 16_000, "://" * 5_000 + "@", "customer:" * 2_000, *odd):
        scrub(text)
    assert time.perf_counter() - before < 2.0


@given(
    st.recursive(
        st.text() | st.binary() | st.integers() | st.none(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_a_secret_never_comes_through(value: Any) -> None:
    shown = repr(redacted({"a": value, "b": ["svc_sk_live_hush1", {"c": "whsec_hush2"}], "d": "x hush3@example.org"}))
    assert not any(f"hush{number}" in shown for number in (1, 2, 3))


@pytest.mark.parametrize(
    "text",
    [
        "paid by 7xKXtg2CW87d97TXJSDpbD5jBkheTqA83TZRuJosgAsU to us",
        "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v",
        "no such customer: customer_reference='7xKX-ada'",
        'KeyError: {"customer": "7xKX"}',
        "wallet=7xKXtg2",
    ],
)
def test_who_paid_is_masked(text: str) -> None:
    # case: S9
    shown = scrub(text)
    assert "7xKX" not in shown
    assert "EPjF" not in shown
    assert "[redacted]" in shown


@pytest.mark.parametrize(
    "text",
    [
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "ik_1f2e3d4c5b6a7988a1b2c3d4e5f6a7b8c9d1e2f3",
        "evt_01HZX9K3QJ5T7V2W4Y6B8D1F3G5H7J9K1M",
        "error[idempotency_key_conflict]: theKeyOfAnotherRequestWasUsedHere",
        "the customer waits",
    ],
)
def test_ids_that_lead_to_a_cause_stay(text: str) -> None:
    assert scrub(text) == text


BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
IDS = ("evt", "ord", "sub", "pay", "cs", "prod", "svc_price", "svc_app", "req", "dlv", "ik")


def address(key: bytes) -> str:
    """The wallet's address of these 32 bytes."""
    number, text = int.from_bytes(key), ""
    while number:
        number, digit = divmod(number, 58)
        text = BASE58[digit] + text
    return "1" * (len(key) - len(key.lstrip(b"\0"))) + text


@given(
    st.binary(min_size=32, max_size=32),
    st.sampled_from(["", "paid by ", "payer_", "from-", "KeyError: '", "@", "x_y_"]),
)
def test_any_wallet_is_masked_wherever_it_stands(key: bytes, before: str) -> None:
    # case: S9
    wallet = address(key)
    for after in ("", " to us", "_1", "'", "-x", ".usdc"):
        assert wallet not in scrub(f"{before}{wallet}{after}")
    assert scrub(f"{before}{wallet}") == before + REDACTED


@given(st.text(BASE58.translate(str.maketrans("", "", "123456789")), min_size=43, max_size=43))
def test_a_wallet_without_a_digit_is_masked(wallet: str) -> None:
    # case: S9
    assert wallet not in scrub(f"paid by {wallet}")


@given(st.sampled_from(IDS), st.text(BASE58, min_size=1, max_size=60))
def test_an_id_with_its_prefix_stays(prefix: str, rest: str) -> None:
    # case: I25
    for text in (f"{prefix}_{rest}", f"no such record: {prefix}_{rest}, tried twice", f"/v1/orders/{prefix}_{rest}"):
        assert scrub(text) == text


@given(
    st.text("0123456789abcdef", min_size=32, max_size=40),
    st.from_regex(r"[a-z]{4,9}([A-Z][a-z]{3,7}){4}", fullmatch=True),
)
def test_digests_and_names_stay(digest: str, name: str) -> None:
    # case: I25
    assert scrub(f"listed:{digest}") == f"listed:{digest}"
    assert scrub(f"error: {name}") == f"error: {name}"
