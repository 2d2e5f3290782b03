"""Portions: a statement takes a few hundred ids at once, whatever the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def portions(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The same things in the same order, at most `size` at once."""
    for start in range(0, len(things), size):
        yield things[start : start + size]
