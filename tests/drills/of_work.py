"""Drills of handlers, and of what they decided."""

from __future__ import annotations

from consumer.sandbox.scenarios.stage import Stage as Shop
from tests.drills.scene import Drill, Scene, drill
from tests.support.merchant.plugin import install_plugin

SHIP = "warehouse:ship"
LABELS = """
from pathlib import Path
from consumer.plugin import Reject, handles

@handles("order.paid", name="labels:print", on_dead="continue")
async def print_label(event, ctx):
    if Path({broken!r}).exists():
        raise Reject("the printer has no paper")
"""


async def _pause(scene: Scene) -> None:
    await scene.type("handlers", "pause", SHIP, "--reason", "a drill")
    scene.pay()


async def _resume(scene: Scene) -> None:
    await scene.type("handlers", "resume", SHIP, "--reason", "a drill")


async def _close_warehouse(scene: Scene) -> None:
    scene.found.warehouse.is_away = True
    scene.pay(12)


async def _open_warehouse(scene: Scene) -> None:
    scene.found.warehouse.is_away = False


async def _mismatch(scene: Scene) -> None:
    """The shop registered another amount than was paid."""
    shop = Shop(scene.found.sandbox, scene.found.sandbox.config.app_id, 1)
    session = shop.order("dear")
    said = (f"session_id={session.id}", f"order_id={session.order_id}", "expected_amount=99.00")
    words = [word for one in said for word in ("--set", one)]
    await scene.type("say", "checkout.registered", session.order_id, *words, "--reason", "a drill", "--yes")
    shop.pay(session)
    scene.orders = [session.order_id]
    scene.found.paid.append(session.order_id)


async def _released(scene: Scene) -> None:
    await scene.type("say", "fulfilment.released", *scene.orders, "--reason", "the customer paid the rest", "--yes")


async def _no_paper(scene: Scene) -> None:
    """A handler gives an order up."""
    broken = scene.found.folder / "broken"
    broken.touch()
    installed = install_plugin(scene.found.folder, "labels_plugin", LABELS.format(broken=str(broken)))
    await scene.restart("work", **installed)
    scene.pay()


async def _paper(scene: Scene) -> None:
    (scene.found.folder / "broken").unlink()
    await scene.type("dead", "redrive", "--handler", "labels:print", "--reason", "there is paper", "--yes")


WORK: tuple[Drill, ...] = (
    drill("a handler is paused", "HandlerPaused", "PaidUnfulfilled", strike=_pause, cure=_resume),
    drill("the warehouse is away", "HandlerWaiting", strike=_close_warehouse, cure=_open_warehouse),
    drill("a handler gave up", "DeadRuns", strike=_no_paper, cure=_paper),
    drill("an order was paid with too little", "FindingsOpen", strike=_mismatch, cure=_released),
)
