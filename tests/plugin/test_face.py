"""The handler's face: what is not there says so, ids are stable, and the API client is what `ctx.payments` promises."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from jsonpointer import JsonPointer

import consumer.plugin
from consumer.errors import HandlerMisuse
from consumer.events import Source
from consumer.payments import PaymentsClient
from consumer.plugin import Context, Event, Handler, Payload, PaymentsApi, handles
from consumer.plugin.declaration import declared
from consumer.plugin.payloads import OURS
from consumer.testing import Workbench
from consumer.wire import own_event
from tests.support.desk import Desk

HANDLERS = Path(__file__).resolve().parents[2] / "handlers"
README, REFERENCE = HANDLERS / "README.md", HANDLERS / "REFERENCE.md"


def as_promised(client: PaymentsClient) -> PaymentsApi:
    """mypy holds the client against the face here."""
    return client


# case: H4
@pytest.mark.parametrize("used", ["session", "http", "payments", "emit", "request_read", "note"])
@pytest.mark.parametrize("transactional", [True, False])
def test_using_what_its_kind_does_not_have_is_a_clear_error(
    workbench: Workbench, used: str, transactional: bool
) -> None:
    @handles("order.paid", transactional=transactional, name="test:uses")
    async def uses(event: Event, ctx: Context) -> None:
        match used:
            case "session" | "http" | "payments":
                getattr(ctx, used)
            case "emit":
                ctx.emit("shop.seen", event.key, {})
            case "request_read":
                ctx.request_read("order", "A-1")
            case "note":
                ctx.note(event.key, "seen", {}, {})

    ran = workbench.run(uses, workbench.event("order.paid", order_id="A-1"))
    is_network = used in ("http", "payments")
    if is_network == transactional:
        assert ran.status == "dead"
        assert ran.code == "handler_misuse"
        assert f"ctx.{used}" in (ran.reason or "")
    else:
        assert ran.succeeded


# case: H2, F30
def test_what_a_handler_receives(workbench: Workbench) -> None:
    seen: list[dict[str, Any]] = []

    @handles("order.paid", name="test:looks", timeout_s=7, first_wait_s=1)
    async def looks(event: Event, ctx: Context) -> None:
        seen.append(
            {"key": ctx.idempotency_key, "attempt": ctx.attempt, "replay": ctx.is_replay, "raw": event.raw,
             "left_s": (ctx.deadline - ctx.now).total_seconds(), "order": event.order_id}
        )  # fmt: skip
        if ctx.attempt == 1:
            raise ValueError("again")

    event = workbench.event("order.paid", order_id="A-1", data={"odd": "\u00e9 "})
    workbench.run(looks, event)
    workbench.advance(10, looks)
    assert [one["attempt"] for one in seen] == [1, 2]
    assert seen[0]["key"] == seen[1]["key"]
    assert seen[0]["raw"] == event.raw
    assert (seen[0]["left_s"], seen[0]["order"], seen[0]["replay"]) == (7, "A-1", False)


def test_a_derived_event_is_the_same_however_often_it_is_emitted(workbench: Workbench) -> None:
    ids: list[str] = []

    @handles("order.paid", transactional=True, name="test:emits")
    async def emits(event: Event, ctx: Context) -> None:
        ids.append(ctx.emit("shop.paid", event.key, {"a": 1}, once="paid"))
        ids.append(ctx.emit("shop.paid", event.key, {"a": 2}, once="paid"))

    workbench.run(emits, workbench.event("order.paid", order_id="A-1"))
    workbench.run(emits, workbench.event("order.paid", order_id="A-1"))
    assert len(set(ids)) == 1
    assert [event.id for event in workbench.emitted] == ids[:1]


def test_two_that_would_be_one_event_are_refused(workbench: Workbench) -> None:
    """A line of an order each, and no `once`: the second one was never sent, and nobody was told."""

    class PickDue(Payload, event="shop.pick_due"):
        line: int

    @handles("order.paid", transactional=True, name="test:picks")
    async def picks(event: Event, ctx: Context) -> None:
        for line in event.find("/data/object/lines"):
            ctx.emit("shop.pick_due", event.key, {"line": line})

    same = workbench.run(picks, workbench.event("order.paid", order_id="A-1", data={"lines": [1, 1]}))
    assert same.succeeded
    ran = workbench.run(picks, workbench.event("order.paid", order_id="A-2", data={"lines": [1, 2]}))
    assert (ran.status, ran.code) == ("dead", "handler_misuse")
    assert "once" in (ran.reason or "")
    assert [event.find("/data/line") for event in workbench.emitted] == [1]


# case: F3
def test_what_is_not_a_plugins_to_say_is_refused(workbench: Workbench) -> None:
    """Under a `once` of its own a request was a second parcel; and so was a proof that no service gave."""

    @handles("order.paid", transactional=True, name="test:eager", pause_after=0)
    async def eager(event: Event, ctx: Context) -> None:
        ctx.emit(event.find("/data/object/says"), event.key, {"order_id": event.order_id}, once="mine")

    @handles("order.paid", transactional=True, name="test:quiet", pause_after=0)
    async def quiet(event: Event, ctx: Context) -> None:
        ctx.withdraw(event.find("/data/object/says"), event.key, once="read")

    assert {"fulfilment.requested", "access.granted", "order.paid", "order.observed", "access.customer_due"} <= OURS
    said = [workbench.event("order.paid", order_id=f"A-{one}", data={"says": one}) for one in sorted(OURS)]
    workbench.run([eager, quiet], *said)
    assert len(workbench.runs) == 2 * len(OURS)
    for ran in workbench.runs:
        assert (ran.status, ran.attempts, ran.code) == ("dead", 1, "handler_misuse")
        assert "is no plugin's" in (ran.reason or "")
    assert not workbench.emitted


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_has_not_is_refused_and_nothing_else_is_made_of_it(
    workbench: Workbench, number: float
) -> None:
    """An amount that came to nothing was emitted as null."""

    @handles("order.paid", transactional=True, name="test:emits")
    async def emits(event: Event, ctx: Context) -> None:
        ctx.emit("shop.counted", event.key, {"amounts": [{"each": (1.0, None)}, {"sum": number}]})

    @handles("order.paid", transactional=True, name="test:notes")
    async def notes(event: Event, ctx: Context) -> None:
        ctx.note(event.key, "counted", {}, {"sum": number})

    @handles("order.paid", transactional=True, name="test:null")
    async def null(event: Event, ctx: Context) -> None:
        ctx.emit("shop.counted", event.key, {"amounts": [{"sum": None}]})

    workbench.run([emits, notes, null], workbench.event("order.paid", order_id="A-1"))
    ended = {ran.handler: (ran.status, ran.code) for ran in workbench.runs}
    assert ended["test:null"] == ("succeeded", None)
    assert ended["test:emits"] == ended["test:notes"] == ("dead", "handler_misuse")
    assert all("nan" in (ran.reason or "") for ran in workbench.runs if ran.handler != "test:null")
    assert [event.find("/data/amounts/0/sum") for event in workbench.emitted] == [None]


def test_what_a_plugin_may_say_is_not_refused(workbench: Workbench) -> None:
    @handles("order.paid", transactional=True, name="test:unfulfillable")
    async def unfulfillable(event: Event, ctx: Context) -> None:
        ctx.emit("fulfilment.unfulfillable", event.key, {"reason": "sold out"})

    assert workbench.run(unfulfillable, workbench.event("order.paid", order_id="A-1")).succeeded
    assert [event.type for event in workbench.emitted] == ["fulfilment.unfulfillable"]


def test_what_is_withdrawn_does_not_come(workbench: Workbench) -> None:
    """A timer of whichever handler, also one that is emitted and withdrawn in one transaction; what is due comes."""
    came: list[str] = []

    class Late(Payload, event="shop.late"):
        """Nothing."""

    @handles("order.expired", transactional=True, name="test:waits")
    async def waits(event: Event, ctx: Context) -> None:
        ctx.emit("shop.late", event.key, {}, not_before=ctx.now + timedelta(seconds=60), once="late")

    @handles("order.paid", transactional=True, name="test:waits_no_more")
    async def waits_no_more(event: Event, ctx: Context) -> None:
        ctx.withdraw("shop.late", event.key, once="late")

    @handles("shop.late", transactional=True, name="test:hears")
    async def hears(event: Event, ctx: Context) -> None:
        came.append(event.key)

    for order, paid_after_s in {"A-1": 0.0, "A-2": 30.0, "A-3": 90.0}.items():
        late, paid = (workbench.event(type_, order_id=order) for type_ in ("order.expired", "order.paid"))
        if paid_after_s:
            workbench.run(waits, late)
            workbench.advance(paid_after_s, [waits, hears])
            workbench.run(waits_no_more, paid)
        else:
            workbench.run([waits_no_more, waits], late, paid)
        workbench.advance(120, [waits, hears])
    assert came == ["order:A-3"]


def test_what_is_withdrawn_and_emitted_once_more_comes_at_its_new_time(workbench: Workbench) -> None:
    """A reservation that is extended is not released at its first end, also where both are in one transaction."""
    came: list[tuple[str, int, datetime]] = []

    class Release(Payload, event="shop.release_due"):
        end: int

    def until(event: Event, ctx: Context, hours: int) -> None:
        at = event.received_at + timedelta(hours=hours)
        ctx.emit("shop.release_due", event.key, {"end": hours}, at, once="release")

    @handles("checkout.session.completed", transactional=True, name="test:reserves")
    async def reserves(event: Event, ctx: Context) -> None:
        until(event, ctx, 1)

    @handles("order.expired", transactional=True, name="test:extends")
    async def extends(event: Event, ctx: Context) -> None:
        ctx.withdraw("shop.release_due", event.key, once="release")
        until(event, ctx, 5)

    @handles("shop.release_due", transactional=True, name="test:releases")
    async def releases(event: Event[Release], ctx: Context) -> None:
        came.append((event.key, event.payload.end, ctx.now))

    handlers = [reserves, extends, releases]
    began = workbench.clock.now()
    for order, apart in {"A-1": True, "A-2": False}.items():
        events = [workbench.event(one, order_id=order) for one in ("checkout.session.completed", "order.expired")]
        for at_once in [[one] for one in events] if apart else [events]:
            workbench.deliver(handlers, *at_once)
    workbench.advance(6 * 3600, handlers)
    assert [(key, end) for key, end, _ in came] == [("order:A-1", 5), ("order:A-2", 5)]
    assert min(at for *_, at in came) >= began + timedelta(hours=5)


def test_every_option_and_every_part_of_the_face_is_documented() -> None:
    text = README.read_text() + REFERENCE.read_text()
    options = [name for name in handles.__kwdefaults__ or {} if f"`{name}" not in text]
    assert not options, f"options that handlers/REFERENCE.md does not name: {options}"
    parts = [name for name in vars(Context) if not name.startswith("_") and name not in text]
    assert set(parts) <= {"emissions", "reads", "notes", "withdrawn"}, parts


def test_the_examples_of_the_readme_and_of_the_module_run() -> None:
    """And the tests in them pass."""
    played: list[str] = []
    examples = [block for page in (README, REFERENCE) for block in code_blocks(page.read_text()) if "@handles" in block]
    examples += [block for block in code_blocks(consumer.plugin.__doc__ or "") if "@handles" in block]
    assert len(examples) >= 3
    for example in examples:
        names: dict[str, Any] = {"URL": "https://shop.example"}
        exec(compile(ast.parse(example), "README.md", "exec", dont_inherit=True), names)
        found = [value for value in names.values() if isinstance(consumer.plugin.declared(value), Handler)]
        assert found, example
        for name, test in names.items():
            if name.startswith("test_"):
                with Workbench() as bench:
                    test(**({"workbench": bench} if inspect.signature(test).parameters else {}))
                played.append(name)
    assert "test_who_has_paid_is_not_reminded" in played
    assert len(played) >= 3


def code_blocks(text: str) -> list[str]:
    """The indented blocks of a Markdown text or a docstring."""
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", text, re.MULTILINE)
    return ["\n".join(line[4:] for line in block.splitlines()).strip() for block in blocks if block.strip()]


def test_misuse_is_an_error_of_ours() -> None:
    assert HandlerMisuse.code == "handler_misuse"


def test_every_command_of_the_tutorial_exists_with_its_options() -> None:
    """What the tutorial types is there: each command answers --help, and each option is one of its own."""
    lines = [line for block in code_blocks(README.read_text()) for line in block.splitlines()]
    typed = [line.split("#")[0].split(" > ")[0].split() for line in lines if line.startswith("consumer ")]
    assert len(typed) >= 10
    for _, *words in typed:
        command = list(itertools.takewhile(lambda word: re.fullmatch("[a-z]+", word), words))[:2]
        told = Desk({}).call(*command, "--help")
        assert told.returncode == 0, command
        options = {word for word in words if word.startswith("--")}
        assert not {one for one in options if one not in told.stdout}, (command, options)


ONE_HANDLER = """from consumer.plugin import handles

