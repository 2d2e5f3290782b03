"""Made up: a value for each field that a plugin's own payload needs and gives no example of, by its type. Pure."""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from consumer.errors import PayloadUnexpected
from consumer.payload import Payload

_BY_TYPE: Mapping[type, Any] = {
    bool: True,
    int: 1,
    float: 1.0,
    Decimal: "1.00",
    datetime: "2026-01-15T12:00:00+00:00",
    date: "2026-01-15",
    UUID: "00000000-0000-4000-8000-000000000001",
}


class _Unknown(Exception):
    """Nothing can be made up for this type."""


def made_up(model: type[Payload], said: Collection[str]) -> dict[str, Any]:
    """Values for the required fields that nobody said. Raises PayloadUnexpected, which names the field to give an
    example of, where its type does not tell what fits."""
    found = {}
    for name, field in model.model_fields.items():
        if not field.is_required() or name in said:
            continue
        try:
            found[name] = _fitting(name, field)
        except (_Unknown, ValidationError):
            raise PayloadUnexpected(
                f"{model.__name__}.{name}: give the event a value, data={{{name!r}: ...}}, or the class an example, "
                f"{name}: ... = Field(examples=[...])"
            ) from None
    return found


def _fitting(name: str, field: FieldInfo) -> Any:
    value = _value(name, field.annotation)
    checked: Any = type("_One", (BaseModel,), {"__annotations__": {"value": field.annotation}, "value": field})
    checked.model_validate({"value": value})
    return value


def _value(name: str, kind: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return None if type(None) in arguments else _value(name, arguments[0])
    if origin is typing.Annotated:
        return _value(name, arguments[0])
    plain = origin or kind
    if not isinstance(plain, type):
        return name
    if issubclass(plain, Enum):
        return next(iter(plain)).value
    if issubclass(plain, BaseModel):
        return {one: _value(one, field.annotation) for one, field in plain.model_fields.items() if field.is_required()}
    if issubclass(plain, str):
        return name
    if issubclass(plain, Mapping):
        return {}
    if issubclass(plain, Collection):
        return []
    for known, value in _BY_TYPE.items():
        if issubclass(plain, known):
            return value
    raise _Unknown
