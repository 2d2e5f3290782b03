"""What a handler asked of the outside, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

KEY_HEADER = "idempotency-key"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request that a handler made. `body` is what was passed as `json` or `data`: a form's fields by name, with a
    file as `{"filename", "content_type", "content"}`; what is read from a file or a generator as bytes."""

    method: str
    url: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def idempotency_key(self) -> str | None:
        """The value of its `Idempotency-Key` header."""
        return next((value for name, value in self.headers.items() if name.lower() == KEY_HEADER), None)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the outside says: a status, a body and headers, or an `error` instead of an answer.

    A body of bytes or text goes as it is, anything else as JSON; `headers` may name another `Content-Type`.
    """

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    error: Exception | None = None


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What a request that changes something meets: `instead` of its answer (None: nothing), and whether it `is_done`
    (and recorded) all the same. `at_most` so many, each once: the same request again, whatever its headers, is
    answered. Without it, all and always."""

    instead: Callable[[Request], Answer | None]
    is_done: bool = False
    at_most: int | None = None
