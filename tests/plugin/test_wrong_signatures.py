"""A wrong handler is told so by mypy, in words, and by `handlers check` too."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from consumer.errors import HandlerInvalid
from consumer.plugin import Context, Event, handles
from consumer.work.inspection import inspect_plugins
from consumer.work.registry import load_registry
from consumer.work.signatures import signature_problems

GOOD = """
from collections.abc import Sequence

from consumer.plugin import Context, Event, OrderEvent, RetryLater, Snapshot, handles

@handles("order.paid")
async def ship(event: Event, ctx: Context) -> None:
    async with ctx.http.post("https://x.example", json=event.data) as answer:
        if answer.status == 409:
            raise RetryLater(60)
    order = await ctx.payments.orders.lookup(event.order_id or "")
    if order.is_paid:
        ctx.log.info("paid", order_id=order.order_id)

@handles("order.paid", transactional=True)
async def keep(event: Event, ctx: Context) -> None:
    snapshot = await ctx.snapshot()
    if snapshot is None:
        ctx.request_read("order", event.order_id or "")
        return
    status: str | None = snapshot.status
    other: Snapshot | None = await ctx.snapshot("subscription", "sub_1")
    ctx.emit("shop.kept", event.key, {"status": status, "version": snapshot.version, "other": other is not None})

@handles("order.paid", transactional=True, batch=True, attempts=3)
async def keep_many(batch: Sequence[tuple[Event[OrderEvent], Context]]) -> None:
    for event, ctx in batch:
        ctx.emit("shop.kept", event.key, {"order": event.payload.order_id})
"""
WRONG = {
    "one parameter": ("async def ship(event: Event) -> None: ...", "a handler takes exactly (event, ctx)"),
    "not async": ("def ship(event: Event, ctx: Context) -> None: ...", "a handler is an async function"),
    "wrong type": ("async def ship(event: str, ctx: Context) -> None: ...", "'event' is annotated str, it gets Event"),
    "swapped": ("async def ship(ctx: Context, event: Event) -> None: ...", "'ctx' is annotated Context, it gets Event"),
    "wrong context": ("async def ship(event: Event, ctx: dict[str, str]) -> None: ...", "'ctx' is annotated dict"),
    "a third parameter": (
        "async def ship(event: Event, ctx: Context, more: int) -> None: ...",
        "a handler takes exactly (event, ctx)",
    ),
    "a generator": (
        "async def ship(event: Event, ctx: Context) -> AsyncIterator[None]: yield",
        "a handler is an async function",
    ),
    "returns": ("async def ship(event: Event, ctx: Context) -> int: return 1", "annotated to return int"),
}
KINDS = {"effect": "@handles('order.paid')", "transactional": "@handles('order.paid', transactional=True)"}
HEAD = "from collections.abc import AsyncIterator\nfrom consumer.plugin import Context, Event, handles\n"
CARELESS = {
    "not waited for": ("s = ctx.snapshot(); print(s.status)", 'has no attribute "status"'),
    "may be None": ("s = await ctx.snapshot(); print(s.status)", 'of "Snapshot | None" has no attribute "status"'),
    "no such kind": ("await ctx.snapshot('payment', 'p1')", "No overload variant of"),
    "half a name": ("await ctx.snapshot('order')", "No overload variant of"),
    "changed": ("s = await ctx.snapshot()\n    if s: s.status = 'PAID'", 'Property "status" defined in "Snapshot" is'),
    "record changed": ("s = await ctx.snapshot()\n    if s: s.record['a'] = 1", "Unsupported target for indexed"),
    "no such field": ("s = await ctx.snapshot()\n    if s: print(s.state)", 'has no attribute "state"'),
    "status as text": ("s = await ctx.snapshot()\n    if s: x: str = s.status", "Incompatible types in assignment"),
    "an ended transaction, not awaited": ("ctx.session.commit()", "Value of type"),
}


@pytest.mark.slow
def test_mypy_says_what_is_expected(tmp_path: Path) -> None:
    """One call for all: starting mypy is what takes the time."""
    (tmp_path / "good.py").write_text(GOOD)
    wrong = [(name, kind, source) for name, (source, _) in WRONG.items() for kind in KINDS]
    for number, (_, kind, source) in enumerate(wrong):
        (tmp_path / f"wrong_{number}.py").write_text(f"{HEAD}\n{KINDS[kind]}\n{source}\n")
    for number, (source, _) in enumerate(CARELESS.values()):
        body = f"async def ship(event: Event, ctx: Context) -> None:\n    {source}"
        (tmp_path / f"careless_{number}.py").write_text(f"{HEAD}\n{KINDS['effect']}\n{body}\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"),
         *[str(path) for path in sorted(tmp_path.glob("*.py"))]],
        capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert not [line for line in lines if "good.py" in line], done.stdout
    for number, (name, kind, _) in enumerate(wrong):
        found = [line for line in lines if f"wrong_{number}.py" in line]
        assert found, f"mypy let pass: {name}, {kind}"
        assert 'expected "Callable[[Event[Any], Context], Coroutine[Any, Any, None]]"' in found[0]
    for number, (name, (_, said)) in enumerate(CARELESS.items()):
        found = [line for line in done.stdout.splitlines() if f"careless_{number}.py" in line]
        assert any(said in line for line in found), (name, found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WRONG)
def test_check_says_it_too(name: str, kind: str) -> None:
    source, problem = WRONG[name]
    module = plugin(f"{HEAD}{KINDS[kind]}\n{source}")
    registry = load_registry(["wrong"], extra={"wrong": module})
    found = [one.line() for one in inspect_plugins(registry) if one.plugin == "wrong"]
    assert len(found) == (2 if name == "swapped" else 1)
    assert problem in found[0]


def test_check_finds_nothing_wrong_with_the_built_ins() -> None:
    assert inspect_plugins(load_registry()) == []


def test_check_names_what_is_not_there() -> None:
    registry = load_registry(["fulfilment", "shop"])
    found = inspect_plugins(registry, allowed=["fulfilment", "shop"], renamed={"shop:new": "shop:old"})
    first, second = (one.line() for one in found)
    assert first == "CONSUMER_HANDLERS: no handler and no plugin is called shop"
    assert second.startswith(
        "CONSUMER_RENAMED_HANDLERS: shop:old is to be known by the name shop:new, but no installed"
    )


def test_annotations_may_be_left_out_or_wider() -> None:
    async def bare(event, ctx):  # type: ignore[no-untyped-def]  # what it is about
        return None

    async def wide(event: object, ctx: Any) -> None:
        return None

    assert signature_problems(bare) == signature_problems(wide) == []


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ("batch: Sequence[tuple[Event, Context]]", None),
        ("batch: list[tuple[Event[OrderEvent], Context]]", None),
        ("batch", None),
        ("batch: Event", "'batch' is annotated Event, it gets Sequence[tuple[Event, Context]]"),
        ("batch: Sequence[Event]", "it gets Sequence[tuple[Event, Context]]"),
        ("batch: Sequence[tuple[Event[SubscriptionEvent], Context]]", "it is annotated Event[SubscriptionEvent]"),
        ("event, ctx", "a handler with batch=True takes exactly (batch)"),
    ],
)
def test_check_knows_who_takes_many(parameter: str, said: str | None) -> None:
    head = HEAD + "from collections.abc import Sequence\nfrom consumer.plugin import OrderEvent, SubscriptionEvent\n"
    source = f"{head}@handles('order.paid', transactional=True, batch=True)\nasync def many({parameter}) -> None: ...\n"
    registry = load_registry(["wrong"], extra={"wrong": plugin(source)})
    found = [one.line() for one in inspect_plugins(registry) if one.plugin == "wrong"]
    assert len(found) == (0 if said is None else 1), found
    assert said is None or said in found[0]


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0}, {"attempts": 1001}, {"timeout_s": 0}, {"concurrency": 0}, {"on_dead": "explode"},
        {"breaker_after": -1}, {"pause_after": -1}, {"first_wait_s": -1}, {"wait_factor": 0.5},
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    async def ship(event: Event, ctx: Context) -> None:
        return None

    with pytest.raises(Exception, match=r".") as caught:
        handles("order.paid", **options)(ship)  # type: ignore[no-untyped-call]  # any of the overloads
    assert getattr(caught.value, "code", None) == "handler_invalid"


def plugin(source: str) -> ModuleType:
    """A module whose import may fail, as an installed plugin's may: it runs when the registry looks at it."""

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__" and "loaded" not in object.__getattribute__(self, "__dict__"):
                found = object.__getattribute__(self, "__dict__")
                found["loaded"] = True
                exec(compile(source, "wrong.py", "exec"), found)
            return object.__getattribute__(self, name)

    return Lazy("wrong")


