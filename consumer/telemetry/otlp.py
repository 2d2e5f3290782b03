"""Otlp: spans to a collector as OTLP over HTTP in its JSON form, so that no further library is needed."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from consumer.telemetry.logs import Condition

TIMEOUT_S = 5.0


class OtlpExporter(SpanExporter):
    """Sends spans to `{endpoint}/v1/traces`. Used from the SDK's own thread; a lost batch is logged, never raised."""

    def __init__(self, endpoint: str, timeout_s: float = TIMEOUT_S) -> None:
        if urlsplit(endpoint).scheme not in ("http", "https"):
            raise ValueError("an OTLP endpoint is an http or https address")
        trimmed = endpoint.rstrip("/")
        self._url = trimmed if trimmed.endswith("/v1/traces") else f"{trimmed}/v1/traces"
        self._timeout_s = timeout_s
        self._unsent = Condition("traces_not_sent")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send one batch."""
        request = urllib.request.Request(  # noqa: S310 - http(s) is checked above
            self._url, data=orjson.dumps(encoded(spans)), headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s):  # noqa: S310 - as above
                self._unsent.over()
                return SpanExportResult.SUCCESS
        except (urllib.error.URLError, OSError, ValueError) as error:
            self._unsent.lasts(type(error).__name__, spans=len(spans), error=type(error).__name__)
            return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Nothing is held open."""


def encoded(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """The OTLP/JSON document for these spans (they share one resource: one process)."""
    resource = spans[0].resource.attributes if spans else {}
    listed = [_span(span) for span in spans]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": {"name": "consumer"}, "spans": listed}],
            }
        ]
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None, "an exported span has a context"  # noqa: S101 - the SDK's own promise
    return {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "parentSpanId": f"{span.parent.span_id:016x}" if span.parent is not None else "",
        "name": span.name,
        "kind": span.kind.value + 1,
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes or {}),
        "links": [
            {"traceId": f"{link.context.trace_id:032x}", "spanId": f"{link.context.span_id:016x}"}
            for link in span.links
        ],
        "status": {"code": span.status.status_code.value, "message": span.status.description or ""},
    }


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}
