"""The sandbox's own time: it ticks with the machine plus an offset, or stands still until it is driven."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class SandboxClock:
    """The time at which the simulated service lives. It never goes backwards."""

    def __init__(self, *, driven: bool = False, start: datetime | None = None) -> None:
        """`driven` stands still at `start` (default 2026-01-01); otherwise it ticks, from `start` or from now."""
        self.driven = driven
        self._at = start or EPOCH
        self._offset = (start - datetime.now(UTC)) if start and not driven else timedelta()

    def now(self) -> datetime:
        """The sandbox's time, aware, in UTC."""
        return self._at if self.driven else datetime.now(UTC) + self._offset

    @property
    def offset_s(self) -> float:
        """Seconds by which a ticking clock is ahead of the machine."""
        return self._offset.total_seconds()

    def set_offset(self, seconds: float) -> None:
        """Restore the offset of an earlier run."""
        self._offset = timedelta(seconds=seconds)

    def advance_to(self, at: datetime) -> None:
        """Move forward to `at`; a time already past changes nothing."""
        if self.driven:
            self._at = max(self._at, at)
        else:
            self._offset += max(timedelta(), at - self.now())


def iso(at: datetime) -> str:
    """ISO-8601 in UTC with milliseconds and a Z, the form the sandbox answers with by default."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
