"""Each: a command's walk for one application after another; what stops one keeps nobody from the others (S7, I29)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import typer

from consumer.document import printable
from consumer.errors import ConsumerError, UsageError

One = TypeVar("One")
Walked = TypeVar("Walked")

FAILED = 1
MISUSED = 2


@dataclass(frozen=True)
class Failure:
    """An application whose walk did not come to its end, and why."""

    application: str
    error: ConsumerError

    def shown(self) -> dict[str, Any]:
        """For the document of `--json`: the application, the code, and the one line without it."""
        return {"application": self.application, "error": self.error.code, "message": self.error.message}

    def line(self) -> str:
        """`error[code]: name: message (field=value, ...)`."""
        return self.error.line().replace("]: ", f"]: {self.application}: ", 1)


async def each(
    applications: Mapping[str, One], walk: Callable[[One], Awaitable[Walked]]
) -> tuple[list[Walked], list[Failure]]:
    """What the walk of each application answered, and those that failed with a ConsumerError. In their order, one at
    a time, each tried once: an outage that concerns them all is told for each of them."""
    walked: list[Walked] = []
    failures: list[Failure] = []
    for name, one in applications.items():
        try:
            walked.append(await walk(one))
        except ConsumerError as error:
            failures.append(Failure(name, error))
    return walked, failures


def told(failures: Sequence[Failure], *, walked: bool = False) -> int:
    """Say on stderr, a line each, what failed. The exit code: 0 nothing did, 2 all there was to do was misuse, else 1;
    `walked` says that something was done."""
    for one in failures:
        typer.echo(printable(one.line()), err=True)
    if not failures:
        return 0
    return MISUSED if not walked and all(isinstance(one.error, UsageError) for one in failures) else FAILED
