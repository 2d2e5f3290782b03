"""Accounting: the invariants of money and access as metrics, looked at now and then by the role `console`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from consumer.clock import Clock
from consumer.console.invariants.check import Check
from consumer.console.invariants.report import Report
from consumer.console.invariants.service import LastObservations
from consumer.ledger import Database
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import Metrics

LOOK_EVERY_S = 3600.0
FIRST_LOOK_S = 30.0
REST_S = 0.02
"""Between two pages: a look at everything is in no hurry, and takes no more than its share of the database."""

_log = structlog.get_logger(__name__)


class Accounting:
    """Looks at each application, an hour apart. `options`: each plugin's own, as the workers have them."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        clock: Clock,
        applications: Sequence[str],
        options: Mapping[str, Mapping[str, Any]],
        *,
        rest_s: float = REST_S,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._clock = clock
        self._applications = applications
        self._options = options
        self._rest_s = rest_s
        self._shown: set[tuple[str, str]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        wait_s, unknown = FIRST_LOOK_S, Condition("invariants_unknown")
        while not stop.is_set():
            try:
                async with asyncio.timeout(wait_s):
                    await stop.wait()
                return
            except TimeoutError:
                wait_s = LOOK_EVERY_S
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - what only looks ends no role, whatever it meets
                unknown.lasts(error)
            else:
                unknown.over()

    async def look(self) -> None:
        """Set the gauges; what is whole again goes back to 0. Raises LedgerError."""
        service = LastObservations(self._database)
        for application in self._applications:
            check = Check(self._database, service, self._options, self._clock.now(), rest=self._rest)
            self._show(await check.run(application))

    def _show(self, found: Report) -> None:
        application = found.application
        self._metrics.invariants_residual.labels(application).set(found.residual)
        self._metrics.invariants_checked_at.labels(application).set(self._clock.now().timestamp())
        codes = {(application, code) for code in found.broken}
        for name, code in {one for one in self._shown if one[0] == application} | codes:
            self._metrics.invariants_broken.labels(name, code).set(found.broken[code])
        self._shown |= codes
        if not found.holds:
            _log.error("invariants_broken", application=application, residual_micro_usdc=found.residual,
                       broken=dict(found.broken))  # fmt: skip

    async def _rest(self) -> None:
        await self._clock.sleep(self._rest_s)
