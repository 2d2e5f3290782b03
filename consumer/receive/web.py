"""Web: the public endpoint. A request in, an acknowledged record or an honest refusal out.

It speaks aiohttp's low-level server: no router, no middleware, one table of addresses. That is also the fastest way
to serve one kind of request, and this process does nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import Any

import structlog
from aiohttp import hdrs, web
from aiohttp.http import RawRequestMessage

from consumer.broker.base import Broker, Message
from consumer.clock import Clock, is_set_within
from consumer.errors import BadSignature, BrokerError, RecordTooLarge
from consumer.reason import Reason
from consumer.receive import answers
from consumer.receive.admission import Admission
from consumer.receive.answers import Answer, Refused
from consumer.receive.authenticity import UNSIGNED
from consumer.receive.body import AT_ONCE_BYTES, check_declared, check_size, streamed_body, unpacked, whole_body
from consumer.receive.connection import WebhookServer, Whole
from consumer.receive.decide import Endpoint, decide
from consumer.receive.misaddressed import Misaddressed
from consumer.receive.refusals import Refusals
from consumer.receive.unproved import StoredLately, Unproved
from consumer.telemetry import way
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import Metrics
from consumer.telemetry.port import PreparedResponse
from consumer.telemetry.traces import Tracing
from consumer.wire import squeezed

log = structlog.get_logger(__name__)

DEFAULT = "default"
UNKNOWN = "unknown"
NO_SUCH_ADDRESS = "no application has this address"
QUIET_S = 300.0
"""After so long without another like it, a refusal is no longer so."""
REASONS_MAX = 200
"""Refusals told apart by their reason; beyond them those of an outcome are told together."""
_TRACE: ContextVar[str] = ContextVar("trace", default="")
"""The traceparent of the delivery that is being taken."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The bounds of receiving; see the settings of the same names."""

    max_body_bytes: int = 1024 * 1024
    body_timeout_s: float = 10.0
    keepalive_s: float = 130.0
    publish_timeout_s: float = 5.0
    max_in_flight: int = 1000
    max_in_flight_bytes: int = 64 * 1024 * 1024
    min_bytes_per_s: int = 1024
    unproved_bytes_per_minute: int = 8 * 1024 * 1024


