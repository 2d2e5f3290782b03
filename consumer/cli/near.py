"""Near: what a mistyped name may have meant, so that nobody takes "nothing" for an answer to a slip of the finger."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from consumer.errors import UsageError
from consumer.settings import Settings


def near(name: str, known: Iterable[str]) -> str | None:
    """The names that look like it, at most three, or None."""
    return ", ".join(difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)) or None


def require_application(name: str, settings: Settings) -> None:
    """Raise UsageError for an application that is not set up."""
    known = [one.name for one in settings.applications]
    if name not in known:
        raise UsageError("there is no such application", application=name[:100], known=", ".join(known) or None)
