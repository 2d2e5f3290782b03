"""Stories: the named scenarios of the service's side (cases, "Named scenarios"), played by the sandbox; what must come
out is the service's own final state."""

from __future__ import annotations

from functools import partial

from consumer.cli.developing.demo.scenarios import Play, Scenario
from consumer.cli.developing.demo.world import Check, World
from consumer.sandbox.scenarios import SCENARIOS as TOLD

NEW_SECRET = "new_secret"  # noqa: S105 - the name of a note, no secret


async def _told(world: World, name: str) -> list[Check]:
    """The sandbox plays; every order and every customer must end as the service says."""
    result = await world.sandbox.play(name)
    if NEW_SECRET in result:
        world.rotate_secret(result[NEW_SECRET])
    expected = result["expected"]
    checks = []
    if result["application"] == world.sandbox.config.app_id:
        paid = set(expected["fulfilled"])
        for order_id in expected["orders"]:
            wanted = ("fulfilled", 1) if order_id in paid else ("none", 0)
            checks.append(await world.expect(_short(order_id), wanted, partial(world.fulfilment_of, order_id)))
        for customer, allowed in expected["access"].items():
            what = f"access of {_short(customer)}"
            checks.append(await world.expect(what, allowed, partial(world.access, customer)))
    return checks or [await world.expect("effects of it", 0, partial(world.effects_of, result["events"]))]


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:37] + "..."


def _play(name: str) -> Play:
    return partial(_told, name=name)


def _text(name: str) -> str:
    return " ".join((TOLD[name].__doc__ or name).split())


STORIES = tuple(Scenario(name, _text(name), _play(name)) for name in TOLD)
