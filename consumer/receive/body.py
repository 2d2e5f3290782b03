"""Body: reading a request's bytes within bounds of size and time, and undoing its content coding (cases I11, I12)."""

from __future__ import annotations

import asyncio
import zlib

from aiohttp import ClientPayloadError, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from consumer.receive.answers import BROKEN_BODY, TOO_LARGE, WRONG_ENCODING, Refused

GZIP = 16 + zlib.MAX_WBITS
RAW_DEFLATE = -zlib.MAX_WBITS
BROKEN = (ClientPayloadError, HttpProcessingError, web.RequestPayloadError, ConnectionError)
_CODINGS = {"": 0, "identity": 0, "gzip": GZIP, "x-gzip": GZIP, "deflate": zlib.MAX_WBITS}


def declared_bytes(request: web.BaseRequest, max_bytes: int) -> int:
    """How many bytes this request may make us hold. Raises Refused when it says itself that it is too large."""
    length = request.content_length
    if length is None:
        return max_bytes
    if length > max_bytes:
        raise Refused(TOO_LARGE, "the declared length is over the limit")
    return max_bytes if hdrs.CONTENT_ENCODING in request.headers else length


def whole_body(request: web.BaseRequest, max_bytes: int) -> bytes | None:
    """The body, decompressed, when all of it is here already (it came with its head); None when it is not.

    Raises Refused as `streamed_body` does.
    """
    content = request.content
    if not content.is_eof():
        return None
    try:
        body = content.read_nowait()
    except BROKEN as error:
        raise Refused(BROKEN_BODY, "the body broke off") from error
    return _unpacked(request, body, max_bytes)


async def streamed_body(request: web.BaseRequest, max_bytes: int, timeout_s: float) -> bytes:
    """The body, decompressed, as it comes. Never holds more than `max_bytes` of it, compressed or not.

    Raises Refused: too large, not there after `timeout_s`, broken on the way, or in a coding we do not know.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            if "Expect" in request.headers:
                await _invite(request)
            while part := await request.content.readany():
                size += len(part)
                if size > max_bytes:
                    raise Refused(TOO_LARGE, "the body is over the limit")
                parts.append(part)
    except TimeoutError as error:
        raise Refused(BROKEN_BODY, "the body did not arrive in time") from error
    except BROKEN as error:
        raise Refused(BROKEN_BODY, "the body broke off") from error
    return _unpacked(request, b"".join(parts), max_bytes)


def _unpacked(request: web.BaseRequest, body: bytes, max_bytes: int) -> bytes:
    if len(body) > max_bytes:
        raise Refused(TOO_LARGE, "the body is over the limit")
    coding = request.headers.get(hdrs.CONTENT_ENCODING)
    return body if coding is None else decompressed(body, coding, max_bytes)


def decompressed(body: bytes, coding: str, max_bytes: int) -> bytes:
    """The body with its content coding undone, never more than `max_bytes` of it in memory. Raises Refused."""
    window = _CODINGS.get(coding.strip().lower())
    if window is None:
        raise Refused(WRONG_ENCODING, "unknown content coding")
    if window == 0 or not body:
        return body
    if window == zlib.MAX_WBITS and (body[0] & 0x0F) != 8:
        window = RAW_DEFLATE  # some senders leave out zlib's header
    parts: list[bytes] = []
    left = max_bytes
    while body:
        decoder = zlib.decompressobj(window)
        try:
            part = decoder.decompress(body, left + 1)
        except zlib.error as error:
            raise Refused(BROKEN_BODY, "the compressed body is broken") from error
        left -= len(part)
        if left < 0:
            raise Refused(TOO_LARGE, "the decompressed body is over the limit")
        if not decoder.eof:
            raise Refused(BROKEN_BODY, "the compressed body is cut off")
        parts.append(part)
        body = decoder.unused_data  # gzip may hold several members
        if body and not part:
            raise Refused(BROKEN_BODY, "the compressed body holds empty members")
    return b"".join(parts)


async def _invite(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`, now that we want the body."""
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0
