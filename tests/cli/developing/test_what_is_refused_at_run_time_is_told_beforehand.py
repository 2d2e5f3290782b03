"""`handlers check` says what a handler will be refused for when it runs, as far as its text tells; `handlers try` shows
the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumer.cli.developing.misuse import misuses
from consumer.cli.developing.reload.version import version_of
from consumer.plugin import declared
from consumer.work.registry import load_registry
from tests.plugin.conftest import on_the_path
from tests.support.desk import Desk
from tests.support.merchant.plugin import install_plugin

__all__ = ["on_the_path"]

HEAD = "from consumer.plugin import Context, Event, handles\nTYPE = 'access.granted'\n"
PROJECTION = (
    "@handles('order.paid', name='p:a', transactional=True)\nasync def a(event: Event, ctx: Context) -> None:\n"
)
EFFECT = "@handles('order.paid', name='p:a')\nasync def a(event: Event, ctx: Context) -> None:\n"
BATCH = "@handles('order.paid', name='p:a', transactional=True, batch=True)\nasync def a(batch) -> None:\n"
REFUSED = {
    "the service's": (
        f"{PROJECTION}    ctx.emit('order.paid', event.key, {{}})",
        "emit of order.paid is no plugin's",
        5,
    ),
    "a built-in's": (
        f"{PROJECTION}    ctx.emit('fulfilment.requested', event.key, {{}}, once='mine')",
        "emit of fulfilment.requested is no plugin's",
        5,
    ),
    "a constant": (
        f"{PROJECTION}    ctx.emit(type=TYPE, key='k', data={{}})",
        "emit of access.granted is no plugin's",
        5,
    ),
    "a timer": (
        f"{PROJECTION}    ctx.withdraw('access.customer_due', event.key, once='1')",
        "withdraw of access.customer_due is no plugin's",
        5,
    ),
    "either": (
        f"{PROJECTION}    ctx.emit('order.paid' if event.order_id else 'shop.x', event.key, {{}})",
        "emit of order.paid is no plugin's",
        5,
    ),
    "no type": (f"{PROJECTION}    ctx.emit('Shop', event.key, {{}})", "emit needs a dotted type", 5),
    "in a batch": (
        f"{BATCH}    for event, its in batch:\n        its.emit('order.paid', event.key, {{}})",
        "emit of order.paid is no plugin's",
        6,
    ),
    "further on": (
        f"async def tell(it, to):\n    to.emit('order.paid', it, {{}})\n{PROJECTION}    await tell(event.key, to=ctx)",
        "emit of order.paid is no plugin's",
        4,
    ),
    "an effect handler that emits": (
        f"{EFFECT}    ctx.emit('shop.x', event.key, {{}})",
        "ctx.emit is for transactional handlers only",
        5,
    ),
    "a projection on the network": (
        f"{PROJECTION}    await ctx.http.get('https://x.example')",
        "ctx.http is for effect handlers only",
        5,
    ),
    "a second function of its name": (
        f"{EFFECT}    ...\n{PROJECTION}    ...",
        "another handler of the module is a function a, too, and is lost",
        4,
    ),
}
ALLOWED = {
    "a function before it": f"def a() -> None: ...\n{PROJECTION}    ...",
    "its own": f"{PROJECTION}    ctx.emit('shop.kept', event.key, {{}})",
    "an operator's word": f"{PROJECTION}    ctx.emit('fulfilment.unfulfillable', event.key, {{'reason': 'sold out'}})",
    "a name of its own": f"{PROJECTION}    TYPE = 'shop.kept'\n    ctx.emit(TYPE, event.key, {{}})",
    "another's emit": f"{PROJECTION}    event.signal.emit('order.paid', event.key)",
    "what the event says": f"{PROJECTION}    ctx.emit(event.find('/data/type'), event.key, {{}})",
}


# case: H10
@pytest.mark.parametrize("name", REFUSED)
def test_by_one_line_and_exit_1(on_the_path: Path, name: str) -> None:
    source, told, line = REFUSED[name]
    install_plugin(on_the_path, "refused", f"{HEAD}{source}\n")
    done = Desk({}).call("handlers", "check", "--json", CONSUMER_HANDLERS="refused")
    assert done.returncode == 1, done.stderr
    [problem] = json.loads(done.stdout)["problems"]
    assert (problem["plugin"], problem["handler"]) == ("refused", "p:a")
    assert told in problem["problem"]
    assert f"refused.py:{line} in " in problem["problem"]


# case: H10
@pytest.mark.parametrize("name", ALLOWED)
def test_nothing_is_said_of_what_is_allowed_or_not_known(on_the_path: Path, name: str) -> None:
    install_plugin(on_the_path, "allowed", f"{HEAD}{ALLOWED[name]}\n")
    [handler] = load_registry(["allowed"]).handlers
    assert misuses(handler) == []


def test_of_the_built_in_handlers_nothing_is_said() -> None:
    assert Desk({}).call("handlers", "check").returncode == 0


# case: H11
def test_a_save_that_will_be_refused_is_told(on_the_path: Path) -> None:
    install_plugin(on_the_path, "refused", f"{HEAD}{REFUSED['a constant'][0]}\n")
    assert "no plugin's" in "".join(version_of(load_registry(["refused"]), ()).problems)


def test_a_handler_without_a_text_is_let_be() -> None:
    names: dict[str, object] = {}
    exec(f"{HEAD}{REFUSED['a timer'][0]}", names)
    handler = declared(names["a"])
    assert handler is not None
    assert misuses(handler) == []


# case: H4
def test_what_only_the_run_shows_is_shown_by_try(on_the_path: Path, tmp_path: Path) -> None:
    source = f"{PROJECTION}    ctx.emit('.'.join(('order', 'paid')), event.key, {{}})\n"
    install_plugin(on_the_path, "refused", f"{HEAD}{source}")
    desk = Desk({"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db", "CONSUMER_HANDLERS": "refused"})
    assert desk.call("handlers", "check").returncode == 0
    assert desk.call("db", "upgrade").returncode == 0
    event = {"id": "evt_1", "application": "default", "type": "order.paid", "key": "order:A-1", "trust": "signed",
             "source": "webhook", "received_at": "2026-01-01T00:00:00Z", "payload": {}}  # fmt: skip
    (tmp_path / "event.json").write_text(json.dumps(event))
    done = desk.call("handlers", "try", "p:a", "--event", str(tmp_path / "event.json"))
    assert done.returncode == 1, done.stderr
    assert "dead: handler_misuse: emit of order.paid is no plugin's" in done.stdout
