"""Filters: the options that choose events (contract, Commands), and how a time is written."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from consumer.errors import UsageError

_AGO = re.compile(r"(\d{1,6})([smhdw])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

Since = Annotated[str | None, typer.Option(help="From this time on: ISO-8601, or 2h, 3d ago.")]
Until = Annotated[str | None, typer.Option(help="Before this time: ISO-8601, or 2h, 3d ago.")]
Type = Annotated[str | None, typer.Option("--type", help="Event type; `order.*` is allowed.")]
HandlerName = Annotated[str | None, typer.Option("--handler", help="Handler name.")]
Status = Annotated[str | None, typer.Option(help="Status of a run.")]
Order = Annotated[str | None, typer.Option(help="The merchant's order id.")]
SubscriptionId = Annotated[str | None, typer.Option("--subscription", help="Subscription id.")]
EventId = Annotated[str | None, typer.Option("--event", help="Event id.")]
Application = Annotated[str | None, typer.Option(help="Application; all when left out.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")]


def parse_moment(text: str | None, now: datetime) -> datetime | None:
    """ISO-8601, or `2h`, `3d` ago. Raises UsageError."""
    if text is None:
        return None
    ago = _AGO.match(text)
    if ago is not None:
        return now - timedelta(**{_UNITS[ago.group(2)]: int(ago.group(1))})
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError("a time is ISO-8601, or like 2h or 3d ago", given=text[:40]) from error
    return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
