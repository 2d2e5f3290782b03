"""Vocabulary: the words that an operator, or the query API for a merchant, may say to the built-in handlers, and what
each of them takes. Pure.

A name that no handler reads, or a value that is none, would change what a word means and nobody would be told: a gift
with a mistyped `entitlement` is a gift of everything, for ever (case A42). So both are refused before it is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from consumer.document import storable
from consumer.errors import UsageError
from consumer.plugin import parse_time
from handlers.fulfilment.order import Hold, decimal

ID_MAX_CHARS = 255
BY_MAX_CHARS = 100
REASON_MAX_CHARS = 500
ECHO_MAX_CHARS = 40
AMOUNT_MAX = 1_000_000
DECIMALS_MAX = 6

Rule = Callable[[Any, datetime], str | None]
"""What is wrong with a value at this time, or None."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """`about`: the kind of its key. Its data `needs` some names and `may` have others, beside `by` and `reason`."""

    about: str
    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()


_SOURCE = ("entitlement", "until")
WORDS: Mapping[str, Word] = {
    "checkout.registered": Word(
        about="order", needs=("session_id", "order_id"), may=("customer", "expected_amount", "mode", "price_id")
    ),
    "fulfilment.marked_paid": Word(about="order"),
    "fulfilment.released": Word(about="order", may=("hold",)),
    "fulfilment.unfulfillable": Word(about="order", may=("hold",)),
    "fulfilment.finding_closed": Word(about="object", needs=("kind",), may=("seen",)),
    "access.finding_closed": Word(about="object", needs=("kind",), may=("seen",)),
    "access.customer_attached": Word(about="subscription", needs=("customer",), may=("source",)),
    "access.held": Word(about="customer", may=_SOURCE),
    "access.hold_lifted": Word(about="customer", needs=("id",)),
    "access.complimentary_granted": Word(about="customer", may=_SOURCE),
    "access.complimentary_ended": Word(about="customer", needs=("id",)),
    "access.brake_released": Word(about="object"),
    "access.recheck": Word(about="object"),
}


def text_problem(value: Any, max_chars: int) -> str | None:
    """What keeps a value from being a text that the ledger can hold."""
    if not isinstance(value, str) or not value:
        return "is empty"
    if len(value) > max_chars:
        return f"has more than {max_chars} characters"
    if storable(value) != value:
        return "has a character that cannot be kept"
    return None


def amount_problem(value: Any) -> str | None:
    """What keeps a value from being an amount of the service's (case F21)."""
    number = decimal(value) if isinstance(value, str) else None
    if number is None or not 0 < number <= AMOUNT_MAX or -int(number.as_tuple().exponent) > DECIMALS_MAX:
        return f"is no decimal USDC string with at most {DECIMALS_MAX} decimals, above 0, up to {AMOUNT_MAX}"
    return None


def _id(value: Any, _now: datetime) -> str | None:
    return text_problem(value, ID_MAX_CHARS)


def _name(max_chars: int) -> Rule:
    """A name that somebody typed: a blank beside it makes another one."""

    def rule(value: Any, _now: datetime) -> str | None:
        problem = text_problem(value, max_chars)
        return problem or ("has a blank at its end" if value != value.strip() else None)

    return rule


def _one_of(*words: str) -> Rule:
    return lambda value, _now: None if value in words else f"is none of {', '.join(words)}"


def _time_to_come(value: Any, now: datetime) -> str | None:
    at = parse_time(value)
    if at is None or at <= now:
        return "is no time that is still to come, like 2030-01-31 or 2030-01-31T12:00:00Z"
    return None


RULES: Mapping[str, Rule] = {
    "customer": _id,
    "entitlement": _name(100),
    "expected_amount": lambda value, _now: amount_problem(value),
    "hold": _one_of(*Hold),
    "id": _id,
    "kind": _name(40),
    "mode": _one_of("payment", "subscription"),
    "order_id": _id,
    "price_id": _id,
    "seen": _name(40),
    "session_id": _id,
    "source": _one_of("operator", "resolver"),
    "until": _time_to_come,
}


def checked(
    word: str, subject: str, data: Mapping[str, Any], *, by: str, reason: str, now: datetime
) -> tuple[Word, dict[str, Any]]:
    """The word, and what is said with it: its data, who says it and why. A value of None says nothing.

    Raises UsageError that names what does not fit, and what would: an unknown word or name, what is missing, a value
    that is none, a subject, a reason or a speaker that is empty or too long to be kept.
    """
    known = WORDS.get(word)
    if known is None:
        raise UsageError(f"there is no such word; the words are {', '.join(WORDS)}", word=_echo(word))
    takes = known.needs + known.may
    unknown = [name for name in data if name not in takes]
    if unknown:
        names = ", ".join(_echo(name) for name in unknown)
        raise UsageError(f"{word} knows no {names}; it takes {', '.join(takes) or 'no names at all'}")
    missing = [name for name in known.needs if data.get(name) is None]
    if missing:
        raise UsageError(f"{word} needs {', '.join(missing)}")
    said = {name: value for name, value in data.items() if value is not None}
    found = {"the subject": text_problem(subject, ID_MAX_CHARS)}
    found |= {name: RULES[name](value, now) for name, value in said.items()}
    found |= {"the reason": text_problem(reason, REASON_MAX_CHARS), "who says it": text_problem(by, BY_MAX_CHARS)}
    if said.get("order_id", subject) != subject:
        found["order_id"] = "is not the order that the word is about"
    problems = [f"{name} {problem}" for name, problem in found.items() if problem is not None]
    if problems:
        raise UsageError(f"{word}: {'; '.join(problems)}")
    return known, {**data, "by": by, "reason": reason}


def _echo(text: str) -> str:
    """What was typed, safe to print on one line."""
    return ascii(text[:ECHO_MAX_CHARS])
