"""Chunks: what is too much for one statement, in parts: many keys, a few hundred of one application (and handler)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, and_

from consumer.columns import among

CHUNK = 500
"""So many values go into one statement."""
T = TypeVar("T")


def portions(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The same things in the same order, at most `size` at once."""
    for start in range(0, len(things), size):
        yield things[start : start + size]


def grouped(
    pairs: Iterable[tuple[tuple[str, ...], str]], at_once: int = CHUNK
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Pairs of (group, value) to the groups, each with at most so many of its values at once. Everybody who asks for
    the same gets it in the same order, so that row locks taken in it cannot lock each other out."""
    for group, members in groupby(sorted(set(pairs)), key=lambda pair: pair[0]):
        values = (value for _, value in members)
        while chunk := list(islice(values, at_once)):
            yield group, chunk


def matching(
    column: Column[Any], others: Sequence[Column[Any]], rows: Iterable[tuple[str, ...]], at_once: int = CHUNK
) -> Iterator[ColumnElement[bool]]:
    """Conditions that together take in just the rows with these values: of `column` first, then of the `others`. One
    for each group that is alike in the others, so many at once. (SQLite has no index for `(a, b) IN ...`.)"""
    for group, values in grouped(((row[1:], row[0]) for row in rows), at_once):
        alike = (other == value for other, value in zip(others, group, strict=True))
        yield and_(among(column, values), *alike)
