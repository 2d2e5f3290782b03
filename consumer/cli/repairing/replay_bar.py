"""Replay bar: how far a plan is, on stderr: a bar on a terminal, elsewhere a line about every ten seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from consumer.cli.walking.progress import SAY_EVERY_S, shown_duration


class ReplayBar:
    """Of one plan, while it is predicted or applied."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._said_at = time.monotonic()
        self._is_bar = sys.stderr.isatty()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f} of {task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"),
            console=Console(stderr=True),
            disable=not self._is_bar,
            transient=True,
        )
        self._task = self._bar.add_task(title, total=0, left="-:--")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def told(self, done: int, total: int, left_s: float | None = None) -> None:
        """So many of so many are done."""
        self._bar.update(self._task, completed=done, total=total, left=shown_duration(left_s))
        if not self._is_bar and time.monotonic() - self._said_at >= SAY_EVERY_S:
            self._said_at = time.monotonic()
            typer.echo(f"{self._title}: {done} of {total}, {shown_duration(left_s)} left", err=True)
