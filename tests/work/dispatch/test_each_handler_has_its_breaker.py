"""Each handler has a breaker for each application: which outcomes open and close it, who is told, and what an attempt
costs meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from consumer.clock import DrivenClock
from consumer.errors import HandlerTimeout
from consumer.ledger.handling.runs import ClaimedRun
from consumer.plugin import Context, Event, Handler
from consumer.retry import Failure, RetryPolicy
from consumer.work.dispatch.breaker import PATIENCE_S, PUT_OFF_AT_ONCE, PUT_OFF_EVERY_S
from consumer.work.dispatch.breakers import LAPSES_S, Breakers
from consumer.work.outcome import Failed, Outcome, Succeeded

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AWAY = Failed(Failure("handler_failed", "refused", unreachable=True), "f")
OWN_FAULT = Failed(Failure("handler_failed", "ValueError"), "f")
LATER = Failed(Failure("retry_later", "not yet", after_s=5.0), "f")


async def nothing(event: Event, ctx: Context) -> None:
    """Nothing."""


def handler(name: str = "h", after: int = 3) -> Handler:
    return Handler(
        name=name, types=("*",), function=nothing, breaker_after=after, retry=RetryPolicy(attempts=5)
    )  # fmt: skip


def run(number: int = 1, *, attempts: int = 0, age_s: float = 0.0, application: str = "a") -> ClaimedRun:
    at = NOW - timedelta(seconds=age_s)
    return ClaimedRun(application=application, event_id=f"evt_{number}", handler="h", seq=number, key="k",
                      attempts=attempts, plan=None, created_at=at, due_at=at)  # fmt: skip


class World:
    def __init__(self, *applications: str) -> None:
        self.told: list[tuple[str, bool]] = []
        self.clock = DrivenClock()
        self.breakers = Breakers(
            lambda name, is_open: self.told.append((name, is_open)), self.clock.monotonic, applications
        )

    def judge(
        self, outcome: Outcome, name: str = "h", *, number: int = 1, attempts: int = 0, application: str = "a",
        now: datetime = NOW,
    ) -> Outcome:  # fmt: skip
        of_it = run(number, attempts=attempts, application=application)
        return self.breakers.judge(handler(name), of_it, outcome, now)

    def opened(self) -> World:
        for number in range(3):
            self.judge(AWAY, number=number)
        return self


# case: R11, O1
def test_that_a_handler_waits_is_said_as_its_probes_fail_at_growing_intervals_and_that_it_goes_on() -> None:
    world = World()
    with capture_logs() as logs:
        world.opened()
        for _ in range(9):
            world.clock.advance(60)
            world.judge(AWAY)
        world.breakers.forget("h")
        world.breakers.forget("h")
    said = [(one["event"], one["log_level"], one["handler"], one["for_s"]) for one in logs if "for_s" in one]
    assert said == [("handler_waits", "error", "h", seconds) for seconds in (0.0, 60.0, 180.0, 420.0)]
    assert [(one["event"], one["after_s"]) for one in logs if "for_s" not in one] == [("handler_waits_over", 540.0)]


# case: R11
def test_the_third_in_a_row_opens_it_for_that_handler_alone_and_is_spared_until_the_probe() -> None:
    world = World()
    assert [world.judge(AWAY, number=1), world.judge(AWAY, "other"), world.judge(AWAY, number=2)] == [AWAY] * 3
    assert not world.breakers.is_open("h")
    assert not world.breakers.open()
    assert world.judge(AWAY, number=3) == replace(AWAY, failure=replace(AWAY.failure, after_s=1.1)), "behind the others"
    assert (world.breakers.is_open("h"), world.breakers.is_open("other"), world.breakers.is_open("unseen")) == (
        True, False, False,
    )  # fmt: skip
    assert list(world.breakers.open()) == ["h"]
    assert world.told == [("h", True)]
    assert world.breakers.room(handler(), NOW, 7) == 0
    assert world.breakers.room(handler("other"), NOW, 7) == world.breakers.room(handler("unseen"), NOW, 7) == 7


def test_one_probe_at_a_time_starts_and_what_it_says_is_told_once() -> None:
    world = World().opened()
    then = NOW + timedelta(seconds=1)
    assert world.breakers.room(handler(), then, 7) == 1
    assert world.breakers.start(handler(), run(), then) is None
    assert world.breakers.room(handler(), then, 7) == 0
    assert world.judge(LATER) == LATER
    assert world.breakers.room(handler(), then, 7) == 1, "it said nothing"
    assert world.breakers.start(handler(), run(), then) is None
    assert world.breakers.start(handler("unseen"), run(), then) is None
    assert world.judge(Succeeded()) == Succeeded()
    world.judge(Succeeded())
    assert world.told == [("h", True), ("h", False)]
    assert world.breakers.room(handler(), NOW, 7) == 7


@pytest.mark.parametrize(
    "outcome", [Succeeded(), OWN_FAULT, replace(AWAY, failure=replace(AWAY.failure, permanent=True))]
)
def test_an_answer_of_any_kind_ends_the_row(outcome: Outcome) -> None:
    world = World()
    for number in range(3):
        world.judge(AWAY, number=number)
        if number < 2:
            assert world.judge(outcome) == outcome
    assert not world.breakers.open()


def test_the_last_attempt_is_spared_where_it_is_sure_that_nobody_answered() -> None:
    late = replace(AWAY, failure=replace(AWAY.failure, code=HandlerTimeout.code))
    assert World().judge(AWAY, attempts=3) == AWAY, "one more is left"
    assert World().judge(late, attempts=4) == late, "it may be its own fault"
    assert World().judge(AWAY, attempts=4) != AWAY


def test_a_run_that_failed_alone_all_its_patience_is_spared_no_more() -> None:
    old, breakers = run(attempts=4, age_s=PATIENCE_S), Breakers()
    assert breakers.judge(handler(), old, AWAY, NOW) == AWAY
    assert not breakers.open()
    assert Breakers().judge(handler(), run(attempts=4, age_s=PATIENCE_S - 1), AWAY, NOW) != AWAY


def test_a_handler_that_an_operator_resumes_starts_anew() -> None:
    world = World().opened()
    world.breakers.forget("h")
    world.breakers.forget("h")
    assert world.told == [("h", True), ("h", False)]
    assert world.judge(AWAY) == AWAY
    assert world.judge(replace(AWAY), "never", number=9) == AWAY
    for _ in range(9):
        assert world.breakers.judge(handler("off", after=0), run(), AWAY, NOW) == AWAY


def test_the_last_attempt_at_who_has_answered_before_is_not_spared() -> None:
    world = World()
    world.judge(OWN_FAULT)
    assert world.judge(AWAY, attempts=4) != AWAY, "nobody has ever succeeded there"
    world = World()
    world.judge(Succeeded())
    assert world.judge(AWAY, attempts=4) == AWAY


def test_what_was_under_way_when_it_opened_is_tried_at_once_where_the_wait_is_over() -> None:
    breakers = World().opened().breakers
    found = breakers.judge(handler(), run(9), AWAY, NOW + timedelta(seconds=5))
    assert isinstance(found, Failed)
    assert found.failure.after_s == 0.1


# case: R11, G8
def test_the_shop_whose_warehouse_does_not_answer_waits_alone_and_burns_no_attempts() -> None:
    """What others' warehouses answer says nothing about it: its last attempts counted, and it died."""
    world = World()
    for number in range(4):
        world.judge(Succeeded(), application="b", number=number)
        world.judge(AWAY, number=number)
    assert world.judge(AWAY, attempts=4) != AWAY, "spared: of its own shop nobody ever succeeded"
    assert world.told == [("h", True)]
    assert not world.breakers.is_open("h"), "the other shop goes on"
    assert world.breakers.room(handler(), NOW, 7) == 7
    assert world.breakers.start(handler(), run(application="b"), NOW) is None
    assert world.breakers.start(handler(), run(application="unseen"), NOW) is None
    put_off = world.breakers.start(handler(), run(), NOW)
    assert put_off == Failed(Failure("retry_later", "refused", after_s=1.0), "")
    assert {name: one.reason for name, one in world.breakers.open().items()} == {"h": "only a: refused"}
    assert world.breakers.answered() == {}, "who answers others does not answer it"


