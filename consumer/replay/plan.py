"""Plan: the frozen set of (event, handler), and what it would do; whether that is still so (cases R2, R3, R16)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock
from consumer.errors import NotFound, PlanRefused, PlanTooOld, UsageError
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.ledger.plans import candidates, items, plans
from consumer.ledger.plans.candidates import Pair, PlanFilter
from consumer.ledger.plans.plans import Decided
from consumer.ledger.plans.tables import Action, PlanRow
from consumer.ledger.tables import RunStatus
from consumer.replay.differences import differences
from consumer.replay.effects import Effects, digest, summary
from consumer.replay.prediction import Predictor
from consumer.replay.turns import Turned

ITEMS_MAX: Final = 100_000
FORCED_MORE: Final = (
    "by force more fits than a plan holds, and a second plan would do the same ones again: narrow it (--since, --until)"
)
SAMPLE: Final = 10

Told = Callable[[int, int], None]
"""Hears how many items were predicted, of how many."""


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Makes plans, and looks at them again."""

    database: Database
    predictor: Predictor
    clock: Clock

    async def make(
        self, wanted: PlanFilter, *, by: str, reason: str | None = None, renews_keys: bool = False,
        told: Told = lambda *_: None,
    ) -> dict[str, Any]:  # fmt: skip
        """Freeze what fits, predict it, store both; returns the plan as it is shown. Nothing else is written.

        Raises PlanRefused for an event that was never proved, or is a test (case R9), NotFound for a handler nobody
        has, UsageError for one that is not installed here, and for more than a plan holds where it is by force.
        """
        now = self.clock.now()
        wanted = replace(wanted, until=min(wanted.until or now, now))
        plan_id = plans.new_id()
        pairs, is_more = await self._pairs(wanted)
        if is_more and wanted.forced:
            raise UsageError(FORCED_MORE, most=ITEMS_MAX)
        turned = await self._predict(pairs, plan_id, renews_keys=renews_keys, told=told)
        predicted = [(one.pair, effects) for one, effects in turned]
        tests = _events(one for one in pairs if one.action is not Action.FOLLOW) - _events(
            one.pair for one, _ in turned
        )
        if tests and wanted.event is not None:
            raise PlanRefused(event_id=wanted.event[:100], where="a test event")
        shown = await self._summary(wanted, predicted, len(tests), complete=not is_more)
        decided = Decided(
            by=by,
            reason=reason,
            filters=wanted.document(),
            forced=wanted.forced,
            renews_keys=renews_keys,
            items=len(predicted),
            predicted=shown,
            digest=digest(predicted),
        )
        async with self.database.transaction() as session:
            await plans.create(session, plan_id, decided, now)
            await items.add(session, plan_id, [(one.pair, one.turn, effects.packed()) for one, effects in turned])
        return {"id": plan_id, **shown}

    async def _pairs(self, wanted: PlanFilter) -> tuple[Sequence[Pair], bool]:
        """What fits, and whether there is more than a plan holds."""
        types = self._types(wanted)
        async with self.database.reading() as session:
            if wanted.event is not None:
                await _refuse_unproved(session, wanted.event)
            found, is_more = await candidates.pairs(session, wanted, types, ITEMS_MAX)
            await self._require_installed(session, found)
        return found, is_more

    async def _require_installed(self, session: AsyncSession, pairs: Sequence[Pair]) -> None:
        """Raises UsageError for a handler that a worker has, and this process has not: the plan would say that its runs
        wait, and they would be done. One that nobody has is waited for, as it says."""
        unknown = {pair.handler for pair in pairs if self.predictor.handlers.get(pair.handler) is None}
        if unknown and (there := unknown & await handlers.living(session, self.clock.now())):
            raise UsageError(
                "`work` has this handler, and it is not installed here: what it would do cannot be said. Plan and "
                "apply where it is",
                handler=", ".join(sorted(there)),
            )

    def _types(self, wanted: PlanFilter) -> tuple[str, ...]:
        if wanted.handler is None:
            return ()
        handler = self.predictor.handlers.get(wanted.handler)
        if handler is None:
            raise NotFound("no such handler is installed; see `consumer handlers list`", handler=wanted.handler[:200])
        return handler.types

    async def _predict(
        self, pairs: Sequence[Pair], plan_id: str, *, renews_keys: bool, told: Told = lambda *_: None
    ) -> list[tuple[Turned, Effects]]:
        return await self.predictor.predict(
            pairs,
            plan=plan_id,
            renews_keys=renews_keys,
            now=self.clock.now(),
            progress=lambda done: told(done, len(pairs)),
        )

    async def _summary(
        self, wanted: PlanFilter, predicted: Sequence[tuple[Pair, Effects]], tests: int, *, complete: bool
    ) -> dict[str, Any]:
        async with self.database.reading() as session:
            left, is_more = await candidates.left_alone(session, wanted)
            seeded = await candidates.seeded(session, wanted, self._types(wanted))
            archived = await candidates.archived(session, wanted, self._types(wanted))
        shown = summary(predicted, left)
        refused = {"seeded": seeded, "archived": archived, "test": tests}
        return {
            **shown,
            "skipped": sum(states.get(RunStatus.SUCCEEDED.value, 0) for states in left.values()),
            "refused": {why: count for why, count in refused.items() if count},
            "counted_all": not is_more,
            "complete": complete,
            "sample": [_sampled(pair, effects) for pair, effects in predicted[:SAMPLE]],
        }

    async def look_again(self, row: PlanRow, max_age: timedelta) -> list[dict[str, str]]:
        """What would come out otherwise now, item by item; empty when it is as planned. Raises PlanTooOld."""
        age = self.clock.now() - row.created_at
        if age > max_age:
            raise PlanTooOld(plan=row.id, age_s=round(age.total_seconds()), filters=_words(orjson.loads(row.filters)))
        planned = await self.predicted(row.id)
        pairs, _ = await self._pairs(PlanFilter.of(orjson.loads(row.filters)))
        turned = await self._predict(pairs, row.id, renews_keys=row.renews_keys)
        return differences(planned, [(one.pair, effects) for one, effects in turned])

    async def predicted(self, plan_id: str) -> list[tuple[Pair, Effects]]:
        """The items of a plan and what was predicted for each."""
        async with self.database.reading() as session:
            return [(pair, Effects.of(row.predicted)) for pair, row in await items.of_plan(session, plan_id)]

    async def require_workers(self, plan_id: str) -> None:
        """Raises UsageError when the plan needs a handler that no living worker has: its runs would wait."""
        async with self.database.reading() as session:
            wanted = {pair.handler for pair, _ in await items.of_plan(session, plan_id)}
            living = await handlers.living(session, self.clock.now())
        missing = sorted(wanted - living)
        if missing:
            raise UsageError(
                "no worker has this handler yet: install it where `work` runs, and start that again",
                handler=", ".join(missing),
            )


async def _refuse_unproved(session: AsyncSession, event_id: str) -> None:
    where = await candidates.unproved(session, event_id)
    if where is not None:
        raise PlanRefused(event_id=event_id[:100], where=where)


def _events(pairs: Iterable[Pair]) -> set[tuple[str, str]]:
    return {(pair.application, pair.event_id) for pair in pairs}


def _sampled(pair: Pair, effects: Effects) -> dict[str, Any]:
    return {
        "application": pair.application,
        "event_id": pair.event_id,
        "type": pair.type,
        "handler": pair.handler,
        "action": pair.action.value,
        "ends": effects.ends,
        "emits": [one.type for one in effects.emits],
    }


def _words(filters: Mapping[str, Any]) -> str:
    """A filter as it is typed."""
    kept = {name: value for name, value in filters.items() if name not in ("until", "forced", "also")}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in kept.items()) or "no filter"
