"""Faults of the payments service, of its webhooks, and of the merchant's own systems."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace

import aiohttp

from consumer.sandbox.engine.records import PaymentStatus
from tests.faults.scene import Fault, Scene, fault
from tests.support.ports import eventually

SHIP = "warehouse:ship"
FORGED = 40
OTHER_SECRET = "whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldA=="
WALKS = 3
WALK_S = 6.0
PATIENCE_S = 20


def _answers(what: str, name: str, value: float, says: str) -> Fault:
    """The service answers badly for as long as it takes."""

    async def strike(scene: Scene) -> None:
        scene.found.sandbox.engine.faults.set({name: value})
        scene.pay(2)

    async def cure(scene: Scene) -> None:
        scene.found.sandbox.engine.faults.set({name: 0})

    return fault("API", what, "reading_held_up", strike=strike, cure=cure, says=says)


def _secret(what: str, text: Callable[[str], str], *codes: str) -> Fault:
    async def write(scene: Scene, secret: str) -> None:
        scene.secret.with_suffix(".new").write_text(secret)
        scene.secret.with_suffix(".new").replace(scene.secret)

    async def strike(scene: Scene) -> None:
        await write(scene, text(scene.found.sandbox.config.app_secret))

    async def cure(scene: Scene) -> None:
        await write(scene, scene.found.sandbox.config.app_secret)

    return fault("API", what, *codes, strike=strike, cure=cure)


async def _refuse(scene: Scene) -> None:
    await scene.way.refuse()


async def _accept(scene: Scene) -> None:
    await scene.way.accept()


async def _hang(scene: Scene) -> None:
    scene.way.block()


async def _flow(scene: Scene) -> None:
    scene.way.unblock()


async def _forget_paid(scene: Scene) -> None:
    """An order is PAID there, and nothing else tells: no webhook, no event in the list, its payment not yet final."""
    engine = scene.found.sandbox.engine
    before = {*(one.id for one in engine.world.events), *(one.id for one in engine.world.payments)}
    engine.faults.set({"drop": 1})
    scene.pay()
    engine.faults.set({"drop": 0})
    for event in engine.world.events:
        if event.id not in before:
            engine.world.put(engine.world.events, replace(event, listed=False))
    for payment in engine.world.payments:
        if payment.id not in before:
            engine.world.put(engine.world.payments, replace(payment, status=PaymentStatus.CONFIRMED))


async def _reconcile(scene: Scene) -> None:
    await scene.found.type("reconcile")


async def _swap(scene: Scene) -> None:
    """Somebody puts another application's credentials there; they work."""
    applications = scene.found.sandbox.engine.applications
    mine = applications.get(scene.found.sandbox.config.app_id)
    other, secret = applications.add(mine.merchant_id, "Another shop")
    scene.secret.write_text(secret)
    await scene.restart("sync", SVC_APP_ID=other.id)


async def _swap_back(scene: Scene) -> None:
    scene.secret.write_text(scene.found.sandbox.config.app_secret)
    await scene.as_before("sync")


async def _another_version(scene: Scene) -> None:
    """The service has moved what we read to another version of its API."""
    await scene.restart("sync", SVC_BASE_URL=scene.found.environ["SVC_BASE_URL"] + "/moved")
    scene.pay(2)


async def _the_version_we_know(scene: Scene) -> None:
    await scene.as_before("sync")


async def _forge(scene: Scene) -> None:
    """Somebody sends what the service never said. `sync` asks for it for a shorter while than a quarter of an hour."""
    await scene.restart("sync", CONSUMER_CONFIRM_PATIENCE_S=str(PATIENCE_S))
    url = f"http://127.0.0.1:{scene.found.environ['CONSUMER_PORT']}/webhooks"
    async with aiohttp.ClientSession() as http:
        for _ in range(FORGED):
            body = {"id": f"evt_{uuid.uuid4().hex}", "type": "order.paid", "data": {"object": {"id": "x"}}}
            async with http.post(url, json=body) as answer:
                await answer.read()


