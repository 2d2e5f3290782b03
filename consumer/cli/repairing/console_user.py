"""`consumer console-user`: a line for the file of who may see the operator's pages."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from argon2 import PasswordHasher

from consumer.cli.output import Json, Output
from consumer.console.pages.users import PASSWORD_MAX_CHARS, UserRole, as_hashed, parsed
from consumer.errors import UsageError

PASSWORD_MIN_CHARS = 12


def console_user(
    name: Annotated[str, typer.Argument(help="The name to sign in by; the audit trail says `operator:NAME`.")],
    role: Annotated[UserRole, typer.Option(help="A viewer looks; an operator acts, too.")] = UserRole.VIEWER,
    as_json: Json = False,
) -> None:
    """Print a line for the file CONSUMER_CONSOLE_USERS; the password is asked for, or read from stdin."""
    password = _password()
    if not PASSWORD_MIN_CHARS <= len(password) <= PASSWORD_MAX_CHARS:
        raise UsageError(f"a password has {PASSWORD_MIN_CHARS} to {PASSWORD_MAX_CHARS} characters")
    line = f"{name} {role.value} {PasswordHasher().hash(as_hashed(password))}"
    _, problems = parsed(line)
    if problems or "\n" in line:
        raise UsageError("the name is one word of at most 40 characters, without a colon")
    output = Output(as_json)
    output.document({"line": line})
    output.line(line)


def _password() -> str:
    """From the terminal, unseen and twice; else the first line of stdin."""
    if sys.stdin.isatty():
        answer: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return answer
    return sys.stdin.readline().rstrip("\r\n")
