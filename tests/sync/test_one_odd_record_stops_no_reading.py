"""One odd record keeps no other from being read, and its own order is known all the same."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import orjson
import pytest
from structlog.testing import capture_logs

from consumer.broker import Broker, Message
from consumer.errors import RecordTooLarge
from consumer.events import Event, Source, Trust
from consumer.ledger import Database
from consumer.ledger.engine.chunks import portions
from consumer.ledger.reading import hints, observation, observations, quarantine, read_requests, sync_state
from consumer.lists.bookmark import WALK, Bookmark, Resume
from consumer.payments import EMPTY_PAGES_MAX, EventRecord, Order, Page, UnexpectedAnswer
from consumer.plugin import ReadRequest
from consumer.reason import Reason
from consumer.sync import publisher
from consumer.sync.publisher import EventPublisher
from tests.lists.scripted_list import Follower, ScriptedList
from tests.sync.backfilling import backfill
from tests.sync.confirm.test_no_delivery_is_lost_on_its_way_to_a_hint import taken_in
from tests.sync.conftest import EVENTS, World, counted_by, delivery
from tests.sync.reconciling import baselined, lists, reconcile, remembered
from tests.sync.refreshing import answers, ask, pending, refresh


@pytest.fixture
def sqlite_ledger(database: Database) -> Database:
    """Of each kind: what a record holds is stored by each in its own way."""
    return database


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"deeper": value}
    return value


ODD: dict[str, Any] = {
    "half a pair": "cut \ud83d",
    "nul": "a\0b",
    "deep": nested(300),
    "very deep": nested(700),
    "huge": 10**400,
    "long": "x" * 100_000,
}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_a_read_answers_whatever_stands_in_the_record(world: World, value: Any) -> None:
    # case: U1, F18
    for number in range(3):
        record = {"id": f"ord_{number}", "order_id": f"A{number}", "status": "PAID"}
        world.service.records[f"/v1/orders/lookup?A{number}"] = {**record, **({"description": value} if number else {})}
        await ask(world, "order", f"A{number}")
    assert await refresh(world).once() == 3
    assert [event.find("/data/record/status") for event in await answers(world)] == ["PAID"] * 3


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_a_walk_of_the_state_finds_the_order_and_its_neighbours(world: World, value: Any) -> None:
    # case: B18, U1
    await baselined(world)
    orders = [
        {"id": f"o{n}", "order_id": f"A{n}", "status": "PAID", "note": value if n == 1 else "x"} for n in range(3)
    ]
    lists(world, orders=orders)
    report = await reconcile(world).once()
    assert (report.made, report.unplaced) == (3, 0)


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_a_listed_event_is_understood_whatever_stands_in_it(world: World, value: Any) -> None:
    # case: U1, B1
    world.service.event(2, order_id="A2", customer_reference=value, description={"x": value})
    listed = [world.service.event(1, order_id="A1"), world.service.records["/v1/events/evt_000002"]]
    world.service.lists["/v1/events"] = lambda _cursor, _limit: {"items": listed, "next_cursor": None}
    report = await backfill(world).once()
    assert (report.published, report.strange) == (2, 0)
    assert {event.order_id for event in await world.published()} == {"A1", "A2"}


NO_OBJECT: list[Any] = [None, "x", [], 5]


@pytest.mark.parametrize("item", NO_OBJECT, ids=repr)
async def test_an_item_that_is_no_object_hides_no_neighbour_in_a_walk_of_events(world: World, item: Any) -> None:
    # case: U1, B1
    listed = [world.service.event(2, order_id="A2"), item, world.service.event(1, order_id="A1")]
    world.service.lists["/v1/events"] = lambda _cursor, _limit: {"items": listed, "next_cursor": None}
    for strange in (1, 1):
        report = await backfill(world).once()
        assert (report.listed, report.strange) == (3, strange)
    assert {event.order_id for event in await world.published()} == {"A1", "A2"}
    async with world.database.reading() as session:
        [kept] = await quarantine.newest(session, reason=Reason.NOT_UNDERSTOOD)
        row = await quarantine.get(session, kept.id)
    assert row is not None
    assert row.raw == orjson.dumps(item), "kept once, as it came"


@pytest.mark.parametrize("item", NO_OBJECT, ids=repr)
async def test_an_item_that_is_no_object_hides_no_neighbour_in_a_walk_of_the_state(world: World, item: Any) -> None:
    # case: B18, U1
    await baselined(world)
    orders = [{"id": f"o{n}", "order_id": f"A{n}", "status": "PAID"} for n in range(2)]
    subscriptions = [{"id": f"S{n}", "status": "ACTIVE", "customer_reference": "c"} for n in range(2)]
    lists(world, orders=[orders[0], item, orders[1]], subscriptions=[item, *subscriptions], payments=[item])
    report = await reconcile(world).once()
    assert (report.made, report.unplaced, report.unplaced_paid) == (4, 3, 0)


async def test_an_item_that_is_no_object_hides_no_neighbour_from_those_who_ask(world: World) -> None:
    # case: B22, U1
    shown: list[Any] = [{"id": f"o{n}", "order_id": f"A{n}", "status": "PAID"} for n in range(60)]
    lists(world, orders=[*NO_OBJECT, *shown])
    world.service.records["/v1/orders/lookup?A0"] = shown[0]  # read singly, it shows how full a record is
    for one in shown:
        await ask(world, "order", str(one["order_id"]))
    assert await refresh(world).once() == 60
    assert [event.find("/data/record/status") for event in await answers(world)] == ["PAID"] * 60


async def test_what_breaks_its_own_handling_is_left_alone_and_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: U1
    real = observation.digest

    def digest(record: Any) -> str:
        if record.get("order_id") == "A1":
            raise RuntimeError("nobody has thought of this")
        return real(record)

    monkeypatch.setattr(observation, "digest", digest)
    orders = [{"id": f"o{n}", "order_id": f"A{n}", "status": "PAID"} for n in range(3)]
    for order in orders:
        world.service.records[f"/v1/orders/lookup?{order['order_id']}"] = order
        await ask(world, "order", str(order["order_id"]))
    assert await refresh(world).once() == 2
    [left] = await pending(world)
    assert (left.object_id, left.attempts) == ("A1", 1)
    await baselined(world)
    lists(world, orders=[*orders, {"id": "o3", "order_id": "A3", "status": "PAID"}])
    report = await reconcile(world).once()
    assert (report.made, report.unplaced, report.unplaced_paid) == (1, 1, 1)


async def test_a_listed_order_whose_reading_breaks_is_read_singly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: U1, B22
    read = Order.read

    def broken(document: Mapping[str, Any], raw_bytes: bytes | None = None) -> Order:
        if raw_bytes is None and document.get("order_id") == "A1":
            raise RuntimeError("nobody has thought of this")
        return read(document, raw_bytes)

    monkeypatch.setattr(Order, "read", broken)
    await baselined(world)
    orders = [{"id": f"o{n}", "order_id": f"A{n}", "status": "PAID"} for n in range(3)]
    world.service.records["/v1/orders/o1"] = orders[1]
    lists(world, orders=orders)
    report = await reconcile(world).once()
    assert (report.made, report.unplaced) == (3, 0)


async def test_an_order_that_is_larger_than_the_topic_takes_is_told_by_what_decides(world: World) -> None:
    # case: U1, B18
    big = {
        "note": "x" * 3_000_000, "id": "ord_1", "order_id": "A1", "status": "PAID", "amount": "10.00",
        "order": {"customer_reference": "c1"}, "items": [{"a": 1}] * 9,
    }  # fmt: skip
    await baselined(world)
    lists(world, orders=[big, {"id": "ord_2", "order_id": "A2", "status": "PAID"}])
    report = await reconcile(world).once()
    assert report.made == 2
    world.service.records["/v1/orders/lookup?A1"] = big
    await ask(world, "order", "A1")
    assert await refresh(world).once() == 1
    found = [event for event in await answers(world) if event.order_id == "A1"]
    assert len(found) == 2
    for event in found:
        record = event.find("/data/record")
        assert event.find("/data/reduced") is True
        assert (record["status"], record["amount"], record["order"]) == ("PAID", "10.00", {"customer_reference": "c1"})
        assert "note" not in record


async def test_what_the_topic_takes_in_no_form_is_not_remembered_as_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: B18
    monkeypatch.setattr("consumer.sync.publisher.reduced", lambda event: event)
    await baselined(world)
    lists(world, orders=[{"id": "o", "order_id": "A1", "status": "PAID", "note": "x" * 3_000_000}])
    for _ in range(2):
        report = await reconcile(world).once()
        assert (report.published, report.unplaced, report.too_large, report.too_large_paid) == (0, 0, 1, 1)
        assert (report.too_large_ids, report.refused) == (["A1"], 0)
    assert (await remembered(world)).unplaced_paid == 1, "as before, status says that it cannot be kept"
    async with world.database.reading() as session:
        assert await observations.last(session, "default", "order", ["A1"]) == {}


class SmallTopic:
    """A topic whose records hold at most 20 bytes; `asked` are the sizes of the batches."""

    def __init__(self) -> None:
        self.values = list[bytes]()
        self.plans = set[bytes | None]()
        self.asked = list[int]()

    async def publish_many(self, topic: str, messages: Sequence[Message], _timeout_s: float) -> None:
        assert topic == EVENTS
        self.asked.append(len(messages))
        if any(len(one.value) > 20 for one in messages):
            raise RecordTooLarge
        self.values += [one.value for one in messages]
        self.plans |= {one.headers.get("plan") for one in messages}


def sized(*sizes: int) -> list[Event]:
    """Events of so many bytes."""
    return [
        Event(
            application="default", id=f"evt_{number}", type="order.paid", key="order:A1", trust=Trust.READ,
            source=Source.BACKFILL, raw=b"x" * size, received_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        for number, size in enumerate(sizes)
    ]  # fmt: skip


async def test_only_what_is_too_large_in_any_form_is_left_out_and_said() -> None:
    # case: U1
    topic = SmallTopic()
    events = sized(1, 30, 2, 50, 3)
    with capture_logs() as lines:
        refused = await EventPublisher(cast(Broker, topic), EVENTS).publish(
            events, plan="seed", smaller=lambda event: replace(event, raw=event.raw[:-20])
        )
    assert (refused.too_large, refused.for_now) == ((events[3],), ())
    assert [len(value) for value in topic.values] == [1, 10, 2, 3]
    assert topic.plans == {b"seed"}
    assert [(line["event"], line["event_id"]) for line in lines] == [("event_too_large", "evt_3")]


async def test_a_batch_is_sent_at_once_and_one_by_one_only_where_it_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # case: U1
    monkeypatch.setattr(publisher, "CHUNK_EVENTS", 2)
    topic = SmallTopic()
    events = sized(1, 2, 30, 3, 4)
    assert (await EventPublisher(cast(Broker, topic), EVENTS).publish(events)).too_large == (events[2],)
    assert topic.asked == [2, 2, 1, 1, 1]
    assert [len(value) for value in topic.values] == [1, 2, 3, 4]
    assert topic.plans == {None}


async def test_who_tells_reads_learns_which_were_too_large(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: U1, B18
    monkeypatch.setattr("consumer.sync.publisher.reduced", lambda event: event)
    seen = [
        world.app.observation("order", f"A{number}", number, {"status": "PAID", "note": "x" * size})
        for number, size in enumerate((1, 3_000_000, 2))
    ]
    told, left = await world.publisher.tell(seen)
    assert (told, left.ids, left.for_now) == ([seen[0], seen[2]], {seen[1].event_id}, ())


def test_the_ids_published_last_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    # case: B8
    monkeypatch.setattr(publisher, "IDS_MAX", 3)
    known = publisher.PublishedIds()
    known.add(["a", "b", "c"])
    assert [one in known for one in "abcd"] == [True, True, True, False]
    known.add(["a", "d"])
    assert [one in known for one in "abcd"] == [True, False, True, True], "what is said again is young again"


def test_the_ids_of_all_applications_share_their_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty busy ones of one `sync` took 650 MiB. Who is quiet forgets none for others, and what is over takes none."""
    monkeypatch.setattr(publisher, "IDS_OF_ALL", 1000)
    ours = world.publisher
    quiet, walk, *busy = [ours.ids() for _ in range(6)]
    quiet.add(["a", "b"])
    walk.add([f"walk-{number}" for number in range(500)])
    del walk
    for number in range(0, 3000, 100):
        for one in busy:
            one.add([f"{number + further}" for further in range(100)])
            assert sum(map(len, [quiet, *busy])) <= 1000
    assert ("a" in quiet, "2999" in busy[0], "0" in busy[0]) == (True, True, False)
    assert min(map(len, busy)) > 100
    alone = world.publisher.ids()
    alone.add([f"{number}" for number in range(1000)])
    assert ("0" in alone, len(quiet)) == (True, 2), "of another process"


