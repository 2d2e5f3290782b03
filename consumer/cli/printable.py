"""Printable: foreign text as a terminal may show it."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text as a terminal may show it: what would move the cursor, change colours, end the line or turn the
    direction of writing stands there as its escape, visibly. Ids, customers and reasons are written by others."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_json(document: bytes) -> bytes:
    """The same JSON as a terminal may show it. Only texts hold such characters: it reads the same."""
    text = document.decode()
    if text.replace("\n", "").isprintable():
        return document
    return "".join(one if one.isprintable() or one == "\n" else _escaped(one) for one in text).encode()


def _escaped(character: str) -> str:
    halves = character.encode("utf-16-be").hex()
    return "".join(f"\\u{halves[at : at + 4]}" for at in range(0, len(halves), 4))
