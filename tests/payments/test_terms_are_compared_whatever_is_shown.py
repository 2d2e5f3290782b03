"""Whatever a session or a price shows, comparing it with what was asked for ends in an answer."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from consumer.document import parse
from consumer.payments.terms import PRICE_AMOUNTS, TERMS, costs_otherwise, differing, fingerprints, priced_elsewhere
from tests.hostile.texts import ODD_TEXTS, values, written

ASKED = {"mode": "payment", "order_id": "A-1", "price_id": "svc_price_1", "customer_reference": "c_1"}
FIELDS = (*TERMS, *PRICE_AMOUNTS)


# case: C18, U1
@given(record=st.dictionaries(st.sampled_from(FIELDS), values))
@example(record={"amount": "sNaN", "unit_amount": "Infinity"})
@example(record={"amount": "1e999999999", "line_items": [{"amount": "1e999999999", "quantity": 10**9}]})
@example(record=dict(zip(FIELDS, ODD_TEXTS, strict=False)))
def test_any_record(record: dict[str, Any]) -> None:
    shown = parse(written(record), tolerant=True)
    assert isinstance(costs_otherwise(shown, {"amount": "10"}), bool)
    assert isinstance(costs_otherwise({"amount": "10"}, shown), bool)
    assert isinstance(priced_elsewhere(ASKED, shown, None), bool)
    assert set(differing(ASKED, shown, None)) | set(differing(shown, ASKED, fingerprints(shown))) <= set(TERMS)
    assert differing(shown, shown, fingerprints(shown)) == (), "the same is no other sale"
    assert orjson.dumps(fingerprints(shown))


# case: C18, U24
def test_two_customers_whose_references_differ_in_case_alone_are_two() -> None:
    asked = {**ASKED, "customer_reference": "Alice", "price_id": "svc_price_a", "customer_email": "Al@x.example"}
    other = {"customer_reference": "alice", "price_id": "svc_price_A", "customer_email": "al@X.example"}
    assert differing(asked, {**asked, **other}, None) == ("price_id", "customer_reference")
    assert differing(asked, {}, fingerprints({**asked, **other})) == ("price_id", "customer_reference")
