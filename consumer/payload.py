"""Payload: what an event says, as a typed value. Pure; the catalogue is in `consumer.plugin.payloads`.

A class is bound to its event types where it is declared; a plugin declares the types it emits itself the same way:

    class ReminderDue(Payload, event="shop.reminder_due"):
        order_id: str

Unknown fields survive (`more`), since the service may say more than its document shows.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from consumer.errors import HandlerInvalid, PayloadUnexpected

_bound: dict[str, type[Payload]] = {}


class Payload(BaseModel):
    """One event's data, read-only. `event` names the type or types that carry it."""

    model_config = ConfigDict(frozen=True, extra="allow")
    event_types: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, event: str | tuple[str, ...] = (), **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls.event_types = (event,) if isinstance(event, str) else event
        for event_type in cls.event_types:
            _refuse_second(event_type, cls)
        _bound.update(dict.fromkeys(cls.event_types, cls))

    @property
    def more(self) -> Mapping[str, Any]:
        """The fields that the class does not name."""
        return self.model_extra or {}

    @classmethod
    def example(cls) -> dict[str, Any]:
        """A complete, realistic payload, as JSON holds it: the first example of each field."""
        return {
            name: field.examples[0]
            for name, field in cls.model_fields.items()
            if field.examples and field.examples[0] is not None
        }

    @classmethod
    def read(cls, document: Mapping[str, Any], event_type: str) -> Self:
        """The payload in a JSON object. Raises PayloadUnexpected, which names fields and no value."""
        try:
            return cls.model_validate(dict(document))
        except ValidationError as error:
            raise PayloadUnexpected(f"{event_type} does not look like {cls.__name__}: {misfits(error)}") from None


def misfits(error: ValidationError) -> str:
    """The first five fields that do not fit, and why, without a value."""
    wrong = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in wrong[:5])


def _refuse_second(event_type: str, model: type[Payload]) -> None:
    """Raise HandlerInvalid for a type that says something else already: whose class an event had would hang on which
    plugin was imported last. The same class again is its module's reload."""
    there = _bound.get(event_type, model)
    if (there.__module__, there.__qualname__) != (model.__module__, model.__qualname__):
        known = f"{there.__module__}.{there.__qualname__}"
        raise HandlerInvalid(
            f"an event of type {event_type!r} carries {known} already: import that, or leave `event=` out and use "
            f"{model.__qualname__}.read(event.payload.model_dump(), event.type) for a reading of your own"
        )


def payload_class(event_type: str) -> type[Payload]:
    """The class bound to a type; `Payload` itself, whose fields are all in `more`, for one that nobody bound."""
    return _bound.get(event_type, Payload)


def known_types() -> Mapping[str, type[Payload]]:
    """Every bound type: the catalogue's, and those of the plugins that are imported."""
    return dict(_bound)


def is_known(pattern: str) -> bool:
    """Whether an event of this type, or one that fits this wildcard, is known."""
    if pattern == "*":
        return True
    if pattern.endswith(".*"):
        return any(known.startswith(pattern[:-1]) for known in _bound)
    return pattern in _bound


def nearest_type(pattern: str) -> str | None:
    """The known type that reads most like this one."""
    wildcard = pattern.endswith(".*")
    words = {known.partition(".")[0] + ".*" for known in _bound} if wildcard else set(_bound)
    return next(iter(difflib.get_close_matches(pattern, sorted(words), n=1, cutoff=0.6)), None)
