"""A body is read when its record is: handlers find it read, and it says what it says when it is read by them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from consumer.events import KEPT_READ_BYTES, Event, Locators, Source, Trust, build_event
from consumer.wire import own_event, pack_event, unpack_event

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEAVES = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=10)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


def _built(body: dict[str, Any], trust: Trust = Trust.SIGNED, pad: int = 0) -> Event:
    raw = orjson.dumps({"id": "evt_1", "type": "order.paid"} | body) + b" " * pad
    return build_event(raw, Locators(), application="a", trust=trust, source=Source.WEBHOOK, received_at=NOW)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_it_says_the_same(body: dict[str, Any]) -> None:
    body = {name: value for name, value in body.items() if name not in ("id", "type")}
    event = _built(body)
    assert "data" in vars(event)
    assert event.data == replace(event).data


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_ours_says_the_same(body: dict[str, Any]) -> None:
    key = "order:1"
    packed = pack_event(
        own_event(application="a", id="drv_1", type="x.y", key=key, source=Source.RELAY, at=NOW, data=body)
    )
    stored = orjson.Fragment(orjson.dumps(body))
    relayed = own_event(application="a", id="drv_1", type="x.y", key=key, source=Source.RELAY, at=NOW, data=stored)
    assert packed == pack_event(relayed)
    event = unpack_event(packed.key, packed.value, packed.headers, Locators())
    assert "data" in vars(event)
    assert event.data == replace(event).data


def test_what_nobody_vouches_for_and_what_is_large_is_not_kept_read() -> None:
    assert "data" not in vars(_built({}, Trust.CLAIMED))
    large = _built({}, pad=KEPT_READ_BYTES)
    assert "data" not in vars(large)
    assert large.data == {"id": "evt_1", "type": "order.paid"}
