"""Drills of the service: its answers, the credentials, and what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.drills.scene import FIRES_WITHIN_S, Drill, Scene, drill
from tests.support.ports import eventually

OTHER_SECRET = "whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldA=="
AN_HOUR_WITHIN_S = 420.0
FEW_READS = 20
NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
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


async def _other_secret(scene: Scene) -> None:
    """`serve` checks signatures, with a secret that is not the service's; customers go on buying."""
    await scene.restart("serve", CONSUMER_AUTHENTICITY="signature", CONSUMER_WEBHOOK_SECRETS=OTHER_SECRET)
    scene.noise = asyncio.create_task(_buy_and_wait(scene))


async def _buy_and_wait(scene: Scene) -> None:
    """Some orders for each walk: silence is events of several walks."""
    while True:
        scene.pay(3)
        await scene.found.shipped(within_s=60)


async def _ask_for_more(scene: Scene) -> None:
    """More is asked for than may be read: a subscription's reads come again and again, an order's as long as it is
    open. No stage fails: the reads come late."""
    await scene.restart("sync", CONSUMER_API_READS_PER_MINUTE=str(FEW_READS))
    scene.noise = asyncio.create_task(_sell(scene))

    async def is_late() -> bool:
        return await scene.watcher.fires("ConsumerReadingHeldUp", stage="refresh")

    await eventually(is_late, within_s=FIRES_WITHIN_S, every_s=1, what="reads come late")


async def _sell(scene: Scene) -> None:
    async with scene.found.busy(orders_per_s=0.5, subscribe_every_s=2.0):
        await asyncio.Event().wait()  # until it is cancelled


async def _let_read(scene: Scene) -> None:
    await scene.be_quiet()
    await scene.as_before("sync")


async def _right_secret(scene: Scene) -> None:
    await scene.be_quiet()
    await scene.as_before("serve")
    await scene.found.hear_again()


async def _answer_503(scene: Scene) -> None:
    scene.found.sandbox.engine.faults.set({"server_error": 1})


async def _answer_again(scene: Scene) -> None:
    scene.found.sandbox.engine.faults.set({"server_error": 0})


async def _fail_its_reads(scene: Scene) -> None:
    """The service fails whenever this order is read, and hours go by: each further try is due at once."""
    order_id = scene.found.paid[-1]
    scene.names["ID"] = order_id
    await _answer_503(scene)
    scene.in_ledger(
        "INSERT INTO reads (application, kind, object_id, asked, due_at, attempts, created_at)"
        f" VALUES ('default', 'order', ?, 0, {NOW}, 0, {NOW})",
        order_id,
    )

    def has_failed_often() -> bool:
        scene.in_ledger(f"UPDATE reads SET due_at = {NOW} WHERE object_id = ? AND attempts < 8", order_id)
        return scene.in_ledger("SELECT attempts >= 8 FROM reads WHERE object_id = ?", order_id) == [(1,)]

    await eventually(has_failed_often, within_s=FIRES_WITHIN_S, every_s=1, what="the read failed eight times")


async def _let_it_be_read(scene: Scene) -> None:
    await _answer_again(scene)
    scene.in_ledger(f"UPDATE reads SET due_at = {NOW}")


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
    drill(
        "the service's newest cannot be compared for an hour", "ComparisonLate",
        strike=_answer_503, cure=_answer_again, fires_within_s=AN_HOUR_WITHIN_S,
    ),
    drill("more reads are asked for than may be made", "ReadingHeldUp", strike=_ask_for_more, cure=_let_read),
    drill(
        "an order cannot be read", "ObjectsUnreadable", strike=_fail_its_reads, cure=_let_it_be_read, names=("ID",),
    ),
    drill(
        "webhooks are signed with another secret", "SignaturesRefused", strike=_other_secret, cure=_right_secret,
    ),
    drill(
        "webhooks go nowhere", "WebhooksSilent",
        strike=lambda scene: scene.found.fall_silent(),
        cure=lambda scene: scene.found.hear_again(),
    ),
)  # fmt: skip
