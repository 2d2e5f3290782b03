"""Drills of what the service lists: what it forgot, what was there before, what it told nobody."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

import orjson

from consumer.lists.bookmark import WALK
from consumer.sandbox.scenarios.stage import Stage as Shop
from consumer.sync.reconcile.policy import ReconcilePolicy
from tests.drills.scene import Drill, Scene, drill, nothing
from tests.support.ports import eventually

AWAY = timedelta(hours=2)
TOO_MANY = ReconcilePolicy().brake_min + 10
NEW_WORD = "UNPAID"
CANARY_S = 480.0
"""It looks every minute, and what was missing for three is late; the rules cannot shorten that."""


async def _forget(scene: Scene) -> None:
    """`sync` was away for two hours, as the ledger has it, and the service remembers nothing of that time. It is slow,
    too, so that reconcile is not over sooner than anybody looks."""
    await scene.stop("sync")
    scene.found.hear(at_work=False)
    scene.pay(3)
    sandbox = scene.found.sandbox
    sandbox.assumptions.set({"retention_s": 1})

    def is_forgotten() -> bool:
        sandbox.engine.events.purge()
        return not any(event.listed for event in sandbox.engine.world.events)

    await eventually(is_forgotten, within_s=20, what="the service has forgotten its events")
    _set_bookmark_back(scene)
    sandbox.engine.faults.set({"api_slow_s": 3})
    await scene.start("sync")


def _set_bookmark_back(scene: Scene) -> None:
    [(state,)] = scene.in_ledger("SELECT state FROM bookmarks WHERE walk = ?", WALK)
    assert isinstance(state, bytes)
    bookmark = orjson.loads(state)
    bookmark["walked_at"] = (datetime.fromisoformat(bookmark["walked_at"]) - AWAY).isoformat()
    scene.in_ledger("UPDATE bookmarks SET state = ? WHERE walk = ?", orjson.dumps(bookmark), WALK)


async def _remember(scene: Scene) -> None:
    """Reconcile starts by itself."""
    scene.found.sandbox.assumptions.set({"retention_s": 0})
    scene.found.sandbox.engine.faults.set({"api_slow_s": 0})
    scene.found.hear(at_work=True)


async def _older_shop(scene: Scene) -> None:
    """A second application comes in, and it has sold before."""
    sandbox = scene.found.sandbox
    mine = sandbox.engine.applications.get(sandbox.config.app_id)
    other, secret = sandbox.engine.applications.add(mine.merchant_id, "An older shop")
    shop = Shop(sandbox, other.id, 1)
    shop.pay(shop.order("old"))
    world = sandbox.engine.world
    for event in [one for one in world.events if one.app_id == other.id]:
        world.put(world.events, replace(event, created_at=event.created_at - AWAY))
    older = {"base_url": sandbox.base_url, "app_id": other.id, "app_secret": secret}
    await scene.restart("sync", CONSUMER_APPLICATIONS=json.dumps({"older": older}))


async def _tell_nobody(scene: Scene) -> None:
    """Many orders are paid; no webhook tells of them, and the list of events neither. Reconcile is due."""
    await scene.stop("sync")
    scene.found.hear(at_work=False)
    _pay_unlisted(scene, TOO_MANY)
    scene.names["NUMBER"] = str(TOO_MANY)
    await scene.restart("sync", CONSUMER_RECONCILE_INTERVAL_S="60")


async def _be_nobodys(scene: Scene) -> None:
    """The service lists a paid order without the merchant's id; reconcile is due."""
    world = scene.found.sandbox.engine.world
    order = next(one for one in world.orders if one.order_id == scene.found.paid[0])
    world.put(world.orders, replace(order, order_id=None))  # type: ignore[arg-type]  # what no service should show
    await scene.restart("sync", CONSUMER_RECONCILE_INTERVAL_S="60")


async def _be_whose_it_is(scene: Scene) -> None:
    """It shows it again."""
    world = scene.found.sandbox.engine.world
    order = next(one for one in world.orders if one.order_id is None)
    world.put(world.orders, replace(order, order_id=scene.found.paid[0]))


async def _slip_through(scene: Scene) -> None:
    """An order is paid; its webhook never comes, the list of events lacks it, and reconcile is not due."""
    sandbox = scene.found.sandbox
    sandbox.engine.faults.set({"drop": 1})
    _pay_unlisted(scene, 1)
    sandbox.engine.faults.set({"drop": 0})
    scene.names["ORDER_ID"] = scene.found.paid[-1]


def _pay_unlisted(scene: Scene, count: int) -> None:
    world = scene.found.sandbox.engine.world
    known = {event.id for event in world.events}
    scene.pay(count)
    for event in [one for one in world.events if one.id not in known]:
        world.put(world.events, replace(event, listed=False))


async def _told_again(scene: Scene) -> None:
    scene.found.hear(at_work=True)


async def _new_word(scene: Scene) -> None:
    """The service shows a subscription in a state that no document names."""
    scene.found.sandbox.assumptions.set({"status_after_second_failure": NEW_WORD})
    shop = Shop(scene.found.sandbox, scene.found.sandbox.config.app_id, 1)
    subscription = shop.by_hand(shop.subscribe())
    for _ in range(2):
        scene.found.sandbox.engine.subscriptions.fail(shop.again(subscription))
    scene.names["SUBJECT"] = subscription.id


LISTS: tuple[Drill, ...] = (
    drill("the service has forgotten what nobody read", "RetentionGap", strike=_forget, cure=_remember),
    drill("a shop sold before it came here", "HistoryLeftAlone", strike=_older_shop, cure=nothing),
    drill(
        "the service told nobody of many orders", "ReconcileBraked",
        strike=_tell_nobody, cure=_told_again, names=("NUMBER",),
    ),
    drill("a paid order is listed without its id", "PaidUnplaced", strike=_be_nobodys, cure=_be_whose_it_is),
    drill(
        "an order slipped through everything", "PaidThereNotHere",
        strike=_slip_through, cure=nothing, names=("ORDER_ID",), fires_within_s=CANARY_S,
    ),
    drill(
        "the service says a word nobody knows", "UnknownWords",
        strike=_new_word, cure=nothing, names=("SUBJECT",),
    ),
)  # fmt: skip
