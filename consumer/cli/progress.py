"""Progress: how far a walk is, on a terminal (stderr); nothing at all where there is none."""

from __future__ import annotations

import math
import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from consumer.sync import report

PREDICT_PAGES = 1000


def remaining_s(progress: report.Progress, page_s: float) -> float | None:
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


class ProgressBar:
    """A bar for one walk. `page_s` as for `remaining_s`; `first_prediction_s` is what was predicted first."""

    def __init__(self, title: str, page_s: float = 0.0) -> None:
        self._page_s = page_s
        self.first_prediction_s: float | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[found]}"),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task: TaskID = self._bar.add_task(title, total=None, found="", left="-:--")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def walked(self, progress: report.Progress) -> None:
        """A page was walked."""
        left_s = remaining_s(progress, self._page_s)
        if self.first_prediction_s is None:
            self.first_prediction_s = left_s
        self._bar.update(
            self._task,
            total=1.0 if progress.share is not None else None,
            completed=progress.share or 0.0,
            found=f"{progress.pages} pages, {progress.listed} listed, {progress.published} to publish",
            left=shown_duration(left_s),
        )

    def paged(self, pages: int) -> None:
        """A page was read, of nobody knows how many."""
        self._bar.update(self._task, found=f"{pages} pages")