def test_an_id_more_costs_no_more_for_those_that_are_forgotten() -> None:
    """From 50,000 events on each took up to 60 microseconds more: a page of a hundred held up the loop for 6 ms."""
    ids, known = [f"evt_{number}" for number in range(publisher.IDS_MAX + 20_000)], publisher.PublishedIds()

    def takes(some: Sequence[str]) -> float:
        before = time.thread_time()
        for page in portions(some, 100):
            known.add(page)
        return time.thread_time() - before

    first_s = takes(ids[:10_000])
    takes(ids[10_000:-10_000])
    assert takes(ids[-10_000:]) < first_s * 20
    assert ids[0] not in known
    assert ids[-publisher.IDS_MAX] in known


async def test_an_order_id_that_cannot_be_asked_for_is_told_to_who_asks(world: World) -> None:
    # case: F20, F26
    await ask(world, "order", "x" * 255)
    await refresh(world).once()
    assert [event.type for event in await world.published()] == ["order.unreadable"]


# --- reads that are asked for while one is under way ---------------------------------------------------------------


async def test_a_read_asked_for_in_a_day_is_not_due_at_once(world: World) -> None:
    # case: U30
    """The worker handles the answer, and asks for the next read, before refresh ticks the answered one off."""
    now = world.clock.now()
    await ask(world, "order", "A1")
    async with world.database.transaction() as session:
        [row] = await read_requests.due(session, now, 10, "default", "order")
        version = await read_requests.next_version(session)
        await read_requests.begin(session, [row])
    await ask(world, "order", "A1", after_s=86_400)
    await ask(world, "order", "A1", after_s=3_600)
    async with world.database.transaction() as session:
        await read_requests.done(session, [row], version, now)
    [left] = await pending(world)
    assert left.due_at == now + timedelta(hours=1)


