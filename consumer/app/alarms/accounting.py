"""Accounting: the invariants of money and access as metrics, and kept for `status`, looked at now and then by the role
`console`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from consumer.clock import Clock, is_set_within
from consumer.console.invariants import kept
from consumer.console.invariants.check import Check
from consumer.console.invariants.kept import SUBJECTS_MAX, Account
from consumer.console.invariants.report import Problem, Report
from consumer.console.invariants.service import LastObservations
from consumer.errors import code_of
from consumer.ledger import Database
from consumer.ledger.engine.database_time import shared_time
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import GaugeSeries, Metrics

LOOK_EVERY_S = 3600.0
AGAIN_S = 120.0
"""While something is broken, or could not be looked at; and never more than a share of the time is spent on it."""
SHARE = 20
FIRST_LOOK_S = 30.0
FAILS_MIN = 2
"""Looks in a row: one alone may have met a ledger that was away for a moment."""
REST_S = 0.02
"""Between two pages: a look at everything is in no hurry, and takes no more than its share of the database."""


class Accounting:
    """Looks at each application, an hour apart, and sooner while something is broken. What two looks in a row find is
    told by `status`: one alone may have met what is under way. `options`: each plugin's own, as the workers have them.
    """

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
        self._codes = {name: GaugeSeries(metrics.invariants_broken) for name in applications}
        self._broken = {
            name: Condition("invariants_broken", level="error", monotonic=clock.monotonic, application=name)
            for name in applications
        }
        self._before: dict[str, Report] = {}
        self._fails, self._why = 0, ""

    @property
    def unaccounted(self) -> str | None:
        """Why the last looks could not account for everything; None: they could, or one failed alone."""
        return self._why if self._fails >= FAILS_MIN else None

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        wait_s, unknown = FIRST_LOOK_S, Condition("invariants_unknown")
        while not await is_set_within(stop, wait_s):
            wait_s = LOOK_EVERY_S
            began, holds, failure = self._clock.monotonic(), True, None
            for application in self._applications:
                try:
                    holds = await self.look(application) and holds
                except Exception as error:  # noqa: BLE001 - what only looks ends no role, whatever it meets
                    failure = failure or (application, error)
            self._note(failure, unknown)
            if failure is not None or not holds:
                wait_s = min(LOOK_EVERY_S, max(AGAIN_S, SHARE * (self._clock.monotonic() - began)))

    async def look(self, application: str) -> bool:
        """Set the gauges; what is whole again goes back to 0. Whether all is as it should be. Raises LedgerError."""
        service = LastObservations(self._database)
        check = Check(self._database, service, self._options, self._clock.now(), rest=self._rest)
        found = await check.run(application)
        self._show(found)
        await self._keep(found)
        return found.holds

    def _note(self, failure: tuple[str, Exception] | None, unknown: Condition) -> None:
        if failure is None:
            self._fails = 0
            unknown.over()
            return
        application, error = failure
        self._fails, self._why = self._fails + 1, f"{application}: {code_of(error)}"
        unknown.lasts(error, application=application)

    async def _keep(self, found: Report) -> None:
        """For `status`: that all is well at once; what is not, when it was so before."""
        before = self._before.get(found.application)
        self._before[found.application] = found
        if before is None and not found.holds:
            return
        async with self._database.transaction() as session:
            account = Account() if before is None else lasting(before, found)
            await kept.keep(session, found.application, replace(account, at=await shared_time(session)))

    def _show(self, found: Report) -> None:
        application = found.application
        self._metrics.invariants_residual.labels(application).set(found.residual)
        self._metrics.invariants_checked_at.labels(application).set(self._clock.now().timestamp())
        self._codes[application].show({(application, code): count for code, count in found.broken.items()})
        if found.holds:
            self._broken[application].over()
        else:  # something else that is broken is said at once
            code = " ".join(sorted(found.broken)) or "money_unexplained"
            self._broken[application].lasts(code, residual_micro_usdc=found.residual, broken=dict(found.broken))

    async def _rest(self) -> None:
        await self._clock.sleep(self._rest_s)


def lasting(before: Report, found: Report) -> Account:
    """What both say. Pure."""
    known = {_name(one) for one in before.problems}
    same = [one for one in found.problems if _name(one) in known]
    subjects: dict[str, tuple[str, ...]] = {}
    for one in same:
        subjects[one.code] = (*subjects.get(one.code, ()), one.subject)[:SUBJECTS_MAX]
    is_money = any(one.kind == "payment" for one in same)  # else each time of other payments, which just came
    residual = min(before.residual, found.residual) if is_money else 0
    return Account(residual=residual, broken=Counter(one.code for one in same), subjects=subjects)


def _name(one: Problem) -> tuple[str, str, str]:
    return one.code, one.kind, one.subject