class Receiver:
    """Answers webhook requests for some applications. One per process; `stop` before the broker stops."""

    def __init__(
        self,
        *,
        broker: Broker,
        endpoints: Iterable[Endpoint],
        clock: Clock,
        metrics: Metrics,
        shared: Clock | None = None,
        tracing: Tracing | None = None,
        topic_prefix: str = "payments",
        limits: Limits | None = None,
    ) -> None:
        """`clock`: the machine's, by which a signature is old or new. `shared`: what all processes agree on, by which
        a delivery was received; the same as `clock` where there is none."""
        self._broker = broker
        self._clock = clock
        self._shared = shared or clock
        self.refusals = Refusals(clock.monotonic)
        self.misaddressed = Misaddressed(clock.monotonic)
        self._tracing = tracing or Tracing()
        self.limits = limits or Limits()
        self._topics = {name: f"{topic_prefix}.{name}" for name in ("events", "deliveries")}
        metrics.receive_in_flight.set_function(lambda: self._in_flight)
        self._paths: dict[str, Endpoint] = {}
        for endpoint in endpoints:
            self._paths[f"/webhooks/{endpoint.application}"] = endpoint
            if endpoint.application == DEFAULT:
                self._paths["/webhooks"] = endpoint
        applications = {endpoint.application for endpoint in self._paths.values()}
        self._figures = _Figures(metrics, applications, clock.monotonic)
        self._in_flight = 0
        self._admission = Admission(max_requests=self.limits.max_in_flight, max_bytes=self.limits.max_in_flight_bytes)
        self._unproved = Unproved(self.limits.unproved_bytes_per_minute, clock.monotonic)
        self.stored_lately = StoredLately(self.limits.unproved_bytes_per_minute, clock.monotonic)
        metrics.receive_arriving.set_function(lambda: self._admission.arriving)
        metrics.receive_held_bytes.set_function(lambda: self._admission.held_bytes)
        metrics.receive_displaced.set_function(lambda: self._admission.displaced)
        for application in applications:
            share = metrics.receive_unproved_share.labels(application)
            share.set_function(partial(self._unproved.share, application))
        self._idle = asyncio.Event()
        self._closing = False
        self._stopped = False

    @property
    def in_flight(self) -> int:
        """Requests being answered now."""
        return self._in_flight

    def look(self) -> None:
        """Say what is refused no longer; to be asked every few seconds, since no request tells it."""
        self._figures.look()

    async def has_room(self) -> bool:
        """Whether the next webhook would be taken: for `/readyz`."""
        return not self._admission.is_full

    def begin_closing(self) -> None:
        """Answer as before, but end each connection, so that the sender's next request goes to another process."""
        self._closing = True

    async def stop(self, timeout_s: float) -> int:
        """Refuse new requests (503) and wait for those in flight, each of which ends by itself within the limits of
        body and publish. Returns how many were left after `timeout_s`. Safe to call twice."""
        self._closing = self._stopped = True
        if self._in_flight == 0:
            self._idle.set()
        if not await is_set_within(self._idle, timeout_s):
            log.warning("receive_stop_timeout", in_flight=self._in_flight)
        return self._in_flight

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request (contract, HTTP). Never raises, but for cancellation.

        One whose body is not all here is its connection's last, and is told so: who still waits to be invited
        (`Expect: 100-continue`) need not send it, and a proxy that kept the connection would put the next sender's
        request where that body is expected."""
        endpoint = self._paths.get(request.raw_path) or self._paths.get(request.path)
        application = endpoint.application if endpoint is not None else UNKNOWN
        answer = await self._ended(application, self._answered(request, endpoint))
        is_last = self._closing or answer is answers.BROKEN_BODY or not request.content.is_eof()
        return answer.response(request, close=is_last)

    def takes(self, message: RawRequestMessage) -> Whole | None:
        """Who answers this request if it came whole: a plain webhook, nothing else."""
        endpoint = self._paths.get(message.path)
        if endpoint is None or message.method != "POST" or self._stopped or hdrs.CONTENT_ENCODING in message.headers:
            return None
        return partial(self._handle_whole, endpoint)

    async def _handle_whole(self, endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> PreparedResponse:
        if self._stopped:  # since its bytes came
            self._figures.count(endpoint.application, answers.STOPPING)
            return answers.STOPPING.closing
        answer = await self._ended(endpoint.application, self._taken(endpoint, headers, body))
        return answer.closing if self._closing else answer.keeping

    async def _ended(self, application: str, answering: Awaitable[Answer]) -> Answer:
        """The answer, counted and timed. Never raises, but for cancellation."""
        started = perf_counter()
        _TRACE.set("")  # aiohttp's way handles all requests of a connection in one task
        self._in_flight += 1
        try:
            answer = await answering
        except Exception as error:  # noqa: BLE001 - the process must outlive any request; `_refusal` logs it
            answer = self._refusal(error, application)
        finally:
            self._in_flight -= 1
            if self._stopped and self._in_flight == 0:
                self._idle.set()
        self._figures.count(application, answer, perf_counter() - started)
        return answer

    def refuse(self, request: web.BaseRequest, status: int, error: BaseException | None) -> web.StreamResponse:
        """The answer to bytes that are no HTTP request: always the same 400, and the connection ends (case I10).

        The log names the kind of the mistake only: the error's text holds what the sender wrote.
        """
        answer = answers.MALFORMED if status == HTTPStatus.BAD_REQUEST else answers.FAILED
        self._figures.count(UNKNOWN, answer)
        self._figures.say(answer.outcome, UNKNOWN, type(error).__name__)
        return answer.response(request, close=True)

    async def _answered(self, request: web.BaseRequest, endpoint: Endpoint | None) -> Answer:
        if endpoint is None:
            if request.method == "POST" and self.misaddressed.note(request.path):
                self._figures.say(answers.UNKNOWN_APPLICATION.outcome, UNKNOWN, NO_SUCH_ADDRESS)
            return answers.UNKNOWN_APPLICATION
        if request.method != "POST":
            return answers.METHOD_NOT_ALLOWED
        if self._stopped:
            return answers.STOPPING
        check_declared(request, self.limits.max_body_bytes)
        return await self._taken(endpoint, request.headers, await self._body(request))

    async def _body(self, request: web.BaseRequest) -> bytes:
        limits = self.limits
        body = whole_body(request, limits.max_body_bytes)
        if body is not None:
            return await unpacked(request, body, limits.max_body_bytes)
        with self._admission.arriving_body(
            request.remote or "", limits.body_timeout_s, limits.min_bytes_per_s
        ) as arriving:
            body = await streamed_body(request, limits.max_body_bytes, self._admission, arriving)
            return await unpacked(request, body, limits.max_body_bytes)

    async def _taken(self, endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> Answer:
        """Decide what becomes of the body and wait until the broker has it for good (cases I1, I2)."""
        if not body:
            return answers.EMPTY
        check_size(body, self.limits.max_body_bytes)
        self._admission.enter(len(body))
        root, outcome = None, "refused"
        try:
            received_at = self._shared.now()
            about = {"application": endpoint.application} if self._tracing.is_on else None
            root = self._tracing.root("receive", headers.get("traceparent"), about)
            _TRACE.set(root.traceparent)
            topic, message, answer, problem = decide(
                endpoint, body, headers, received_at, root.traceparent, signed_by=self._clock.now
            )
            unproved = topic == "deliveries"
            stored = await self._room_for(endpoint.application, message, problem) if unproved else message
            if stored is not None:
                await self._broker.publish(self._topics[topic], stored, self.limits.publish_timeout_s)
                if unproved:
                    self._figures.unproved(endpoint.application, stored.size_bytes)
                    self.stored_lately.note(endpoint.application, stored.size_bytes)
                if way.is_told():
                    _tell_stored(endpoint.application, topic, stored)
            outcome = answer.outcome
        finally:
            self._admission.leave(len(body))
            if root is not None:
                root.end(outcome)
        if endpoint.signature is not None:
            self.refusals.verified(endpoint.application)
        if problem is not None:
            self._figures.say(outcome, endpoint.application, problem)
        else:
            self._figures.accepted(endpoint.application, received_at, len(body))
        return answer

    async def _room_for(self, application: str, message: Message, problem: Reason | None) -> Message | None:
        """What nobody has proved as it is stored, packed, when there is room for it. Raises Refused (503: come again)
        for what may be real; what is refused anyway is None then, and only counted. Room is asked for before packing:
        what is sent away costs no work."""
        size = message.size_bytes
        if problem is not None:
            return message if self._unproved.take(application, size, is_refused=True) else None
        if self._unproved.take(application, size):
            packed = await _packed(message)
            if self._unproved.settle(application, size, packed.size_bytes):
                return packed
        raise Refused(answers.UNPROVED_FULL, "too many unproved bytes a minute")

    def _refusal(self, error: Exception, application: str) -> Answer:
        """What a failure means to the sender; nothing is durable for sure, so everything unforeseen is 503."""
        match error:
            case Refused():
                answer, reason = error.answer, error.reason
            case BadSignature():
                answer, reason = answers.BAD_SIGNATURE, error.message
                self.refusals.refused(application, is_signed=UNSIGNED not in reason)
            case RecordTooLarge():
                answer, reason = answers.TOO_LARGE, error.message
            case BrokerError() | TimeoutError():
                answer, reason = answers.NOT_DURABLE, str(error) or type(error).__name__
            case _:
                self._figures.broke(application, error)
                return answers.FAILED
        self._figures.say(answer.outcome, application, reason)
        return answer


async def _packed(message: Message) -> Message:
    """The message in few bytes; the loop is not held up for a large one."""
    if len(message.value) > AT_ONCE_BYTES:
        value, more = await asyncio.to_thread(squeezed, message.value)
    else:
        value, more = squeezed(message.value)
    return message._replace(value=value, headers={**message.headers, **more}) if more else message


def _tell_stored(application: str, topic: str, message: Message) -> None:
    said = {name: message.headers.get(name, b"").decode("utf-8", "replace") for name in ("delivery_id", "event_id")}
    trace = message.headers.get("traceparent", b"").decode("ascii", "replace")[3:35]
    log.debug("webhook_stored", application=application, topic=topic, trace_id=trace, **said)


class _Figures:
    """What is counted, and log lines about refusals: one for the first of a kind (outcome, application and reason), and
    while there are more at growing intervals, with the trace of the one at hand and how many there were (`times`). One
    refusal is an event; anybody can make a million of them, so that they are told as what lasts."""

    def __init__(self, metrics: Metrics, applications: Collection[str], monotonic: Callable[[], float]) -> None:
        self._requests = metrics.receive_requests
        for application in applications:
            for answer in answers.ALL:  # a counter that begins with its first count shows no increase
                self._requests.inc((application, answer.outcome), 0)
        self._seconds = metrics.receive_seconds
        self._body_bytes = metrics.receive_body_bytes
        self._unproved_bytes = metrics.receive_unproved_bytes
        self._last_accepted = metrics.receive_last_accepted
        self._last: dict[str, datetime] = {}
        self._monotonic = monotonic
        self._refused: dict[tuple[str, str, str], Condition] = {}
        self._broke = Condition("receive_failed", level="error", monotonic=monotonic, quiet_s=QUIET_S)

    def count(self, application: str, answer: Answer, seconds: float | None = None) -> None:
        self._requests.inc((application, answer.outcome))
        if seconds is not None:
            self._seconds.observe(seconds)

    def accepted(self, application: str, at: datetime, body_bytes: int) -> None:
        self._body_bytes.inc((), body_bytes)
        if application not in self._last:
            gauge = self._last_accepted.labels(application)
            gauge.set_function(lambda: self._last[application].timestamp())
        self._last[application] = at

    def unproved(self, application: str, size: int) -> None:
        self._unproved_bytes.inc((application,), size)

    def say(self, outcome: str, application: str, reason: str) -> None:
        kind = (outcome, application, reason)
        if kind not in self._refused and len(self._refused) >= REASONS_MAX:
            kind = (outcome, application, "another one")
        if kind not in self._refused:
            self._refused[kind] = Condition(
                "webhook_refused",
                monotonic=self._monotonic,
                quiet_s=QUIET_S,
                outcome=outcome,
                application=application,
                reason=kind[2],
            )
        self._refused[kind].lasts(outcome, **_trace())

    def broke(self, application: str, error: Exception) -> None:
        name = type(error).__name__
        self._broke.lasts(name, application=application, error=name, exc_info=error, **_trace())

    def look(self) -> None:
        self._broke.lapse()
        for kind in [kind for kind, one in self._refused.items() if one.lapse()]:
            del self._refused[kind]


def _trace() -> dict[str, Any]:
    """The trace of the delivery at hand; none where it was refused before it was read."""
    return {"trace_id": traceparent[3:35]} if (traceparent := _TRACE.get()) else {}


def receive_runner(receiver: Receiver, *, shutdown_timeout_s: float = 20.0) -> web.ServerRunner:
    """A runner that serves `receiver`: `setup()`, then a `web.TCPSite`. `cleanup()` waits for requests in flight.

    Bodies reach the receiver as sent: it undoes content codings itself, within its own bounds. A connection's first
    head may take as long as a body. An idle connection stays open for longer than proxies keep theirs: one that we
    close just when the next webhook is on it is a 502 to its sender.
    """
    server = WebhookServer(
        receiver.takes,
        receiver.handle,
        receiver.refuse,
        head_timeout_s=receiver.limits.body_timeout_s,
        auto_decompress=False,
        keepalive_timeout=receiver.limits.keepalive_s,
        lingering_time=1.0,
    )
    return web.ServerRunner(server, handle_signals=False, shutdown_timeout=shutdown_timeout_s)