async def test_a_read_asked_for_at_once_while_one_is_under_way_is_made(world: World) -> None:
    # case: A40
    now = world.clock.now()
    await ask(world, "order", "A1")
    await ask(world, "order", "A2")
    async with world.database.transaction() as session:
        rows = await read_requests.due(session, now, 10, "default", "order")
        version = await read_requests.next_version(session)
        await read_requests.begin(session, rows)
    await ask(world, "order", "A1")
    async with world.database.transaction() as session:
        await read_requests.done(session, rows, version, now)
        assert [row.object_id for row in await read_requests.due(session, now, 10, "default", "order")] == ["A1"]


async def test_what_was_asked_between_looking_and_beginning_is_not_lost(world: World) -> None:
    # case: A40
    now = world.clock.now()
    await ask(world, "order", "A1")
    async with world.database.transaction() as session:
        [row] = await read_requests.due(session, now, 10, "default", "order")
        session.expunge(row)
        request = ReadRequest(kind="order", object_id="A1", not_before=now + timedelta(hours=1))
        await read_requests.ask(session, "default", [request], now)
        version = await read_requests.next_version(session)
        await read_requests.begin(session, [row])
        await read_requests.done(session, [row], version, now)
    [left] = await pending(world)
    assert left.due_at <= now + timedelta(hours=1)


