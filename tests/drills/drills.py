"""Drills: the alerts, each with the real fault that it is for, and the cure that its runbook names."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

import aiohttp

from consumer.sandbox.scenarios.stage import Stage as Shop
from tests.drills.watcher import Watcher
from tests.promises.deployment import Deployment
from tests.support.ports import free_port
from tests.support.process import ConsumerProcess, command

SHIP = "warehouse:ship"


@dataclass
class Scene:
    """What a drill holds in its hands."""

    found: Deployment
    watcher: Watcher
    processes: dict[str, ConsumerProcess]
    orders: list[str] = field(default_factory=list)
    lock: sqlite3.Connection | None = None

    async def start(self, role: str) -> None:
        """Start the role anew, as its supervisor would, and have it watched."""
        self.processes[role] = self.found.process(role)
        self.processes[role].spawn()
        await self.processes[role].ready()
        self.look()

    def look(self) -> None:
        """Have Prometheus ask the processes where they are now."""
        self.watcher.watch([one.addresses["internal_url"] for one in self.processes.values() if one.addresses])

    def pay(self, count: int = 1) -> None:
        """Orders are paid; their webhooks are on their way."""
        for _ in range(count):
            self.found.pay_order()

    async def type(self, *words: str) -> None:
        """A command of a runbook, as written there; AssertionError when it fails."""
        done = await asyncio.to_thread(command, *words, environ=self.found.environ)
        assert done.returncode == 0, f"consumer {' '.join(words)}: {done.stderr}"

    def hear(self, *, at_work: bool) -> None:
        """Webhooks go to `serve`, or where nobody listens."""
        port = self.found.environ["CONSUMER_PORT"] if at_work else free_port()
        self.found.sandbox.set_webhook_url(f"http://127.0.0.1:{port}/webhooks/default")


Act = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Drill:
    """`alerts`: all of them must fire. `strike` and `cure`: the fault, and what its runbook says."""

    name: str
    alerts: frozenset[str]
    strike: Act
    cure: Act


def _dead(role: str, *alerts: str, orders: int = 0) -> Drill:
    async def strike(scene: Scene) -> None:
        scene.processes[role].kill()
        scene.pay(orders)

    return Drill(f"{role} is dead", frozenset(alerts), strike, lambda scene: scene.start(role))


def _service(name: str, fault: str, *alerts: str, orders: int = 0) -> Drill:
    """The service answers badly for as long as it takes."""

    async def strike(scene: Scene) -> None:
        scene.found.sandbox.engine.faults.set({fault: 1})
        scene.pay(orders)

    async def cure(scene: Scene) -> None:
        scene.found.sandbox.engine.faults.set({fault: 0})

    return Drill(name, frozenset(alerts), strike, cure)


def _secret(text: Callable[[str], str], name: str, *alerts: str) -> Drill:
    async def write(scene: Scene, secret: str) -> None:
        path = scene.found.folder / "secret"
        path.with_suffix(".new").write_text(secret)
        path.with_suffix(".new").replace(path)

    async def strike(scene: Scene) -> None:
        await write(scene, text(scene.found.sandbox.config.app_secret))

    return Drill(name, frozenset(alerts), strike, lambda scene: write(scene, scene.found.sandbox.config.app_secret))


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


async def _deaf(scene: Scene) -> None:
    """Silence is several events in several walks: each order is found by a walk of its own."""
    scene.hear(at_work=False)
    for _ in range(4):
        scene.pay()
        await scene.found.shipped(within_s=60)


async def _hearing(scene: Scene) -> None:
    scene.hear(at_work=True)
    scene.pay()


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


async def _lock_log(scene: Scene) -> None:
    """Another process holds the file of the log: nothing can be made durable."""
    scene.lock = sqlite3.connect(scene.found.folder / "log.db", isolation_level=None, timeout=10)
    scene.lock.execute("BEGIN EXCLUSIVE")
    url = scene.processes["serve"].addresses["public_url"] + "/webhooks"
    async with aiohttp.ClientSession() as http:
        for number in range(60):
            with suppress(aiohttp.ClientError, TimeoutError):
                body = {"id": f"evt_drill_{number}", "type": "order.paid", "data": {"object": {"id": "x"}}}
                async with http.post(url, json=body, timeout=aiohttp.ClientTimeout(total=10)) as answer:
                    assert answer.status == 503


async def _unlock_log(scene: Scene) -> None:
    assert scene.lock is not None
    with closing(scene.lock) as lock:
        lock.execute("ROLLBACK")


DRILLS: Sequence[Drill] = (
    _dead("work", "ConsumerNoWorker", "ConsumerGroupWithoutMembers", "ConsumerLogBehind", orders=2),
    _dead("sync", "ConsumerNoSync", "ConsumerNeverWalked"),
    _dead("serve", "ConsumerNobodyReceives"),
    _secret(lambda secret: secret[:-4] + "xxxx", "the API secret is wrong", "ConsumerCredentialsRefused"),
    _secret(lambda _: "", "the file of the API secret is empty", "ConsumerSecretFileBroken"),
    _service(
        "the API answers 503", "server_error", "ConsumerReadingHeldUp", "ConsumerWalkLate", "ConsumerHintsLate",
        orders=2,
    ),
    Drill("a handler is paused", frozenset({"ConsumerHandlerPaused", "ConsumerPaidUnfulfilled"}), _pause, _resume),
    Drill("the warehouse is away", frozenset({"ConsumerHandlerWaiting"}), _close_warehouse, _open_warehouse),
    Drill("webhooks go nowhere", frozenset({"ConsumerWebhooksSilent"}), _deaf, _hearing),
    Drill("an order was paid with too little", frozenset({"ConsumerFindingsOpen"}), _mismatch, _released),
    Drill(
        "the log takes nothing", frozenset({"ConsumerReceiveFailing", "ConsumerBrokerAway"}), _lock_log, _unlock_log
    ),
)  # fmt: skip
