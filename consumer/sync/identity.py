"""Identity: whose data the ledger holds, checked against whose credentials these are, before anything is written.

With the wrong application's credentials every list would show somebody else's orders, and ours would seem gone
(cases B32, S7, S8). So it is where the service, or what lies before it, comes to answer for another one: what was read
is told only when it says that it is ours still. An application that was replaced by a new one gets a new name here; its
old data stay as they are. One that the ledger holds keeps its name: under another all of it is unknown, and what was
paid in the last hour would be shipped once more.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, replace
from typing import Final

from consumer.errors import WrongApplication, again
from consumer.events import first
from consumer.ledger.reading import sync_state
from consumer.ledger.reading.sync_state import IDENTITY, KeptState
from consumer.payments import ApiError, PaymentsError, Priority, ServerError
from consumer.sync.api import held_up_s
from consumer.sync.application import Application
from consumer.telemetry.logs import Condition

# The service shows none of the application record's fields: where its own id may be.
ID_PLACES: Final = ("/id", "/app_id", "/application_id", "/application/id", "/data/id")
VOUCHED_S: Final = 15.0
ASKED_WITHIN_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Owner(KeptState, walk=IDENTITY):
    """Whose data they are: the app id of the credentials, and the application's own id where the service shows one."""

    app_id: str | None = None
    service_id: str | None = None


class Identity:
    """The identity guard of one application."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._looking = asyncio.Lock()
        self._looked_s = float("-inf")
        self._wrong: WrongApplication | None = None
        self._unread = Condition("identity_not_read", monotonic=app.clock.monotonic, application=app.name)

    async def check(self, *, remember: bool = True, priority: Priority = Priority.CONFIRM) -> None:
        """Compare who we are with who we were, the first time also with who others here are; `remember` it then. Raises
        WrongApplication, PaymentsError.

        The app id is compared before anything is asked. An address that does not work as documented proves nothing.
        `priority` is how urgently it is asked: a command that has time waits a 429 out, as its walk does (case B24).
        """
        kept = await self._app.kept(Owner)
        known = Owner(app_id=self._app.client.credentials.app_id)
        self._compare(kept, known, held_as=await self._held_as(known) if kept == Owner() else None)
        try:
            record = await self._app.client.with_priority(priority).application.retrieve()
        except ApiError as error:
            if isinstance(error, ServerError) or held_up_s(error) is not None:
                raise
            self._unread.lasts(error)
            return
        self._unread.over()
        found = [first(record.raw, (place,)) for place in ID_PLACES]
        shown = [str(one) for one in found if isinstance(one, str | int)]
        # A record may come to show another id beside the one that is known (case U26).
        known = replace(known, service_id=kept.service_id if kept.service_id in shown else next(iter(shown), None))
        self._compare(kept, known)
        self._looked()
        if kept == Owner() and remember:
            async with self._app.database.transaction() as session:
                await self._app.keep(session, known)

    async def vouch(self) -> None:
        """What was read just now is ours, as far as the service says whom it answers for. It is asked again when it was
        not in VOUCHED_S. That it does not say so in time proves nothing, neither way, as everything waits meanwhile.
        Raises WrongApplication, LedgerError."""
        async with self._looking:
            if self._app.clock.monotonic() - self._looked_s >= VOUCHED_S:
                self._looked(await self._found_wrong())
        if self._wrong is not None:
            raise again(self._wrong)

    def _looked(self, wrong: WrongApplication | None = None) -> None:
        self._looked_s, self._wrong = self._app.clock.monotonic(), wrong

    async def _found_wrong(self) -> WrongApplication | None:
        if (await self._app.kept(Owner)).service_id is None:
            return None
        try:
            async with asyncio.timeout(ASKED_WITHIN_S):
                await self.check(remember=False)
        except WrongApplication as error:
            return error
        except (PaymentsError, TimeoutError) as error:
            self._unread.lasts(error)
            return self._wrong
        return None

    async def _held_as(self, known: Owner) -> str | None:
        """The name under which the ledger has them already."""
        async with self._app.database.reading() as session:
            held = await sync_state.of_all(session, IDENTITY)
        return next((name for name, one in held.items() if Owner.load(one).app_id == known.app_id), None)

    def _compare(self, kept: Owner, known: Owner, *, held_as: str | None = None) -> None:
        application, before = self._app.name, asdict(kept)
        differing = [name for name, value in asdict(known).items() if value and before[name] not in (None, value)]
        self._app.metrics.wrong_application.labels(application).set(1 if differing or held_as else 0)
        if held_as:
            raise WrongApplication(
                "the ledger holds this application under another name: give it that name again; under this one, what "
                "it sold would be fulfilled once more",
                application=application,
                held_as=held_as,
            )
        if differing:
            raise WrongApplication(
                "these credentials belong to another application than the one the ledger holds; give this one another "
                "name, and its data stay apart",
                application=application,
                differing="+".join(differing),
            )
