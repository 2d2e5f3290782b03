"""Answers: what a read has shown, told on topic `events`, and the request ticked off. A request is always answered.

Why always, and not only when the record differs from the last observation: who asked waits for the answer. A handler
clears its "must be read" mark and plans its next check by it; silence would break that chain for good (A14, A30).

That the service has no such object is an answer too, told once per request by `*.unreadable`; the read is tried again
all the same (U30). So it is where the record is another's, or none (U18). That it does not answer is none, and nothing
is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import structlog

from consumer.errors import ConsumerError, RecordTooLarge
from consumer.ledger.reading import observations, read_requests
from consumer.ledger.reading.observation import NOT_FOUND, STATUSES, Observation, unreadable
from consumer.ledger.tables import ALARM_AFTER_ATTEMPTS, TOLD, ReadRow
from consumer.payments import (
    ApiError,
    PaymentsError,
    ResourceNotFound,
    Resources,
    ValidationError,
)
from consumer.retry import RetryPolicy
from consumer.sync.answering import Answering
from consumer.sync.api import Cooldown
from consumer.sync.application import Application
from consumer.sync.publisher import EventPublisher

LOG = structlog.get_logger()

TOLD_TRIES: Final = 36
"""For a week an order that the service does not show is looked for; then who asked has long been told. Many have none:
those of subscription sessions, whose events need not say so (cases F22, F23). One that is there after all is listed."""

REFUSED_AGAIN_S: Final = 900.0
"""So soon at the latest is read again what the topic does not take for now: its limit may be raised any moment."""


class Answers:
    """Answers the reads of one application. `resources` is asked only whether the service answers at all."""

    def __init__(
        self, app: Application, resources: Resources, publisher: EventPublisher, cooldown: Cooldown, retry: RetryPolicy
    ) -> None:
        self._app = app
        self._publisher = publisher
        self._answering = Answering(resources, cooldown, app.clock)
        self._retry = retry
        for kind in STATUSES:
            app.metrics.unknown_enums.labels(app.name, f"{kind}.status").inc(0)
        for counter in (app.metrics.reads_answered, app.metrics.reads_failed):
            counter.labels(app.name)

    async def version(self, rows: Sequence[ReadRow] = ()) -> int:
        """The version of a read, taken and committed before the request leaves (case A40). `rows`: what it answers;
        what is asked for from now on is asked for beyond it."""
        async with self._app.database.transaction() as session:
            version = await read_requests.next_version(session)
            await read_requests.begin(session, rows)
        return version

    async def found(self, seen: Sequence[tuple[ReadRow, Sequence[Observation]]], version: int) -> None:
        """Publish what each read has shown, if anything, then tick it off: after a crash in between it is read again,
        in a newer version. What the topic takes in no form is no answer: the read is put off under that code, and the
        record is not remembered as published."""
        published, left = await self._publisher.tell([one for _, shown in seen for one in shown])
        missing = [(row, {one.event_id for one in shown} & left.ids) for row, shown in seen]
        done = [row for row, ids in missing if not ids]
        async with self._app.database.transaction() as session:
            await observations.keep(session, [one.observed for one in published])
            await read_requests.done(session, done, version, self._app.clock.now())
        for_now = {event.id for event in left.for_now}
        for row, ids in missing:
            if ids & for_now:
                await self.put_off(row, left.refusal or RecordTooLarge(), at_most_s=REFUSED_AGAIN_S)
            elif ids:
                await self.put_off(row, RecordTooLarge())
        self._app.metrics.reads_answered.labels(self._app.name).inc(len(done))
        for one in published:
            if one.has_unknown_status:
                self._app.metrics.unknown_enums.labels(self._app.name, f"{one.kind}.status").inc()

    async def beside(self, shown: Sequence[Observation]) -> None:
        """Publish what nobody asked for: it came in place of what was. No request is answered by it."""
        published, _ = await self._publisher.tell(shown)
        async with self._app.database.transaction() as session:
            await observations.keep(session, [one.observed for one in published])

    async def failed(self, row: ReadRow, version: int, error: PaymentsError) -> None:
        """Not found, refused or failed: told, if that is an answer, and due again later; an order or a session that the
        service does not show is let go in the end."""
        told = await self._tell(row, version, error)
        if told and row.kind != "subscription" and row.attempts + 1 >= TOLD_TRIES:
            async with self._app.database.transaction() as session:
                await read_requests.done(session, [row], version, self._app.clock.now())
            return
        await self.put_off(row, error, told=told)

    async def put_off(
        self, row: ReadRow, error: ConsumerError, *, told: bool = False, at_most_s: float | None = None
    ) -> None:
        """Due again later, in `at_most_s` if that is sooner, for ever. Absence never means that something ended: G7."""
        attempt = row.attempts + 1
        wait_s = self._retry.wait_s(attempt, 0.5)
        if at_most_s is not None:
            wait_s = min(wait_s, at_most_s)
        async with self._app.database.transaction() as session:
            due_at = self._app.clock.now() + timedelta(seconds=wait_s)
            await read_requests.put_off(session, row, due_at=due_at, code=TOLD if told else error.code)
        self._app.metrics.reads_failed.labels(self._app.name).inc()
        if isinstance(error, ResourceNotFound):
            self._app.metrics.reads_not_found.labels(self._app.name).inc()
        if attempt == ALARM_AFTER_ATTEMPTS and not told:
            LOG.error(
                "object_unreadable",
                hint="its state is kept as it is",
                application=row.application,
                kind=row.kind,
                object_id=row.object_id,
                code=error.code,
                attempts=attempt,
                request_id=error.request_id if isinstance(error, ApiError) else None,
            )

    async def _tell(self, row: ReadRow, version: int, error: PaymentsError) -> bool:
        """Tell who asked that the service shows no such object; whether that is told, now or before: not where its
        partition takes nothing for now.

        Published first, then marked: after a crash in between it is told again, in a newer version.
        """
        if row.code == TOLD:
            return True
        # An id that cannot be asked for has no object.
        if not isinstance(error, ResourceNotFound | ValidationError) or not await self._answering.answers():
            return False
        if row.kind not in ("order", "subscription"):
            return True  # a session, or an order by the service's id: a test event's, say, which no event of ours names
        answer = unreadable(
            row.application,
            row.kind,
            row.object_id,
            version=version,
            read_at=self._app.clock.now(),
            status=error.status or NOT_FOUND,
            said={"code": error.service_code, "request_id": error.request_id},
            traceparent=row.traceparent,
        )
        if (await self._publisher.publish([answer])).ids:
            return False
        self._app.metrics.reads_unreadable.labels(self._app.name).inc()
        return True

    def service_answered(self) -> None:
        """Something was read just now."""
        self._answering.answered()
