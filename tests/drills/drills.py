"""Drills: the alerts, each with the real fault that it is for, and the cure that its runbook names; here those of
processes that are gone."""

from __future__ import annotations

from collections.abc import Sequence

from tests.drills.of_lists import LISTS
from tests.drills.of_reading import READING
from tests.drills.of_storage import STORAGE
from tests.drills.of_strangers import STRANGERS
from tests.drills.of_work import WORK
from tests.drills.scene import Drill, Scene, drill


def _dead(role: str, *alerts: str, orders: int = 0) -> Drill:
    async def strike(scene: Scene) -> None:
        scene.processes[role].kill()
        scene.pay(orders)

    return drill(f"{role} is dead", *alerts, strike=strike, cure=lambda scene: scene.start(role))


PROCESSES: tuple[Drill, ...] = (
    _dead("work", "NoWorker", "GroupWithoutMembers", "LogBehind", orders=2),
    _dead("sync", "NoSync", "NeverWalked"),
    _dead("serve", "NobodyReceives"),
    _dead("console", "NoConsole"),
)

DRILLS: Sequence[Drill] = (*PROCESSES, *READING, *LISTS, *WORK, *STORAGE, *STRANGERS)
