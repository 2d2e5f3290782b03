"""Authenticity: is this body from the service? Pure: bytes, headers and the time in, a verdict out.

The service documents no scheme (spec, Events, last paragraph), so there are two ways to configure one: Standard
Webhooks, exactly compatible with the library `standardwebhooks`, and an HMAC layout spelled out by settings (case
I19). What is signed is the body as the sender sent it, after transfer and content coding are undone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from consumer.errors import BadSignature

SECRET_PREFIX = "whsec_"  # noqa: S105 - the documented prefix, no secret
ITEMS_MAX = 32
UNSIGNED = "a signature header is missing"


class Key:
    """An HMAC key (RFC 2104), its two blocks hashed once: a check costs half of what `hmac.digest` takes."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes, algorithm: Literal["sha256", "sha512"]) -> None:
        new = getattr(hashlib, algorithm)
        block = new().block_size
        padded = (new(secret).digest() if len(secret) > block else secret).ljust(block, b"\0")
        self._inner = new(bytes(byte ^ 0x36 for byte in padded))
        self._outer = new(bytes(byte ^ 0x5C for byte in padded))

    def digest(self, content: bytes) -> bytes:
        """The HMAC of `content`."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        digest: bytes = outer.digest()
        return digest


class Signature(Protocol):
    """A scheme with its secrets."""

    def check(self, body: bytes, headers: Mapping[str, str], now_s: float) -> None:
        """Return when one of the secrets signed this body lately. Raises BadSignature with the reason.

        `headers` are looked up in lower case, so the mapping must not care about case. `now_s` is epoch seconds.
        """
        ...


class StandardWebhooks:
    """Standard Webhooks: headers `webhook-id`, `webhook-timestamp`, `webhook-signature`; any secret may match."""

    def __init__(self, secrets: Sequence[str], tolerance_s: float = 300.0) -> None:
        """From `whsec_…` secrets. Raises ValueError for an empty one, or when there is none."""
        decoded = tuple(base64.b64decode(secret.removeprefix(SECRET_PREFIX) + "==") for secret in secrets)
        self._keys = tuple(Key(secret, "sha256") for secret in _not_empty(decoded))
        self._tolerance_s = tolerance_s

    def check(self, body: bytes, headers: Mapping[str, str], now_s: float) -> None:
        """See Signature."""
        message_id = headers.get("webhook-id")
        timestamp = headers.get("webhook-timestamp")
        signatures = headers.get("webhook-signature")
        if not (message_id and timestamp and signatures):
            raise BadSignature(UNSIGNED)
        signed_at = _checked_time(timestamp, now_s, self._tolerance_s)
        content = b"%b.%d.%b" % (message_id.encode("utf-8", "surrogateescape"), math.floor(signed_at), body)
        given = [_from_base64(item[3:]) for item in signatures.split(" ", ITEMS_MAX)[:ITEMS_MAX] if item[:3] == "v1,"]
        if not _any_match(self._keys, content, given):
            raise BadSignature("no signature matches")


@dataclass(frozen=True, kw_only=True)
class HmacLayout:
    """Another layout of HMAC. Names of headers in lower case.

    `header` holds one or several signatures, comma-separated, each after `prefix`. `timestamp` names the header with
    the signed time, or `param:t` for a `t=` among those items; None when no time is signed. `content` is what is
    signed: `{body}` once, `{timestamp}` and `{header:NAME}` as needed. Secrets are used as their UTF-8 bytes.
    """

    secrets: tuple[str, ...] = field(repr=False)
    header: str
    prefix: str = ""
    algorithm: Literal["sha256", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    timestamp: str | None = None
    content: str = "{timestamp}.{body}"
    tolerance_s: float = 300.0
    _keys: tuple[Key, ...] = field(init=False, repr=False)
    _parts: tuple[str, ...] = field(init=False, repr=False)
    _decode: Callable[[str], bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        secrets = _not_empty(tuple(secret.encode() for secret in self.secrets))
        object.__setattr__(self, "_keys", tuple(Key(secret, self.algorithm) for secret in secrets))
        object.__setattr__(self, "_parts", tuple(re.split(r"(\{[^{}]*\})", self.content)))
        object.__setattr__(self, "_decode", _from_hex if self.encoding == "hex" else _from_base64)
        if self._parts.count("{body}") != 1:
            raise ValueError("the signed content holds {body} once")
        if "{timestamp}" in self._parts and self.timestamp is None:
            raise ValueError("the signed content holds {timestamp}, but nothing says where it is")

    def check(self, body: bytes, headers: Mapping[str, str], now_s: float) -> None:
        """See Signature."""
        value = headers.get(self.header)
        if not value:
            raise BadSignature(UNSIGNED)
        items = [item.strip() for item in value.split(",", ITEMS_MAX)[:ITEMS_MAX]]
        timestamp = self._timestamp(items, headers)
        if timestamp is not None:
            _checked_time(timestamp, now_s, self.tolerance_s)
        content = b"".join(self._filled(part, body, headers, timestamp) for part in self._parts)
        given = [self._decode(item[len(self.prefix) :]) for item in items if item.startswith(self.prefix)]
        if not _any_match(self._keys, content, given):
            raise BadSignature("no signature matches")

    def _timestamp(self, items: list[str], headers: Mapping[str, str]) -> str | None:
        if self.timestamp is None:
            return None
        if self.timestamp.startswith("param:"):
            sign = self.timestamp.removeprefix("param:") + "="
            found = next((item[len(sign) :] for item in items if item.startswith(sign)), None)
        else:
            found = headers.get(self.timestamp)
        if not found:
            raise BadSignature("the signed time is missing")
        return found

    def _filled(self, part: str, body: bytes, headers: Mapping[str, str], timestamp: str | None) -> bytes:
        if part == "{body}":
            return body
        if part == "{timestamp}":
            return (timestamp or "").encode("utf-8", "surrogateescape")
        if part.startswith("{header:"):
            return headers.get(part[8:-1].lower(), "").encode("utf-8", "surrogateescape")
        return part.encode()


def _not_empty(keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
    if not keys or not all(keys):
        raise ValueError("an empty secret: anyone could sign with it")
    return keys


def _checked_time(text: str, now_s: float, tolerance_s: float) -> float:
    try:
        signed_at = float(text)
    except ValueError as error:
        raise BadSignature("the signed time is not a number") from error
    if not math.isfinite(signed_at):
        raise BadSignature("the signed time is not a number")
    if signed_at < now_s - tolerance_s:
        raise BadSignature("the signed time is too old")
    if signed_at > now_s + tolerance_s:
        raise BadSignature("the signed time is too new")
    return signed_at


def _any_match(keys: Sequence[Key], content: bytes, given: Sequence[bytes]) -> bool:
    """Whether one of the keys signed it so; always compares each with each, in constant time."""
    found = False
    for key in keys:
        expected = key.digest(content)
        for one in given:
            found |= hmac.compare_digest(expected, one)
    return found


def _from_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text)
    except (binascii.Error, ValueError):
        return b""


def _from_hex(text: str) -> bytes:
    try:
        return binascii.unhexlify(text)
    except (binascii.Error, ValueError):
        return b""