# --- walks ---------------------------------------------------------------------------------------------------------


async def test_an_event_from_the_end_of_time_ends_no_walk(world: World) -> None:
    # case: B34, U22
    service = ScriptedList()
    service.add(5)
    service.events.append((99, datetime(9999, 12, 31, 23, 59, tzinfo=UTC)))
    follower = Follower(service, began=service.now)
    for _ in range(3):
        service.add(2)
        service.events.sort(key=lambda event: event[1])
        follower.began = service.now
        await follower.go()
        assert follower.completed
    assert follower.seen == service.ids


LONG_AGO = "0001-01-01T00:00:00+14:00"
SOON = "2026-01-01T00:09:00Z"


@pytest.mark.parametrize("odd", ["9999-12-31T23:59:59Z", "2029-06-01T00:00:00Z", SOON, 10**20, LONG_AGO])
@pytest.mark.parametrize("at", ["newest", "oldest"])
async def test_an_event_of_another_age_costs_no_walk_an_event(world: World, odd: Any, at: str) -> None:
    # case: B34, U22
    strange = world.service.event(99, order_id="A99") | {"created_at": odd}
    world.service.records[f"/v1/events/{strange['id']}"] = strange
    told: list[dict[str, Any]] = []

    def page(cursor: str | None, limit: int) -> dict[str, Any]:
        listed = [strange, *told] if at == "newest" else [*told, strange]
        start = int(cursor or 0)
        more = str(start + limit) if len(listed) > start + limit else None
        return {"items": listed[start : start + limit], "next_cursor": more}

    world.service.lists["/v1/events"] = page
    stage = backfill(world)
    for number in range(4):
        world.clock.advance(60)
        happened = world.service.event(number, order_id=f"A{number}") | {"created_at": world.clock.now().isoformat()}
        world.service.records[f"/v1/events/{happened['id']}"] = happened
        told.insert(0, happened)
        await stage.once()
        await world.work()
        known = {event.id for event in await world.published()}
        assert known - {strange["id"]} == {event["id"] for event in told}
        assert (strange["id"] in known) == (odd != LONG_AGO), "what is from before the first walk is history"
    bookmark = Bookmark.load(await world.kept(WALK) or {})
    assert bookmark.newest_at is not None
    assert bookmark.newest_at <= world.clock.now()


