"""Body: reading a request's bytes within bounds of size and time, and undoing its content coding (cases I11, I12)."""

from __future__ import annotations

import asyncio
import zlib

from aiohttp import ClientPayloadError, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from consumer.receive.admission import Admission, ArrivingBody
from consumer.receive.answers import BROKEN_BODY, BUSY, TOO_LARGE, WRONG_ENCODING, Refused

GZIP = 16 + zlib.MAX_WBITS
AT_ONCE_BYTES = 64 * 1024
UNPACKED_AT_ONCE_BYTES = 1024 * 1024
PIECE_BYTES = 16 * 1024
MEMBERS_MAX = 64
GROWTH_FREE_BYTES = 64 * 1024
GROWTH_MAX = 100
"""So many times what was sent a larger body may be: JSON packs to a tenth, and a megabyte of zeros to a thousandth."""
RAW_DEFLATE = -zlib.MAX_WBITS
BROKEN = (ClientPayloadError, HttpProcessingError, web.RequestPayloadError, ConnectionError)
_CODINGS = {"": 0, "identity": 0, "gzip": GZIP, "x-gzip": GZIP, "deflate": zlib.MAX_WBITS}


def check_declared(request: web.BaseRequest, max_bytes: int) -> None:
    """Raises Refused when the request says itself that it is too large."""
    if (request.content_length or 0) > max_bytes:
        raise Refused(TOO_LARGE, "the declared length is over the limit")


def whole_body(request: web.BaseRequest, max_bytes: int) -> bytes | None:
    """The body as sent, when all of it is here already (it came with its head); None when it is not.

    Raises Refused as `streamed_body` does.
    """
    content = request.content
    if not content.is_eof():
        return None
    try:
        body = content.read_nowait()
    except BROKEN as error:
        raise Refused(BROKEN_BODY, "the body broke off") from error
    check_size(body, max_bytes)
    return body


def check_size(body: bytes, max_bytes: int) -> None:
    """Raises Refused when the body is too large."""
    if len(body) > max_bytes:
        raise Refused(TOO_LARGE, "the body is over the limit")


async def streamed_body(
    request: web.BaseRequest, max_bytes: int, admission: Admission, arriving: ArrivingBody
) -> bytes:
    """The body as sent, as it comes. Never holds more than `max_bytes` of it.

    Raises Refused: too large, not there in time, displaced by others, or broken on the way.
    """
    parts: list[bytes] = []
    try:
        async with arriving.limit():
            if "Expect" in request.headers:
                await _invite(request)
            while part := await request.content.readany():
                if arriving.size + len(part) > max_bytes:
                    raise Refused(TOO_LARGE, "the body is over the limit")
                admission.grow(arriving, len(part))
                parts.append(part)
    except TimeoutError as error:
        if arriving.gave_way:
            raise Refused(BUSY, "the body gave way to others") from error
        raise Refused(BROKEN_BODY, "the body did not arrive in time") from error
    except BROKEN as error:
        raise Refused(BROKEN_BODY, "the body broke off") from error
    return b"".join(parts)


async def unpacked(request: web.BaseRequest, body: bytes, max_bytes: int) -> bytes:
    """The body with its content coding undone, off the loop where much may go in or come out. Raises Refused."""
    coding = request.headers.get(hdrs.CONTENT_ENCODING)
    if coding is None:
        return body
    if len(body) > AT_ONCE_BYTES or max_bytes > UNPACKED_AT_ONCE_BYTES:
        return await asyncio.to_thread(decompressed, body, coding, max_bytes)
    return decompressed(body, coding, max_bytes)


def decompressed(body: bytes, coding: str, max_bytes: int) -> bytes:
    """The body with its content coding undone, never more than `max_bytes` of it in memory, and what is larger than
    GROWTH_FREE_BYTES by GROWTH_MAX times at most: a stranger who sends little makes little work. Raises Refused."""
    window = _CODINGS.get(coding.strip().lower())
    if window is None:
        raise Refused(WRONG_ENCODING, "unknown content coding")
    if window == 0 or not body:
        return body
    if window == zlib.MAX_WBITS and (body[0] & 0x0F) != 8:
        window = RAW_DEFLATE  # some senders leave out zlib's header
    parts: list[bytes] = []
    left = min(max_bytes, max(GROWTH_FREE_BYTES, GROWTH_MAX * len(body)))
    at, rest = 0, memoryview(body)
    for _ in range(MEMBERS_MAX):  # gzip may hold several
        part, used = _member(rest[at:], window, left)
        left, at = left - len(part), at + used
        parts.append(part)
        if at == len(body):
            return b"".join(parts)
        if not part:
            raise Refused(BROKEN_BODY, "the compressed body holds empty members")
    raise Refused(BROKEN_BODY, "the compressed body holds too many members")


def _member(body: memoryview, window: int, max_bytes: int) -> tuple[bytes, int]:
    """One member, decompressed, and how many bytes it took. It is fed piece by piece: what is left of the last piece is
    all that the decoder copies, however many members follow."""
    decoder = zlib.decompressobj(window)
    parts: list[bytes] = []
    left = max_bytes
    for start in range(0, len(body), PIECE_BYTES):
        piece = body[start : start + PIECE_BYTES]
        try:
            part = decoder.decompress(piece, left + 1)
        except zlib.error as error:
            raise Refused(BROKEN_BODY, "the compressed body is broken") from error
        left -= len(part)
        if left < 0:
            raise Refused(TOO_LARGE, "the decompressed body is over the limit")
        parts.append(part)
        if decoder.eof:
            return b"".join(parts), start + len(piece) - len(decoder.unused_data)
    raise Refused(BROKEN_BODY, "the compressed body is cut off")


async def _invite(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`, now that we want the body."""
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0
