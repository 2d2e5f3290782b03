"""Transport: one call to the service, with credentials, budget, circuit and retries (cases C1-C16, C26-C31, S2-S6)."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from consumer import __version__
from consumer.clock import Clock
from consumer.errors import SettingsError
from consumer.payments.answers import Answer, bounded, told_time, understood, unread
from consumer.payments.attempts import PATIENCE, Failures, Patience, counted, wait_after, walking
from consumer.payments.budget import CallKind, Priority
from consumer.payments.circuit import CredentialCircuit
from consumer.payments.credentials import Credentials
from consumer.payments.errors import (
    AmbiguousWrite,
    ApiError,
    AuthenticationError,
    CircuitOpen,
    PaymentsError,
    RateLimitError,
    ServiceUnreachable,
    UnexpectedAnswer,
)
from consumer.payments.shared_budget import Budget
from consumer.retry import Lasting

if TYPE_CHECKING:  # a command that only looks opens no connection: aiohttp would be a fifth of its start
    import aiohttp

LOG = structlog.get_logger()
USER_AGENT = f"payments-consumer/{__version__}"
MAX_ANSWER_BYTES = 16 * 1024 * 1024
READ_AT_ONCE_BYTES = 256 * 1024
"""A larger answer may be as odd as can be: the event loop does not wait until it is read."""
QUIET_S = 3600.0
"""Without an answer whose body states another status than it has, they agree again: of some calls only errors do."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One logical call. `route` is the path's template, safe to print; `path` has the ids in it, already quoted."""

    method: str
    route: str
    path: str
    kind: CallKind = CallKind.READ
    params: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    key: str | None = None
    body_needed: bool = True

    @property
    def is_write(self) -> bool:
        """Whether it changes something."""
        return self.method != "GET"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One request as it went, for logs, metrics and spans: nothing in it is secret or personal (case C12).

    `status` is None when there was no answer; `code` is our word for the failure, None on success.
    """

    application: str
    method: str
    route: str
    priority: Priority
    number: int
    status: int | None
    code: str | None
    request_id: str | None
    duration_s: float


PROBE = Call(method="GET", route="/v1/application", path="/v1/application", body_needed=False)


def base_url_problem(base_url: str) -> str | None:
    """Why this address cannot be used, or None: https, or http on loopback (case C28)."""
    try:
        parts = urlsplit(base_url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "the base address is not a URL"
    if parts.scheme not in ("https", "http") or not host:
        return "the base address must be an https URL"
    if parts.username or parts.password or parts.query or parts.fragment:
        return "the base address must have no user, query or fragment"
    if parts.scheme == "http" and not is_loopback(host):
        return "the base address must be https (http is for loopback only)"
    return None


def is_loopback(host: str) -> bool:
    """Whether this host name can only be this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Transport:
    """Sends calls of one application. Owned by a PaymentsClient."""

    def __init__(
        self,
        base_url: str,
        credentials: Credentials,
        *,
        application: str,
        clock: Clock,
        budget: Budget,
        circuit: CredentialCircuit,
        session: aiohttp.ClientSession | None = None,
        timeout_s: float = 10.0,
        on_attempt: Callable[[Attempt], None] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if problem := base_url_problem(base_url):
            raise SettingsError([problem])
        self._base_url = base_url.rstrip("/")
        self._credentials = credentials
        self._application = application
        self._clock = clock
        self._budget = budget
        self._circuit = circuit
        self._session = session
        self._owns_session = session is None
        self._timeout_s = timeout_s
        self._max_answer_bytes = MAX_ANSWER_BYTES
        self._on_attempt = on_attempt
        self._chance = chance
        self.service_clock: tuple[datetime, datetime] | None = None
        self._differs = Lasting(clock.monotonic)

    async def start(self) -> None:
        """Open the connections' pool, unless one was given."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=32),
                auto_decompress=False,
                trust_env=False,
            )
            # aiohttp would repeat a GET by itself when a kept connection drops: a request the budget never saw.
            self._session._retry_connection = False

    async def close(self) -> None:
        """Close the pool, unless it was given."""
        if self._session is not None and self._owns_session:
            await self._session.close()
            self._session = None

    async def send(self, call: Call, priority: Priority, *, walk: bool = False) -> Answer:
        """The answer to a call, after as many tries as its patience allows.

        A write is repeated with the same key and the same bytes only. Raises a PaymentsError; AmbiguousWrite when
        the last word on a write is that nobody knows. `walk`: the call is one of many that may wait their turn.
        """
        patience = walking(PATIENCE[priority]) if walk else PATIENCE[priority]
        failures = Failures()
        began = self._clock.monotonic()
        number = 0
        while True:
            number += 1
            try:
                return await self._admitted(call, priority, patience, number)
            except PaymentsError as error:
                counted(error, failures)
                if isinstance(error, RateLimitError):
                    await self._budget.pause(call.kind, error.retry_after_seconds)
                wait_s = wait_after(error, failures, patience, self._chance())
                elapsed_s = self._clock.monotonic() - began
                if wait_s is None or elapsed_s + wait_s > patience.call_s:
                    self._raise_last(error, call, failures)
                    raise
                await self._clock.sleep(wait_s)

    def _raise_last(self, error: PaymentsError, call: Call, failures: Failures) -> None:
        """Say on a write that an earlier or this very try may have been acted on."""
        if not call.is_write or call.key is None or not failures.ambiguous:
            return
        if isinstance(error, ApiError) and not error.retryable and not isinstance(error, UnexpectedAnswer):
            error.after_ambiguous = True
            return
        raise AmbiguousWrite(idempotency_key=call.key, route=call.route, reason=error.code) from error

    async def _admitted(self, call: Call, priority: Priority, patience: Patience, number: int) -> Answer:
        if await self._circuit.admit(self._credentials.generation) == "probe":
            await self._probe(priority, patience)
        return await self._with_each_secret(call, priority, patience, number)

    async def _probe(self, priority: Priority, patience: Patience) -> None:
        """One request with one secret, each in its turn: a probe is no storm of its own (case S14)."""
        generation = self._credentials.generation
        secrets = self._credentials.authorizations()
        secret, authorization = secrets[(self._circuit.state.probes - 1) % len(secrets)]
        try:
            await self._budget.acquire(PROBE.kind, priority, max_wait_s=patience.budget_s)
            await self._attempt(PROBE, priority, 1, authorization)
        except PaymentsError as error:
            if isinstance(error, RateLimitError):
                await self._budget.pause(PROBE.kind, error.retry_after_seconds)
            # Anything but a welcome leaves the circuit open; the next turn to probe comes in its time.
            raise CircuitOpen(retry_after_s=self._circuit.probe_every_s, application=self._application) from error
        self._credentials.worked(secret, generation)
        await self._budget.answered(PROBE.kind)
        await self._circuit.accepted()

    async def _with_each_secret(self, call: Call, priority: Priority, patience: Patience, number: int) -> Answer:
        """Try the secret that worked last, then the other one, once each (cases C14, S2)."""
        generation = self._credentials.generation
        refused: AuthenticationError | None = None
        for secret, authorization in self._credentials.authorizations():
            await self._budget.acquire(call.kind, priority, max_wait_s=patience.budget_s)
            try:
                answer = await self._attempt(call, priority, number, authorization)
            except AuthenticationError as error:
                refused = error
                await self._budget.answered(call.kind)  # the next secret is for this call, also in a pause
                continue
            except ApiError as error:
                if error.status is not None and error.status < 500 and error.service_code is not None:
                    self._credentials.worked(secret, generation)
                    if not isinstance(error, RateLimitError):
                        await self._budget.answered(call.kind)
                raise
            self._credentials.worked(secret, generation)
            await self._budget.answered(call.kind)
            if not self._circuit.is_open:
                await self._circuit.accepted()  # nothing to do, unless the others still think that it is refused
            return answer
        assert refused is not None  # noqa: S101 - credentials always hold a secret
        await self._circuit.refused(generation)
        raise refused

    async def _attempt(self, call: Call, priority: Priority, number: int, authorization: str) -> Answer:
        began = self._clock.monotonic()
        status: int | None = None
        code: str | None = "cancelled"
        request_id: str | None = None
        try:
            answer = await self._exchange(call, authorization)
            status, code = answer.status, None
            return answer
        except PaymentsError as error:
            code = error.code
            error.fields.setdefault("route", call.route)
            if isinstance(error, ApiError):
                status, request_id = error.status, error.request_id
            raise
        finally:
            if self._on_attempt is not None:
                self._on_attempt(
                    Attempt(
                        application=self._application,
                        method=call.method,
                        route=call.route,
                        priority=priority,
                        number=number,
                        status=status,
                        code=code,
                        request_id=request_id,
                        duration_s=self._clock.monotonic() - began,
                    )
                )

    def _stated(self, status: int, stated: int) -> None:
        """Said as a Condition says it, which a web shop that imports this has not."""
        if stated != status and self._differs.says("differs"):
            LOG.warning(
                "status_code_differs_from_status",
                application=self._application,
                status=status,
                status_code=stated,
                times=self._differs.times,
            )

    def _agree(self) -> None:
        if self._differs.unseen_s >= QUIET_S:
            told = {"after_s": self._differs.for_s, "times": self._differs.times}
            LOG.info("status_code_differs_from_status_over", application=self._application, **told)
            self._differs.over()

    async def _exchange(self, call: Call, authorization: str) -> Answer:
        """One request and its whole answer. No redirect is followed, with or without credentials (case C27)."""
        import aiohttp
        from yarl import URL

        if self._session is None:
            raise PaymentsError("the client is not started")
        headers = {
            "Authorization": authorization,
            "Accept": "application/json",
            "Accept-Encoding": "gzip",
            "User-Agent": USER_AGENT,
        }
        if call.is_write:
            headers["Content-Type"] = "application/json"
            if call.key is not None:
                headers["Idempotency-Key"] = call.key
        url = URL(self._base_url + call.path, encoded=True)
        if call.params:
            url = url.with_query(list(call.params))
        asked_at = self._clock.now()
        try:
            async with self._session.request(
                call.method,
                url,
                data=call.body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self._timeout_s, connect=min(self._timeout_s, 10.0)),
            ) as response:
                if (theirs := told_time(response.headers)) is not None:
                    answered_at = self._clock.now()
                    self.service_clock = theirs, asked_at + (answered_at - asked_at) / 2
                packed = "" if self._session.auto_decompress else response.headers.get("Content-Encoding", "")
                try:
                    raw = await bounded(response.content.iter_any(), packed, self._max_answer_bytes)
                except UnexpectedAnswer as error:
                    raise unread(response.status, response.headers, error, self._clock.now()) from error
                read = partial(
                    understood,
                    response.status,
                    response.headers,
                    raw,
                    self._clock.now(),
                    body_needed=call.body_needed,
                    stated=partial(self._stated, response.status),
                )
                self._agree()
                return read() if len(raw) <= READ_AT_ONCE_BYTES else await asyncio.to_thread(read)
        except (ssl.SSLError, aiohttp.ClientSSLError) as error:
            raise ServiceUnreachable("the service's TLS certificate is not trusted", sent=False) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ServiceUnreachable(sent=False, reason=type(error).__name__, route=call.route) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServiceUnreachable(reason=type(error).__name__, route=call.route) from error
