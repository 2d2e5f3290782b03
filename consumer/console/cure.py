"""Cure: a command that mends something, as it is copied into a shell. Pure."""

from __future__ import annotations

from shlex import quote


def command(words: str, *given: str, options: str = "") -> str:
    """The command with what it is given, quoted; the options come first where that begins with a dash, behind `--`."""
    told = " ".join(map(quote, given))
    parts = (words, options, "--", told) if any(one.startswith("-") for one in given) else (words, told, options)
    return " ".join(part for part in parts if part)
