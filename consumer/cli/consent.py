"""Consent: what destroys or repeats asks first: on a terminal, or `--yes` (contract, Commands)."""

from __future__ import annotations

import sys
from getpass import getuser
from typing import Annotated

import typer

from consumer.errors import UsageError

ACTOR_MAX_CHARS = 60
RUNBOOKS, DOTS = "TEXT", "….'\"` "
"""What runbooks and messages print where a reason goes."""

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit trail.")]
ReasonToAct = Annotated[str, typer.Option("--reason", help="Why; kept in the audit trail. A dry run needs none.")]


def consent(question: str, *, yes: bool) -> None:
    """Return when it is wanted. Raises UsageError where nobody can be asked, typer.Abort when the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("this needs --yes: there is no terminal to ask on")
    typer.confirm(question, abort=True, err=True)


def checked_reason(reason: str) -> str:
    """The reason, which must say something: what a message or a runbook prints in its place would stand in the audit
    trail for ever. Raises UsageError."""
    found = reason.strip()
    if not found:
        raise UsageError("--reason must say why")
    if found == RUNBOOKS or stands_in(found):
        raise UsageError(f"--reason {found} is what stands in for your own words: say why, for the audit trail")
    return found


def stands_in(word: str) -> bool:
    """Whether it is what messages print where an operator's own word goes, typed as it was printed."""
    return bool(word) and not word.strip(DOTS)


def actor() -> str:
    """The same as the ledger names who acts by a command, apart from its handlers."""
    return f"operator:{operator()}"[:ACTOR_MAX_CHARS]


def operator() -> str:
    """Who is at the terminal, for the audit trail; a container may have users without a name."""
    try:
        return getuser()[:100]
    except (OSError, KeyError):
        return "operator"
