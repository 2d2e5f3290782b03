"""Any text and any JSON that a service or a stranger could write, for Hypothesis."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

# One of each kind that once broke something, or might: half a pair, NUL, controls, both directions, over-long.
ODD_TEXTS = (
    "\ud83d",
    "a\udc00b",
    "\x00",
    "order\x00-1",
    "\x1b[31mred\x1b[0m\r\nfake line",
    "\u202egnp.exe",
    "\u200f\u200e\u2066",
    "\x7f\x85\u2028",
    "\ufffe\uffff",
    "é" * 256,
    "x" * 10_000,
    "𝕏" * 300,
    "",
    " ",
    "null",
    "evt_1",
    "ORD'; DROP TABLE orders; --",
)
_letters = st.characters(codec=None, categories=("L", "N", "P", "S", "Z", "Cc", "Cf", "Cs", "Co"))
texts = st.one_of(st.sampled_from(ODD_TEXTS), st.text(_letters, max_size=300))
numbers = st.one_of(
    st.integers(-(10**40), 10**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**63, 2**64, -1]),
)


def _nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = {"d": value} if depth % 2 else [value]
    return value


values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
) | st.sampled_from([100, 260, 900]).map(_nested)


def written(document: Any) -> bytes:
    """As a careless service would write it: half pairs and NULs as escapes, integers of any length."""
    return json.dumps(document, ensure_ascii=True).encode("ascii")
