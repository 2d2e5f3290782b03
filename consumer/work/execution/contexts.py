"""Contexts: makes the `Context` a handler gets, from what this worker has to offer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock
from consumer.ledger.handling import snapshots
from consumer.plugin import Context, Event, Handler
from consumer.plugin.options import ValidatedOptions
from consumer.plugin.snapshot import Snapshot, SnapshotKind, SnapshotSource
from consumer.telemetry.way import trace_id
from consumer.wire import SEED
from consumer.work.execution.loop_proxy import LoopProxy, on_loop


class Ledger(Protocol):
    """Where snapshots are looked up."""

    def reading(self) -> AbstractAsyncContextManager[AsyncSession]:
        """A session that only reads."""
        ...


@dataclass(frozen=True)
class Contexts:
    """What handlers may use: `options` per plugin, `payments` clients per application.

    `http`, when given, is the session of every handler that runs on the caller's loop (tests, the test kit);
    handlers on loops of their own get the session of their loop. `ledger` is where effect handlers look snapshots up.
    """

    clock: Clock
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    payments: Mapping[str, Any] = field(default_factory=dict)
    http: Any = None
    ledger: Ledger | None = None

    def make(
        self,
        handler: Handler,
        event: Event,
        *,
        attempt: int,
        plan: str | None,
        key_plan: str | None = None,
        session: AsyncSession | None = None,
        http: Any = None,
        home: asyncio.AbstractEventLoop | None = None,
    ) -> Context:
        """A context for one attempt; `plan` is what sent the event, `session` is for transactional handlers only.

        `key_plan`: the plan that renewed the run's idempotency key. `home`: the loop that the payments clients and the
        ledger belong to, when the handler runs on another.
        """
        payments = self.payments.get(event.application)
        return Context(
            application=event.application,
            handler=handler,
            event=event,
            attempt=attempt,
            now=self.clock.now(),
            is_replay=plan is not None and plan != SEED,
            is_history=plan == SEED,
            log=lambda: structlog.get_logger(
                "handler",
                application=event.application,
                event_id=event.id,
                type=event.type,
                handler=handler.name,
                attempt=attempt,
                trace_id=trace_id(event),
            ),
            options=self._validated.of(handler.function, handler.plugin),
            session=session,
            http=http if http is not None else self.http,
            payments=LoopProxy(payments, home) if payments is not None and home is not None else payments,
            snapshots=self._snapshots(event.application, session, home),
            key_plan=key_plan,
        )

    @cached_property
    def _validated(self) -> ValidatedOptions:
        return ValidatedOptions(self.options)

    def _snapshots(
        self, application: str, session: AsyncSession | None, home: asyncio.AbstractEventLoop | None
    ) -> SnapshotSource | None:
        if session is not None:
            return functools.partial(snapshots.newest, session, application)
        if self.ledger is None:
            return None
        look = functools.partial(_newest_in, self.ledger, application)
        return look if home is None else functools.partial(_elsewhere, home, look)


async def _newest_in(ledger: Ledger, application: str, kind: SnapshotKind, object_id: str) -> Snapshot | None:
    async with ledger.reading() as session:
        return await snapshots.newest(session, application, kind, object_id)


async def _elsewhere(
    home: asyncio.AbstractEventLoop,
    look: Callable[[SnapshotKind, str], Coroutine[Any, Any, Snapshot | None]],
    kind: SnapshotKind,
    object_id: str,
) -> Snapshot | None:
    return await on_loop(home, look(kind, object_id))
