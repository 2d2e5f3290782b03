"""What a session was sold on is remembered for a day, of a bounded number of sessions, the newest."""

from __future__ import annotations

import pytest

from consumer.clock import DrivenClock
from consumer.payments import terms
from consumer.payments.shared_budget import MemoryBudgetStore
from consumer.payments.terms import SessionTerms, fingerprints

ASKED = {"mode": "payment", "amount": "10", "customer_reference": "alice"}
DAY_S = 24 * 3600


@pytest.fixture
def clock() -> DrivenClock:
    return DrivenClock()


@pytest.fixture
def kept(clock: DrivenClock, monkeypatch: pytest.MonkeyPatch) -> SessionTerms:
    monkeypatch.setattr(terms, "BUCKETS", 1)
    monkeypatch.setattr(terms, "BUCKET_MAX", 3)
    return SessionTerms(MemoryBudgetStore(clock), "shop")


# case: C18
async def test_a_day_and_no_longer_than_the_next_write(kept: SessionTerms, clock: DrivenClock) -> None:
    await kept.keep("cs_1", ASKED)
    clock.advance(DAY_S)
    await kept.keep("cs_2", ASKED)
    assert await kept.of("cs_1") == fingerprints(ASKED), "a session lives for a day"
    clock.advance(DAY_S / 2)
    await kept.keep("cs_3", ASKED)
    assert await kept.of("cs_1") is None
    assert await kept.of("cs_2") == await kept.of("cs_3") == fingerprints(ASKED)


async def test_of_too_many_the_newest(kept: SessionTerms, clock: DrivenClock) -> None:
    for number in range(5):
        await kept.keep(f"cs_{number}", {**ASKED, "amount": str(number)})
    await kept.keep("cs_2", ASKED)
    assert [await kept.of(f"cs_{number}") is not None for number in range(5)] == [False, False, True, True, True]
    assert await kept.of("cs_2") == fingerprints(ASKED), "the last word of it"
