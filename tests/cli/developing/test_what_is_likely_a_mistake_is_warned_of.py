"""`handlers check` warns of designs that pass each test of their own and lose money, or leave access open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consumer.plugin import Context, Event, declared, handles
from consumer.work.inspection import warnings_of
from consumer.work.registry import Registry, load_registry

GRANTED, REVOKED, BOTH = ("access.granted",), ("access.revoked",), ("access.granted", "access.revoked")


def warned(*given: tuple[str, tuple[str, ...], dict[str, Any]], plugin: str | None = None) -> dict[str, str]:
    """Handlers of one plugin, or each of one of its own, and what is said of which."""
    found = []
    for name, types, options in given:

        @handles(*types, name=name, **options)
        async def acts(event: Event, ctx: Context) -> None: ...

        handler = declared(acts)
        assert handler is not None
        found.append(replace(handler, plugin=plugin or name))
    return {str(one.handler): one.text for one in warnings_of(Registry(found))}


# case: G1, H10
@pytest.mark.parametrize("mirror", [(), (("all", ("*",), {}),)])
def test_access_that_one_handler_opens_and_another_closes(mirror: tuple[Any, ...]) -> None:
    """What is tried again late is the last word: who had ended was let in."""
    told = warned(("open", GRANTED, {}), ("close", REVOKED, {}), *mirror, plugin="door")
    assert list(told) == ["open"]
    assert "close access.revoked: between two handlers no order is kept" in told["open"]
    assert f"{__name__.rpartition('.')[2]}.py:" in told["open"]


# case: H10
@pytest.mark.parametrize(
    "given",
    [
        [("welcome", GRANTED, {})],
        [("bye", REVOKED, {})],
        [("door", BOTH, {})],
        [("door", ("access.*",), {}), ("welcome", GRANTED, {}), ("bye", REVOKED, {})],
        [("counts", GRANTED, {"transactional": True}), ("bye", REVOKED, {})],
    ],
)
def test_one_handler_of_both_and_a_mail_on_one_of_them_are_right(given: list[Any]) -> None:
    assert not warned(*given, plugin="door")


# case: H10
def test_two_plugins_split_nothing() -> None:
    assert not warned(("welcome", GRANTED, {}), ("crm", REVOKED, {}))


# case: F4, H10
@pytest.mark.parametrize("types", ["order.paid", "order.*", "checkout.session.completed", "checkout.*"])
def test_a_delivery_by_what_comes_more_than_once(types: str) -> None:
    """Two events of one order were two parcels, by two keys."""
    told = warned(("ship", (types, "order.expired"), {}))["ship"]
    assert told.startswith(f"{types} may come more than once for an order")
    assert not warned(("tell", (types,), {"fulfils": False}))
    assert not warned(("keep", (types,), {"transactional": True}))


# case: H10
@pytest.mark.parametrize("types", ["fulfilment.requested", "*", "order.expired", "checkout.session.expired"])
def test_who_hears_of_no_payment_is_not_asked(types: str) -> None:
    assert not warned(("any", (types,), {}))


def test_nothing_is_said_of_what_comes_with_the_consumer() -> None:
    assert warnings_of(load_registry()) == []
