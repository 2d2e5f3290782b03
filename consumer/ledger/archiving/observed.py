"""Observed: what was last read of each object, as records of an archive of everything. With it another ledger knows
what is news: without, each object is published again, and a paid order that no event told of is taken for history."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, get_args

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger.archiving.bodies import Brought, Record
from consumer.ledger.archiving.documents import document
from consumer.ledger.handling import events
from consumer.ledger.reading import observations
from consumer.ledger.reading.observation import ObjectKind, observation_id
from consumer.ledger.reading.observations import Observed
from consumer.ledger.reading.sync_state import RECONCILE
from consumer.ledger.tables import ObservationRow

KINDS: Final[Sequence[ObjectKind]] = get_args(ObjectKind)
_OBSERVATIONS: Table = ObservationRow.__table__


async def observed(
    session: AsyncSession, application: str, kind: ObjectKind, after: str, limit: int
) -> tuple[Sequence[Record], str | None]:
    """The next ones after this object's id, but for those to be made again; and after which to ask on, None at the
    end."""
    page = await observations.after(session, application, kind, after, limit)
    ids = {one.object_id: observation_id(application, kind, one.object_id, one.version) for one in page}
    came = await events.known(session, [(application, event_id) for event_id in ids.values()])
    told = await events.told(session, application, [f"{kind}:{one.object_id}" for one in page])
    stay = [
        one
        for one in page
        if (application, ids[one.object_id]) in came or not _is_made_again(one, told.get(f"{kind}:{one.object_id}", {}))
    ]
    found = [{"observation": document(_OBSERVATIONS, one.__dict__)} for one in stay]
    return found, page[-1].object_id if len(page) == limit else None


def without_state(found: Brought, baselined: Collection[str]) -> Sequence[str]:
    """The applications, in order, of which events came in, but no word that a walk of the state has remembered what was
    there before, so nothing that was read. So it is of each in an export from before 2026-11-29, and in what was pruned
    alone. `baselined`: those of which this ledger knows such a walk. Pure."""
    walks = [one["first_walk"] for one in found.first_walks]
    told = {one["application"] for one in walks if one["walk"] == RECONCILE}
    return sorted(found.applications - told - set(baselined))


def _is_made_again(one: Observed, told: Mapping[str, datetime]) -> bool:
    """Whether one that never came may lie unread in a log that is left behind: of an object that events told of before
    it was read (a version is that time in microseconds). What a first walk remembered never comes either, and stays: a
    paid order of before would be taken for a new one. It remembers nothing that was told. Pure."""
    return any(received_at.timestamp() * 1_000_000 < one.version for received_at in told.values())
