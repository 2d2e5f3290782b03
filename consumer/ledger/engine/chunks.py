"""Chunks: many keys, a few hundred of one application (and handler) to a statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

CHUNK = 500
"""So many values go into one statement."""


def grouped(pairs: Iterable[tuple[tuple[str, ...], str]]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Pairs of (group, value) to the groups, each with at most CHUNK of its values at once. Everybody who asks for the
    same gets it in the same order, so that row locks taken in it cannot lock each other out."""
    for group, members in groupby(sorted(set(pairs)), key=lambda pair: pair[0]):
        values = (value for _, value in members)
        while chunk := list(islice(values, CHUNK)):
            yield group, chunk
