"""State: what is remembered of the reconcile walks of an application, and of one that was made beside the leader.

Only the leader, with its fencing token, writes its own bookmark. A command beside it that has healed what the leader's
walk could not (a brake that an operator released, a gap) says what it healed; the leader compares and takes it over. It
compares what was there, not times: the two may be on machines whose clocks differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.reading import sync_state
from consumer.ledger.reading.sync_state import KeptState
from consumer.sync.backfill import silence

LOG = structlog.get_logger()

WALK: Final = sync_state.RECONCILE
BESIDE: Final = "reconcile/beside"


@dataclass(frozen=True, kw_only=True)
class ReconcileState(KeptState, walk=WALK):
    """The last walk that counts. `began`: when; None while none was made, so that one is due. `baselined`: what was
    there at first is remembered, so what is found unknown from now on is news (case B30). `early`: but no walk of the
    events had begun here, so the next one remembers once more. `ended`: when its orders and
    subscriptions were through. `owes_payments`: its payments were not read to their end; `payments_baselined`: those of
    some walk were. `unplaced`, `unplaced_paid`: what could not be kept, for whichever reason; `refused`: see
    DriftReport; `gap_at`: see DeliveryHealth. `beside`: the brake that a walk beside the leader's released last, and
    `answered` the one the leader knew of when it wrote this."""

    began: datetime | None = None
    ended: datetime | None = None
    braked: bool = False
    baselined: bool = False
    early: bool = False
    owes_payments: bool = False
    payments_baselined: bool = False
    unplaced: int = 0
    unplaced_paid: int = 0
    refused: int = 0
    answered: str | None = None
    gap_at: datetime | None = None
    beside: str | None = None

    @property
    def is_healed_in_part(self) -> bool:
        """Whether a brake was released beside the leader that is not the one of this walk, which was under way then:
        how much is left only another walk can tell."""
        return self.braked and self.beside is not None and self.beside != self.answered

    def dump(self) -> dict[str, Any]:
        """As JSON, for the bookmark; the gap and the note of a walk beside have their own."""
        return {name: one for name, one in super().dump().items() if name not in ("gap_at", "beside")}


@dataclass(frozen=True, kw_only=True)
class Healed(KeptState, walk=BESIDE):
    """What a walk that goes through heals: the brake of the walk that began then, the gap that was found then."""

    braked: str | None = None
    gap_at: str | None = None


async def load_state(session: AsyncSession, application: str) -> ReconcileState:
    """How it stands."""
    kept = await sync_state.load(session, application, WALK) or {}
    healed = await Healed.of(session, application)
    gap_at = (await silence.DeliveryHealth.of(session, application)).gap_at
    # A bookmark of an older version says nothing of a baseline: the walk that left it had made one.
    walked = {"ended": kept.get("began"), "baselined": kept.get("began") is not None}
    walked |= {"payments_baselined": kept.get("baselined", walked["baselined"])}
    state = ReconcileState.load(walked | {name: one for name, one in kept.items() if one is not None})
    return replace(state, gap_at=gap_at, beside=healed.braked)


async def keep_state(
    session: AsyncSession, application: str, state: ReconcileState, *, token: int, now: datetime
) -> None:
    """Remember a walk of the leader's. Raises LeaseLost."""
    await state.keep(session, application, token=token, now=now)
    if not state.braked and state.began is not None:
        await silence.note_reconciled(session, application, began=state.began, token=token)


async def note_beside(session: AsyncSession, application: str, before: ReconcileState, now: datetime) -> None:
    """A complete walk was made beside the leader and not braked; `before`: how it stood when that walk began."""
    healed = _healed(before)
    if healed != Healed():
        await healed.keep(session, application, now=now)


async def take_over(session: AsyncSession, application: str, *, token: int, now: datetime) -> ReconcileState:
    """How it stands, after what a walk beside the leader has healed is noted as the leader's own. Raises LeaseLost."""
    state = await load_state(session, application)
    healed, mine = await Healed.of(session, application), _healed(state)
    # A walk of the events that was noted at the same moment may have put back a gap that a walk of ours had closed.
    walked = None if state.braked else state.began
    is_closed = walked is not None and state.gap_at is not None and state.gap_at <= walked
    if state.gap_at is not None and (is_closed or healed.gap_at == mine.gap_at):
        await silence.note_reconciled(session, application, began=state.gap_at, token=token)
        state = replace(state, gap_at=None)
    if mine.braked is not None and healed.braked == mine.braked:
        state = replace(state, braked=False, answered=state.beside)
        await state.keep(session, application, token=token, now=now)
        LOG.info("braked_changes_made_elsewhere", application=application)
    return state


def _healed(state: ReconcileState) -> Healed:
    return Healed(braked=_text(state.began) if state.braked else None, gap_at=_text(state.gap_at))


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