@handles("order.paid", name="test:one")
async def one(event, ctx):
    async def tell(name):
        return [
            name
            for _ in range(3)
        ]
    await tell("warehouse")
"""


# case: R14
@pytest.mark.parametrize(
    ("written", "same"),
    [
        (ONE_HANDLER, True),
        ("# a line above\n\n" + ONE_HANDLER, True),
        (ONE_HANDLER + "\n\nUNRELATED = 1\n", True),
        (ONE_HANDLER.replace('"warehouse"', '"depot"'), False),
        (ONE_HANDLER.replace("range(3)", "range(4)"), False),
        (ONE_HANDLER.replace("test:one", "test:two"), False),
    ],
)
def test_the_code_version_is_that_of_the_handlers_own_source(tmp_path: Path, written: str, same: bool) -> None:
    def version(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source)
        scope: dict[str, Any] = {"__name__": name}
        exec(compile(source, tmp_path / f"{name}.py", "exec"), scope)
        found = declared(scope["one"])
        assert found is not None
        return found.version

    assert (version("before", ONE_HANDLER) == version("after", written)) is same


WORDS = some.sampled_from(["a", "b", "0", "1", "a/b", "~", "", "id"])
BODIES = some.dictionaries(WORDS, some.recursive(
    some.none() | some.booleans() | some.integers(0, 9) | some.text("xyz", max_size=3),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(WORDS, inner, max_size=3),
    max_leaves=12,
), max_size=4)  # fmt: skip
POINTERS = some.lists(some.lists(WORDS, min_size=1, max_size=4).map(lambda parts: JsonPointer.from_parts(parts).path),
                      max_size=6)  # fmt: skip


# case: U1
@given(body=BODIES, pointers=POINTERS)
def test_what_is_found_in_an_event_is_what_json_pointers_say(body: dict[str, Any], pointers: list[str]) -> None:
    event = own_event(application="default", id="drv_1", type="a.b", key="order:A-1", source=Source.RELAY,
                      at=datetime.now().astimezone(), data={}).read_as(body)  # fmt: skip
    there = [JsonPointer(one).resolve(body, None) for one in pointers]
    found = [one for one in there if one is not None]
    assert list(event.find_all(*pointers)) == found
    assert event.find(*pointers) == next(iter(found), None)
