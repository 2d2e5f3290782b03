"""Cure: commands that mend something, as they are copied into a shell. Pure."""

from __future__ import annotations

from shlex import quote


def command(words: str, *given: str, options: str = "") -> str:
    """The command with what it is given, quoted; the options come first where that begins with a dash, behind `--`."""
    told = " ".join(map(quote, given))
    parts = (words, options, "--", told) if any(one.startswith("-") for one in given) else (words, told, options)
    return " ".join(part for part in parts if part)


def release(order_id: str) -> str:
    """Lets go a paid order, whatever holds it."""
    return command("consumer say fulfilment.released", order_id, options="--reason …")


def unfulfillable(order_id: str) -> str:
    """Says that there is nothing to deliver; the money is given back by hand (case F33)."""
    return command("consumer say fulfilment.unfulfillable", order_id, options="--reason …")
