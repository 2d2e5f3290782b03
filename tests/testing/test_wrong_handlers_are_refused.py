"""Handlers that would go wrong in production are refused by the kit, with file and line; right ones are not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from consumer.plugin import Context, Event, declared, handles
from consumer.testing import Answer, Request, Workbench, assert_idempotent, assert_order_independent
from tests.testing import right_handlers, wrong_handlers
from tests.testing.right_handlers import RIGHT

pytestmark = pytest.mark.slow
FILE = Path(wrong_handlers.__file__)
Assertion = Callable[..., None]


def marked(function: Any) -> int:
    """The line that is marked in a handler's source; else the one where it begins."""
    lines, start = inspect.getsourcelines(function)
    return next((start + number for number, line in enumerate(lines) if "# wrong" in line), start)


def begin(function: Any) -> int:
    return int(function.__code__.co_firstlineno)


def changes() -> list[Event]:
    with Workbench() as bench:
        return [bench.event(type_, customer="C-1") for type_ in ("access.granted", "access.revoked")]


def order_events() -> list[Event]:
    with Workbench() as bench:
        return [bench.event(type_, order_id="A-1") for type_ in ("order.expired", "order.paid")]


AT_LINE: dict[str, str] = {
    "own_aiohttp": "connects to 127.0.0.1:9 by a client of its own",
    "own_client_by_name": "connects to warehouse.example:80 by a client of its own",
    "own_client_hushed": "connects to 127.0.0.1:9 by a client of its own",
    "blocking_client": "by a client of its own",
    "sleeps": "holds its event loop",
    "computes": "holds its event loop",
    "deaf": "a 500 of POST https://shop.example counts as success",
    "grants_without_looking": "a 500 of PUT https://shop.example",
    "not_awaited": "POST https://shop.example was never sent",
    "network_in_transaction": "inside a transaction",
    "http_in_transaction": "must not wait for it",
    "socket_in_transaction": "inside a transaction",
    "commits": "must not commit ctx.session",
    "mistyped_field": "has no attribute 'amout'",
}
AT_START: dict[str, str] = {
    "key_random": "the outside was told something else",
    "key_of_attempt": "the outside was told something else",
    "no_key": "the outside was told something else",
    "key_of_the_clock": "the outside was told something else",
    "hears_and_goes_on": "succeeds although the outside answered 500",
    "hears_the_down_only": "succeeds although the outside answered 401",
    "key_of_a_hash": "the outside was told something else",
    "remembers": "the outside was told less this time: what the handler keeps in its module",
    "hears_and_grants_all_the_same": "succeeds although the outside answered 500",
    "mistyped": "no event of type 'order.payed' is known; did you mean 'order.paid'?",
    "mistyped_wildcard": "did you mean 'subscription.*'?",
    "swallows_the_outage": "succeeds although the outside refused the connection",
    "swallows_the_time_out": "succeeds although the outside gave no answer in time",
    "first_attempt_only": "the outside was told less than when all is well, and the run succeeded",
    "swallows_429": "succeeds although the outside answered 429",
    "swallows_4xx": "succeeds although the outside answered 404",
    "one_key_for_all": "it sends one Idempotency-Key with two requests",
    "key_of_the_customer": "it sends one Idempotency-Key with two requests",
    "one_key_for_two_parcels": "it sends one Idempotency-Key with two requests",
    "answers": "a handler returns None, this one returned bool",
    "tells_nobody": "nothing to compare",
}


# case: H11
@pytest.mark.parametrize("name", [*AT_LINE, *AT_START])
def test_a_wrong_handler_is_refused_with_file_and_line(name: str) -> None:
    function = getattr(wrong_handlers, name)
    with pytest.raises(AssertionError) as refused:
        assert_idempotent(function)
    text = str(refused.value)
    line = marked(function) if name in AT_LINE else begin(function)
    assert ({**AT_LINE, **AT_START})[name] in text
    assert f"{FILE.name}:{line} in {name}" in text, text


# case: F30, H11
def test_that_it_is_done_already_may_be_said() -> None:
    """By which answer is the other side's to say: a 409 is not played."""

    @handles("fulfilment.requested", name="right:heard-before")
    async def heard_before(event: Event, ctx: Context) -> None:
        headers = {"Idempotency-Key": ctx.idempotency_key}
        async with ctx.http.post("https://shop.example", json={"order": event.order_id}, headers=headers) as answer:
            if answer.status != 409:
                answer.raise_for_status()

    assert_idempotent(heard_before)
    assert_idempotent(heard_before, given=lambda bench: setattr(bench.outside, "answer", lambda _: Answer(status=409)))


