"""Lists: each kind of cursor by its own stop rule, cursors kept as they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from consumer.payments import EMPTY_PAGES_MAX, AnswerTooLarge, CursorLoop, UnexpectedAnswer, ValidationError
from consumer.payments.listings import Listing
from tests.payments.support import Bench, Reply, ScriptedService, Seen

NUMERIC = ["orders", "payments", "subscriptions", "products", "prices"]


def page(items: Sequence[Any], cursor: Any) -> Reply:
    return Reply(200, {"items": items, "next_cursor": cursor})


def numbered(total: int, *, text: bool) -> Any:
    """A numeric list as documented: a full last page still hands out a cursor, the page after it is empty."""

    def answer(seen: Seen) -> Reply:
        start, limit = int(seen.query.get("cursor", "0")), int(seen.query["limit"])
        items = [{"id": f"n_{n}"} for n in range(start, min(start + limit, total))]
        following: Any = start + limit if len(items) == limit else None
        return page(items, str(following) if text and following is not None else following)

    return answer


def events(total: int) -> Any:
    """An event list as documented: cursors are evt_ ids, null when there are no more."""

    def answer(seen: Seen) -> Reply:
        start, limit = int(seen.query.get("cursor", "evt_0")[4:]), int(seen.query["limit"])
        items = [{"id": f"evt_{n + 1}"} for n in range(start, min(start + limit, total))]
        return page(items, f"evt_{start + limit}" if start + limit < total else None)

    return answer


def listing(b: Bench, name: str) -> Listing[Any]:
    found: Listing[Any] = getattr(b.client, name)
    return found


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize(("total", "requests"), [(0, 1), (1, 1), (99, 1), (100, 2), (101, 2), (200, 3), (250, 3)])
async def test_a_numeric_list_ends_on_an_empty_page_or_null(
    service: ScriptedService, b: Bench, name: str, text: bool, total: int, requests: int
) -> None:
    # case: B14, B15, C30, U19
    service.answering = numbered(total, text=text)
    found = [record.id async for record in listing(b, name).iterate()]
    assert found == [f"n_{n}" for n in range(total)]
    assert len(service.seen) == requests
    assert {seen.path for seen in service.seen} == {f"/v1/{name}"}


@pytest.mark.parametrize(("total", "requests"), [(0, 1), (1, 1), (100, 1), (101, 2), (200, 2), (250, 3)])
async def test_an_event_list_ends_on_null(service: ScriptedService, b: Bench, total: int, requests: int) -> None:
    # case: B1, B2, C30
    service.answering = events(total)
    found = [record.id async for record in b.client.events.iterate()]
    assert found == [f"evt_{n + 1}" for n in range(total)]
    assert len(service.seen) == requests


async def test_an_empty_event_page_with_a_cursor_is_not_the_end(service: ScriptedService, b: Bench) -> None:
    # case: B1, C30
    service.will(page([], "evt_a"), page([{"id": "evt_b"}], None))
    assert [record.id async for record in b.client.events.iterate()] == ["evt_b"]


async def test_an_empty_numeric_page_with_a_cursor_is_the_end(service: ScriptedService, b: Bench) -> None:
    # case: B14, C30
    service.will(page([{"id": "o"}], 100), page([], 200))
    assert [record.id async for record in b.client.orders.iterate()] == ["o"]


async def test_the_empty_page_that_ends_a_numeric_list_is_not_shown(service: ScriptedService, b: Bench) -> None:
    # case: B15
    service.answering = numbered(200, text=False)
    assert [len(found.items) async for found in b.client.orders.pages()] == [100, 100]


async def test_the_default_limit_is_100(service: ScriptedService, b: Bench) -> None:
    # case: C29, B17
    service.answering = lambda _seen: page([], None)
    await b.client.orders.list()
    async for _ in b.client.events.iterate():
        pass
    await b.client.orders.list(limit=1)
    assert [seen.query["limit"] for seen in service.seen] == ["100", "100", "1"]
    with pytest.raises(ValidationError):
        await b.client.orders.list(limit=101)
    assert len(service.seen) == 3


@pytest.mark.parametrize("cursor", ["evt_a/b+c d=&?", "0012", 12, 0, "ü"])
async def test_a_cursor_is_sent_back_as_it_came(service: ScriptedService, b: Bench, cursor: str | int) -> None:
    # case: B3, U19
    service.will(page([{"id": "o"}], cursor), page([], None))
    first = await b.client.orders.list()
    assert first.next_cursor == cursor
    assert type(first.next_cursor) is type(cursor)
    await b.client.orders.list(cursor=first.next_cursor)
    assert service.seen[1].query["cursor"] == str(cursor)


async def test_a_walk_can_begin_at_a_stored_cursor(service: ScriptedService, b: Bench) -> None:
    # case: B10
    service.answering = events(300)
    pages = [found async for found in b.client.events.pages(cursor="evt_200")]
    assert [record.id for found in pages for record in found.items] == [f"evt_{n}" for n in range(201, 301)]


async def test_a_cursor_handed_out_twice_stops_the_walk(service: ScriptedService, b: Bench) -> None:
    # case: B7
    service.will(page([{"id": "a"}], 1), page([{"id": "b"}], 2), page([{"id": "c"}], 1))
    found: list[str | None] = []

    async def walk() -> None:
        async for record in b.client.orders.iterate():
            found.append(record.id)

    with pytest.raises(CursorLoop):
        await walk()
    assert found == ["a", "b", "c"]
    assert len(service.seen) == 3


async def test_empty_pages_that_go_on_and_on_end_a_walk(service: ScriptedService, b: Bench) -> None:
    # case: B17
    service.answering = lambda seen: page([], f"evt_{int(seen.query.get('cursor', 'evt_0')[4:]) + 1}")
    with pytest.raises(UnexpectedAnswer, match="empty pages"):
        async for _ in b.client.events.pages():
            pass
    assert len(service.seen) == EMPTY_PAGES_MAX + 1


async def test_a_list_that_never_ends_is_bounded(service: ScriptedService, b: Bench) -> None:
    # case: B7
    service.answering = lambda seen: page([{"id": "x"}], int(seen.query.get("cursor", "0")) + 1)
    with pytest.raises(UnexpectedAnswer, match="does not end"):
        async for _ in b.client.orders.pages(max_pages=5):
            pass
    assert len(service.seen) == 5


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"items": None},
        {"items": {}},
        {"items": "x"},
        {"items": [], "next_cursor": True},
        {"items": [], "next_cursor": 1.5},
        {"items": [], "next_cursor": {}},
        {"items": [], "next_cursor": "x" * 1001},
    ],
)
async def test_a_list_of_another_shape_is_an_error(service: ScriptedService, b: Bench, body: Any) -> None:
    # case: C13
    service.will(Reply(200, body))
    with pytest.raises(UnexpectedAnswer):
        await b.client.orders.list()


@pytest.mark.parametrize("collection", ["orders", "events"])
@pytest.mark.parametrize("said", [{}, {"next_cursor": None}, {"next_cursor": ""}])
async def test_a_list_without_next_cursor_is_its_last_page(
    service: ScriptedService, b: Bench, collection: str, said: dict[str, Any]
) -> None:
    # case: B1, B14, U19
    service.will(Reply(200, {"items": [{"id": "o"}], **said}))
    assert [record.id async for record in getattr(b.client, collection).iterate()] == ["o"]
    assert len(service.seen) == 1


async def test_events_too_large_for_one_page_are_asked_for_in_parts(service: ScriptedService, b: Bench) -> None:
    # case: B17, C13
    b.client._transport._max_answer_bytes = 400
    service.answering = events(60)
    found = [one.id async for one in b.client.events.iterate()]
    assert found == [f"evt_{number}" for number in range(1, 61)]
    assert {seen.query["limit"] for seen in service.seen} == {"100", "25", "6"}
    b.client._transport._max_answer_bytes = 10
    with pytest.raises(AnswerTooLarge):
        await b.client.events.list()


async def test_by_numeric_cursors_the_limit_stays(service: ScriptedService, b: Bench) -> None:
    # case: C13
    b.client._transport._max_answer_bytes = 400
    service.answering = numbered(60, text=False)
    with pytest.raises(AnswerTooLarge):
        await b.client.orders.list()
    assert len(service.seen) == 1
