"""Stalled: which stages of an application cannot do their work now, since when and why. In the ledger, for `status`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import rest, until_tick
from consumer.document import shown
from consumer.errors import ConsumerError, WrongApplication
from consumer.events import parse_time
from consumer.ledger.reading import sync_state

if TYPE_CHECKING:
    from consumer.sync.application import Application

WALK: Final = "held_up"  # a row among the bookmarks
STAGES: Final = ("identity", "credentials", "confirm", "refresh", "backfill", "reconcile", "canary")
LOOK_EVERY_S: Final = 2.0
SAY_AGAIN: Final = timedelta(seconds=15)
FRESH_FOR: Final = timedelta(seconds=60)
"""What nobody has said again for so long is over: no `sync` leads any more."""

LASTS: Final = timedelta(seconds=30)
CERTAIN: Final = frozenset({WrongApplication.code})
"""What is no passing trouble, however short it has lasted."""


@dataclass(frozen=True, kw_only=True)
class StalledStage:
    """One stage that fails again and again; `code` is why it failed last."""

    stage: str
    code: str
    since: datetime


async def stalled_stages(session: AsyncSession, application: str, now: datetime) -> tuple[StalledStage, ...]:
    """What the leading process noted last; nothing where none has said so lately."""
    kept = await sync_state.load(session, application, WALK) or {}
    return tuple(
        StalledStage(stage=stage, code=str(one["code"]), since=since)
        for stage, one in kept.items()
        if (since := parse_time(one["since"])) is not None
        and (said := parse_time(one.get("said"))) is not None
        and abs(now - said) <= FRESH_FOR
    )


def lasting(stages: Sequence[StalledStage], now: datetime) -> tuple[StalledStage, ...]:
    """Those that have failed for a while. Pure."""
    return tuple(one for one in stages if one.code in CERTAIN or now - one.since >= LASTS)


def told(stages: Sequence[StalledStage]) -> str:
    """What holds which stages up, and since when, by the reason; empty where there are none. Pure."""
    names: dict[str, list[str]] = {}
    for one in stages:
        names.setdefault(one.code, []).append(f"{one.stage} since {shown(one.since)}")
    return "; ".join(f"held up by {code}: {', '.join(those)}" for code, those in names.items())


def after(
    before: Sequence[StalledStage],
    failures: Mapping[str, str],
    now: datetime,
    took_s: Mapping[str, float] | None = None,
) -> tuple[StalledStage, ...]:
    """The stages in trouble (stage to code) with the time since when they have been: another reason for the same
    stage is the same trouble. `took_s`: how long the first failing step had tried already. Pure."""
    since = {one.stage: one.since for one in before}
    began = {stage: now - timedelta(seconds=(took_s or {}).get(stage, 0.0)) for stage in failures}
    return tuple(
        StalledStage(stage=stage, code=code, since=since.get(stage, began[stage])) for stage, code in failures.items()
    )


class Watch:
    """Notes what holds the stages of one application up, while this process leads."""

    def __init__(
        self,
        app: Application,
        failures: Callable[[], Mapping[str, str]],
        *,
        took_s: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._app = app
        self._failures = failures
        self._took_s = took_s
        self._noted: tuple[StalledStage, ...] | None = None
        self._said_at: datetime | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. What cannot be stored is stored when the ledger is back."""
        self._noted = None
        try:
            while not stop.is_set():
                failures = self._failures()
                self._show(failures)
                try:
                    await self._note(failures)
                except ConsumerError:
                    self._noted = None  # the stages say themselves that the ledger is away, or that another leads
                await rest(self._app.clock, until_tick(self._app.clock, LOOK_EVERY_S), stop)
        finally:
            self._show({})

    async def _note(self, failures: Mapping[str, str]) -> None:
        now = self._app.clock.now()
        if self._noted is None:
            async with self._app.database.reading() as session:
                self._noted = await stalled_stages(session, self._app.name, now)
        found = after(self._noted, failures, now, self._took_s())
        if found == self._noted and not (found and self._is_due(now)):
            return
        said = now.isoformat()
        state = {one.stage: {"code": one.code, "since": one.since.isoformat(), "said": said} for one in found}
        async with self._app.database.transaction() as session:
            await sync_state.keep(session, self._app.name, WALK, state, token=self._app.token(), now=now)
        self._noted, self._said_at = found, now

    def _is_due(self, now: datetime) -> bool:
        return self._said_at is None or not timedelta(0) <= now - self._said_at < SAY_AGAIN

    def _show(self, failures: Mapping[str, str]) -> None:
        for stage in STAGES:
            self._app.metrics.held_up.labels(self._app.name, stage).set(int(stage in failures))
