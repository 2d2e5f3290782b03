"""Options: whether what CONSUMER_HANDLER_OPTIONS says fits the plugins, known at the start and not by dead runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

from consumer.errors import SettingsError
from consumer.plugin.options import options_model
from consumer.settings.application import reason
from consumer.work.registry import GROUP, Registry, unknown_names

NAME = "CONSUMER_HANDLER_OPTIONS"
BUILT_IN = {
    "fulfilment": "no paid order becomes fulfilment.requested",
    "access": "no subscription becomes access.granted or access.revoked",
}


def option_problems(registry: Registry, options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for each table that belongs to no plugin, and for each value that its plugin refuses; no value in it.

    A plugin says what it takes by a pydantic model called OPTIONS in the module of its handlers; without one, anything
    goes. A plugin that cannot be loaded is not asked. The built-in ones are, also where their handlers are left out:
    who looks goes by what they say.
    """
    models = _built_in_models() | _models(registry)
    installed = {entry.name for entry in entry_points(group=GROUP)} | {one.plugin for one in registry.handlers}
    found = [f"{NAME}.{plugin}: no plugin of this name is installed" for plugin in sorted(set(options) - installed)]
    return found + _misfits(models, options)


def require_options(registry: Registry, options: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises SettingsError for options that do not fit."""
    if problems := option_problems(registry, options):
        raise SettingsError(problems)


def require_built_in(options: Mapping[str, Mapping[str, Any]]) -> None:
    """The same of the built-in plugins alone, where the merchant's may not be installed. Raises SettingsError."""
    if problems := _misfits(_built_in_models(), options):
        raise SettingsError(problems)


def _misfits(models: Mapping[str, type[BaseModel]], options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found: list[str] = []
    for plugin, model in sorted(models.items()):
        try:
            model.model_validate(options.get(plugin, {}))
        except ValidationError as error:
            for item in error.errors(include_input=False, include_url=False):
                place = ".".join(str(part) for part in (NAME, plugin, *item["loc"]))
                found.append(f"{place}: {reason(item)}")
        except Exception as error:  # noqa: BLE001 - a validator of the plugin's own; its text may repeat a value
            found.append(f"{NAME}.{plugin}: {model.__name__} breaks on these options ({type(error).__name__})")
    return found


def unknown_handlers(
    registry: Registry, allowed: Collection[str] | None, renamed: Mapping[str, str] | None = None
) -> list[str]:
    """One line for each name in CONSUMER_HANDLERS that no handler and no plugin has: its work would silently rest.
    `renamed` as for `load_registry`."""
    unknown = unknown_names(registry, allowed, renamed or {})
    return [f"CONSUMER_HANDLERS: no handler or plugin is called {name!r}" for name in unknown]


def left_out(registry: Registry, allowed: Collection[str] | None) -> list[str]:
    """What CONSUMER_HANDLERS leaves out of the built-in plugins, one line each: without them nothing is fulfilled."""
    return [f"{name} ({BUILT_IN[name]})" for name in built_ins_left_out(registry, allowed)]


def built_ins_left_out(registry: Registry, allowed: Collection[str] | None) -> list[str]:
    """Their names."""
    there = {handler.plugin for handler in registry.handlers}
    return [] if allowed is None else [name for name in BUILT_IN if name not in there]


def _built_in_models() -> dict[str, type[BaseModel]]:
    from handlers.access.policy import Policy
    from handlers.fulfilment.options import Options

    return {"access": Policy, "fulfilment": Options}


def _models(registry: Registry) -> dict[str, type[BaseModel]]:
    found = {handler.plugin: options_model(handler.function) for handler in registry.handlers}
    return {plugin: model for plugin, model in found.items() if model is not None}
