"""Membership: what one member of a group is told, and for how long; the same on both logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from consumer.broker.base import AssignmentListener, Partition

LOG = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What `Broker.subscribe` was asked for. `heartbeat_s`: how often the member says that it lives; `session_s`: after
    how long without it the member is declared dead; `drain_s`: how long a listener may take."""

    topics: tuple[str, ...]
    group: str
    on_assigned: AssignmentListener | None = None
    on_revoked: AssignmentListener | None = None
    on_replaced: AssignmentListener | None = None
    drain_s: float = 20.0
    heartbeat_s: float
    session_s: float

    async def assigned(self, partitions: Iterable[Partition]) -> None:
        """Await `on_assigned`, bounded; its failure is its own and must not stop the rebalance."""
        await self._tell(self.on_assigned, partitions)

    async def revoked(self, partitions: Iterable[Partition]) -> None:
        """Await `on_revoked`, bounded; its failure is its own and must not stop the rebalance."""
        await self._tell(self.on_revoked, partitions)

    async def replaced(self, partitions: Iterable[Partition]) -> None:
        """Await `on_replaced`. What it raises goes on: these are told again."""
        if self.on_replaced is not None:
            await self.on_replaced(frozenset(partitions))

    async def _tell(self, listener: AssignmentListener | None, partitions: Iterable[Partition]) -> None:
        if listener is None:
            return
        try:
            async with asyncio.timeout(self.drain_s):
                await listener(frozenset(partitions))
        except TimeoutError:
            LOG.warning("listener_cancelled", group=self.group, drain_s=self.drain_s)
        except Exception:
            LOG.exception("listener_failed", group=self.group)
