"""What a stage does side by side ends together."""

from __future__ import annotations

import asyncio

import pytest

from consumer.errors import LedgerError
from consumer.sync.rounds import together


async def test_the_first_failure_ends_the_others_before_it_is_raised() -> None:
    ended = list[str]()

    async def slow(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def failing() -> None:
        await asyncio.sleep(0)
        raise LedgerError("gone")

    with pytest.raises(LedgerError, match="gone"):
        await together(slow("one"), failing(), slow("two"))
    assert ended == ["one", "two"]
