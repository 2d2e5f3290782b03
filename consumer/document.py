"""Document: JSON from outside, read once into what both databases can hold, and foreign text as a terminal may show
it (cases I10, U1). Pure.

Whatever the service or a stranger sends, the value that leaves here can be written again: no text holds half a
surrogate pair or a NUL, nothing nests deeper than `DEPTH_MAX`, every number fits 64 bits or is a finite float. The raw
bytes stay with who has them, as they came.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final

import orjson

DEPTH_MAX: Final = 64
"""Containers within containers; what lies deeper reads as null. The service's own records need four."""
VALUES_MAX: Final = 20_000
VOUCHED_MAX: Final = 150_000
"""So many lists and objects in one document that anybody may send, or that the service vouches for: more are refused
before they are made. Where it is odd, so many values and texts too, which are looked through one by one. A hundred
listed records have a few thousand, and forty thousand when each is as odd as can be."""
TEXTS_MAX: Final = 40_000
ODD_MAX: Final = 5_000
"""In what anybody may send: so many texts, and so many values and texts where it is odd. A megabyte within these bounds
holds up its reader for a few milliseconds; an event of the service has some dozens."""
TOKENS_MAX: Final = 4_000_000
"""Brackets and quotes that `shallow` looks at."""
NUMBER_MAX_CHARS: Final = 64

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?\+00:00\Z")
_REPLACED: Final = "\ufffd"
_HIGH, _LOW = rb"[dD][89abAB][0-9a-fA-F]{2}", rb"[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = re.compile(rb"\\u(?:%b(?!\\u%b)|(?<!\\u[dD][89abAB]..\\u)%b)" % (_HIGH, _LOW, _LOW), re.DOTALL)
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[][{}]', re.DOTALL)
"""A text that never ends is one token too: sought anew from each quote in it, it takes the square of its length."""
_STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_STEPS: Final = bytes.maketrans(b"[{]}", bytes(step % 256 for step in (1, 1, -1, -1)))
_NO_BRACKETS: Final = bytes(one for one in range(256) if one not in _STEP)


def parse(raw: bytes, *, tolerant: bool = False) -> Any:
    """The JSON value in these bytes. Raises ValueError when they are not JSON, or too large to be looked through.

    `tolerant` is for what the service vouches for, where one odd record must not hide the others: bytes that are no
    UTF-8, bare control characters, NaN, and any depth are taken too. What everybody may send is looked at as a whole
    here, value by value only where it is odd and short: a megabyte of brackets holds up nobody.
    """
    text, most = _without_nul(raw), VOUCHED_MAX if tolerant else VALUES_MAX
    if not tolerant and _quotes(text) > 2 * TEXTS_MAX:
        raise ValueError("too many texts")
    steps = _steps(text) if text.count(b"[") + text.count(b"{") > DEPTH_MAX else b""
    if len(steps) > 2 * most:
        raise ValueError("too many containers")
    odd_max = VOUCHED_MAX if tolerant else ODD_MAX
    try:
        document = _fast(text, odd_max)
    except orjson.JSONDecodeError:
        _check_few(text, odd_max)
        return _storable_value(_slowly(text, tolerant=tolerant))
    if steps and max(accumulate(memoryview(steps).cast("b"))) > DEPTH_MAX:
        _check_few(text, odd_max)
        return _storable_value(document)
    return document


def storable(text: str, max_chars: int | None = None) -> str:
    """The text as every column can hold it: NULs and lone surrogates become U+FFFD, cut at `max_chars`."""
    cut = text if max_chars is None else text[:max_chars]
    return cut if cut.isascii() and "\0" not in cut else _UNSTORABLE.sub(_REPLACED, cut)


def shallow(raw: bytes) -> bytes | None:
    """The same JSON with null in place of what lies deeper than `DEPTH_MAX`; None when that is too much to look through
    (a second, at most). It looks at each bracket and text, so no event loop should wait for it."""
    return None if len(_steps(raw)) + raw.count(b'"') > TOKENS_MAX else _without_depth(raw)


