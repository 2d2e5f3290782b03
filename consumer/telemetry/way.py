"""Way: the way of one event through a process. Each line that is written meanwhile carries its trace id; with level
debug each step is a line of its own.

Names of steps: `webhook_stored`, `hint_kept`, `event_published`, `event_recorded`, `handler_began`, `handler_ended`,
`derived_published`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import structlog

from consumer.events import Delivery, Event
from consumer.telemetry.logs import LineFields
from consumer.telemetry.traces import parsed

_log = structlog.get_logger("way")
_ROOT: Final = logging.getLogger()
TOGETHER_MAX: Final = 20
"""Traces that one line names; `of_events` says how many there are."""


def trace_id(about: Event | Delivery) -> str:
    """The trace that its delivery began. What came without one, because it was read, has one that its id gives: the
    same in every process."""
    ids = parsed(about.traceparent)
    if ids is not None:
        return f"{ids[0]:032x}"
    return hashlib.sha256(f"{about.application}\0{about.id}".encode()).hexdigest()[:32]


def onwards(cause: Event) -> str:
    """The traceparent of what comes of it: of the same trace."""
    return cause.traceparent or f"00-{trace_id(cause)}-{trace_id(cause)[:16]}-00"


def on_the_way_of(event: Event) -> AbstractContextManager[None]:
    """Inside, every line of this task says which event is being processed."""
    return LineFields(lambda: {"trace_id": trace_id(event), "event_id": event.id})


def on_the_way_of_trace(traceparent: str | None) -> AbstractContextManager[None]:
    """The same of what is done for an event that is not at hand, but its trace is; None: for none."""
    ids = parsed(traceparent)
    return nullcontext() if ids is None else LineFields(lambda: {"trace_id": f"{ids[0]:032x}"})


def on_the_way_of_all(events: Sequence[Event]) -> AbstractContextManager[None]:
    """The same of events that are processed together: a line that is not about one of them names them all."""
    named, count = events[:TOGETHER_MAX], len(events)
    return LineFields(lambda: {"trace_ids": [trace_id(event) for event in named], "of_events": count})


def is_told() -> bool:
    """Whether steps are written: whoever would do some work for one asks first."""
    return _ROOT.isEnabledFor(logging.DEBUG)


def tell(step: str, about: Event | Delivery, **fields: Any) -> None:
    """One step, with level debug."""
    if is_told():
        ids: dict[str, Any] = {"application": about.application, "trace_id": trace_id(about)}
        if isinstance(about, Event):
            ids |= {"event_id": about.id, "type": about.type, "key": about.key}
        else:
            ids |= {"event_id": about.event_id, "delivery_id": about.id}
        _log.debug(step, **ids, **fields)
