"""Traces: one trace per delivery, made here and carried in the record's header through every stage. Its spans:
`receive`, of `serve`; of `work` a `take` of each event that it stored, and a `run` of each attempt of its dispatcher.
A `call` of the service's API is a trace of its own: one page is about many webhooks.

An inbound `traceparent` comes from outside: it is linked, never taken as the parent (case I24). Without an exporter
nothing is recorded and only ids are made, so that logs of all stages can still be joined by trace.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link, Span, Tracer

Attributes = Mapping[str, str | int | float | bool]
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\Z")
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16


def parsed(traceparent: str | None) -> tuple[int, int, int] | None:
    """(trace id, span id, flags) of a W3C traceparent of version 00, or None for anything else."""
    match = _TRACEPARENT.match(traceparent or "")
    if match is None or match[1] == _NO_TRACE or match[2] == _NO_SPAN:
        return None
    return int(match[1], 16), int(match[2], 16), int(match[3], 16)


class Root:
    """The root span of one delivery: its `traceparent`, and `end` when it is answered."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, traceparent: str, span: Span | None = None) -> None:
        self.traceparent = traceparent
        self._span = span

    def end(self, outcome: str) -> None:
        """Close the span; `outcome` is one of the words of the metric."""
        if self._span is not None:
            self._span.set_attribute("outcome", outcome)
            self._span.end()


class Tracing:
    """Makes spans when it has a provider, and only ids when it has none. `stop` sends what is pending."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self._chances = b""
        self._used = 0
        self._tracer: Tracer | None = provider.get_tracer("consumer") if provider is not None else None

    @property
    def is_on(self) -> bool:
        """Whether spans are made: whoever would do some work for one asks first."""
        return self._tracer is not None

    def root(self, name: str, inbound: str | None = None, attributes: Attributes | None = None) -> Root:
        """A new root span; `inbound` is the sender's traceparent, which is linked only."""
        if self._tracer is None:
            return Root(self._unsampled())
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            name, context=Context(), kind=SpanKind.SERVER, links=_links(inbound), attributes=attributes
        )
        return Root(_traceparent(span), span)

    def _unsampled(self) -> str:
        """A new W3C traceparent, not sampled; the system is asked for chance once in many."""
        start = self._used
        if start >= len(self._chances):
            self._chances, start = os.urandom(24 * 128), 0
        self._used = start + 24
        ids = self._chances[start : self._used].hex()
        return f"00-{ids[:32]}-{ids[32:]}-00"

    def done(
        self, name: str, parent: str | None, seconds: float, attributes: Attributes, *, failed: str | None = None
    ) -> None:
        """A span of what ended just now, and took so long, below a record's `traceparent`; none where that is none.
        `failed`: the code of why."""
        if parsed(parent) is not None:
            self._done(name, parent, seconds, attributes, failed)

    def called(self, seconds: float, attributes: Attributes, *, failed: str | None = None) -> None:
        """A trace of its own of one call of the service's API that ended just now, and took so long. `failed`: as of
        `done`."""
        self._done("call", None, seconds, attributes, failed)

    def _done(
        self, name: str, parent: str | None, seconds: float, attributes: Attributes, failed: str | None
    ) -> None:  # fmt: skip
        if self._tracer is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode

        ended = time.time_ns()
        span = self._tracer.start_span(
            name,
            context=_context(parent),
            kind=SpanKind.CLIENT if parent is None else SpanKind.CONSUMER,
            attributes=attributes,
            start_time=ended - int(seconds * 1e9),
        )
        if failed is not None:
            span.set_status(Status(StatusCode.ERROR, failed))
        span.end(ended)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Send what is pending, for at most `timeout_s`, and end. Blocks: call it in a thread. The SDK has no limit
        of its own: it waits for the collector as often as there is a batch to send."""
        if self._provider is not None:
            ending = threading.Thread(target=self._provider.shutdown, name="traces-end", daemon=True)
            ending.start()
            ending.join(timeout_s)


def start_tracing(
    exporter: SpanExporter | None, *, role: str, version: str, ratio: float = 1.0, batch: bool = True
) -> Tracing:
    """Tracing that sends to `exporter`, or one that only makes ids when there is none. `ratio` is the share kept."""
    if exporter is None:
        return Tracing()
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(ratio)),
        resource=Resource.create(
            {"service.name": "consumer", "service.version": version, "service.instance.role": role}
        ),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter) if batch else SimpleSpanProcessor(exporter))
    return Tracing(provider)


def _links(inbound: str | None) -> list[Link]:
    ids = parsed(inbound)
    if ids is None:
        return []
    from opentelemetry.trace import Link, SpanContext, TraceFlags

    return [Link(SpanContext(ids[0], ids[1], is_remote=True, trace_flags=TraceFlags(ids[2])))]


def _context(parent: str | None) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    ids = parsed(parent)
    if ids is None:
        return Context()
    context = SpanContext(ids[0], ids[1], is_remote=True, trace_flags=TraceFlags(ids[2]))
    return set_span_in_context(NonRecordingSpan(context), Context())


def _traceparent(span: Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
