"""Progress: how far a walk is, on stderr: a bar on a terminal, elsewhere a line about every ten seconds."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from consumer.cli.output import to_nowhere
from consumer.document import printable
from consumer.lists import progress as walk_progress

PREDICT_PAGES = 1000
SAY_EVERY_S = 10.0


def remaining_s(progress: walk_progress.Progress, page_s: float) -> float | None:
    """Seconds that a walk still takes: by its pace so far, and at least what the budget leaves for its pages.

    `page_s`: seconds per page within the budget. None while nobody can tell. Pure.
    """
    if progress.share is None or progress.share <= 0.0:
        return None
    pages = math.ceil(progress.pages * (1 - progress.share) / progress.share)
    return max(progress.eta_s or 0.0, pages * page_s)


def shown_duration(seconds: float | None) -> str:
    """`1:02:03`, `-:--` when not known."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Bar:
    """How far it is. `amount`: the words of how much, after rich's fields of a task. `monotonic` counts seconds."""

    def __init__(
        self, title: str, amount: str, *, total: float | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._monotonic = monotonic
        self._said_at = monotonic()
        self._is_bar = sys.stderr.isatty()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(amount),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            disable=not self._is_bar,
            transient=True,
        )
        self._task: TaskID = self._bar.add_task(title, total=total, found="", left="-:-- left")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line of its own, at once."""
        self._said_at = self._monotonic()
        line = printable(f"{self._title}: {text}")
        if self._is_bar:
            self._bar.console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
        else:
            self._echo(line)

    def _echo(self, line: str) -> None:
        """A line to stderr. The work goes on where nobody reads any more (`… 2>&1 | head -1`), or nothing can be
        written."""
        try:
            typer.echo(line, err=True)
        except OSError:  # nobody is left to be told
            to_nowhere(sys.stderr)

    def _now_and_then(self, text: str) -> None:
        if not self._is_bar and self._monotonic() - self._said_at >= SAY_EVERY_S:
            self.say(text)


class ProgressBar(Bar):
    """Of one walk. `page_s` as for `remaining_s`; `first_prediction_s` is what was predicted first."""

    def __init__(self, title: str, page_s: float = 0.0, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(title, "{task.fields[found]}", total=None, monotonic=monotonic)
        self._page_s = page_s
        self.first_prediction_s: float | None = None

    def walked(self, progress: walk_progress.Progress) -> None:
        """A page was walked."""
        left_s = remaining_s(progress, self._page_s)
        if self.first_prediction_s is None:
            self.first_prediction_s = left_s
        found = f"{progress.pages} pages, {progress.listed} listed"
        if progress.published is not None:
            found += f", {progress.published} to publish"
        self._bar.update(
            self._task,
            total=1.0 if progress.share is not None else None,
            completed=progress.share or 0.0,
            found=found,
            left=f"{shown_duration(left_s)} left",
        )
        share = "" if progress.share is None else f", {math.floor(progress.share * 100)} %"
        self._now_and_then(found + share + ("" if left_s is None else f", {shown_duration(left_s)} left"))
