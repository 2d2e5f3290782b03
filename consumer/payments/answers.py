"""Answers: from status, headers and bytes to a value or the right error. Pure, apart from the bounded reading."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from consumer.document import parse, shallow
from consumer.payments.errors import AnswerTooLarge, ApiError, NotShown, UnexpectedAnswer, UnreadableAnswer, class_for
from consumer.payments.models import Record

RETRY_AFTER_MAX_S = 86_400.0
WORD_MAX_CHARS = 100

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A success answer: the JSON object in it, and the bytes as they came."""

    status: int
    document: Mapping[str, Any]
    raw: bytes

    def read_as(self, record: type[R], is_asked: Callable[[R], bool] = lambda _: True) -> R:
        """The record in it. Raises UnexpectedAnswer where its reading breaks: that is this record's failure alone;
        NotShown where it is not the one that was asked for. "No such object" may come as a success, too (case U18)."""
        try:
            found = record.read(self.document, self.raw)
        except Exception as error:
            raise UnexpectedAnswer("the record cannot be read", status=self.status, raw=self.raw) from error
        if not is_asked(found):
            code, request_id = _word(self.document.get("code")), _word(self.document.get("request_id"))
            raise NotShown(record=found, status=self.status, service_code=code, request_id=request_id, raw=self.raw)
        return found


async def bounded(chunks: AsyncIterator[bytes], encoding: str, max_bytes: int) -> bytes:
    """The whole body, unpacked, of at most `max_bytes`. Raises AnswerTooLarge; UnexpectedAnswer when it is packed
    otherwise, UnreadableAnswer when it came to harm on its way."""
    encoding = encoding.strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise UnexpectedAnswer("the answer is packed in a way that was not asked for", encoding=encoding[:40])
    unpack = None if encoding in ("", "identity") else zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    body, is_empty = bytearray(), True
    try:
        async for chunk in chunks:
            is_empty = is_empty and not chunk
            body += chunk if unpack is None else unpack.decompress(chunk, max_bytes + 1 - len(body))
            if len(body) > max_bytes:
                raise AnswerTooLarge(max_bytes=max_bytes)
    except zlib.error as error:
        raise UnreadableAnswer("the answer's packing is damaged") from error
    if unpack is not None and not unpack.eof and not is_empty:
        raise UnreadableAnswer("the answer's packing is cut short")
    return bytes(body)


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Seconds from a Retry-After header: a number or an HTTP date; None when it is missing or malformed (case C7).
    `now`: by the clock of who asks for the wait, as far as it tells."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 12:
        return min(float(text), RETRY_AFTER_MAX_S)
    try:
        at = parsedate_to_datetime(text)
        if at.tzinfo is None:
            return None
        return min(max(0.0, (at - now).total_seconds()), RETRY_AFTER_MAX_S)
    except (ValueError, TypeError, OverflowError):
        return None


def told_time(headers: Mapping[str, str]) -> datetime | None:
    """What the service's clock showed when it answered, from the headers Date and Age; None when they do not tell."""
    try:
        at = parsedate_to_datetime(headers.get("Date", ""))
        age = headers.get("Age", "0").strip()
        if at.tzinfo is None or not age.isdigit() or len(age) > 9:
            return None
        return at.astimezone(UTC) + timedelta(seconds=int(age))
    except (ValueError, TypeError, OverflowError):
        return None


def understood(
    status: int,
    headers: Mapping[str, str],
    raw: bytes,
    now: datetime,
    *,
    body_needed: bool,
    stated: Callable[[int], None] = lambda _: None,
) -> Answer:
    """The success answer, or raises the error it is.

    `body_needed` is False for the endpoints whose answer is not shown: there, any 2xx is a success. `stated` is told
    the status that the body says, if any, which goes for nothing (case C13).
    """
    document = _json_object(raw)
    said = (document or {}).get("statusCode")
    if isinstance(said, int):
        stated(said)
    if not 200 <= status < 300:
        raise error_from(status, headers, document, raw, now)
    if document is None and body_needed:
        raise UnreadableAnswer(status=status, raw=raw, request_id=_word(headers.get("X-Request-Id")))
    return Answer(status=status, document=document or {}, raw=raw)


def unread(status: int, headers: Mapping[str, str], why: UnexpectedAnswer, now: datetime) -> ApiError:
    """What an answer is whose body cannot be had: the error that its status says, and of a success that it cannot."""
    if not 200 <= status < 300:
        return error_from(status, headers, None, b"", now)
    about = {name: value for name, value in why.fields.items() if value is not None}
    return type(why)(why.message, status=status, request_id=_word(headers.get("X-Request-Id")), **about)


def error_from(
    status: int, headers: Mapping[str, str], document: Mapping[str, Any] | None, raw: bytes, now: datetime
) -> ApiError:
    """The typed error of an error answer, whatever its shape (cases C11-C13, C33)."""
    body = document or {}
    code = _word(body.get("code"))
    message = body.get("message")
    found = class_for(status, code)
    note = "the service answered with a redirect, which is not followed" if 300 <= status < 400 else None
    return found(
        note,
        status=status,
        service_code=code,
        request_id=_word(body.get("request_id")) or _word(headers.get("X-Request-Id")),
        field=_word(body.get("field")),
        detail=message if isinstance(message, str) else None,
        raw=raw,
        retry_after_s=retry_after_s(headers.get("Retry-After"), told_time(headers) or now),
    )


def _json_object(raw: bytes) -> dict[str, Any] | None:
    """One record that nests endlessly hides none of the others: it is read as far as it goes."""
    document: Any = None
    with suppress(ValueError):
        try:
            document = parse(raw, tolerant=True)
        except ValueError:
            cut = shallow(raw)
            document = None if cut is None else parse(cut, tolerant=True)
    return document if isinstance(document, dict) else None


def _word(value: Any) -> str | None:
    """A short printable word (code, request id, field name); anything else is dropped, as it is printed later."""
    if isinstance(value, str) and 0 < len(value) <= WORD_MAX_CHARS and value.isascii() and value.isprintable():
        return value
    return None
