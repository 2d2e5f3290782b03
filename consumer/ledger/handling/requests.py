"""Requests: what became of derived events that ask merchants' handlers for something, many at once; also of the events
by which a projection that fulfils handed such a request on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from sqlalchemy import RowMapping, Table, func, not_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, unindexed
from consumer.ledger.handling.dead import DISCARDED, DISCARDED_WAITING
from consumer.ledger.handling.handlers import bystanders, handing_on
from consumer.ledger.tables import DERIVED, EventRow, HandlerRow, OutboxRow, RunRow, RunStatus
from consumer.plugin.handler import matches
from consumer.wire import SEED

_EVENTS: Table = EventRow.__table__
_OUTBOX: Table = OutboxRow.__table__
_RUNS: Table = RunRow.__table__
_HANDLERS: Table = HandlerRow.__table__
GENERATIONS: Final = 5
STEPS_MAX: Final = 1000
"""So many events by which orders were handed on are followed in one look, over so many generations."""
GIVEN_UP: Final = "given_up"
"""The state of a run that an operator discarded; what a seed skipped stays `skipped`."""


def state_of(status: str, code: str | None) -> str:
    """The state of a run as a request tells it, from what the run says. Pure."""
    return GIVEN_UP if status == RunStatus.SKIPPED and code in (DISCARDED, DISCARDED_WAITING) else status


@dataclass(kw_only=True)
class Request:
    """One derived event: when it arrived (None: never), whether it was sent, and the state of each handler that
    fulfils. `steps`: by what these handed it on. `is_history`: a seed asked for it, so nobody is to do it."""

    arrived_at: datetime | None = None
    is_sent: bool = False
    is_history: bool = False
    runs: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    @property
    def states(self) -> set[str]:
        """Of all who fulfil, whomever it was handed on to included."""
        return {*self.runs.values(), *(state for step in self.steps for state in step.states)}


@dataclass(frozen=True, kw_only=True)
class Step:
    """An event by which the projection `handler` handed the request `root` on. `runs`: the state of each handler of it
    that fulfils; `is_wanted`: whether there is one."""

    root: str
    event_id: str
    type: str
    key: str
    cause: str
    handler: str
    due_at: datetime
    is_wanted: bool = True
    runs: Mapping[str, str] = field(default_factory=dict)

    @property
    def states(self) -> set[str]:
        """Before anybody has taken it, it waits."""
        return set(self.runs.values()) or {RunStatus.RETRYING.value}


async def requests(session: AsyncSession, application: str, event_ids: Collection[str]) -> Mapping[str, Request]:
    """Event id to what became of it; one that was never heard of is not in it."""
    found: dict[str, Request] = {}
    sent = select(_OUTBOX.c.event_id, _OUTBOX.c.published_at, _OUTBOX.c.plan)
    mine = (_OUTBOX.c.application == application, among(_OUTBOX.c.event_id, event_ids))
    for event_id, published_at, plan in await session.execute(sent.where(*mine)):
        found[event_id] = Request(is_sent=published_at is not None, is_history=plan == SEED)
    arrived = select(_EVENTS.c.id, _EVENTS.c.received_at)
    for event_id, at in await session.execute(
        arrived.where(_EVENTS.c.application == application, among(_EVENTS.c.id, event_ids))
    ):
        found.setdefault(event_id, Request(is_sent=True)).arrived_at = at
    beside = frozenset(await session.scalars(bystanders()))
    runs = select(_RUNS.c.event_id, _RUNS.c.handler, _RUNS.c.status, _RUNS.c.code)
    for event_id, handler, status, code in await session.execute(
        runs.where(_RUNS.c.application == application, among(_RUNS.c.event_id, event_ids))
    ):
        if handler not in beside:
            found.setdefault(event_id, Request(is_sent=True)).runs[handler] = state_of(status, code)
    for step in await steps(session, application, [one for one in event_ids if one in found]):
        found[step.root].steps.append(step)
    return found


async def steps(session: AsyncSession, application: str, event_ids: Collection[str]) -> list[Step]:
    """The events by which projections that fulfil handed these requests on, and those again, with who fulfils of their
    handlers. Left out is what only others want: a mail to the team delivers nothing. What nobody wants is not."""
    names = frozenset(await session.scalars(handing_on()))
    found: dict[str, Step] = {}
    roots = {one: one for one in event_ids}
    for _ in range(GENERATIONS if names else 0):
        rows = await emitted_for(session, application, sorted(roots))
        new = [Step(root=roots[row["cause"]], **row) for row in rows if row["handler"] in names]
        roots = {one.event_id: one.root for one in new if one.event_id not in found}
        found |= {one.event_id: one for one in new}
        if not roots:
            break
    return await _with_runs(session, application, found) if found else []


async def emitted_for(session: AsyncSession, application: str, causes: Collection[str]) -> Sequence[RowMapping]:
    """What the handlers of these derived events emitted, in that order; the first STEPS_MAX."""
    of_each = [_OUTBOX.c[name] for name in ("event_id", "type", "key", "cause", "handler")]
    wanted = select(*of_each, _OUTBOX.c.not_before.label("due_at"))
    mine = (_OUTBOX.c.application == application, among(_OUTBOX.c.cause, causes), text(DERIVED))
    return (
        (await session.execute(wanted.where(*mine).order_by(unindexed(_OUTBOX.c.seq)).limit(STEPS_MAX)))
        .mappings()
        .all()
    )


async def _with_runs(session: AsyncSession, application: str, found: Mapping[str, Step]) -> list[Step]:
    known = await session.execute(
        select(_HANDLERS.c.types, func.coalesce(_HANDLERS.c.fulfils, not_(_HANDLERS.c.transactional)), _HANDLERS.c.name)
    )
    wants = [(set(types.split()), fulfils, name) for types, fulfils, name in known]
    beside = {name for _, fulfils, name in wants if not fulfils}
    runs = select(_RUNS.c.event_id, _RUNS.c.handler, _RUNS.c.status, _RUNS.c.code)
    taken: dict[str, dict[str, str]] = {}
    for event_id, handler, status, code in await session.execute(
        runs.where(_RUNS.c.application == application, among(_RUNS.c.event_id, sorted(found)))
    ):
        if handler not in beside:
            taken.setdefault(event_id, {})[handler] = state_of(status, code)
    complete: list[Step] = []
    for one in found.values():
        asked = [fulfils for types, fulfils, _ in wants if any(matches(pattern, one.type) for pattern in types - {"*"})]
        if one.event_id in taken or any(asked) or not asked:
            is_wanted = one.event_id in taken or any(asked)
            complete.append(replace(one, is_wanted=is_wanted, runs=taken.get(one.event_id, {})))
    return complete


async def others(
    session: AsyncSession, application: str, event_type: str, keys: Collection[str], known: Collection[str]
) -> Mapping[str, list[str]]:
    """Key to further events of this type about it, beside the known ones: by rights there are none."""
    found: dict[str, list[str]] = {}
    of_keys = select(_EVENTS.c.key, _EVENTS.c.id).where(
        unindexed(_EVENTS.c.application) == application,
        among(_EVENTS.c.key, keys),
        unindexed(_EVENTS.c.type) == event_type,
    )
    for key, event_id in await session.execute(of_keys):
        if event_id not in known:
            found.setdefault(key, []).append(event_id)
    return found
