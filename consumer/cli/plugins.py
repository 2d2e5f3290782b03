"""Plugins: the handlers that settings load, for commands."""

from __future__ import annotations

from consumer.settings import Settings
from consumer.work.registry import Registry, load_registry


def registry_of(settings: Settings) -> Registry:
    """The handlers that these settings load."""
    return load_registry(settings.handlers, {new: old for old, new in settings.renamed_handlers.items()})
