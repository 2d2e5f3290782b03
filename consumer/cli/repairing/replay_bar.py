"""Replay bar: how far a plan is, on stderr: a bar on a terminal, elsewhere a line about every ten seconds."""

from __future__ import annotations

from collections.abc import Sequence

from consumer.cli.walking.progress import Bar, shown_duration


class ReplayBar(Bar):
    """Of one plan, while it is predicted or applied."""

    def __init__(self, title: str) -> None:
        super().__init__(title, "{task.completed:.0f} of {task.total:.0f}", total=0)

    def told(self, done: int, total: int, left_s: float | None = None, paused: Sequence[str] = ()) -> None:
        """So many of so many are done; these handlers are paused, and nothing moves."""
        left = (
            f"waits: {', '.join(paused)} {'is' if len(paused) == 1 else 'are'} paused"
            if paused
            else f"{shown_duration(left_s)} left"
        )
        self._bar.update(self._task, completed=done, total=total, left=left)
        self._now_and_then(f"{done} of {total}, {left}")