def test_of_the_shop_that_waits_one_goes_as_a_probe() -> None:
    world = World().opened()
    world.judge(Succeeded(), application="b")
    then = NOW + timedelta(seconds=1)
    assert world.breakers.start(handler(), run(1), then) is None
    assert world.breakers.start(handler(), run(2), then) is not None
    world.judge(Succeeded())
    assert world.breakers.start(handler(), run(2), then) is None
    assert world.told == [("h", True), ("h", False)]


def test_what_fails_as_a_probe_is_due_behind_those_that_were_put_off_to_the_same_one() -> None:
    """Else one that is never reachable is the probe each time, and its whole shop stands still."""
    world = World().opened()
    world.judge(Succeeded(), application="b")
    now, wait_s = NOW + timedelta(seconds=1), 2.0
    for _ in range(8):
        assert world.breakers.start(handler(), run(1), now) is None
        spared = world.breakers.judge(handler(), run(1), AWAY, now)
        put_off = world.breakers.start(handler(), run(2), now)
        assert isinstance(spared, Failed)
        assert put_off is not None
        assert put_off.failure.after_s == min(wait_s, 60.0)
        assert spared.failure.after_s == pytest.approx(1.1 * min(wait_s, 60.0))
        now, wait_s = now + timedelta(seconds=min(wait_s, 60.0)), 2 * wait_s


def test_while_a_probe_is_under_way_the_others_look_ever_more_rarely() -> None:
    world = World().opened()
    world.judge(Succeeded(), application="b")
    began = NOW + timedelta(seconds=1)
    assert world.breakers.start(handler(), run(1), began) is None
    waits = []
    for passed in (0.0, 1.0, 2.0, 30.0, 7200.0):
        put_off = world.breakers.start(handler(), run(2), began + timedelta(seconds=passed))
        assert put_off is not None
        waits.append(put_off.failure.after_s)
    assert waits == [1.0, 1.0, 2.0, 30.0, 60.0]


