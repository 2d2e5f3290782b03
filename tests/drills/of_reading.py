"""Drills of the service: its answers, the credentials, and what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from consumer.sandbox.engine.records import SubscriptionStatus
from tests.drills.scene import Drill, Scene, drill

OTHER = '{"other": {"authenticity": "signature", "webhook_secrets": ["whsec_b3RoZXItb3RoZXItb3RoZXItb3RoZXI="]}}'


def _service(name: str, fault: str, *alerts: str, orders: int = 0) -> Drill:
    """The service answers badly for as long as it takes."""

    async def strike(scene: Scene) -> None:
        scene.found.sandbox.engine.faults.set({fault: 1})
        scene.pay(orders)

    async def cure(scene: Scene) -> None:
        scene.found.sandbox.engine.faults.set({fault: 0})

    return drill(name, *alerts, strike=strike, cure=cure)


async def _write(scene: Scene, secret: str) -> None:
    path = scene.found.folder / "secret"
    path.with_suffix(".new").write_text(secret)
    path.with_suffix(".new").replace(path)


def _secret(text: Callable[[str], str], name: str, *alerts: str) -> Drill:
    async def strike(scene: Scene) -> None:
        await _write(scene, text(scene.found.sandbox.config.app_secret))

    return drill(name, *alerts, strike=strike, cure=lambda scene: _write(scene, scene.found.sandbox.config.app_secret))


async def _swap_application(scene: Scene) -> None:
    """Somebody puts another application's credentials there; they work."""
    applications = scene.found.sandbox.engine.applications
    mine = applications.get(scene.found.sandbox.config.app_id)
    other, secret = applications.add(mine.merchant_id, "Another shop")
    await _write(scene, secret)
    await scene.restart("sync", SVC_APP_ID=other.id)


async def _right_application(scene: Scene) -> None:
    await _write(scene, scene.found.sandbox.config.app_secret)
    await scene.as_before("sync")


async def _forget(scene: Scene) -> None:
    """Nobody reads for longer than the service remembers; then it is slow, too."""
    await asyncio.to_thread(scene.processes["sync"].stop)
    scene.hear(at_work=False)
    scene.pay(3)
    scene.found.sandbox.assumptions.set({"retention_s": 1})
    await asyncio.sleep(1.5)  # the service's own time
    scene.found.sandbox.engine.events.purge()
    scene.found.sandbox.engine.faults.set({"api_slow_s": 3})
    await scene.start("sync")


async def _remember(scene: Scene) -> None:
    """Reconcile starts by itself."""
    scene.found.sandbox.assumptions.set({"retention_s": 0})
    scene.found.sandbox.engine.faults.set({"api_slow_s": 0})
    scene.hear(at_work=True)


async def _new_word(scene: Scene) -> None:
    """The service shows a subscription in a state that no document names."""
    scene.found.subscribe()
    await _put_status(scene, "PAUSED")


async def _known_word(scene: Scene) -> None:
    await _put_status(scene, "ACTIVE")


async def _put_status(scene: Scene, status: str) -> None:
    world = scene.found.sandbox.engine.world
    found = world.subscriptions.get(scene.found.subscribed[0])
    assert found is not None
    world.put(world.subscriptions, replace(found, status=cast(SubscriptionStatus, status)))


async def _deaf(scene: Scene) -> None:
    """Silence is several events in several walks: each order is found by a walk of its own."""
    scene.hear(at_work=False)
    for _ in range(4):
        scene.pay()
        await scene.found.shipped(within_s=60)


async def _hearing(scene: Scene) -> None:
    scene.hear(at_work=True)
    scene.pay()


READING: tuple[Drill, ...] = (
    _secret(lambda secret: secret[:-4] + "xxxx", "the API secret is wrong", "CredentialsRefused"),
    _secret(lambda _: "", "the file of the API secret is empty", "SecretFileBroken"),
    drill(
        "the credentials are another application's", "WrongApplication",
        strike=_swap_application, cure=_right_application,
    ),
    drill(
        "an application has no credentials", "NoCredentials",
        strike=lambda scene: scene.restart("sync", CONSUMER_APPLICATIONS=OTHER),
        cure=lambda scene: scene.as_before("sync"),
    ),
    _service("the API answers 503", "server_error", "ReadingHeldUp", "WalkLate", "HintsLate", orders=2),
    drill("the service has forgotten what nobody read", "RetentionGap", strike=_forget, cure=_remember),
    drill("the service says a word nobody knows", "UnknownWords", strike=_new_word, cure=_known_word),
    drill("webhooks go nowhere", "WebhooksSilent", strike=_deaf, cure=_hearing),
)  # fmt: skip
