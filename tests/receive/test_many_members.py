"""A compressed body of very many members is refused in linear time, and never in the loop's."""

from __future__ import annotations

import gzip
import time

import pytest

from consumer.receive.answers import Refused
from consumer.receive.body import MEMBERS_MAX, decompressed

MIB = 1024 * 1024
MEMBER = gzip.compress(b"x")


@pytest.mark.parametrize("size", [MIB, 16 * MIB])
def test_members_are_undone_in_linear_time(size: int) -> None:
    # case: I12
    body = MEMBER * (size // len(MEMBER))
    began = time.perf_counter()
    with pytest.raises(Refused, match="too many members"):
        decompressed(body, "gzip", 16 * MIB)
    assert time.perf_counter() - began < 0.1


def test_a_few_members_are_one_body() -> None:
    # case: I12
    parts = [b"%d" % number * 5000 for number in range(MEMBERS_MAX)]
    assert decompressed(b"".join(gzip.compress(part) for part in parts), "gzip", MIB) == b"".join(parts)
