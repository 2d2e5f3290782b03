"""Drills of handlers: that fail, that are not there, and of what they decided."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal

from consumer.sandbox.scenarios.stage import Stage as Shop
from tests.drills.scene import Act, Drill, Scene, drill, nothing
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually
from tests.support.throttle import throttle

SHIP = "warehouse:ship"
LIVES_S = 5.0
LONG_AGO = "strftime('%Y-%m-%d %H:%M:%f', 'now', '-20 minutes')"
LABELS = """
from pathlib import Path
from consumer.plugin import Reject, handles

@handles("order.paid", name="labels:print", on_dead="continue")
async def print_label(event, ctx):
    if Path({broken!r}).exists():
        raise Reject("the printer has no paper")
"""
PLUGIN, HANDLER = "gifts_plugin", "gifts:wrap"
WAITS = """
from consumer.plugin import handles

@handles("order.paid", name="gifts:wrap", first_wait_s=600)
async def wrap(event, ctx):
    raise RuntimeError("there is no paper yet")
"""
PUTS_OFF = """
from consumer.plugin import RetryLater, handles

@handles("access.granted", name="gifts:wrap")
async def wrap(event, ctx):
    raise RetryLater(5)
"""
GIVES = """
from consumer.plugin import handles

@handles("access.granted", name="gifts:wrap")
async def wrap(event, ctx):
    ctx.log.info("given")
"""
BROKEN = "import there_is_no_such_module\n"
MENDED = """
from consumer.plugin import handles

@handles("order.paid", name="gifts:wrap")
async def wrap(event, ctx):
    ctx.log.info("wrapped")
"""


async def _pause(scene: Scene) -> None:
    await scene.type("handlers", "pause", SHIP, "--reason", "a drill")
    scene.pay()
    scene.names |= {"NAME": SHIP, "ORDER_ID": scene.found.paid[-1]}


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
    scene.names |= {"WORD": "fulfilment.released", "SUBJECT": session.order_id}
    scene.found.paid.append(session.order_id)


async def _no_paper(scene: Scene) -> None:
    """A handler gives an order up."""
    broken = scene.found.folder / "broken"
    broken.touch()
    installed = install_plugin(scene.found.folder, "labels_plugin", LABELS.format(broken=str(broken)))
    await scene.restart("work", **installed)
    scene.pay()
    scene.names["NAME"] = "labels:print"


async def _paper(scene: Scene) -> None:
    (scene.found.folder / "broken").unlink()


def _lose(*tables: str) -> Act:
    """Somebody's hand slipped in the database: of an order nothing is left in these tables."""

    async def strike(scene: Scene) -> None:
        scene.pay()
        await scene.found.shipped(within_s=60)
        order_id = scene.found.paid[-1]
        await scene.type("reconcile")

        async def is_in_the_books() -> bool:
            return scene.in_ledger("SELECT count(*) FROM fulfilment_payment WHERE order_id = ?", order_id) == [(1,)]

        await eventually(is_in_the_books, within_s=60, what="the payment is in the books")
        for table in tables:
            scene.in_ledger(f"DELETE FROM {table} WHERE order_id = ?", order_id)
        await scene.restart("console")

    return strike


async def _write_of_tomorrow(scene: Scene) -> None:
    """Somebody rolled back: a row holds a word of the newer version. A console that begins looks at once."""
    scene.pay()
    await scene.found.shipped(within_s=60)
    scene.in_ledger("UPDATE fulfilment_order SET hold = 'of_tomorrow' WHERE order_id = ?", scene.found.paid[-1])
    await scene.restart("console")


async def _take_it_back(scene: Scene) -> None:
    scene.in_ledger("UPDATE fulfilment_order SET hold = NULL WHERE hold = 'of_tomorrow'")


async def _derive_it_again(scene: Scene) -> None:
    """With `work` stopped. A console that begins looks at once, instead of within the hour."""
    await scene.stop("work")
    await scene.type("rebuild", "all", "--yes", "--reason", "drift")
    await scene.start("work")
    await scene.restart("console")


def _deploy(source: str) -> Act:
    """A version of the plugin is rolled out."""

    async def act(scene: Scene) -> None:
        await scene.restart("work", **install_plugin(scene.found.folder, PLUGIN, source))

    return act


async def _take_away(scene: Scene) -> None:
    """A handler has work that waits, and the next version of the shop does not bring it."""
    await _deploy(WAITS)(scene)
    scene.pay()

    async def waits() -> bool:
        return scene.in_ledger("SELECT count(*) FROM runs WHERE handler = ? AND status = 'retrying'", HANDLER) == [(1,)]

    await eventually(waits, within_s=60, what="a run of it waits")
    await scene.stop("work")
    shutil.rmtree(scene.found.folder / f"{PLUGIN}-1.0.dist-info")
    await scene.start("work")
    scene.names["NAME"] = HANDLER


async def _put_off(scene: Scene) -> None:
    """A customer subscribed twenty minutes ago, and who opens the door says each time: later."""
    await _deploy(PUTS_OFF)(scene)
    scene.found.subscribe()

    async def waits() -> bool:
        return scene.in_ledger("SELECT count(*) FROM runs WHERE handler = ? AND status = 'retrying'", HANDLER) == [(1,)]

    await eventually(waits, within_s=60, what="a run of it waits")
    scene.in_ledger(f"UPDATE runs SET created_at = {LONG_AGO} WHERE handler = ?", HANDLER)
    scene.names["NAME"] = HANDLER