async def _throw_away(scene: Scene) -> None:
    """They are denied and lie in quarantine: green comes back ten minutes later, or when somebody throws them away."""

    async def is_denied() -> bool:
        return await scene.found.count("quarantine WHERE reason = 'not_confirmed'") >= FORGED

    await eventually(is_denied, within_s=120, every_s=1, what="all are denied")
    words = ("--because", "not_confirmed", "--limit", "1000", "--reason", "forged", "--yes")
    await scene.found.type("quarantine", "discard", *words)
    await scene.as_before("sync")


async def _close_warehouse(scene: Scene) -> None:
    scene.found.warehouse.is_away = True
    scene.pay(12)


async def _hang_warehouse(scene: Scene) -> None:
    scene.found.warehouse.goes_on.clear()
    scene.pay(12)


async def _let_go_on(scene: Scene) -> None:
    scene.found.warehouse.goes_on.set()


async def _open_warehouse(scene: Scene) -> None:
    scene.found.warehouse.is_away = False


async def _pause(scene: Scene) -> None:
    await scene.found.type("handlers", "pause", SHIP, "--reason", "a drill")


async def _resume(scene: Scene) -> None:
    await scene.found.type("handlers", "resume", SHIP, "--reason", "a drill")


OF_THE_API = (
    _secret("with wrong credentials", lambda secret: secret[:-4] + "xxxx", "credentials_refused"),
    _secret("with an empty secret file", lambda _: "", "reading_held_up", "settings_invalid"),
    fault("API", "of another application", "reading_held_up", strike=_swap, cure=_swap_back, says="wrong_application"),
    fault("API", "refused", "reading_held_up", strike=_refuse, cure=_accept, says="service_unreachable"),
    fault("API", "hung", "reading_held_up", strike=_hang, cure=_flow, says="service_unreachable"),
    _answers("slow (30 s an answer)", "api_slow_s", 30, "service_unreachable"),
    _answers("answers 503", "server_error", 1, "server_error"),
    _answers("answers HTML", "html", 1, "server_error"),
    _answers("answers 429", "rate_limited", 1, "rate_limited"),
    fault("API", "of another version", "reading_held_up", strike=_another_version, cure=_the_version_we_know),
)  # fmt: skip
OF_THE_CANARY = (
    fault("API", "tells nobody that an order was paid", "paid_there_but_not_here", strike=_forget_paid,
          cure=_reconcile),
)  # fmt: skip


async def _other_secret(scene: Scene) -> None:
    """`serve` checks signatures, with a secret that is not the service's; customers go on buying."""
    await scene.restart("serve", CONSUMER_AUTHENTICITY="signature", CONSUMER_WEBHOOK_SECRETS=OTHER_SECRET)
    await scene.processes["serve"].ready()
    for _ in range(WALKS):
        scene.pay(2)
        await asyncio.sleep(WALK_S)


async def _no_secret(scene: Scene) -> None:
    await scene.as_before("serve")


OF_WEBHOOKS = (
    fault(
        "webhooks",
        "go nowhere",
        "webhooks_silent",
        strike=lambda scene: scene.found.fall_silent(),
        cure=lambda scene: scene.found.hear_again(),
    ),
    fault("webhooks", "signed with another secret", "signatures_refused", strike=_other_secret, cure=_no_secret),
    fault("webhooks", "forged", "hints_denied", "quarantine_grows", strike=_forge, cure=_throw_away),
)
OF_HANDLERS = (
    fault("warehouse", "answers 503", "handlers_waiting", strike=_close_warehouse, cure=_open_warehouse),
    fault("warehouse", "hangs", "handlers_waiting", strike=_hang_warehouse, cure=_let_go_on),
    fault("handler", "paused", "handlers_paused", strike=_pause, cure=_resume),
)
