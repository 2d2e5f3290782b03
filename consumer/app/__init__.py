"""The composition root: what a role is made of, and the order in which it starts and stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consumer.app.root import App

__all__ = ["App"]


def __getattr__(name: str) -> Any:
    """App when it is asked for: who only looks need not import every part of every role."""
    if name == "App":
        from consumer.app.root import App

        return App
    raise AttributeError(name)
