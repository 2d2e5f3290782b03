"""Discretion: what PostgreSQL says about an error, without the values it quotes (case I25).

`hide_parameters` keeps parameters out of SQLAlchemy's own texts; the server's DETAIL ("Key (id)=(...) already exists",
"Failing row contains (...)") and its data errors ('invalid input syntax for type integer: "..."') quote them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_QUOTED = re.compile(r'"[^"]*"')
_DATA_ERROR = "22"
_LINKS_MAX = 4


def hide_values(*errors: BaseException | None) -> None:
    """Take the values out of these texts of one error, in place: what SQLAlchemy made of it, the driver's own, and
    what that was raised from. What remains says which constraint, column or type it is about.
    """
    links: list[Any] = [link for error in errors for link in _chain(error)]
    is_about_data = any(str(getattr(link, "sqlstate", None) or "").startswith(_DATA_ERROR) for link in links)
    for link in links:
        if getattr(link, "detail", None) and isinstance(link.detail, str):
            link.detail = None
        if link.args and isinstance(link.args[0], str):
            link.args = (_discreet(link.args[0], is_about_data), *link.args[1:])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_LINKS_MAX):
        if error is None:
            return
        yield error
        error = error.__cause__


def _discreet(said: str, is_about_data: bool) -> str:
    first = said.partition("\nDETAIL:")[0]
    return _QUOTED.sub('"..."', first.partition(": ")[0]) if is_about_data else first
