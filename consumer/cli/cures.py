"""Cures: the command that helps, spelled out so that it can be typed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from shlex import quote

from consumer.plugin import Handler
from consumer.plugin.declaration import FULFILMENT


def replay_command(handler: str, *, since: datetime | None = None, order: str | None = None) -> str:
    """The plan that lets a handler act on what it missed."""
    words = ["consumer replay plan --handler", quote(handler)]
    if since is not None:
        words.append(f"--since {since:%Y-%m-%dT%H:%M:%SZ}")
    if order is not None:
        words.append(f"--order {quote(order)}")
    return " ".join(words)


def who_fulfils(handlers: Sequence[Handler]) -> list[str]:
    """The handlers that could fulfil an order which nobody took."""
    return [one.name for one in handlers if one.fulfils and one.wants(FULFILMENT)]
