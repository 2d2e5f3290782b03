"""Options: what `ctx.options` is: the plugin's own model with its defaults, or the table as it stands without one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from consumer.errors import HandlerMisuse
from consumer.payload import misfits

MODEL = "OPTIONS"


class ValidatedOptions:
    """What CONSUMER_HANDLER_OPTIONS gives each handler; validated once for each, not once for each event."""

    def __init__(self, given: Mapping[str, Mapping[str, Any]]) -> None:
        self._given = given
        self._made: dict[Callable[..., Any], Any] = {}

    def of(self, function: Callable[..., Any], plugin: str) -> Any:
        """`ctx.options` of this handler of this plugin. Raises HandlerMisuse; a deployment with such does not start."""
        if function not in self._made:
            self._made[function] = options_for(function, self._given.get(plugin, {}))
        return self._made[function]


def options_model(function: Callable[..., Any]) -> type[BaseModel] | None:
    """The pydantic model called OPTIONS in the module of a handler, if there is one."""
    model = getattr(inspect.getmodule(inspect.unwrap(function)), MODEL, None)
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def is_no_model(function: Callable[..., Any]) -> bool:
    """Whether the module of a handler calls something OPTIONS that is no model's class: it counts for nothing."""
    given = getattr(inspect.getmodule(inspect.unwrap(function)), MODEL, None)
    return given is not None and options_model(function) is None


def names_in(model: type[BaseModel]) -> set[str]:
    """What its values are called, also by an alias."""
    fields = model.model_fields.items()
    return {name for name, _ in fields} | {str(field.alias) for _, field in fields if field.alias}


def options_for(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """What the handler gets. Raises HandlerMisuse; a deployment with such options does not start."""
    model = options_model(function)
    if model is None:
        return given
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise HandlerMisuse(f"the options do not fit {model.__name__}: {misfits(error)}") from None
    except Exception as error:  # noqa: BLE001 - a validator of the plugin's own; its text may repeat a value
        raise HandlerMisuse(f"{model.__name__} breaks on these options: {type(error).__name__}") from None
