"""Cure: commands that mend something, as they are copied into a shell. Pure."""

from __future__ import annotations

from datetime import datetime
from shlex import quote
from typing import Final

UNRESOLVED: Final = "unresolved_subscriber"
"""The kind of finding about a live subscription of which nobody knows whose it is."""
UNMAPPED: Final = "unmapped_price"
"""The kind of finding about a live subscription whose price is mapped to nothing (case A32)."""
BRAKE: Final = "brake"
"""The kind of finding about revocations that are stopped."""
CURED: Final = frozenset({UNRESOLVED, UNMAPPED, BRAKE})
"""These end by a word that mends their cause."""
FIRST: Final = {UNMAPPED: "map its price in `entitlements` of the plugin access, to [] where it gives nothing; then"}
"""What has to be done before that word is said."""


def command(words: str, *given: str, options: str = "") -> str:
    """The command with what it is given, quoted; the options come first where that begins with a dash, behind `--`."""
    told = " ".join(map(quote, given))
    parts = (words, options, "--", told) if any(one.startswith("-") for one in given) else (words, told, options)
    return " ".join(part for part in parts if part)


def of_application(application: str) -> str:
    """The option that names an application. `default` is named, too: without it some commands mean all of them, and
    others the only one that is set up, whatever its name."""
    return f"--application {quote(application)}"


def explain(kind: str, id_: str, application: str = "default") -> str:
    """Says why an order, a subscription or a customer stands where it does."""
    return command(f"consumer explain {kind}", id_, options=of_application(application))


def replay_command(
    handler: str, *, since: datetime | None = None, order: str | None = None, application: str | None = None
) -> str:
    """The plan that lets a handler act on what it missed: of one application, or of all."""
    words = ["consumer replay plan --handler", quote(handler)]
    if since is not None:
        words.append(f"--since {since:%Y-%m-%dT%H:%M:%SZ}")
    if order is not None:
        words.append(f"--order {quote(order)}")
    if application is not None:
        words.append(of_application(application))
    return " ".join(words)


def redrive(event_id: str, handler: str, application: str = "default") -> str:
    """Lets a handler's dead run of an event try again."""
    options = _reasoned(application, f"--event {quote(event_id)}", f"--handler {quote(handler)}")
    return command("consumer dead redrive", options=options)


def release(order_id: str, application: str = "default", *, hold: str | None = None) -> str:
    """Lets go a paid order: whatever holds it, or only while this does."""
    seen = () if hold is None else (f"--set {quote(f'hold={hold}')}",)
    return command("consumer say fulfilment.released", order_id, options=_reasoned(application, *seen))


def unfulfillable(order_id: str, application: str = "default") -> str:
    """Says that there is nothing to deliver; the money is given back by hand (case F33)."""
    return command("consumer say fulfilment.unfulfillable", order_id, options=_reasoned(application))


def discard(event_id: str, handler: str, application: str = "default") -> str:
    """Gives up what a handler has not done for an event yet."""
    options = _reasoned(application, f"--event {quote(event_id)}", f"--handler {quote(handler)}")
    return command("consumer dead discard", options=options)


def lift(customer: str, hold: str, application: str = "default") -> str:
    """Ends a hold on a customer (case A42)."""
    options = _reasoned(application, f"--set {quote(f'id={hold}')}")
    return command("consumer say access.hold_lifted", customer, options=options)


def settle(subject: str, kind: str, application: str = "default", *, seen: str | None = None) -> str:
    """What a finding waits for: the word that mends its cause, where there is one (cases A32, A36, B31), else that a
    person closes it, only while it is as it was `seen`. See FIRST."""
    if kind == UNRESOLVED:
        options = _reasoned(application, "--set customer=…")
        return command("consumer say access.customer_attached", subject, options=options)
    if kind == UNMAPPED:
        return command("consumer say access.recheck", application, options=_reasoned(application))
    if kind == BRAKE:
        return command("consumer say access.brake_released", subject, options=_reasoned(application))
    shown = () if seen is None else (f"--seen {quote(seen)}",)
    return command("consumer findings close", subject, kind, options=_reasoned(application, *shown))


def steps(subject: str, kind: str, application: str = "default", *, seen: str | None = None) -> str:
    """The same, with what has to be done before it; for eyes."""
    first = f"{FIRST[kind]}: " if kind in FIRST else ""
    return f"{first}{settle(subject, kind, application, seen=seen)}"


def _reasoned(application: str, *options: str) -> str:
    return " ".join((*options, of_application(application), "--reason …"))