async def _leave_a_plan(scene: Scene) -> None:
    """An `apply` is killed right after it began, and its lease is over."""
    plan = json.loads(await scene.type("replay", "plan", "--json"))["id"]
    scene.in_ledger("UPDATE plans SET status = 'applying', began_by = 'ann' WHERE id = ?", plan)
    scene.names["PLAN"] = plan


async def _die_again_and_again(scene: Scene) -> None:
    """It is killed as soon as it is up, and its supervisor starts it anew."""
    scene.noise = asyncio.create_task(_kill_and_start(scene))
    scene.names["NAME"] = SHIP


async def _kill_and_start(scene: Scene) -> None:
    while True:
        await asyncio.to_thread(scene.processes["work"].kill)
        await scene.start("work")
        await asyncio.sleep(LIVES_S)


async def _live(scene: Scene) -> None:
    await scene.be_quiet()
    await scene.stop("work")
    await scene.start("work")


async def _deploy_half(scene: Scene) -> None:
    """A second worker lacks a handler, and both have run for longer than a deploy takes."""
    scene.found.environ["CONSUMER_HANDLERS"] = "fulfilment,access"
    second = scene.found.process("work", "work-2")
    del scene.found.environ["CONSUMER_HANDLERS"]
    await scene.join("work-2", second)
    scene.in_ledger(
        "CREATE TRIGGER drill AFTER UPDATE ON processes WHEN new.role = 'work' BEGIN UPDATE processes "
        f"SET started_at = {LONG_AGO} WHERE process = new.process AND role = new.role; END"
    )


async def _forget_one(scene: Scene) -> None:
    """A second worker is of the version before, and nobody began for longer than a deploy takes."""
    second = scene.found.process("work", "work-2")
    await scene.join("work-2", second)
    scene.in_ledger(
        "CREATE TRIGGER drill AFTER UPDATE ON processes BEGIN UPDATE processes SET started_at = "
        f"{LONG_AGO}, version = iif(new.pid = {second.pid}, '0.0.9', new.version) "
        "WHERE process = new.process AND role = new.role; END"
    )


async def _end_the_old(scene: Scene) -> None:
    scene.in_ledger("DROP TRIGGER drill")
    await scene.stop("work-2")
    del scene.processes["work-2"]
    scene.look()


async def _starve(scene: Scene) -> None:
    """The leader gets a hundredth of a processor."""
    pid = scene.processes["sync"].pid
    scene.noise = asyncio.create_task(throttle(lambda one: os.kill(pid, one)))
    scene.names |= {"NAME": SHIP}


async def _feed(scene: Scene) -> None:
    await scene.be_quiet()
    os.kill(scene.processes["sync"].pid, signal.SIGCONT)


WORK: tuple[Drill, ...] = (
    drill(
        "a handler is paused", "HandlerPaused", "PaidUnfulfilled",
        strike=_pause, cure=nothing, names=("NAME", "ORDER_ID"),
    ),
    drill(
        "work dies again and again", "RoleRestarts",
        strike=_die_again_and_again, cure=_live, names=("NAME",),
    ),
    drill("a worker lacks a handler", "WorkersDiffer", strike=_deploy_half, cure=_end_the_old),
    drill("a worker is of an older version", "VersionsDiffer", strike=_forget_one, cure=_end_the_old),
    drill("a role is slow", "RoleSlow", strike=_starve, cure=_feed, names=("NAME",)),
    drill("the warehouse is away", "HandlerWaiting", strike=_close_warehouse, cure=_open_warehouse),
    drill("a handler gave up", "DeadRuns", strike=_no_paper, cure=_paper, names=("NAME",)),
    drill(
        "a handler puts off what was decided", "DecisionsLate",
        strike=_put_off, cure=_deploy(GIVES), names=("NAME",),
    ),
    drill(
        "an order was paid with too little", "FindingsOpen",
        strike=_mismatch, cure=nothing, names=("WORD", "SUBJECT"),
    ),
    drill(
        "an order is lost", "InvariantsBroken",
        strike=_lose("fulfilment_order"), cure=_derive_it_again,
    ),
    drill(
        "an order is lost with its payment", "MoneyUnexplained",
        strike=_lose("fulfilment_payment", "fulfilment_order"), cure=_derive_it_again,
    ),
    drill(
        "money and access cannot be accounted for", "Unaccounted",
        strike=_write_of_tomorrow, cure=_take_it_back,
    ),
    drill("a plugin cannot be loaded", "PluginsBroken", strike=_deploy(BROKEN), cure=_deploy(MENDED)),
    drill("an apply is killed", "PlanHalfApplied", strike=_leave_a_plan, cure=nothing, names=("PLAN",)),
    drill("a handler is gone", "HandlersGone", strike=_take_away, cure=nothing, names=("NAME",)),
    drill(
        "a built-in plugin is left out", "BuiltInLeftOut",
        strike=lambda scene: scene.restart("work", CONSUMER_HANDLERS=f"{SHIP},fulfilment"),
        cure=lambda scene: scene.as_before("work"),
    ),
)  # fmt: skip
