"""Contexts: makes the `Context` a handler gets, from what this worker has to offer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock
from consumer.plugin import Context, Event, Handler
from consumer.wire import SEED
from consumer.work.across import Across


@dataclass(frozen=True)
class Contexts:
    """What handlers may use: `options` per plugin, `payments` clients per application.

    `http`, when given, is the session of every handler that runs on the caller's loop (tests, the test kit);
    handlers on loops of their own get the session of their loop.
    """

    clock: Clock
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    payments: Mapping[str, Any] = field(default_factory=dict)
    http: Any = None

    def make(
        self,
        handler: Handler,
        event: Event,
        *,
        attempt: int,
        plan: str | None,
        session: AsyncSession | None = None,
        http: Any = None,
        home: asyncio.AbstractEventLoop | None = None,
    ) -> Context:
        """A context for one attempt; `plan` is what sent the event, `session` is for transactional handlers only.

        `home`: the loop that the payments clients belong to, when the handler runs on another.
        """
        payments = self.payments.get(event.application)
        return Context(
            application=event.application,
            handler=handler,
            event=event,
            attempt=attempt,
            now=self.clock.now(),
            is_replay=plan is not None and plan != SEED,
            log=structlog.get_logger("handler").bind(
                application=event.application, event_id=event.id, type=event.type, handler=handler.name, attempt=attempt
            ),
            options=self.options.get(handler.plugin, {}),
            session=session,
            http=http if http is not None else self.http,
            payments=Across(payments, home) if payments is not None and home is not None else payments,
        )
