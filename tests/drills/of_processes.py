"""Drills of processes that are gone."""

from __future__ import annotations

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
)
