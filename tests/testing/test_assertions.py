"""assert_idempotent and assert_order_independent: good handlers pass, and each kind of bad one is told what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import aiohttp
import pytest
from sqlalchemy import Table, update
from sqlmodel import Field, SQLModel

from consumer.errors import UsageError
from consumer.plugin import Context, Event, Reject, handles
from consumer.testing import Answer, Workbench, assert_history, assert_idempotent, assert_order_independent

URL = "https://shop.example/orders"


class KitStatus(SQLModel, table=True):
    """The last thing that was said about an order."""

    __tablename__ = "kit_status"
    __table__: ClassVar[Table]

    order_id: str = Field(primary_key=True)
    status: str = ""
    seen: int = 0


@handles("fulfilment.requested", name="kit:good")
async def good(event: Event, ctx: Context) -> None:
    headers = {"Idempotency-Key": ctx.idempotency_key}
    async with ctx.http.post(URL, json={"order": event.order_id}, headers=headers) as answer:
        answer.raise_for_status()


@handles("fulfilment.requested", name="kit:no-key")
async def without_a_key(event: Event, ctx: Context) -> None:
    async with ctx.http.post(URL, json={"order": event.order_id}) as answer:
        answer.raise_for_status()


@handles("order.*", name="kit:last-wins")
async def last_wins(event: Event, ctx: Context) -> None:
    async with ctx.http.put(f"{URL}/{event.order_id}", json={"status": event.type}) as answer:
        answer.raise_for_status()


@handles("order.*", transactional=True, name="kit:last-row-wins")
async def last_row_wins(event: Event, ctx: Context) -> None:
    await ctx.insert_new(KitStatus(order_id=event.order_id or ""))
    await ctx.session.execute(update(KitStatus).values(status=event.type, seen=KitStatus.seen + 1))


@handles("order.*", transactional=True, name="kit:paid-absorbs")
async def paid_absorbs(event: Event, ctx: Context) -> None:
    if event.type == "order.paid" and await ctx.insert_new(KitStatus(order_id=event.order_id or "", status="paid")):
        ctx.emit("shop.paid", event.key, {}, once="paid")


# case: H11, G2, G5
def test_a_good_effect_and_a_good_projection_pass() -> None:
    assert_idempotent(good)
    assert_idempotent(paid_absorbs, history())
    assert_order_independent(paid_absorbs, history())


# case: H11
@pytest.mark.parametrize(
    "event_type", ["subscription.renewed", "access.granted", "access.unresolved", "subscription.*"]
)
def test_the_example_of_a_type_is_about_what_the_type_is_about(event_type: str) -> None:
    @handles(event_type, name="kit:by-key")
    async def by_key(event: Event, ctx: Context) -> None:
        kind = "customer" if event.type == "access.granted" else "subscription"
        assert event.key.startswith(f"{kind}:"), event.key
        assert event.key == f"{kind}:{event.customer or event.subscription_id}"
        async with ctx.http.put(f"{URL}/{event.key}", json={}) as answer:
            answer.raise_for_status()

    assert_idempotent(by_key)


# case: H11
def test_an_effect_without_the_key_is_found_out() -> None:
    with pytest.raises(AssertionError, match="the outside was told something else"):
        assert_idempotent(without_a_key)


# case: H11, G5
def test_a_crash_between_the_effect_and_its_mark_is_played() -> None:
    told: list[str] = []

    @handles("order.paid", transactional=True, name="kit:leaks")
    async def leaks(event: Event, ctx: Context) -> None:
        told.append(event.id)

    with pytest.raises(AssertionError, match="a crash between the effect and its mark: what `state` returns"):
        assert_idempotent(leaks, state=lambda: list(told), reset=told.clear)


# case: H11, G1
@pytest.mark.parametrize("handler", [last_wins, last_row_wins])
def test_the_last_one_wins_is_found_out(handler: object) -> None:
    with pytest.raises(AssertionError, match="in the order "):
        assert_order_independent(handler, history())  # type: ignore[arg-type]  # a parametrised object


# case: H11, G1
def test_many_events_are_reversed_made_late_and_shuffled() -> None:
    with Workbench() as bench:
        types = ["order.expired", "order.paid", "order.lapsed", "order.seen", "order.closed", "order.opened"]
        events = [bench.event(name, order_id="A-1") for name in types]
    assert_order_independent(paid_absorbs, events)
    with pytest.raises(AssertionError):
        assert_order_independent(last_wins, events)


# case: H11, G5
def test_replicas_at_once_share_the_loop_of_their_plugin() -> None:
    """What a handler shares between its calls, a pool or a lock, is of one loop: on another it raised, and nobody was
    told that the replicas did nothing."""
    loops: set[int] = set()
    shared: list[asyncio.Lock] = []
    done: list[str] = []

    @handles("fulfilment.requested", name="kit:shares")
    async def shares(event: Event, ctx: Context) -> None:
        loops.add(id(asyncio.get_running_loop()))
        shared.extend([asyncio.Lock()] if not shared else [])
        async with shared[0]:
            await asyncio.sleep(0.01)
            done.append(ctx.idempotency_key)

    with Workbench() as bench:
        bench.run(shares, bench.event("fulfilment.requested", order_id="A-1"))
        bench.run_at_once(shares, bench.event("fulfilment.requested", order_id="A-2"))
    assert len(loops) == 1
    assert len(done) == 5


# case: H11, G1
@pytest.mark.parametrize("each", [True, False], ids=["each", "the last"])
def test_what_a_batch_makes_of_many_is_compared_too(each: bool) -> None:
    """Of the whole batch it told the last one only, and one at a time that was all."""

    @handles("order.paid", transactional=True, batch=True, name="kit:batch")
    async def batch(many: Sequence[tuple[Event, Context]]) -> None:
        for event, ctx in many if each else many[-1:]:
            ctx.emit("shop.counted", event.key, {"order_id": event.order_id}, once=event.id)

    with Workbench() as bench:
        events = [bench.event("order.paid", order_id=f"A-{number}") for number in (1, 2)]
    if each:
        assert_idempotent(batch, events)
        return
    with pytest.raises(AssertionError, match="all in one batch: other derived events were emitted"):
        assert_idempotent(batch, events)


LOST = "the answer was lost, it is tried again"


# case: H11, G5, F30
def test_a_key_that_changes_with_the_attempt_is_found_out() -> None:
    @handles("fulfilment.requested", name="kit:key-of-the-attempt")
    async def ship(event: Event, ctx: Context) -> None:
        headers = {"Idempotency-Key": f"{ctx.idempotency_key}-{ctx.attempt}"}
        async with ctx.http.post(URL, json={"order": event.order_id}, headers=headers) as answer:
            answer.raise_for_status()

    with pytest.raises(AssertionError, match=f"{LOST}: the outside was told something else"):
        assert_idempotent(ship)


# case: H11, G5
def test_what_is_told_by_a_client_of_its_own_is_tried_again_too() -> None:
    told: set[str] = set()

    @handles("fulfilment.requested", name="kit:own-client")
    async def ship(event: Event, ctx: Context) -> None:
        told.add(f"{ctx.idempotency_key}-{ctx.attempt}")

    with pytest.raises(AssertionError, match=f"{LOST}: what `state` returns"):
        assert_idempotent(ship, state=lambda: set(told), reset=told.clear)


# case: H11, G5
@pytest.mark.parametrize("attempts", [1, 2, 8])
def test_several_requests_whose_answers_are_lost_pass_with_their_keys(attempts: int) -> None:
    tries: list[int] = []

    @handles("fulfilment.requested", name="kit:several", attempts=attempts)
    async def several(event: Event, ctx: Context) -> None:
        tries.append(ctx.attempt)
        for number in range(4):
            headers = {"Idempotency-Key": f"{ctx.idempotency_key}-{number}"}
            # A body that is another one on each attempt must not use up the attempts.
            body = {"order": event.order_id, "number": number, "attempt": ctx.attempt}
            async with ctx.http.post(URL, json=body, headers=headers) as answer:
                answer.raise_for_status()

    with Workbench() as bench:
        events = [bench.event("fulfilment.requested", order_id="A-1") for _ in range(2)]
    assert_idempotent(several, events)
    assert max(tries) == attempts


# case: H11
def test_who_gives_up_when_the_answer_is_lost_is_judged_by_what_was_done() -> None:
    async def tell(event: Event, ctx: Context, *parts: str) -> None:
        for part in parts:
            key = f"{ctx.idempotency_key}-{part}"
            async with ctx.http.post(f"{URL}/{part}", json={}, headers={"Idempotency-Key": key}) as answer:
                answer.raise_for_status()

    @handles("fulfilment.requested", name="kit:rejects")
    async def rejects(event: Event, ctx: Context) -> None:
        try:
            await tell(event, ctx, "ship", "invoice")
        except aiohttp.ClientError as error:
            raise Reject("whether it was done is for a person to see") from error

    @handles("fulfilment.requested", name="kit:tells-another")
    async def tells_another(event: Event, ctx: Context) -> None:
        try:
            await tell(event, ctx, "ship")
        except aiohttp.ClientError as error:
            await ctx.http.post(f"{URL}/the-other-warehouse", json={})
            raise Reject("the other warehouse has it") from error

    assert_idempotent(rejects)
    with pytest.raises(AssertionError, match=f"{LOST}: the outside was told something else"):
        assert_idempotent(tells_another)


# case: H11
def test_who_fails_on_its_second_attempt_is_found_out() -> None:
    @handles("fulfilment.requested", name="kit:second")
    async def second(event: Event, ctx: Context) -> None:
        async with ctx.http.put(f"{URL}/1", json={}) as answer:
            answer.raise_for_status()
            if ctx.attempt > 1:
                raise KeyError("only the first attempt made it")

    with pytest.raises(AssertionError, match=f"{LOST}: the handler did not get through"):
        assert_idempotent(second)


# case: H11, G1
def test_data_that_depends_on_the_order_is_found_out_when_asked_for() -> None:
    @handles("order.*", transactional=True, name="kit:first-data")
    async def first_data(event: Event, ctx: Context) -> None:
        if await ctx.insert_new(KitStatus(order_id=event.order_id or "", status="seen")):
            ctx.emit("shop.seen", event.key, {"by": event.type}, once="seen")

    assert_order_independent(first_data, history())
    with pytest.raises(AssertionError, match=r"in the order .*: the derived events hold other data"):
        assert_order_independent(first_data, history(), data=True)
    assert_order_independent(paid_absorbs, history(), data=True)


def test_a_handler_that_never_succeeds_is_no_success() -> None:
    @handles("order.paid", name="kit:broken", attempts=2)
    async def broken(event: Event, ctx: Context) -> None:
        raise ValueError("always")

    with pytest.raises(AssertionError, match="does not succeed even when all is well"):
        assert_idempotent(broken)


def test_the_fixtures_are_the_functions(assert_idempotent: object, assert_order_independent: object) -> None:
    assert callable(assert_idempotent)
    assert callable(assert_order_independent)
    assert_idempotent(good)


def history() -> list[Event]:
    """Three events about one order, two of them proof of payment."""
    with Workbench() as bench:
        return [bench.event(name, order_id="A-1") for name in ("order.expired", "order.paid", "order.paid")]


class KitStock(SQLModel, table=True):
    """What a handler finds in its own table."""

    __tablename__ = "kit_stock"
    __table__: ClassVar[Table]

    article: str = Field(primary_key=True)
    left: int = 0


@handles("order.paid", transactional=True, name="kit:reserve")
async def reserve(event: Event, ctx: Context) -> None:
    row = await ctx.locked(KitStock, article="book")
    if row is not None and await ctx.insert_new(KitStatus(order_id=event.order_id or "")):
        await ctx.session.execute(update(KitStock).values(left=KitStock.left - 1))


@handles("fulfilment.requested", name="kit:ask-first")
async def ask_first(event: Event, ctx: Context) -> None:
    async with ctx.http.get(f"{URL}/{event.order_id}/verdict") as asked:
        verdict = (await asked.json())["verdict"]
    headers = {"Idempotency-Key": ctx.idempotency_key}
    async with ctx.http.post(URL, json={"verdict": verdict}, headers=headers) as answer:
        answer.raise_for_status()


@handles("fulfilment.requested", name="kit:ask-and-hope")
async def ask_and_hope(event: Event, ctx: Context) -> None:
    async with ctx.http.get(f"{URL}/{event.order_id}/verdict") as asked:
        verdict = (await asked.json())["verdict"]
    headers = {"Idempotency-Key": ctx.idempotency_key}
    async with ctx.http.post(URL, json={"verdict": verdict}, headers=headers):
        pass


def stocked(bench: Workbench) -> None:
    bench.fill(KitStock(article="book", left=3), KitStock(article="pen", left=5))


def desk_says_fine(bench: Workbench) -> None:
    bench.outside.answer = lambda _: Answer(body={"verdict": "fine"})


# case: H11
def test_a_handler_finds_what_earlier_runs_left(workbench: Workbench) -> None:
    stocked(workbench)
    assert workbench.run(reserve, workbench.event("order.paid", order_id="A-1")).succeeded
    assert [row.left for row in workbench.rows(KitStock, article="book")] == [2]
    assert len(workbench.rows(KitStock)) == 2
    assert_idempotent(reserve, given=stocked)
    assert_order_independent(reserve, history(), given=stocked)


# case: H11
def test_rows_that_were_given_are_nothing_that_it_did() -> None:
    with pytest.raises(AssertionError, match="nothing"):
        assert_idempotent(reserve, given=lambda bench: bench.fill(KitStock(article="pen", left=1)))


def was_read(bench: Workbench) -> None:
    for order_id in ("A-1", "A-2"):
        bench.observe("order", order_id, {"status": "OPEN", "amount": "25.00"})


# case: H11
def test_what_the_service_showed_before_is_no_event_of_the_play(workbench: Workbench) -> None:
    """Its id was that of the first event, which then came as a duplicate, and was handled by nobody."""

    @handles("fulfilment.requested", name="test:reads_first")
    async def reads_first(event: Event, ctx: Context) -> None:
        order = await ctx.snapshot()
        if order is None:
            raise ValueError("it was not read")
        headers = {"Idempotency-Key": ctx.idempotency_key}
        async with ctx.http.post(URL, json={"amount": order.record["amount"]}, headers=headers) as answer:
            answer.raise_for_status()

    asked = workbench.event("fulfilment.requested", order_id="A-1")
    assert_idempotent(reads_first, [asked], given=was_read)
    assert_history(reads_first, [asked], ["crash 0", "deliver 0"], given=was_read)
    with pytest.raises(AssertionError, match="it was not read"):
        assert_history(reads_first, [asked], ["deliver 0"])


# case: H11
def test_what_is_given_is_older_than_all_that_comes(workbench: Workbench) -> None:
    @handles("order.observed", transactional=True, name="test:follows")
    async def follows(event: Event, ctx: Context) -> None:
        newest = await ctx.snapshot()
        ctx.emit("shop.followed", event.key, {"status": newest.status if newest else None}, once="status")

    paid = workbench.event("order.observed", order_id="A-1", data={"record": {"status": "PAID"}})
    workbench.begin(was_read)
    workbench.run(follows, paid)
    assert [one.data["data"]["status"] for one in workbench.emitted] == ["PAID"]


# case: H11
def test_a_row_may_be_given_to_every_play() -> None:
    """It was put into the first ledger only, and each later play found none."""
    book = KitStock(article="book", left=3)
    assert_idempotent(reserve, given=lambda bench: bench.fill(book, KitStock(article="pen", left=5)))


# case: H11
def test_what_cannot_be_given_is_told_as_such() -> None:
    def twice(bench: Workbench) -> None:
        stocked(bench)
        stocked(bench)

    async def waits(bench: Workbench) -> None: ...

    with pytest.raises(UsageError, match="what is given cannot be played: IntegrityError"):
        assert_idempotent(reserve, given=twice)
    wrong: Any = waits
    with pytest.raises(UsageError, match="not async"):
        assert_idempotent(reserve, given=wrong)


# case: H11
def test_a_handler_that_asks_before_it_tells_is_answered() -> None:
    """Without an answer of its own it failed in every way, "even when all is well": it could not be tried at all."""
    assert_idempotent(ask_first, given=desk_says_fine)
    with pytest.raises(AssertionError, match="500"):
        assert_idempotent(ask_and_hope, given=desk_says_fine)