@pytest.mark.parametrize(
    "state",
    [
        {**Bookmark().dump(), "order": "newest_first", "newest_at": "9999-12-31T23:59:59+00:00",
         "walked_at": "2025-12-31T00:00:00+00:00", "swept_at": "2025-12-31T00:00:00+00:00",
         "swept_to": "9999-12-31T23:59:59+00:00"},
        {"order": "sideways"},
        {"order": None, "anchor": "x"},
        {**Bookmark().dump(), "anchor": ["x"]},
    ],
)  # fmt: skip
async def test_a_bookmark_that_leads_nowhere_is_a_fresh_walk(world: World, state: dict[str, Any]) -> None:
    # case: B11
    listed = [world.service.event(number, order_id=f"A{number}") for number in (3, 2, 1)]
    for number, event in enumerate(listed):
        event["created_at"] = (world.clock.now() - timedelta(minutes=number)).isoformat()
    world.service.lists["/v1/events"] = lambda _cursor, _limit: {"items": listed, "next_cursor": None}
    async with world.database.transaction() as session:
        await sync_state.keep(session, "default", WALK, state, token=1, now=world.clock.now())
    assert (await backfill(world).once()).published == 3


async def test_empty_pages_come_to_an_end(world: World) -> None:
    # case: B7, B17
    asked = 0

    class Empty:
        async def list(self, *, limit: int = 100, cursor: object = None) -> Page[EventRecord]:
            nonlocal asked
            asked += 1
            return Page((), f"evt_{asked}")

    service = ScriptedList()
    follower = Follower(service)
    walk = replace(follower.walk(), lister=Empty())
    with pytest.raises(UnexpectedAnswer):
        async for _ in walk.pages():
            pass
    assert asked <= EMPTY_PAGES_MAX + 1


# --- two bodies of one event ---------------------------------------------------------------------------------------


async def kept(world: World) -> list[tuple[str | None, bytes]]:
    async with world.database.reading() as session:
        found = await quarantine.newest(session, reason=Reason.OTHER_BODY)
        rows = [await quarantine.get(session, one.id) for one in found]
    return [(row.event_id, row.raw) for row in rows if row is not None]


async def test_a_second_body_of_an_id_that_waits_is_kept(world: World) -> None:
    # case: I16
    first, second = (orjson.dumps({"id": "evt_1", "type": kind}) for kind in ("order.paid", "order.expired"))
    await world.deliver(delivery(first, 1, event_id="evt_1"), delivery(second, 2, event_id="evt_1"))
    await taken_in(world)
    await world.deliver(delivery(second, 3, event_id="evt_1"), delivery(first, 4, event_id="evt_1"))
    await taken_in(world)
    assert await kept(world) == [("evt_1", second)]
    async with world.database.reading() as session:
        assert await hints.count(session) == 1


async def test_a_delivery_that_differs_from_the_services_record_is_kept_beside_it(world: World) -> None:
    # case: I16
    record = world.service.event(1, order_id="A1")
    world.service.lists["/v1/events"] = lambda _cursor, _limit: {"items": [record], "next_cursor": None}
    forged = orjson.dumps({"id": "evt_000001", "type": "order.expired"})
    await world.deliver(delivery(forged, 1, event_id="evt_000001"))
    await taken_in(world)
    await backfill(world).once()
    assert await kept(world) == [("evt_000001", forged)]
    assert counted_by(world.metrics, "mismatches", "default") == 1


async def test_a_resume_cursor_that_this_walk_has_passed_leads_nowhere() -> None:
    # case: B11
    service = ScriptedList()
    service.add(12)
    ids = [f"evt_{number}" for number, _ in service.events][::-1]
    second = ids[2]  # the cursor with which the second page was asked for
    follower = Follower(service, bookmark=Bookmark(resume=Resume(head_ids=(ids[4],), cursor=second)))
    walk = await follower.go()
    assert walk.refused == 0
    assert service.calls == 4
    assert follower.seen == service.ids
