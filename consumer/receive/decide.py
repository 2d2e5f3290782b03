"""Decide: what becomes of a body, decided without doing anything. Pure: no database, no API, no plugin (case I5)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

import orjson
from aiohttp import hdrs

from consumer.broker.base import Message
from consumer.errors import NotUnderstood
from consumer.events import Authenticity, Delivery, Locators, identify, parse_json
from consumer.reason import Reason
from consumer.receive.answers import ACCEPTED, NOT_UNDERSTOOD, WRONG_TYPE, Answer
from consumer.receive.authenticity import Signature
from consumer.wire import lay_out_delivery, signed_headers, signed_key

HEADER_MAX_CHARS = 512
HEADERS_MAX = 24
HEADERS_MAX_BYTES = 2048
"""So much all kept headers of one delivery take together, as they are stored."""
REFUSAL_HEADERS_MAX_BYTES = 512
REFUSAL_MAX_BYTES = 4096
"""So much of a body that is refused is kept: what diagnosis needs."""
CUT_FROM = "consumer-body-bytes"
"""Beside the headers of a refused body: how long it was before it was cut."""

# Kept beside the raw body: what tells how it was sent and signed. Never credentials.
_KEPT = re.compile(
    r"content-type|content-encoding|user-agent|x-request-id|idempotency-key"
    r"|[a-z0-9-]*(webhook|signature|timestamp|event|delivery)[a-z0-9-]*"
)
_SIGNING = re.compile(r"webhook-id|.*(signature|timestamp).*")
_NEVER = re.compile(r"auth|cookie|credential|token|secret|pass|(?<!idempotency-)key")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One application's webhook address: how its bodies are proved, and where facts lie in them."""

    application: str
    authenticity: Authenticity = Authenticity.API
    locators: Locators = Locators()  # noqa: RUF009 - frozen, so it can be shared
    signature: Signature | None = None

    def __post_init__(self) -> None:
        if (self.authenticity is Authenticity.SIGNATURE) is not (self.signature is not None):
            raise ValueError("authenticity 'signature' goes with a signature scheme, and only with it")


class Decision(NamedTuple):
    """What to publish, where (`events` or `deliveries`), and what to answer once it is durable. A message for
    `deliveries` is not packed yet: that is work, and only worth it where there is room."""

    topic: str
    message: Message
    answer: Answer
    problem: Reason | None = None


def decide(
    endpoint: Endpoint,
    body: bytes,
    headers: Mapping[str, str],
    received_at: datetime,
    traceparent: str,
    *,
    signed_by: Callable[[], datetime] | None = None,
) -> Decision:
    """What becomes of a body that is not empty. Raises BadSignature. `signed_by`: the time by which a signature is old
    or new, where that is another than the one it was received by.

    A checked signature makes an event, `api` makes a hint. `none`, which exists for a sandbox on the loopback only,
    makes an event that counts as signed: there is nothing to check, and handlers must see the sandbox's events.
    What is not understood becomes a delivery with its problem, so that the raw bytes are kept (case I10).
    """
    now_s = received_at.timestamp()
    if endpoint.signature is not None:
        endpoint.signature.check(body, headers, now_s if signed_by is None else signed_by().timestamp())
    delivery_id = new_delivery_id(now_s, traceparent)
    answer, problem, found = ACCEPTED, None, None
    if not _is_json(headers.get(hdrs.CONTENT_TYPE)):
        answer, problem = WRONG_TYPE, Reason.UNSUPPORTED_CONTENT_TYPE
    else:
        try:
            found = identify(parse_json(body), endpoint.locators)
        except NotUnderstood as error:
            answer, problem = NOT_UNDERSTOOD, error.reason
    http = kept_headers(headers, HEADERS_MAX_BYTES if problem is None else REFUSAL_HEADERS_MAX_BYTES)
    if found is not None and endpoint.authenticity is not Authenticity.API:
        application = endpoint.application
        record = signed_headers(application, found, received_at, delivery_id, traceparent, http)
        return Decision("events", Message(key=signed_key(application, found), value=body, headers=record), answer)
    delivery = Delivery(
        application=endpoint.application,
        id=delivery_id,
        raw=body if problem is None else body[:REFUSAL_MAX_BYTES],
        received_at=received_at,
        headers=http if problem is None or len(body) <= REFUSAL_MAX_BYTES else {**http, CUT_FROM: str(len(body))},
        event_id=found.id if found is not None else None,
        problem=problem,
        traceparent=traceparent,
    )
    plain = lay_out_delivery(delivery, endpoint.locators, found=found)
    message = Message(key=plain.key, value=plain.value, headers=plain.headers)
    return Decision("deliveries", message, answer, problem)


def new_delivery_id(now_s: float, traceparent: str) -> str:
    """A delivery id: `dlv_`, the milliseconds, and 80 random bits of the trace, so that ids sort by time and one
    leads to the other."""
    return f"dlv_{int(now_s * 1000):012x}{traceparent[3:23]}"


def kept_headers(headers: Mapping[str, str], max_bytes: int = HEADERS_MAX_BYTES) -> dict[str, str]:
    """The headers that stay with a delivery, in lower case, bounded each and together, as clean text."""
    kept: dict[str, str] = {}
    for name, value in headers.items():
        known = _kept_name(name)
        if known is not None:
            kept[known] = value[:HEADER_MAX_CHARS] if value.isascii() else _clean(value)
    return kept if len(kept) <= HEADERS_MAX and _stored_bytes(kept) <= max_bytes else _fitting(kept, max_bytes)


def _fitting(kept: Mapping[str, str], max_bytes: int) -> dict[str, str]:
    """As many of them as there is room for: those that a signature needs come first."""
    found: dict[str, str] = {}
    for name in sorted(kept, key=lambda name: _SIGNING.fullmatch(name) is None):
        more = {**found, name: kept[name]}
        if len(more) <= HEADERS_MAX and _stored_bytes(more) <= max_bytes:
            found = more
    return found


def _stored_bytes(headers: Mapping[str, str]) -> int:
    return len(orjson.dumps(headers))


@lru_cache(maxsize=512)
def _kept_name(name: str) -> str | None:
    """The name under which a header is kept, or None."""
    lowered = name.lower()
    keep = lowered.isascii() and len(lowered) <= 64 and _KEPT.fullmatch(lowered) and not _NEVER.search(lowered)
    return lowered if keep else None


def _clean(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")[:HEADER_MAX_CHARS]


def _is_json(content_type: str | None) -> bool:
    """JSON, something built on JSON (`+json`), or nothing said at all."""
    if content_type is None or content_type == "application/json":
        return True
    plain = content_type.partition(";")[0].strip().lower()
    return plain in ("application/json", "text/json", "") or plain.endswith("+json")
