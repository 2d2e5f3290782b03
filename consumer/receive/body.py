"""Body: reading a request's bytes within bounds of size and time, and undoing its content coding (cases I11, I12)."""

from __future__ import annotations

import asyncio
import zlib

from aiohttp import ClientPayloadError, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from consumer.receive.answers import BROKEN_BODY, TOO_LARGE, WRONG_ENCODING, Refused

GZIP = 16 + zlib.MAX_WBITS
RAW_DEFLATE = -zlib.MAX_WBITS
_CODINGS = {"": 0, "identity": 0, "gzip": GZIP, "x-gzip": GZIP, "deflate": zlib.MAX_WBITS}


def declared_bytes(request: web.BaseRequest, max_bytes: int) -> int:
    """How many bytes this request may make us hold. Raises Refused when it says itself that it is too large."""
    length = request.content_length
    if length is None:
        return max_bytes
    if length > max_bytes:
        raise Refused(TOO_LARGE, "the declared length is over the limit")
    return max_bytes if "Content-Encoding" in request.headers else length


async def read_body(request: web.BaseRequest, *, max_bytes: int, timeout_s: float) -> bytes:
    """The body, decompressed. Never holds more than `max_bytes` of it, compressed or not.

    Raises Refused: too large, not there after `timeout_s`, broken on the way, or in a coding we do not know.
    """
    content = request.content
    try:
        if content.is_eof():
            body = content.read_nowait()
        else:
            if "Expect" in request.headers:
                await _invite(request)
            async with asyncio.timeout(timeout_s):
                body = await _streamed(content, max_bytes)
    except TimeoutError as error:
        raise Refused(BROKEN_BODY, "the body did not arrive in time") from error
    except (ClientPayloadError, HttpProcessingError, web.RequestPayloadError, ConnectionError) as error:
        raise Refused(BROKEN_BODY, "the body broke off") from error
    if len(body) > max_bytes:
        raise Refused(TOO_LARGE, "the body is over the limit")
    coding = request.headers.get("Content-Encoding")
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


async def _streamed(content: StreamReader, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await content.readany():
        size += len(part)
        if size > max_bytes:
            raise Refused(TOO_LARGE, "the body is over the limit")
        parts.append(part)
    return b"".join(parts)


async def _invite(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`, now that we want the body."""
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0
