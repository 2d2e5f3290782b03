"""Faults of our own processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from tests.faults.scene import ROLES, Fault, Scene, fault
from tests.faults.server import PASSWORD
from tests.support.proxy import TcpProxy
from tests.support.throttle import throttle

LIVES_S = 5.0
READY_WITHIN_S = 60.0
ASKED_AGAIN_S = 360.0
"""An answer that got lost is asked for again after four minutes."""


def _killed(role: str) -> Fault:
    async def strike(scene: Scene) -> None:
        scene.processes[role].kill()

    return fault(role, "dead", f"no_{role}", strike=strike, cure=lambda scene: scene.start(role))


def _stopped(role: str) -> Fault:
    return fault(
        role,
        "stopped and forgotten",
        f"no_{role}",
        strike=lambda scene: scene.stop(role),
        cure=lambda scene: scene.start(role),
    )


def _hung(role: str) -> Fault:
    async def strike(scene: Scene) -> None:
        scene.signal(role, signal.SIGSTOP)

    async def cure(scene: Scene) -> None:
        scene.signal(role, signal.SIGCONT)

    # Where it holds SQLite's lock at that moment, nobody's heartbeat is written, and the lock is all there is to name.
    return fault(role, "hung", f"no_{role}", "ledger_locked", strike=strike, cure=cure)


def _slow(role: str) -> Fault:
    """It gets a hundredth of a processor, as beside a neighbour that takes all."""

    async def strike(scene: Scene) -> None:
        scene.kept["throttle"] = asyncio.create_task(throttle(lambda one: scene.signal(role, one)))
        scene.pay(2)

    async def cure(scene: Scene) -> None:
        throttle = scene.kept.pop("throttle")
        throttle.cancel()
        await asyncio.gather(throttle, return_exceptions=True)
        scene.signal(role, signal.SIGCONT)

    return fault(role, "slow", "role_slow", strike=strike, cure=cure, says="its loop comes")


def _with_another_password(role: str) -> Fault:
    """It alone has another password of PostgreSQL than the others."""

    async def strike(scene: Scene) -> None:
        url = scene.found.environ["CONSUMER_DATABASE_URL"]
        await scene.restart(role, CONSUMER_DATABASE_URL=url.replace(PASSWORD, "a-typo"))
        scene.found.environ["CONSUMER_DATABASE_URL"] = url
        scene.pay(2)

    what = "with another password of PostgreSQL"
    return fault(role, what, f"no_{role}", strike=strike, cure=lambda scene: scene.as_before(role))


async def _stop_machine(scene: Scene) -> None:
    for role in ROLES:
        scene.signal(role, signal.SIGSTOP)


async def _continue_machine(scene: Scene) -> None:
    for role in ROLES:
        scene.signal(role, signal.SIGCONT)


def _cut_off(role: str) -> Fault:
    """Its packets to PostgreSQL get no answer; everybody else's do."""

    async def strike(scene: Scene) -> None:
        port = scene.server.proxy.port
        way = scene.kept["way"] = TcpProxy(port)
        await way.accept()
        url = scene.found.environ["CONSUMER_DATABASE_URL"]
        await scene.restart(role, CONSUMER_DATABASE_URL=url.replace(f":{port}/", f":{way.port}/"))
        scene.found.environ["CONSUMER_DATABASE_URL"] = url
        await scene.processes[role].ready(within_s=READY_WITHIN_S)
        way.block()
        scene.pay(2)

    async def cure(scene: Scene) -> None:
        await scene.as_before(role)
        await scene.kept.pop("way").refuse()

    return fault(role, "without a way to PostgreSQL", f"no_{role}", strike=strike, cure=cure)


async def _settings_typo(scene: Scene) -> None:
    """Every process goes on; who looks has a settings file that is not the one they run with."""
    scene.found.environ["CONSUMER_WORK_BATCH"] = "many"


async def _no_typo(scene: Scene) -> None:
    del scene.found.environ["CONSUMER_WORK_BATCH"]


def _dies_again_and_again(role: str) -> Fault:
    """It is killed as soon as it is up, and its supervisor starts it anew. Once is no loop: it has to die again."""

    async def strike(scene: Scene) -> None:
        scene.kept["supervisor"] = asyncio.create_task(_kill_and_start(scene, role))

    async def cure(scene: Scene) -> None:
        supervisor = scene.kept.pop("supervisor")
        supervisor.cancel()
        await asyncio.gather(supervisor, return_exceptions=True)
        await scene.stop(role)
        await scene.start(role)

    return fault(role, "dies again and again", "role_restarts", strike=strike, cure=cure)


async def _kill_and_start(scene: Scene, role: str) -> None:
    while True:
        await asyncio.to_thread(scene.processes[role].kill)
        await scene.start(role)
        await scene.processes[role].ready(within_s=READY_WITHIN_S)
        await asyncio.sleep(LIVES_S)


async def _without_fulfilment(scene: Scene) -> None:
    """The worker's allow-list lacks it; who looks has another."""
    scene.found.environ["CONSUMER_HANDLERS"] = "access,warehouse:ship"
    await scene.stop("work")
    await scene.start("work")
    del scene.found.environ["CONSUMER_HANDLERS"]


async def _as_before(scene: Scene) -> None:
    await scene.stop("work")
    await scene.start("work")


def _elsewhere(role: str, what: str, code: str, setting: str, value: Callable[[Scene], str]) -> Fault:
    async def strike(scene: Scene) -> None:
        """It alone has another log, or other topics; who looks has the right ones."""
        scene.pay(2)
        await scene.restart(role, **{setting: value(scene)})
        scene.found.environ[setting] = scene.kept[f"setting {setting}"]
        scene.pay(2)

    return fault(
        role,
        f"with another {what}",
        code,
        strike=strike,
        cure=lambda scene: scene.as_before(role),
        shipped_s=ASKED_AGAIN_S,
    )


def _with_another_prefix(role: str) -> Fault:
    return _elsewhere(role, "topic prefix", "prefixes_differ", "CONSUMER_TOPIC_PREFIX", lambda _: "elsewhere")


def _with_another_log(role: str) -> Fault:
    """Also where the others have Kafka: a role whose setting is missing makes itself a file."""
    return _elsewhere(
        role, "log", "logs_differ", "CONSUMER_BROKER_URL", lambda scene: f"embedded:{scene.found.folder}/elsewhere.db"
    )


OF_ROLES = (
    *(make(role) for make in (_killed, _stopped, _hung) for role in ROLES),
    *(_slow(role) for role in ROLES),
    *(make(role) for make in (_with_another_prefix, _with_another_log) for role in ("serve", "work", "sync")),
    fault("every role", "hung", "no_work", strike=_stop_machine, cure=_continue_machine),
)
OF_WAYS = (
    *(_cut_off(role) for role in ("work", "sync")),
    *(_with_another_password(role) for role in ("work", "sync", "console")),
)
OF_DEPLOYS = (
    fault("settings", "with a bad value", "settings_invalid", strike=_settings_typo, cure=_no_typo),
)  # fmt: skip
OF_WORKERS = (
    fault("work", "without the plugin fulfilment", "built_in_left_out", strike=_without_fulfilment, cure=_as_before),
    _dies_again_and_again("work"),
)
"""Last in a scene: a loop is remembered for a quarter of an hour, and what is killed meanwhile counts."""
