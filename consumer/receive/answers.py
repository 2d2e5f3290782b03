"""Answer: the closed set of what the public endpoint says (contract, HTTP). Fixed, small, prepared once as bytes."""

from __future__ import annotations

from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import Final

import orjson
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from consumer.errors import ConsumerError

RETRY_AFTER_S = 5
UNREAD_MAX_BYTES = 64 * 1024


class Answer:
    """One answer: `outcome` is its word in metrics and in the body's `code`."""

    def __init__(self, status: int, outcome: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.status: Final = status
        self.outcome: Final = outcome
        fixed = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Server: consumer"]
        lines += [f"{name}: {value}" for name, value in {**fixed, **(headers or {})}.items()]
        head = "\r\n".join(lines).encode() + b"\r\n"
        self._keeping = PreparedResponse(status, head, body, keep_alive=True)
        self._closing = PreparedResponse(status, head + b"Connection: close\r\n", body, keep_alive=False)

    def response(self, request: web.BaseRequest, *, close: bool = False) -> web.StreamResponse:
        """The response to this request; `close` ends the connection after it."""
        if close or not request.keep_alive or request.version < HttpVersion11:
            return self._closing
        return self._keeping

    def __repr__(self) -> str:
        return f"Answer({self.status}, {self.outcome!r})"


class PreparedResponse(web.StreamResponse):
    """A response that is bytes already, and the same object for every request. aiohttp's own one builds each head
    anew, which costs more than checking a signature."""

    def __init__(self, status: int, head: bytes, body: bytes, *, keep_alive: bool) -> None:
        super().__init__(status=status)
        self._start_of_message = head + b"Date: "
        self._message_body = body
        self._keeps = keep_alive

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open after this response."""
        return self._keeps

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send it. Raises ConnectionResetError when the sender went away or does not read its answers."""
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the sender is gone")
        if transport.get_write_buffer_size() > UNREAD_MAX_BYTES:
            transport.abort()
            raise ConnectionResetError("the sender does not read its answers")
        body = self._message_body if request.method != "HEAD" else b""
        transport.write(b"%b%b\r\n\r\n%b" % (self._start_of_message, _date(int(time())), body))
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to send."""


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    """The time of day as HTTP writes it, made once a second."""
    return formatdate(second, usegmt=True).encode()


class Refused(ConsumerError):
    """A request that ends early with this answer; `reason` is for the log and the quarantine, never for the sender."""

    code = "refused"

    def __init__(self, answer: Answer, reason: str) -> None:
        self.answer = answer
        self.reason = reason
        super().__init__(reason)


def _answer(status: int, outcome: str, message: str, **headers: str) -> Answer:
    body = {"status": "refused", "code": outcome, "message": message}
    return Answer(
        status, outcome, orjson.dumps(body), {name.replace("_", "-"): value for name, value in headers.items()}
    )


_RETRY = str(RETRY_AFTER_S)
ACCEPTED = Answer(200, "accepted", b'{"status":"accepted"}')
EMPTY = _answer(400, "empty", "the body is empty")
NOT_UNDERSTOOD = _answer(400, "not_understood", "the body is not an event: a JSON object with an event id is needed")
WRONG_TYPE = _answer(400, "unsupported_content_type", "the content type must be application/json")
WRONG_ENCODING = _answer(400, "unsupported_content_encoding", "the content encoding must be gzip, deflate or identity")
BROKEN_BODY = _answer(400, "broken_body", "the body did not arrive whole")
BAD_SIGNATURE = _answer(401, "bad_signature", "the signature does not match")
UNKNOWN_APPLICATION = _answer(404, "unknown_application", "there is no such address")
METHOD_NOT_ALLOWED = _answer(405, "method_not_allowed", "only POST is answered here", Allow="POST")
TOO_LARGE = _answer(413, "too_large", "the body is too large")
NOT_DURABLE = _answer(503, "not_durable", "not stored, try again", Retry_After=_RETRY)
BUSY = _answer(503, "busy", "too many requests at once, try again", Retry_After=_RETRY)
STOPPING = _answer(503, "stopping", "this process ends, try again", Retry_After=_RETRY)
FAILED = _answer(503, "failed", "not stored, try again", Retry_After=_RETRY)

ALL = (
    ACCEPTED,
    EMPTY,
    NOT_UNDERSTOOD,
    WRONG_TYPE,
    WRONG_ENCODING,
    BROKEN_BODY,
    BAD_SIGNATURE,
    UNKNOWN_APPLICATION,
    METHOD_NOT_ALLOWED,
    TOO_LARGE,
    NOT_DURABLE,
    BUSY,
    STOPPING,
    FAILED,
)
