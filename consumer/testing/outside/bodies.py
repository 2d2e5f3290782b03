"""Bodies: what a handler passed as `data`, made comparable; read as the real session would read it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import FormData, MultipartWriter
from aiohttp.payload import LookupError as NoPayload
from aiohttp.payload import Payload, get_payload


async def recorded(data: Any) -> Any:
    """The body, as `Request.body` shows it. Raises what the real session raises for what it cannot send."""
    if data is None or isinstance(data, str | bytes | Mapping):
        return data
    if isinstance(data, AsyncIterable) and not isinstance(data, Payload):
        return b"".join([bytes(chunk) async for chunk in data])
    if not isinstance(data, FormData):
        try:
            data = get_payload(data)
        except NoPayload:
            data = FormData(data)
    payload = data() if isinstance(data, FormData) else data
    if isinstance(payload, MultipartWriter):
        return _gathered([await _part(part) for part, _, _ in payload])
    raw = await payload.as_bytes()
    is_form = str(payload.headers.get("Content-Type", "")).startswith("application/x-www-form-urlencoded")
    return _gathered(parse_qsl(raw.decode(), keep_blank_values=True)) if is_form else raw


async def _part(part: Any) -> tuple[str, Any]:
    """A field of a form: its name, and its text or its file."""
    disposition = part.headers.get("Content-Disposition", "")
    named = dict(word.strip().partition("=")[::2] for word in disposition.split(";")[1:])
    name = named.get("name", "").strip('"')
    if "filename" not in named and not isinstance(part, MultipartWriter):
        return name, part.decode()
    content = await part.as_bytes()
    filename = named.get("filename", "").strip('"')
    return name, {"filename": filename, "content_type": part.headers.get("Content-Type"), "content": content}


def _gathered(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """By name; what came several times as a list."""
    found: dict[str, list[Any]] = {}
    for name, value in fields:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}