@pytest.mark.parametrize(("options", "told"), [
    ({"attempts": 2.5}, "attempts is a whole number above zero"),
    ({"attempts": True}, "attempts is a whole number above zero"),
    ({"attempts": "8"}, "attempts is a whole number above zero"),
    ({"timeout_s": "30"}, "timeout_s is a number"),
    ({"timeout_s": 60.5, "transactional": True}, "timeout_s of a transactional handler is at most 60"),
    ({"first_wait_s": None}, "first_wait_s is a number"),
    ({"transactional": "yes"}, "transactional is True or False"),
    ({"fulfils": "no"}, "fulfils is True or False"),
    ({"batch": "no", "transactional": True}, "batch is True or False"),
    ({"concurrency": True}, "concurrency is a whole number above zero"),
    ({"pause_after": False}, "pause_after is a whole number, 0 for never"),
    ({"name": 5}, "name is a text"),
    ({"name": ""}, "name is a text"),
    ({"runbook": 5}, "runbook is one line"),
    ({"runbook": " "}, "runbook is one line"),
    ({"runbook": "x" * 201}, "at most 200 printable"),
    ({"runbook": "first\nsecond"}, "runbook is one line"),
    ({"runbook": "turned \u202e round"}, "printable"),
    ({"runbook": "https://ada:secret@wiki.example"}, "leave user and password out"),
], ids=str)  # fmt: skip
def test_an_option_of_another_type_is_named(options: dict[str, Any], told: str) -> None:
    async def ship(event: Event, ctx: Context) -> None: ...

    declare: Any = handles
    with pytest.raises(HandlerInvalid, match=told):
        declare("order.paid", **options)(ship)


@pytest.mark.parametrize(("timeout_s", "transactional"), [(60, True), (61, False)])
def test_an_effect_may_take_longer_than_a_transaction(timeout_s: float, transactional: bool) -> None:
    async def ship(event: Event, ctx: Context) -> None: ...

    declare: Any = handles
    declare("order.paid", timeout_s=timeout_s, transactional=transactional)(ship)


def test_an_event_type_that_was_forgotten_is_asked_for() -> None:
    async def ship(event: Event, ctx: Context) -> None: ...

    declare: Any = handles
    with pytest.raises(HandlerInvalid, match="needs the event type"):
        declare(ship)


def test_a_partial_is_no_handler() -> None:
    async def ship(event: Event, ctx: Context, url: str) -> None: ...

    with pytest.raises(HandlerInvalid, match=r"call the functools\.partial from one"):
        handles("order.paid")(partial(ship, url="https://x.example"))
