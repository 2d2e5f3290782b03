"""When a handler is paused: each limit, just reached and just not, once until it is resumed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from consumer.ledger.tables import RunStatus
from consumer.plugin import Context, Event, Handler
from consumer.work.pausing.rules import CALM, PauseRules

DEAD, DONE, AGAIN = RunStatus.DEAD, RunStatus.SUCCEEDED, RunStatus.RETRYING


async def nothing(event: Event, ctx: Context) -> None:
    return None


def handler(pause_after: int = 5, name: str = "h") -> Handler:
    return Handler(name=name, types=("*",), function=nothing, pause_after=pause_after)


def seen(rules: PauseRules, statuses: Sequence[RunStatus], *, hung: bool = False) -> list[str]:
    """The reasons for which it was to be paused."""
    told = [reason for one in statuses for reason in (rules.hung("h", hung=hung), rules.saw(handler(), one))]
    return [reason for reason in told if reason is not None]


def test_five_that_hung_in_a_row() -> None:
    rules = PauseRules()
    assert seen(rules, [AGAIN] * 4, hung=True) == []
    assert seen(rules, [AGAIN]) == [], "one that did not hang begins the row anew"
    assert seen(rules, [AGAIN] * 4, hung=True) == []
    assert seen(rules, [AGAIN], hung=True) == ["hung in its transaction 5 times in a row"]
    assert seen(rules, [AGAIN] * 9, hung=True) == []
    rules.forget("h")
    assert seen(rules, [AGAIN] * 4, hung=True) == []
    assert seen(rules, [AGAIN], hung=True) == ["hung in its transaction 5 times in a row"]


@pytest.mark.parametrize("status", [AGAIN, RunStatus.PARKED, RunStatus.SKIPPED])
def test_a_run_that_is_not_over_says_nothing(status: RunStatus) -> None:
    rules = PauseRules()
    assert seen(rules, [status] * 200) == []
    assert seen(rules, [DEAD] * 4) == []
    assert seen(rules, [status, DEAD]) == ["5 runs dead in a row"], "nor does it break a row"


def test_blocked_and_cut_off() -> None:
    rules = PauseRules()
    assert [rules.blocked("h") for _ in range(6)] == [None] * 4 + ["blocked the event loop 5 times", None]
    assert [rules.cut("c") for _ in range(4)] == [None] * 2 + ["blocked the worker until it was cut off, 3 times", None]
    assert rules.cut("other") is None, "each handler has a record of its own"


def test_after_many_successes_what_happened_once_is_no_reason() -> None:
    rules = PauseRules()
    for _ in range(4):
        rules.blocked("h")
    assert [rules.cut("h") for _ in range(2)] == [None, None]
    assert seen(rules, [DONE] * (CALM - 1)) == []
    assert rules.blocked("h") == "blocked the event loop 5 times", "not yet calm"
    rules.forget("h")
    for _ in range(4):
        rules.blocked("h")
    assert seen(rules, [DONE] * CALM) == []
    assert [rules.blocked("h") for _ in range(5)][-2:] == [None, "blocked the event loop 5 times"]


def test_cuts_are_forgotten_too_and_each_begins_the_calm_anew() -> None:
    rules = PauseRules()
    rules.cut("h")
    seen(rules, [DONE] * (CALM - 1))
    rules.cut("h")
    seen(rules, [DONE])
    assert rules.cut("h") == "blocked the worker until it was cut off, 3 times", "the second began the calm anew"
    rules.forget("h")
    rules.cut("h")
    rules.cut("h")
    seen(rules, [DONE] * CALM)
    assert [rules.cut("h") for _ in range(3)][-1] is not None
    rules.forget("h")
    seen(rules, [DONE] * CALM)
    rules.blocked("h")
    seen(rules, [DONE] * (CALM - 1))
    assert [rules.blocked("h") for _ in range(4)][-1] == "blocked the event loop 5 times", "calm counts from nothing"
    rules.forget("h")
    for _ in range(4):
        rules.blocked("h")
    seen(rules, [DONE] * (CALM // 2) + [DEAD] * 4 + [DONE] * (CALM // 2 - 1))
    assert rules.blocked("h") == "blocked the event loop 5 times", "only successes are calm"


def test_loops_lost_and_attempts_left_behind() -> None:
    rules = PauseRules()
    assert rules.lost("h", 2) is None
    assert rules.lost("h", 3) == "blocked 3 event loops for good"
    assert rules.lost("h", 4) is None
    assert rules.abandoned("a", 19) is None
    assert rules.abandoned("a", 20) == "20 attempts ignore their cancellation, or hang in threads"
    assert rules.abandoned("a", 21) is None


def test_the_share_of_the_dead_counts_among_the_newest_only() -> None:
    rules = PauseRules()
    assert seen(rules, [DONE, DEAD] * 49) == [], "half is not more than half"
    assert seen(rules, [DEAD, DEAD]) == ["50 of the newest 99 runs dead"]
    rules = PauseRules()
    assert seen(rules, [DEAD, DEAD, DONE] * 3) == [], "fewer than twice the limit were seen"
    assert seen(rules, [DEAD]) == ["7 of the newest 10 runs dead"]
    rules = PauseRules()
    assert seen(rules, [DONE] * 300 + [DEAD, DEAD, DEAD, DEAD, DONE] * 12) == []
    assert seen(rules, [DEAD, DEAD, DEAD, DEAD, DONE]) == ["51 of the newest 100 runs dead"]


def test_a_limit_larger_than_the_window_asks_for_no_more_than_it_holds() -> None:
    rules, large = PauseRules(), handler(pause_after=70)
    statuses = [DEAD] * 60 + [DONE] + [DEAD] * 38
    assert [rules.saw(large, one) for one in statuses] == [None] * 99
    assert rules.saw(large, DEAD) == "99 of the newest 100 runs dead"
    exact, statuses = PauseRules(), [DEAD] * 60 + [DONE] * 30 + [DEAD] * 10
    assert [exact.saw(handler(70), one) for one in statuses] == [None] * 100, "70 are not more than the limit"


def test_with_a_limit_of_nothing_it_is_never_paused_for_the_dead() -> None:
    rules = PauseRules()
    assert [rules.saw(handler(0), DEAD) for _ in range(300)] == [None] * 300


def test_one_that_was_paused_is_told_of_once() -> None:
    rules = PauseRules()
    assert seen(rules, [DEAD] * 50) == ["5 runs dead in a row"]
    assert rules.lost("h", 9) is None
    assert rules.saw(handler(name="other"), DEAD) is None
