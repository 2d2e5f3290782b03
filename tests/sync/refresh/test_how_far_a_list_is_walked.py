"""How far a list is walked for what is due: on while its pages answer, a while after those that answer nothing, back to
where it last answered when it ran ahead of those who ask. Pure, and without a clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from consumer.payments import CallKind, Priority
from consumer.sync.refresh.policy import AHEAD_FROM, BARREN_MAX, RESTS_MAX, SINGLES_PER_BARREN, ListWalk, RefreshPolicy
from consumer.sync.refresh.schedule import URGENT, ReadQuota
from tests.sync.conftest import SteppedClock

AT = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = RefreshPolicy()
YIELD = POLICY.page_yield
NOW = 1000.0


def walk(*, promising: bool = False) -> ListWalk:
    return ListWalk(AT, promising)


def noted(walk: ListWalk, *answered: int, unasked: int = 0, at: float = NOW) -> ListWalk:
    """Pages that answered so many."""
    for number in answered:
        walk.note(number, unasked, f"after-{walk.pages + 1}", POLICY, at)
    return walk


# case: B22
def test_a_page_that_answers_enough_ends_what_was_barren() -> None:
    found = noted(walk(), 0, YIELD - 1)
    assert (found.barren, found.after_hit) == (2, None)
    noted(found, YIELD)
    assert (found.barren, found.after_hit, found.tries) == (0, "after-3", 0)
    assert (found.pages, found.found, found.cursor) == (3, 2 * YIELD - 1, "after-3")


def test_a_walk_has_paid_off_when_it_answered_as_many_as_it_has_pages() -> None:
    assert not noted(walk(), 1, 0).has_paid_off
    assert noted(walk(), 1, 1).has_paid_off is True
    assert noted(walk(), 0, 3).has_paid_off is True


def test_it_goes_on_for_two_barren_pages_and_for_a_part_of_what_is_due() -> None:
    found = noted(walk(), *[0] * BARREN_MAX)
    assert [found.pays(due) for due in (0, 1, 2)] == [False, True, True]
    noted(found, 0)
    assert found.barren == BARREN_MAX + 1
    enough = SINGLES_PER_BARREN * found.barren
    assert [found.pays(due) for due in (1, enough - 1, enough)] == [False, False, True]


def test_where_the_list_answers_it_goes_on_for_as_many_pages_as_are_due() -> None:
    for found in (noted(walk(promising=True), 0, 0, 0), noted(walk(), 9, 0, 0, 0)):
        assert [found.pays(due) for due in (0, 2, 3)] == [False, False, True]


def test_a_walk_that_runs_ahead_goes_back_to_where_it_answered_and_rests_ever_longer() -> None:
    found = noted(walk(), YIELD)
    back = found.after_hit
    for tries in range(1, RESTS_MAX + 1):
        noted(found, *[0] * BARREN_MAX, unasked=AHEAD_FROM)
        assert (found.cursor, found.tries) == (f"after-{found.pages}", tries - 1), "not yet"
        noted(found, 0, unasked=AHEAD_FROM)
        assert (found.cursor, found.barren, found.tries) == (back, 0, tries)
        assert found.rests_until == NOW + tries * POLICY.newest_every_s
    noted(found, *[0] * (BARREN_MAX + 1), unasked=AHEAD_FROM)
    assert found.cursor == f"after-{found.pages}", "it has gone back often enough"


@pytest.mark.parametrize(
    ("hit", "unasked", "next_cursor"), [(0, AHEAD_FROM, "x"), (YIELD, AHEAD_FROM - 1, "x"), (YIELD, AHEAD_FROM, None)]
)
def test_it_does_not_go_back_where_it_never_answered_nor_runs_ahead_nor_at_the_end(
    hit: int, unasked: int, next_cursor: str | None
) -> None:
    found = noted(walk(), hit, *[0] * BARREN_MAX, unasked=unasked)
    found.note(0, unasked, next_cursor, POLICY, NOW)
    assert (found.cursor, found.tries, found.rests_until) == (next_cursor, 0, 0.0)


def test_a_read_that_fails_waits_trebling_up_to_six_hours() -> None:
    # case: G7
    retry = RefreshPolicy().retry
    waits = [retry.wait_s(attempt, 0.0) for attempt in (1, 2, 3, 8, 9, 999)]
    assert waits == [5.0, 15.0, 45.0, 10935.0, 21600.0, 21600.0]
    assert retry.wait_s(1, 1.0) == 4.0
    assert retry.attempts == 1000


async def test_after_another_kind_four_subscriptions_come_first_again() -> None:
    # case: B22
    class Spent:
        async def predict_s(self, kind: CallKind, priority: Priority) -> float:
            return 1.0

    quota = ReadQuota(SteppedClock(), Spent(), POLICY)  # type: ignore[arg-type]  # all that is asked of a budget
    assert (quota.since_other, quota.last_other) == (URGENT - 1, "order")
    assert await quota.allows("session")
    assert (quota.since_other, quota.last_other) == (0, "session")
    assert await quota.allows("subscription")
    assert (quota.since_other, quota.last_other) == (1, "session")


class Idle:
    """A budget of which so many requests are nobody's, and how often that was asked."""

    def __init__(self, idle: int = 0) -> None:
        self.idle, self.asked = idle, 0

    async def predict_s(self, kind: CallKind, priority: Priority) -> float:
        """As a Budget does."""
        assert (kind, priority) == (CallKind.READ, Priority.RECONCILE)
        self.asked += 1
        self.idle -= 1
        return 0.0 if self.idle >= 0 else 1.0


