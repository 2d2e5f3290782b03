"""Where a payload keeps what the locators of the deployment do not look for: candidates, first hit wins.

The service shows neither its event payloads nor most record fields, so these are lists (cases U1, U10), and a plugin's
settings may replace them. An observation wraps the record as it was read, a service event carries it somewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator

from consumer.plugin import Event

EVENT_PLACES = ("/data/object", "/data", "/object", "")
RECORD_PLACES = ("/data/record",)
TEXT_MAX_CHARS = 255
_POINTER, _MARK = re.compile(r"(/([^~/]|~[01])*)+\Z"), re.compile(r"=(true|false)\Z")
TEST_MARKERS = (
    *(f"{place}/{word}=true" for place in EVENT_PLACES for word in ("test", "is_test")),
    *(f"{place}/livemode=false" for place in EVENT_PLACES),
)


def pointer(text: str) -> str:
    """A JSON pointer (RFC 6901), as an option gives it. Raises ValueError: one that is none would find nothing, or
    fail every run."""
    if not _POINTER.match(text):
        raise ValueError("must be a JSON pointer: it begins with '/', and '~' stands only before 0 or 1")
    return text


def marker(text: str) -> str:
    """A JSON pointer and what stands there: `/test=true`. Raises ValueError."""
    if not _MARK.search(text):
        raise ValueError("must be a JSON pointer and =true or =false, like /test=true")
    pointer(text.rpartition("=")[0])
    return text


Pointers = tuple[Annotated[str, AfterValidator(pointer)], ...]
Markers = tuple[Annotated[str, AfterValidator(marker)], ...]


def look(event: Event, candidates: Sequence[str]) -> Any:
    """The first value found, or None."""
    return event.find(*_pointers(tuple(candidates), event.type.endswith(".observed")))


def look_text(event: Event, candidates: Sequence[str]) -> str | None:
    """As `look`, but only a text (or a whole number, as text) of a sane length."""
    for value in event.find_all(*_pointers(tuple(candidates), event.type.endswith(".observed"))):
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and 0 < len(value) <= TEXT_MAX_CHARS:
            return value
    return None


def look_amount(event: Event, candidates: Sequence[str]) -> str | None:
    """An amount as it was said, or None where nothing is said. The service writes amounts as decimal strings; what is
    none of those is told apart by its JSON type, so that it is never taken for one (case F21)."""
    value = look(event, candidates)
    match value:
        case None:
            return None
        case str():
            return value[:TEXT_MAX_CHARS]
        case bool() | dict() | list():
            return f"({type(value).__name__})"
    return f"(number) {value}"[:TEXT_MAX_CHARS]


def marked_as_test(event: Event, markers: Iterable[str]) -> bool:
    """Whether the payload says that it is a test event (cases F24, A47): markers are `pointer=true` or `=false`."""
    true, false = _marked(tuple(markers))
    return any(one is True for one in event.find_all(*true)) or any(one is False for one in event.find_all(*false))


@cache
def _marked(markers: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    parts = [marker.rpartition("=") for marker in markers]
    is_true = [(pointer, wanted == "true") for pointer, _, wanted in parts]
    return tuple(one for one, true in is_true if true), tuple(one for one, true in is_true if not true)


@cache
def _pointers(candidates: tuple[str, ...], observation: bool) -> tuple[str, ...]:
    places = RECORD_PLACES if observation else EVENT_PLACES
    return tuple(place + candidate for candidate in candidates for place in places)