# case: F30, H11
def test_that_nobody_is_there_may_be_the_end_of_access() -> None:
    @handles("access.revoked", name="right:shuts")
    async def shuts(event: Event, ctx: Context) -> None:
        async with ctx.http.put(f"https://shop.example/{event.customer}", json={"allowed": False}) as answer:
            if answer.status != 404:
                answer.raise_for_status()

    @handles("access.revoked", name="right:removes")
    async def removes(event: Event, ctx: Context) -> None:
        async with ctx.http.delete(f"https://shop.example/{event.customer}") as answer:
            if answer.status != 404:
                answer.raise_for_status()

    @handles("fulfilment.requested", name="right:clears-and-ships")
    async def clears_and_ships(event: Event, ctx: Context) -> None:
        async with ctx.http.delete(f"https://shop.example/cart/{event.order_id}") as answer:
            if answer.status != 404:
                answer.raise_for_status()
        async with ctx.http.put(f"https://shop.example/{event.order_id}", json={}) as answer:
            answer.raise_for_status()

    for function in (shuts, removes, clears_and_ships):
        assert_idempotent(function)


# case: F30, H11
def test_a_key_is_of_one_host_and_who_asks_whether_it_was_done_may_believe_the_answer() -> None:
    @handles("fulfilment.requested", name="right:two-hosts")
    async def two_hosts(event: Event, ctx: Context) -> None:
        for url in ("https://shop.example/parcels", "https://mail.example/mails"):
            headers = {"Idempotency-Key": ctx.idempotency_key}
            async with ctx.http.post(url, json={"order": event.order_id, "to": url}, headers=headers) as answer:
                answer.raise_for_status()

    @handles("fulfilment.requested", name="right:asks")
    async def asks(event: Event, ctx: Context) -> None:
        headers = {"Idempotency-Key": ctx.idempotency_key}
        try:
            async with ctx.http.post("https://shop.example", json={"o": event.order_id}, headers=headers) as answer:
                answer.raise_for_status()
        except (aiohttp.ClientConnectionError, TimeoutError):
            async with ctx.http.get(f"https://shop.example/{event.order_id}") as answer:
                answer.raise_for_status()

    def knows(bench: Workbench) -> None:
        def answer(request: Request) -> Answer:
            is_there = any(one.method == "POST" for one in bench.outside.requests)
            return Answer(status=200 if request.method == "POST" or is_there else 404)

        bench.outside.answer = answer

    assert_idempotent(two_hosts)
    assert_idempotent(asks, given=knows)


# case: G2, H11
def test_one_key_for_two_events_of_an_order_is_what_keys_are_for() -> None:
    """The second is dropped, as is meant, though its body names another event. Another order's, or another type's, and
    what a subscription is told month by month, would be lost."""

    def told(*types: str, **about: Any) -> list[Event]:
        with Workbench() as bench:
            return [bench.event(one, **about) for one in types]

    @handles("order.*", "subscription.renewed", name="right:two-proofs")
    async def two_proofs(event: Event, ctx: Context) -> None:
        url = f"https://shop.example/{event.order_id or event.subscription_id}"
        key = f"paid-{event.order_id or event.subscription_id}"
        async with ctx.http.put(url, json={"by": event.id}, headers={"Idempotency-Key": key}) as answer:
            answer.raise_for_status()

    assert_idempotent(two_proofs, told("order.paid", "order.paid", order_id="A-1"))
    for lost in (
        told("order.paid", "order.expired", order_id="A-1"),
        told("subscription.renewed", "subscription.renewed", subscription_id="S-1"),
    ):
        with pytest.raises(AssertionError, match="it sends one Idempotency-Key with two requests"):
            assert_idempotent(two_proofs, lost)