# case: R11, G8
def test_what_a_shop_that_waits_costs_in_a_second_does_not_grow_with_how_many_of_its_runs_wait() -> None:
    """All of them were due at each probe: the other shops stood behind 10,000 that were put off, for ten seconds."""
    world, now = World().opened(), NOW
    world.judge(Succeeded(), application="b")
    due, looked = dict.fromkeys(range(3000), 0.0), []
    for second in range(1, 90):
        world.clock.advance(1)
        now = NOW + timedelta(seconds=second)
        looked.append(0)
        for number in sorted((one for one, at_s in due.items() if at_s <= second), key=lambda one: (due[one], one)):
            looked[-1] += 1
            ended = world.breakers.start(handler(), run(number), now) or world.judge(AWAY, number=number, now=now)
            assert isinstance(ended, Failed)
            due[number] = second + (ended.failure.after_s or 0.0)
    assert looked[0] == 3000, "they were due"
    assert max(looked[1:]) <= 2 * PUT_OFF_AT_ONCE + 2
    assert max(due.values()) <= 90 + 60 + 3000 / PUT_OFF_AT_ONCE * PUT_OFF_EVERY_S, "none waits for much longer"
    probes = {one.until for one in world.breakers.open().values()}
    assert probes == {NOW + timedelta(seconds=1 + 2 + 4 + 8 + 16 + 32 + 60)}, "each probe came when it was due"


# case: R11, G8
def test_nor_does_what_several_shops_cost_that_wait_together() -> None:
    """Each of them had as many a second as one alone: a fifth, which did not wait, stood behind them."""
    world = World()
    shops = "abcd"
    for shop in shops:
        for number in range(3):
            world.judge(AWAY, number=number, application=shop)
    world.judge(Succeeded(), application="e")
    put_off = [
        world.breakers.start(handler(), run(number, application=shop), NOW) for number in range(200) for shop in shops
    ]
    waits = [one.failure.after_s or 0.0 for one in put_off if one is not None]
    assert len(waits) == len(put_off)
    for at_s in waits:
        assert sum(at_s <= other < at_s + PUT_OFF_EVERY_S for other in waits) <= PUT_OFF_AT_ONCE


def test_a_clock_that_was_ahead_puts_nothing_off_for_longer() -> None:
    world = World().opened()
    world.judge(Succeeded(), application="b")
    ahead = NOW + timedelta(hours=1)
    world.judge(AWAY, now=ahead)
    world.breakers.start(handler(), run(1), ahead)
    world.judge(AWAY, now=ahead)
    world.breakers.start(handler(), run(2), ahead)
    assert world.breakers.start(handler(), run(2), NOW) is None, "its probe is due"
    put_off = world.breakers.start(handler(), run(3), NOW)
    assert put_off is not None
    assert put_off.failure.after_s == 2.0, "as those before it"


def test_a_shop_of_which_no_run_came_yet_does_not_wait_for_another_s_warehouse() -> None:
    world = World("a", "b").opened()
    assert not world.breakers.is_open("h")
    assert world.breakers.room(handler(), NOW, 7) == 7
    assert world.breakers.start(handler(), run(application="b"), NOW) is None
    assert world.breakers.open()["h"].reason == "refused"
    alone = World("a").opened()
    assert alone.breakers.is_open("h")


def test_what_no_run_comes_to_any_more_lapses() -> None:
    """The last run of it was another worker's: nothing here waits, and `status` is not to say so for ever."""
    world = World().opened()
    world.clock.advance(LAPSES_S - 1)
    world.breakers.lapse()
    assert world.breakers.open()
    world.clock.advance(1)
    world.breakers.lapse()
    assert (world.told, world.breakers.open()) == ([("h", True), ("h", False)], {})
    hanging = World().opened()
    assert hanging.breakers.start(handler(), run(), NOW + timedelta(seconds=1)) is None
    hanging.clock.advance(9 * LAPSES_S)
    hanging.breakers.lapse()
    assert hanging.breakers.open(), "its probe is under way"


def test_where_no_shop_s_warehouse_answers_the_handler_waits_as_a_whole() -> None:
    world = World().opened()
    for number in range(3):
        world.judge(AWAY, application="b", number=number)
    assert world.breakers.is_open("h")
    assert world.breakers.room(handler(), NOW, 7) == 0
    then = NOW + timedelta(seconds=1)
    assert world.breakers.room(handler(), then, 7) == 7, "many of one may be due before the first of the other"
    started = [world.breakers.start(handler(), run(application=one), then) for one in ("a", "a", "b", "b")]
    assert [one is None for one in started] == [True, False, True, False], "a probe for each"
    assert world.breakers.room(handler(), then, 7) == 0
    assert world.breakers.open()["h"].reason == "refused"
    assert world.told == [("h", True)]
    world.breakers.forget("h")
    assert world.told == [("h", True), ("h", False)]
    assert not world.breakers.is_open("h")
