"""Answer: the closed set of what the public endpoint says (contract, HTTP). Fixed, small, prepared once as bytes."""

from __future__ import annotations

from typing import Final

import orjson
from aiohttp import HttpVersion11, web

from consumer.errors import ConsumerError
from consumer.telemetry.port import PreparedResponse

RETRY_AFTER_S = 5


class Answer:
    """One answer: `outcome` is its word in metrics and in the body's `code`."""

    def __init__(self, status: int, outcome: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.status: Final = status
        self.outcome: Final = outcome
        head = {"Content-Type": "application/json", "Cache-Control": "no-store", **(headers or {})}
        self.keeping = PreparedResponse(status, head, body, keep_alive=True)
        self.closing = PreparedResponse(status, head, body, keep_alive=False)

    def response(self, request: web.BaseRequest, *, close: bool = False) -> web.StreamResponse:
        """The response to this request; `close` ends the connection after it."""
        if close or not request.keep_alive or request.version < HttpVersion11:
            return self.closing
        return self.keeping

    def __repr__(self) -> str:
        return f"Answer({self.status}, {self.outcome!r})"


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
MALFORMED = _answer(400, "malformed", "the request is malformed or its head is too large")
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
UNPROVED_FULL = _answer(503, "unproved_full", "too much was sent to this address, try again", Retry_After="60")
STOPPING = _answer(503, "stopping", "this process ends, try again", Retry_After=_RETRY)
FAILED = _answer(503, "failed", "not stored, try again", Retry_After=_RETRY)

ALL = (
    ACCEPTED,
    MALFORMED,
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
    UNPROVED_FULL,
    STOPPING,
    FAILED,
)
