"""Refused cursors, which the service handed out and does not take (case B11): counted, and said until it is over."""

from __future__ import annotations

import structlog

from consumer.sync.application import Application

LOG = structlog.get_logger()


class RefusedCursors:
    """Those of one application's walks."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._last = False

    def seen(self, refused: int) -> None:
        """A walk under way has met so many by now."""
        if refused and not self._last:
            self._last = True
            LOG.warning(
                "cursors_refused",
                hint="walks begin again at the head of the list",
                application=self._app.name,
                code="cursors_refused",
            )

    def ended(self, refused: int, *, is_complete: bool) -> None:
        """A walk that met so many is over; `is_complete`: by itself, and not by a failure."""
        self.seen(refused)
        if refused:
            self._app.metrics.cursors_refused.labels(self._app.name).inc(refused)
        if is_complete and not refused and self._last:
            self._last = False
            LOG.info("cursors_refused_over", application=self._app.name)
