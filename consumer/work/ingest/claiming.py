"""Claiming: of the runs that ingest adds and leaves, those that this worker has room for are claimed by the same
transaction. They need no look, no transaction and no reading of their own, and begin when it is committed.

The ledger stays the truth: the claim is one like any other, and ends with its lease if nobody is left to work on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock
from consumer.events import Event
from consumer.ledger.handling import runs
from consumer.ledger.handling.events import EventKey
from consumer.ledger.handling.runs import Run
from consumer.ledger.leases import CLAIM_LEASE_S
from consumer.ledger.tables import RunStatus
from consumer.work.execution.claimed import Claimed

Room = Callable[[str, int], int]
"""Of so many new runs of a handler, how many may be claimed as they are added."""


def NO_ROOM(_handler: str, _new: int) -> int:  # noqa: N802 - a constant that is called
    """All are left to be claimed later."""
    return 0


class Claiming:
    """Claims for `worker`, as far as `room` goes."""

    def __init__(self, room: Room, clock: Clock, worker: str) -> None:
        self._room = room
        self._clock = clock
        self._worker = worker

    async def claim(
        self, session: AsyncSession, added: Sequence[Run], fresh: Mapping[EventKey, Event]
    ) -> Sequence[Claimed]:
        """What was claimed, of runs on `fresh` events; nobody else can have heard of them."""
        left: dict[str, list[Run]] = {}
        for run in added:
            if run.status is RunStatus.RETRYING and (run.application, run.event_id) in fresh:
                left.setdefault(run.handler, []).append(run)
        wanted = [run for handler, found in left.items() for run in found[: self._room(handler, len(found))]]
        at_s, now = self._clock.monotonic(), self._clock.now()
        claimed = await runs.claim_new(session, wanted, worker=self._worker, now=now, lease_s=CLAIM_LEASE_S)
        return [Claimed(run=run, event=fresh[run.application, run.event_id], at_s=at_s) for run in claimed]
