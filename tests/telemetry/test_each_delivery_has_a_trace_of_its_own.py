"""Traces: a root of our own per delivery, an inbound one only linked, sent as OTLP."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from consumer.telemetry.otlp import OtlpExporter, encoded
from consumer.telemetry.traces import parsed, start_tracing

INBOUND = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def test_without_an_exporter_there_are_only_ids() -> None:
    tracing = start_tracing(None, role="serve", version="1")
    one, two = tracing.root("receive", INBOUND), tracing.root("receive", INBOUND)
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-00", one.traceparent)
    assert one.traceparent != two.traceparent
    assert "a" * 32 not in one.traceparent
    one.end("accepted")
    tracing.done("run", one.traceparent, 0.1, {"handler": "a:b"})
    tracing.stop()


def test_an_inbound_traceparent_is_linked_and_never_the_parent() -> None:
    # case: I24
    exporter = InMemorySpanExporter()
    tracing = start_tracing(exporter, role="serve", version="1", batch=False)
    root = tracing.root("receive", INBOUND, {"application": "default"})
    root.end("accepted")
    [span] = exporter.get_finished_spans()
    assert span.parent is None
    assert [f"{link.context.trace_id:032x}" for link in span.links] == ["a" * 32]
    assert "a" * 32 not in root.traceparent
    assert span.attributes is not None
    assert span.attributes["outcome"] == "accepted"
    tracing.stop()


@pytest.mark.parametrize(
    "inbound", [None, "", "nonsense", "00-" + "0" * 32 + "-" + "b" * 16 + "-01", INBOUND + "\n", "x" * 9999]
)
def test_a_malformed_inbound_traceparent_is_ignored(inbound: str | None) -> None:
    # case: I24
    exporter = InMemorySpanExporter()
    tracing = start_tracing(exporter, role="serve", version="1", batch=False)
    tracing.root("receive", inbound).end("accepted")
    assert exporter.get_finished_spans()[0].links == ()
    tracing.stop()
    assert parsed(start_tracing(None, role="serve", version="1").root("receive", inbound).traceparent) is not None


def test_a_stage_continues_the_trace_of_the_record() -> None:
    exporter = InMemorySpanExporter()
    tracing = start_tracing(exporter, role="work", version="1", batch=False)
    root = tracing.root("receive")
    root.end("accepted")
    tracing.done("run", root.traceparent, 2.0, {"handler": "a:b"}, failed="handler_failed")
    received, run = exporter.get_finished_spans()
    assert run.parent is not None
    assert received.context is not None
    assert run.parent.span_id == received.context.span_id
    assert (run.status.status_code, run.status.description) == (StatusCode.ERROR, "handler_failed")
    assert run.start_time is not None
    assert run.end_time is not None
    assert run.end_time - run.start_time == 2 * 10**9
    tracing.stop()


@pytest.mark.parametrize("traceparent", [None, "", "nonsense", "00-" + "a" * 32 + "-" + "b" * 16 + "-00"])
def test_what_no_delivery_began_or_what_is_not_kept_of_it_has_no_span(traceparent: str | None) -> None:
    exporter = InMemorySpanExporter()
    tracing = start_tracing(exporter, role="work", version="1", batch=False)
    tracing.done("run", traceparent, 0.1, {"handler": "a:b"})
    assert exporter.get_finished_spans() == ()
    tracing.stop()


def test_a_call_of_the_service_is_a_trace_of_its_own() -> None:
    exporter = InMemorySpanExporter()
    tracing = start_tracing(exporter, role="sync", version="1", batch=False)
    tracing.called(0.5, {"route": "/v1/events"}, failed="rate_limited")
    start_tracing(None, role="sync", version="1").called(0.5, {"route": "/v1/events"})
    [span] = exporter.get_finished_spans()
    assert (span.name, span.kind, span.parent) == ("call", SpanKind.CLIENT, None)
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "rate_limited")
    tracing.stop()


async def test_spans_arrive_at_a_collector() -> None:
    got: list[Any] = []

    async def collect(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.Response(text="{}")

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    async with TestServer(app) as server:
        tracing = start_tracing(OtlpExporter(str(server.make_url("/"))), role="serve", version="1")
        root = tracing.root("receive", INBOUND, {"bytes": 12, "ok": True, "share": 0.5})
        tracing.done("run", root.traceparent, 0.1, {"handler": "a:b"})
        root.end("accepted")
        await asyncio.to_thread(tracing.stop)
    [scope] = got[0]["resourceSpans"][0]["scopeSpans"]
    run, received = scope["spans"]
    assert (received["name"], received["kind"], received["parentSpanId"]) == ("receive", 2, "")
    assert run["parentSpanId"] == received["spanId"]
    assert received["links"][0]["traceId"] == "a" * 32
    assert {item["key"]: item["value"] for item in received["attributes"]} == {
        "bytes": {"intValue": "12"},
        "ok": {"boolValue": True},
        "share": {"doubleValue": 0.5},
        "outcome": {"stringValue": "accepted"},
    }


async def test_a_collector_that_hangs_keeps_no_role_from_ending() -> None:
    answers = threading.Event()

    class Hang(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            answers.wait()
            return SpanExportResult.FAILURE

    tracing = start_tracing(Hang(), role="serve", version="1")
    tracing.root("receive").end("accepted")
    ending = threading.Thread(target=tracing.stop, args=(0.1,), daemon=True)
    ending.start()
    await asyncio.to_thread(ending.join, 10.0)
    hung = ending.is_alive()
    answers.set()
    assert not hung


async def test_an_absent_collector_loses_spans_and_nothing_else(unused_tcp_port: int) -> None:
    collected: list[ReadableSpan] = []

    class Keep(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            collected.extend(spans)
            return SpanExportResult.SUCCESS

    tracing = start_tracing(Keep(), role="serve", version="1", batch=False)
    tracing.root("receive").end("accepted")
    exporter = OtlpExporter(f"http://127.0.0.1:{unused_tcp_port}", timeout_s=1)
    assert await asyncio.to_thread(exporter.export, collected) is SpanExportResult.FAILURE
    assert encoded(collected)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["links"] == []
    with pytest.raises(ValueError, match="http"):
        OtlpExporter("file:///etc/passwd")
