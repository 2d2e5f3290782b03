"""Faults of our own processes."""

from __future__ import annotations

import signal

from tests.faults.scene import ROLES, Fault, Scene, fault


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

    return fault(role, "hung", f"no_{role}", strike=strike, cure=cure)


async def _settings_typo(scene: Scene) -> None:
    """Every process goes on; who looks has a settings file that is not the one they run with."""
    scene.found.environ["CONSUMER_WORK_BATCH"] = "many"


async def _no_typo(scene: Scene) -> None:
    del scene.found.environ["CONSUMER_WORK_BATCH"]


OF_ROLES = tuple(make(role) for make in (_killed, _stopped, _hung) for role in ROLES)
OF_DEPLOYS = (
    fault("settings", "with a bad value", "settings_invalid", strike=_settings_typo, cure=_no_typo),
)  # fmt: skip