# case: H11
def test_what_an_attempt_caught_and_went_on_from_is_told() -> None:
    """A best-effort call behind the shipment looks as a second shipment does: the author learns where it belongs."""

    @handles("fulfilment.requested", name="wrong:ships-then-pings")
    async def ship_then_ping(event: Event, ctx: Context) -> None:
        headers = {"Idempotency-Key": ctx.idempotency_key}
        async with ctx.http.post("https://shop.example", json={"order": event.order_id}, headers=headers) as answer:
            answer.raise_for_status()
        try:
            async with ctx.http.post("https://chat.example/hook", json={}, headers=headers) as answer:
                answer.raise_for_status()
        except aiohttp.ClientError:
            ctx.log.info("no_ping")

    with pytest.raises(AssertionError, match="went on") as refused:
        assert_idempotent(ship_then_ping)
    assert "POST https://chat.example/hook failed" in str(refused.value)
    assert "a handler of its own with fulfils=False" in str(refused.value)
    assert "ctx.attempt" not in str(refused.value)


# case: H11
@pytest.mark.parametrize("attempts", [1, 2])
def test_what_is_swallowed_is_found_with_few_attempts_too(attempts: int) -> None:
    def declared_so(function: Any) -> Any:
        return handles("fulfilment.requested", name="wrong:few", attempts=attempts)(function)

    with pytest.raises(AssertionError, match="although the outside refused the connection"):
        assert_idempotent(declared_so(wrong_handlers.swallows_the_outage))


# case: H11
def test_a_second_attempt_that_does_nothing_is_found_with_any_client() -> None:
    told: set[str] = set()

    @handles("fulfilment.requested", name="wrong:first-by-its-own-client")
    async def first(event: Event, ctx: Context) -> None:
        if ctx.attempt == 1:
            told.add(ctx.idempotency_key)

    with pytest.raises(AssertionError, match="ended before it did anything, it is tried again: what `state` returns"):
        assert_idempotent(first, state=lambda: set(told), reset=told.clear)


# case: H11
def test_who_fulfils_may_not_say_that_nobody_depends_on_it() -> None:
    assert_idempotent(wrong_handlers.hears_and_grants_all_the_same, best_effort=True)
    with pytest.raises(AssertionError, match="succeeds although the outside answered 500"):
        assert_idempotent(wrong_handlers.hears_and_goes_on, best_effort=True)
    with pytest.raises(AssertionError, match="counts as success, nobody looked at the answer"):
        assert_idempotent(wrong_handlers.grants_without_looking, best_effort=True)


# case: H11
@pytest.mark.parametrize("status", [500, 503, 401, 429, 404])
def test_an_answer_that_never_says_that_it_is_done_is_looked_at(status: int, workbench: Workbench) -> None:
    workbench.outside.answer = lambda _: Answer(status=status)
    with pytest.raises(AssertionError, match=f"a {status} of POST .* counts as success, nobody looked at the answer"):
        workbench.run(wrong_handlers.deaf, workbench.event("fulfilment.requested", order_id="A-1"))


# case: H11, G1
@pytest.mark.parametrize(("name", "events"), [("last_wins", changes), ("last_row_wins", order_events)])
def test_what_depends_on_the_order_is_refused(name: str, events: Callable[[], list[Event]]) -> None:
    function = getattr(wrong_handlers, name)
    with pytest.raises(AssertionError, match=rf"in the order .*[\s\S]*{FILE.name}:{begin(function)} in {name}"):
        assert_order_independent(function, events())


# case: H11
def test_a_schedule_with_the_wrong_sign_fails_its_authors_test(workbench: Workbench) -> None:
    def remind_three_days_before(handler: Any) -> None:
        workbench.run(handler, workbench.event("subscription.renewed", subscription_id="S-1"))
        workbench.advance(28 * 86_400, [handler, right_handlers.remind])
        assert len(workbench.outside.requests) == 1, workbench.emitted[-1].not_before

    remind_three_days_before(right_handlers.remember)
    workbench.outside.requests.clear()
    with pytest.raises(AssertionError):
        remind_three_days_before(wrong_handlers.wrong_sign)


# case: H11
@pytest.mark.parametrize("function", RIGHT, ids=lambda one: one.__name__)
def test_a_right_handler_is_refused_by_nothing(function: Any) -> None:
    handler = declared(function)
    assert handler is not None
    with Workbench() as bench:
        if function is right_handlers.ask:
            events = order_events()
        else:
            events = [bench.event("order.paid" if "*" in one else one) for one in handler.types]
    assert_idempotent(function, events, best_effort=function is right_handlers.log)
    assert_order_independent(function, events)


def test_as_many_as_were_promised() -> None:
    assert len(AT_LINE) + len(AT_START) + 3 >= 24
    assert len(RIGHT) == 12
