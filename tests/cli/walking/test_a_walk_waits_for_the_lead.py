"""A walk of a command gives up the lead to who does its work, and waits out the lease of who is dead."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

import pytest

from consumer.cli.walking.lead import BACKFILL, SYNC, Led, Wait
from consumer.clock import DrivenClock
from consumer.errors import AnotherLeads
from consumer.ledger.leases import Lease

LEASE_S = 15.0
RENEW_S = 5.0
WALKED = "walked"


class Jumping(DrivenClock):
    """Nobody else lives by this clock: it goes on when somebody sleeps."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


class Other:
    """The lease of another process, which renews it until it dies at `dies_s` or gives it back at `ends_s`."""

    def __init__(self, holder: str, *, dies_s: float = 1e9, ends_s: float = 1e9) -> None:
        self.clock = Jumping()
        self.said: list[str] = []
        self._began = self.clock.now()
        self._holder, self._dies_s, self._ends_s = holder, dies_s, ends_s

    def _until_s(self) -> float:
        now_s = self.clock.monotonic()
        if now_s >= self._ends_s:
            return -1.0
        return min(now_s, self._dies_s) // RENEW_S * RENEW_S + LEASE_S

    async def look(self) -> Lease | None:
        return Lease("sync/default", self._holder, 7, self._began + timedelta(seconds=self._until_s()))

    async def walk(self) -> str:
        if self._until_s() >= self.clock.monotonic():
            raise AnotherLeads(role="sync/default")
        return WALKED

    async def answer(self, served_by: Collection[str] = (SYNC, BACKFILL)) -> str | Led:
        wait = Wait(
            walk=self.walk, look=self.look, clock=self.clock, say=self.said.append, lease_s=LEASE_S, served_by=served_by
        )
        return await wait.done()


@pytest.mark.parametrize("holder", ["box-1-aa", "box-1-aa/backfill", "box-1-aa/command"])
@pytest.mark.parametrize("dies_s", [0, 4, 6, 12, 21])
async def test_the_lease_of_the_dead_is_waited_out_and_the_walk_made(holder: str, dies_s: float) -> None:
    # case: B26, G5
    other = Other(holder, dies_s=dies_s)
    if holder.endswith("/command") and dies_s > 6:  # it lived on while we waited; a lease may be left behind for longer
        with pytest.raises(AnotherLeads):
            await other.answer()
        return
    found = await other.answer()
    if holder == "box-1-aa" and dies_s >= RENEW_S:
        assert found == Led(SYNC), "it lived when it was asked, and another `sync` or the next call goes on"
        return
    assert found == WALKED
    assert other.clock.monotonic() <= dies_s + LEASE_S + 1
    assert len(other.said) == 1
    assert holder in other.said[0]


async def test_a_sync_that_lives_does_it_and_is_believed_soon() -> None:
    # case: B26
    other = Other("box-1-aa")
    found = await other.answer()
    assert isinstance(found, Led)
    assert found.by == SYNC
    assert "`sync`" in found.line()
    assert other.clock.monotonic() <= RENEW_S + 1


async def test_another_backfill_is_waited_for_and_named() -> None:
    # case: B26
    other = Other("box-1-aa/backfill")
    found = await other.answer()
    assert isinstance(found, Led)
    assert found.by == BACKFILL
    assert "another `backfill`" in found.line()
    assert "sync" not in found.line()
    assert other.clock.monotonic() >= LEASE_S * 4 / 3
    ending = Other("box-1-aa/backfill", ends_s=8)
    assert await ending.answer() == WALKED
    assert ending.clock.monotonic() <= 9


@pytest.mark.parametrize(
    ("holder", "served_by"), [("box-1-aa/command", (SYNC, BACKFILL)), ("box-1-aa", ()), ("box-1-aa/backfill", ())]
)
async def test_who_does_something_else_is_no_reason_to_be_content(holder: str, served_by: Collection[str]) -> None:
    # case: B26
    other = Other(holder)
    with pytest.raises(AnotherLeads) as refused:
        await other.answer(served_by)
    assert "nothing was done here" in refused.value.message
    assert refused.value.fields == {"role": "sync/default"}
    assert other.clock.monotonic() <= LEASE_S * 4 / 3 + 3


async def test_a_lease_that_was_given_back_is_no_sign_of_life() -> None:
    # case: B26
    other = Other("box-1-aa")
    looks = 0

    async def look() -> Lease:
        """A `sync` that stops: the lease is given back between the refusal and the look."""
        nonlocal looks
        looks += 1
        until = other.clock.now() + timedelta(seconds=LEASE_S) if looks == 1 else datetime.fromtimestamp(0, UTC)
        return Lease("sync/default", "box-1-aa", 7, until)

    async def walk() -> str:
        if looks < 2:
            raise AnotherLeads(role="sync/default")
        return WALKED

    wait = Wait(walk=walk, look=look, clock=other.clock, say=other.said.append, lease_s=LEASE_S)
    assert await wait.done() == WALKED
