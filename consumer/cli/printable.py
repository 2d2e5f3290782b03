"""Printable: foreign text as a terminal may show it."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text as a terminal may show it: what would move the cursor, change colours, end the line or turn the
    direction of writing stands there as its escape, visibly. Ids, customers and reasons are written by others."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
