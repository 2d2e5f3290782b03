"""No bytes of a sender give a 5xx or end the process."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.receive.rig import BODY, RecordingBroker, Rig, running

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Driven:
    """A rig on an event loop of its own, so that a property can send many requests to one server."""

    def __init__(self, logs: io.StringIO) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.broker = RecordingBroker()
        self.rig: Rig = self._runner.run(self._stack.enter_async_context(running(self.broker, logs)))

    def send(self, body: bytes, path: str, headers: dict[str, str]) -> int:
        return self._runner.run(self.rig.send(body, path=path, headers=headers)).status

    def raw(self, data: bytes, answers: int) -> bytes:
        return self._runner.run(self.rig.raw(data, answers=answers))

    def garbage(self, data: bytes) -> bytes:
        return self._runner.run(self.rig.garbage(data))

    def stop(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


@pytest.fixture
def driven(logs: io.StringIO) -> Iterator[Driven]:
    found = Driven(logs)
    yield found
    assert found.send(BODY, "/webhooks/hints", {}) == 200
    found.stop()


PATHS = st.sampled_from(["/webhooks", "/webhooks/hints", "/webhooks/sandbox", "/webhooks/nobody"])
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "webhook-id",
            "webhook-timestamp",
            "webhook-signature",
            "traceparent",
            "Content-Type",
            "X-Event-Id",
            "User-Agent",
        ]
    ),
    VALUES,
    max_size=4,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("evt_1"),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["id", "type", "data", "object", "order_id", "event", "created_at"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@SETTINGS
@given(st.binary(max_size=300), PATHS, HEADERS)
@example(b"\x00", "/webhooks/hints", {"Content-Encoding": "gzip"})
@example(BODY, "/webhooks", {"webhook-id": "m", "webhook-timestamp": "1", "webhook-signature": "v1,x"})
def test_any_body_and_headers_are_answered_below_500(
    driven: Driven, body: bytes, path: str, headers: dict[str, str]
) -> None:
    # case: I10
    assert driven.send(body, path, headers) in (200, 400, 401, 404)


@SETTINGS
@given(JSON)
def test_any_json_is_answered_200_or_400(driven: Driven, document: object) -> None:
    # case: I8
    import json

    assert driven.send(json.dumps(document).encode(), "/webhooks/sandbox", {}) in (200, 400)


@SETTINGS
@given(st.binary(max_size=200))
@example(b"POST /webhooks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
@example(b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\r\n")
@example(b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{")
@example(b"POST /webhooks/hints HTTP/1.0\r\n\r\n")
@example(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
def test_any_bytes_on_the_wire_are_answered_below_500(driven: Driven, data: bytes) -> None:
    answer = driven.garbage(data)
    assert not answer.startswith(b"HTTP/1.1 5")
    assert not answer.startswith(b"HTTP/1.0 5")


def test_pipelined_requests_are_answered_in_order(driven: Driven) -> None:
    post = b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
    get = b"GET /webhooks HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = driven.raw(post + get + post, 3)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"405", b"200"]
