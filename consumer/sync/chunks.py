"""Chunks: what is too much for one statement or one request, in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, `size` at most at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
