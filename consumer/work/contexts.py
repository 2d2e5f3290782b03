"""Contexts: makes the `Context` a handler gets, from what this worker has to offer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import Clock
from consumer.plugin import Context, Event, Handler
from consumer.wire import SEED


@dataclass(frozen=True)
class Contexts:
    """What handlers may use: `options` per plugin, `payments` clients per application, one HTTP session for all."""

    clock: Clock
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    payments: Mapping[str, Any] = field(default_factory=dict)
    http: Any = None

    def make(
        self, handler: Handler, event: Event, *, attempt: int, plan: str | None, session: AsyncSession | None = None
    ) -> Context:
        """A context for one attempt; `plan` is what sent the event, `session` is for transactional handlers only."""
        return Context(
            application=event.application,
            handler=handler,
            event=event,
            attempt=attempt,
            is_replay=plan is not None and plan != SEED,
            now=self.clock.now(),
            log=structlog.get_logger("handler").bind(
                application=event.application, event_id=event.id, type=event.type, handler=handler.name, attempt=attempt
            ),
            options=self.options.get(handler.plugin, {}),
            session=session,
            http=self.http,
            payments=self.payments.get(event.application),
        )