def _fast(raw: bytes, halves_max: int) -> Any:
    """JSON by the fast reader, with U+FFFD in place of escapes that are half a surrogate pair."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        halves = raw.count(rb"\ud") + raw.count(rb"\uD")
        if halves > halves_max:
            raise ValueError("too many surrogates") from None
        if not halves or b"\0" in raw:
            raise
    escaped = raw.replace(rb"\\", b"\0\0")  # an escaped backslash escapes nothing
    return orjson.loads(_HALF.sub(rb"\\ufffd", escaped).replace(b"\0\0", rb"\\"))


def _slowly(raw: bytes, *, tolerant: bool) -> Any:
    """JSON that the fast reader refuses: half a surrogate pair, a number beyond all floats, a thousand levels."""
    shallow = _without_depth(raw) if tolerant else raw
    try:
        return json.loads(
            shallow.decode("utf-8", "replace" if tolerant else "strict"),
            strict=not tolerant,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_nothing if tolerant else _no_constant,
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _number(literal: str) -> int | float | str:
    """The number as the fast reader gives it; one beyond all floats stays as it was written, and is no number."""
    if literal.lstrip("-").isdigit() and len(literal) < 19:
        return int(literal)
    value = float(literal)
    return value if abs(value) != float("inf") else literal[:NUMBER_MAX_CHARS]


def _nothing(_: str) -> None:
    return None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _storable_value(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return storable(value)
    if not isinstance(value, list | dict):
        return value
    if depth >= DEPTH_MAX:
        return None
    if isinstance(value, list):
        return [_storable_value(one, depth + 1) for one in value]
    return {storable(name): _storable_value(one, depth + 1) for name, one in value.items()}


def _without_nul(raw: bytes) -> bytes:
    """The same JSON with U+FFFD in place of NUL's escape."""
    if b"\\" not in raw or rb"\u0000" not in raw or b"\0" in raw:
        return raw
    escaped = raw.replace(rb"\\", b"\0\0")
    return escaped.replace(rb"\u0000", rb"\ufffd").replace(b"\0\0", rb"\\")


def _quotes(raw: bytes) -> int:
    """How many quotes begin and end texts; at least half of them, where texts end in a backslash."""
    found = raw.count(b'"')
    return found if found <= 2 * TEXTS_MAX else found - raw.count(rb"\"")


def _steps(raw: bytes) -> bytes:
    """What of this JSON opens and closes lists and objects, in or out: a signed byte each."""
    outside_texts = raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    return b"".join(outside_texts).translate(_STEPS, _NO_BRACKETS)


def _check_few(raw: bytes, most: int) -> None:
    if raw.count(b"[") + raw.count(b"{") + raw.count(b",") + raw.count(b'"') > most:
        raise ValueError("odd, and too large to be looked through")


def _without_depth(raw: bytes) -> bytes:
    """The same JSON with null in place of what nests too deeply for any parser."""
    kept: list[bytes] = []
    depth = begin = 0
    for token in _TOKENS.finditer(raw):
        step = _STEP.get(token[0][0], 0)
        depth += step
        if step == 1 and depth == DEPTH_MAX + 1:
            kept.append(raw[begin : token.start()])
        elif step == -1 and depth == DEPTH_MAX:
            kept.append(b"null")
            begin = token.end()
    if depth > 0:
        return raw  # it never closes, so it is not JSON anyway
    return b"".join((*kept, raw[begin:]))


def printable(text: str) -> str:
    """The text as a terminal may show it: what would move the cursor, change colours, end the line or turn the
    direction of writing stands there as its escape, visibly. Ids, customers and reasons are written by others."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_json(document: bytes) -> bytes:
    """The same JSON as a terminal may show it. Only texts hold such characters: it reads the same."""
    text = document.decode()
    if text.replace("\n", "").isprintable():
        return document
    return "".join(one if one.isprintable() or one == "\n" else _escaped(one) for one in text).encode()


def _escaped(character: str) -> str:
    halves = character.encode("utf-16-be").hex()
    return "".join(f"\\u{halves[at : at + 4]}" for at in range(0, len(halves), 4))


def as_time(value: Any) -> Any:
    """The time that a text says, as our own code writes it; whatever else is given stays as it is."""
    if isinstance(value, str) and _TIME.match(value):
        with suppress(ValueError):
            return datetime.fromisoformat(value)
    return value


def label(name: str) -> str:
    """A name as people read it; what is money says of what: the service knows one currency."""
    words = name.replace("_", " ")
    return f"{words}, USDC" if words.split()[-1:] == ["amount"] else words


def shown(value: Any) -> str:
    """A value as people read it; times in UTC."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, tuple | list):
        return ", ".join(shown(item) for item in value) or "-"
    if isinstance(value, dict):
        return " ".join(f"{name}={shown(as_time(item))}" for name, item in value.items()) or "-"
    return str(value)
