"""Drills of what strangers send: forged deliveries, and connections that say nothing."""

from __future__ import annotations

import asyncio
import resource
import secrets
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from consumer.broker import Message, open_broker
from tests.drills.scene import Drill, Scene, drill, nothing
from tests.support.ports import eventually

ROOM_BYTES = 1024 * 1024
FORGED, FORGED_BYTES = 10, 300_000
"""What is kept is packed, and this packs badly. Three of them fill the room; fewer than twenty lie in quarantine then,
where twenty would be told for ten minutes."""
FORGED_MANY = 60
DENIED = 30
ASTRAY = 5
SILENT = 150
USED_UP = 0.95


async def _flood(scene: Scene) -> None:
    """More is forged than there is room for."""
    await scene.restart("sync", CONSUMER_CONFIRM_PATIENCE_S="5")
    await _send(scene, FORGED, secrets.token_urlsafe(FORGED_BYTES * 3 // 4))


async def _forge(scene: Scene) -> None:
    """Deliveries that the service knows nothing of."""
    await scene.restart("sync", CONSUMER_CONFIRM_PATIENCE_S="5")
    await _send(scene, FORGED_MANY, "x")


async def _be_denied(scene: Scene) -> None:
    """The same, and they are asked for again and again."""
    await _send(scene, DENIED, "x")


async def _lose_patience(scene: Scene) -> None:
    """What waits is denied for good sooner than after a quarter of an hour."""
    await scene.restart("sync", CONSUMER_CONFIRM_PATIENCE_S="5")
    await _give_up_the_rest(scene)


async def _write_junk(scene: Scene) -> None:
    """Something else writes into the topic of events, under a key like ours."""
    log = open_broker(scene.found.environ["CONSUMER_BROKER_URL"])
    try:
        await log.start()
        await log.publish(scene.topic("events"), Message(key=b"default/junk", value=b"this is no event"))
    finally:
        await log.stop()


async def _send(scene: Scene, count: int, note: str) -> None:
    url = scene.processes["serve"].addresses["public_url"] + "/webhooks"
    async with aiohttp.ClientSession() as http:
        for number in range(count):
            body = {"id": f"evt_forged_{number}", "type": "order.paid", "data": {"note": note}}
            async with http.post(url, json=body) as answer:
                assert answer.status == 200


async def _go_astray(scene: Scene) -> None:
    """The service sends to an application that was taken out of the settings."""
    url = scene.processes["serve"].addresses["public_url"] + "/webhooks/shop2"
    async with aiohttp.ClientSession() as http:
        for number in range(ASTRAY):
            async with http.post(url, json={"id": f"evt_astray_{number}", "type": "order.paid"}) as answer:
                assert answer.status == 404


async def _give_up_the_rest(scene: Scene) -> None:
    """The flood is over, and what waited was denied until patience ended."""

    async def nothing_waits() -> bool:
        return scene.in_ledger("SELECT count(*) FROM hints") == [(0,)]

    await eventually(nothing_waits, within_s=120, every_s=1.0, what="no hint waits")


async def _be_many(scene: Scene) -> None:
    """Senders connect and say nothing, again and again."""
    process = scene.processes["serve"]
    limit = round((_used(process.pid) + SILENT) / USED_UP)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    port = urlsplit(process.addresses["public_url"]).port
    assert port is not None
    scene.noise = asyncio.create_task(_silent_ones(port))


def _used(pid: int) -> int:
    """How many descriptors the process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def _silent_ones(port: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(SILENT):
            group.create_task(_silent(port))


async def _silent(port: int) -> None:
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await reader.read()  # until the other side has had enough
            finally:
                writer.close()
        await asyncio.sleep(0.1)


async def _fewer(scene: Scene) -> None:
    """The proxy bounds connections, and the process starts with the limit it should have."""
    await scene.be_quiet()
    await scene.restart("serve")


STRANGERS: tuple[Drill, ...] = (
    drill("somebody forges", "QuarantineGrows", strike=_forge, cure=_give_up_the_rest),
    drill("deliveries are denied, and wait", "HintsDenied", strike=_be_denied, cure=_lose_patience),
    drill(
        "more is forged than there is room for", "Flooded", "UnprovedFills",
        strike=_flood, cure=_give_up_the_rest, settings={"CONSUMER_UNPROVED_MAX_BYTES": str(ROOM_BYTES)},
    ),
    drill("something else writes into our topic", "RecordsRefused", strike=_write_junk, cure=nothing),
    drill("webhooks come for an application that is gone", "WebhooksMisaddressed", strike=_go_astray,
          cure=lambda scene: scene.restart("serve")),
    drill("senders say nothing", "DescriptorsUsedUp", strike=_be_many, cure=_fewer),
)  # fmt: skip
