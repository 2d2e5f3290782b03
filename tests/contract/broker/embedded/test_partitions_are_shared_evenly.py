"""The embedded log shares partitions evenly, moves no more than it must, and packs headers without a loss. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumer.broker import Partition
from consumer.broker.embedded.claims import balance
from consumer.broker.embedded.schema import pack_headers, unpack_headers


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.binary(max_size=50), max_size=5))
def test_headers_survive_packing(headers: dict[str, bytes]) -> None:
    assert unpack_headers(pack_headers(headers)) == headers


MEMBERS = st.sets(st.sampled_from("abcdef"), max_size=6)


@given(st.integers(1, 20), MEMBERS, MEMBERS)
def test_partitions_are_balanced_and_stay_where_they_can(count: int, before: set[str], after: set[str]) -> None:
    partitions = [Partition("t", number) for number in range(count)]
    first = balance(dict.fromkeys(partitions), {member: ["t"] for member in before})
    second = balance({item: first.get(item) for item in partitions}, {member: ["t"] for member in after})
    for members, wanted in ((before, first), (after, second)):
        loads = [list(wanted.values()).count(member) for member in members]
        assert set(wanted) == (set(partitions) if members else set())
        assert not loads or max(loads) - min(loads) <= 1
    if before and after:
        moved = [item for item in partitions if first[item] in after and first[item] != second[item]]
        joined = after - before
        assert len(moved) <= -(-count // len(after)) * len(joined)


def test_a_member_gets_only_topics_it_reads() -> None:
    claims = {Partition("a", 0): "y", Partition("b", 0): "y", Partition("c", 0): None}
    wanted = balance(claims, {"x": ["a"], "y": ["b"]})
    assert wanted == {Partition("a", 0): "x", Partition("b", 0): "y"}