@pytest.mark.parametrize(
    ("kinds", "allowed", "asked"),
    [
        # Of six requests at once four may be about others than subscriptions.
        (["subscription"] * 8, 6, 1),
        (["order"] * 8, 4, 1),
        (["order", "session"] * 4, 4, 1),
        (["order"] * 5 + ["subscription"] * 3, 6, 2),
        (["subscription"] * 7 + ["order"] * 3, 6, 1),
    ],
)
async def test_who_was_refused_asks_no_more_in_its_round(kinds: list[str], allowed: int, asked: int) -> None:
    # case: B23
    budget = Idle()
    policy = replace(POLICY, per_s=3.0, burst=6, order_per_s=1.5, order_burst=4)
    quota = ReadQuota(SteppedClock(), budget, policy)  # type: ignore[arg-type]  # all that is asked of a budget
    assert not quota.is_spent
    assert sum([await quota.allows(kind) for kind in kinds]) == allowed
    assert (budget.asked, quota.is_spent) == (asked, True)
    quota.begin()
    assert not quota.is_spent
    assert not await quota.allows(kinds[-1])
    assert budget.asked == asked + 1, "in another round it is asked anew"


async def test_beyond_its_share_it_takes_what_nobody_else_wants() -> None:
    # case: B23
    budget = Idle(3)
    policy = replace(POLICY, burst=2)
    quota = ReadQuota(SteppedClock(), budget, policy)  # type: ignore[arg-type]  # all that is asked of a budget
    assert sum([await quota.allows("subscription") for _ in range(9)]) == 2 + 3


@pytest.mark.parametrize(("burst", "order_burst", "allowed"), [(1, 1, 1), (1, 5, 1), (5, 1, 1), (3, 2, 2)])
async def test_an_order_takes_of_both_shares_to_the_last(burst: int, order_burst: int, allowed: int) -> None:
    # case: B23
    policy = replace(POLICY, burst=burst, order_burst=order_burst)
    quota = ReadQuota(SteppedClock(), Idle(), policy)  # type: ignore[arg-type]  # all that is asked of a budget
    assert sum([await quota.allows("order") for _ in range(6)]) == allowed
    quota.begin()
    assert await quota.allows("subscription") is (burst > allowed)
