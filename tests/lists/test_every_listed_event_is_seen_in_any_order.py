"""Walk: every event listed when a walk begins has been seen when it ends, however the service lists."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumer.events import Locators
from consumer.lists.bookmark import Bookmark, ListOrder, order_of
from consumer.lists.policy import WalkPolicy
from consumer.lists.walk import Walk
from consumer.payments import ApiError, Cursor, CursorLoop, CursorsRefused, EventRecord, Page, RateLimitError
from tests.lists.scripted_list import LIMIT, START, Follower, ScriptedList, growing

KINDS = [
    pytest.param(newest, inclusive, times, id=f"{'newest' if newest else 'oldest'}-{inclusive=}-{times}")
    for newest in (True, False)
    for inclusive in (True, False)
    for times in ("shown", "hidden", "equal")
]


@pytest.mark.parametrize(("newest", "inclusive", "times"), KINDS)
async def test_everything_is_seen_and_a_second_walk_reads_little(newest: bool, inclusive: bool, times: str) -> None:
    # case: B1, B3, B5, B12
    service = ScriptedList(newest_first=newest, inclusive=inclusive, times=times)
    service.add(100)
    follower = Follower(service)
    first = await follower.go()
    assert follower.seen == service.ids
    assert not first.gap
    service.add(4)
    before = service.calls
    second = await follower.go()
    assert follower.seen == service.ids
    assert not second.gap
    assert second.met
    third = await follower.go()
    assert third.met
    if times == "shown":
        assert first.order is (ListOrder.NEWEST_FIRST if newest else ListOrder.OLDEST_FIRST)
    assert service.calls - before <= 16


@pytest.mark.parametrize("newest", [True, False])
async def test_no_events_at_all_is_one_call_and_no_error(newest: bool) -> None:
    # case: B2
    service = ScriptedList(newest_first=newest)
    follower = Follower(service)
    walk = await follower.go()
    assert (service.calls, walk.gap, follower.seen) == (1, False, set())
    service.add(2)
    await follower.go()
    assert follower.seen == service.ids


@pytest.mark.parametrize(("newest", "inclusive", "times"), KINDS)
async def test_events_that_appear_while_walking_are_found_by_the_next_walk(
    newest: bool, inclusive: bool, times: str
) -> None:
    # case: B6, B34
    service = ScriptedList(newest_first=newest, inclusive=inclusive, times=times)
    service.add(30)
    service.before_page = lambda call: service.add(1) if call < 40 else None
    follower = Follower(service)
    await follower.go()
    await follower.go()
    service.before_page = lambda _: None
    await follower.go()
    assert follower.seen == service.ids


@pytest.mark.parametrize(("newest", "inclusive", "times"), KINDS)
async def test_an_interrupted_walk_goes_on_where_it_was_cut(newest: bool, inclusive: bool, times: str) -> None:
    # case: B10
    service = ScriptedList(newest_first=newest, inclusive=inclusive, times=times)
    service.add(300)
    service.now += timedelta(minutes=10)  # nothing of it may become visible late any more
    follower = Follower(service)
    await follower.go(pages=80)
    assert follower.seen != service.ids
    service.add(5)
    before = service.calls
    await follower.go()
    assert service.calls - before < 40, "the part that was walked is not walked again"
    await follower.go()
    assert follower.seen == service.ids


@pytest.mark.parametrize("newest", [True, False])
async def test_an_interruption_of_the_rest_keeps_the_older_progress(newest: bool) -> None:
    # case: B10, B25
    service = ScriptedList(newest_first=newest)
    service.add(300)
    service.now += timedelta(minutes=10)
    follower = Follower(service)
    await follower.go(pages=80)
    for _ in range(10):
        service.add(2)
        await follower.go(pages=1)
    before = service.calls
    await follower.go()
    assert service.calls - before < 50
    await follower.go()
    assert follower.seen == service.ids


@pytest.mark.parametrize(("more", "calls"), [(3, 11), (4, 13)])
async def test_where_an_interrupted_walk_would_go_on_is_forgotten_once_it_is_passed(more: int, calls: int) -> None:
    # case: B10, B34
    """What may be listed late is read again, down to beyond where the walk was cut. With three new events the cursor
    is one that was walked; with four it has to be looked at to see that it leads back."""
    service = ScriptedList()
    service.add(30)
    follower = Follower(service)
    await follower.go(pages=1)
    assert follower.bookmark.resume is not None
    service.add(more)
    before, follower.yielded = service.calls, 0
    await follower.go()
    assert follower.seen == service.ids
    assert (service.calls - before, follower.yielded) == (calls, 30 + more)
    assert follower.bookmark.resume is None


@pytest.mark.parametrize("invalid", ["refuse", "first_page", "empty"])
async def test_a_stored_cursor_that_is_refused_starts_the_walk_again_at_the_head(invalid: str) -> None:
    # case: B11
    service = ScriptedList(newest_first=False, invalid_cursor=invalid)
    service.add(40)
    follower = Follower(service)
    await follower.go()
    service.purge(39)
    service.add(30)
    walk = await follower.go()
    assert follower.seen >= service.ids
    assert walk.refused == (0 if invalid == "first_page" else 1)
    assert not walk.gap, "the newest event of the last walk is still listed"


async def test_a_cursor_that_comes_again_stops_the_walk() -> None:
    # case: B7
    service = ScriptedList()
    service.add(20)
    looping = service.list

    async def loop(*, limit: int = 100, cursor: Cursor | None = None) -> Page[EventRecord]:
        page = await looping(limit=limit, cursor="evt_10" if cursor is not None else None)
        return Page(page.items, "evt_10")

    service.list = loop  # type: ignore[method-assign]  # the scripted loop
    follower = Follower(service)
    with pytest.raises(CursorLoop):
        await follower.go()
    assert follower.bookmark.walked_at is None
    assert service.calls < 5


async def test_a_service_that_refuses_all_its_cursors_ends_in_an_error_not_in_a_loop() -> None:
    # case: B11
    service = ScriptedList()
    service.add(20)
    good = service.list

    async def refuse(*, limit: int = 100, cursor: Cursor | None = None) -> Page[EventRecord]:
        if cursor is not None:
            raise ApiError("made up", status=422)
        return await good(limit=limit)

    service.list = refuse  # type: ignore[method-assign]  # the scripted refusal
    with pytest.raises(CursorsRefused) as caught:
        await Follower(service).go()
    assert caught.value.code == "cursors_refused"


async def test_a_429_in_the_middle_leaves_a_mark_to_go_on_from() -> None:
    # case: B24, B25
    service = ScriptedList()
    service.add(60)
    follower = Follower(service)

    def fail(call: int) -> None:
        if call == 10:
            raise RateLimitError(status=429, retry_after_s=45)

    service.before_page = fail
    with pytest.raises(RateLimitError):
        await follower.go()
    assert follower.bookmark.resume is not None
    await follower.go()
    assert follower.seen == service.ids


@pytest.mark.parametrize(("newest", "inclusive", "times"), KINDS)
async def test_a_list_that_begins_after_our_mark_is_a_gap(newest: bool, inclusive: bool, times: str) -> None:
    # case: B13
    service = ScriptedList(newest_first=newest, inclusive=inclusive, times=times)
    service.add(20)
    follower = Follower(service)
    await follower.go()
    service.now += timedelta(hours=6)
    service.add(50)
    service.purge(30)  # all we saw, and ten that nobody saw
    walk = await follower.go()
    assert walk.gap
    assert follower.seen >= service.ids
    service.add(1)
    assert not (await follower.go()).gap, "said once"


async def test_a_quiet_service_that_forgets_old_events_is_no_gap() -> None:
    # case: B13
    service = ScriptedList()
    service.add(20)
    follower = Follower(service)
    await follower.go()
    follower.service.purge(20)
    service.now += timedelta(seconds=30)
    walk = Walk(
        lister=service, locators=Locators(), bookmark=follower.bookmark, now=service.now, policy=WalkPolicy(limit=LIMIT)
    )
    async for _ in walk.pages():
        pass
    assert not walk.gap


@pytest.mark.parametrize("times", ["shown", "hidden"])
@pytest.mark.parametrize("newest", [True, False])
async def test_a_service_that_turns_its_list_around_loses_us_nothing(newest: bool, times: str) -> None:
    # case: B5
    service = ScriptedList(newest_first=newest, times=times)
    service.add(50)
    follower = Follower(service)
    await follower.go()
    await follower.go()
    service.newest_first = not newest
    service.add(7)
    await follower.go()
    service.add(7)
    await follower.go()
    assert follower.seen == service.ids


ACTION = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 12)),
    st.tuples(st.just("purge"), st.integers(1, 8)),
    st.tuples(st.just("cut"), st.integers(1, 4)),
    st.tuples(st.just("walk"), st.just(0)),
    st.tuples(st.just("grow"), st.integers(1, 3)),
    st.tuples(st.just("pause"), st.integers(1, 9)),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    newest=st.booleans(),
    inclusive=st.booleans(),
    times=st.sampled_from(["shown", "hidden", "equal"]),
    invalid=st.sampled_from(["refuse", "first_page", "empty"]),
    actions=st.lists(ACTION, max_size=25),
)
async def test_whatever_happens_nothing_listed_is_missed_and_what_was_lost_is_said(
    newest: bool, inclusive: bool, times: str, invalid: str, actions: list[tuple[str, int]]
) -> None:
    # case: B1, B5, B6, B10, B11, B12, B13, B34
    service = ScriptedList(newest_first=newest, inclusive=inclusive, times=times, invalid_cursor=invalid)
    follower = Follower(service)
    lost: set[str] = set()
    for action, number in [*actions, ("walk", 0)]:
        match action:
            case "add":
                service.add(number)
            case "purge":
                gone = {f"evt_{one}" for one, _ in service.events[:number]}
                lost |= gone - follower.seen
                service.purge(number)
            case "pause":
                service.now += timedelta(minutes=10 * number)
            case "cut":
                was_first = follower.bookmark.walked_at is None
                walk = await follower.go(pages=number)
                if follower.completed:
                    assert walk.gap or was_first or not lost, actions
                    lost = set()
            case "grow":
                service.before_page = growing(service, number)
            case "walk":
                wanted = set(service.ids)
                was_first = follower.bookmark.walked_at is None
                walk = await follower.go()
                service.before_page = lambda _: None
                assert wanted <= follower.seen
                assert walk.gap or was_first or not lost, actions
                lost = set()


def test_the_order_is_seen_from_times_even_with_some_out_of_order() -> None:
    # case: B5
    times = [START + timedelta(seconds=number) for number in range(20)]
    assert order_of(times) is ListOrder.OLDEST_FIRST
    assert order_of(times[::-1]) is ListOrder.NEWEST_FIRST
    swapped = [*times[:5], times[6], times[5], *times[7:]]
    assert order_of(swapped) is ListOrder.OLDEST_FIRST
    assert order_of([None, None]) is ListOrder.UNKNOWN
    assert order_of([START, START]) is ListOrder.UNKNOWN


def test_a_mark_of_another_version_is_a_fresh_start() -> None:
    # case: B10
    assert Bookmark.load({"order": "sideways"}) == Bookmark()
    assert Bookmark.load(None) == Bookmark()
    full = Bookmark(order=ListOrder.OLDEST_FIRST, head_ids=("evt_1",), tail_cursors=(None, 5), walked_at=START)
    assert Bookmark.load(full.dump()) == full
