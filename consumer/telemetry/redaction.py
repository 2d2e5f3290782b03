"""Redaction: what never reaches a log line, a span or an error page (cases I25, S9). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

REDACTED = "[redacted]"
TEXT_MAX_CHARS = 16_384
ITEMS_MAX = 100
DEPTH_MAX = 6
WALLET_MIN_CHARS = 32
CUSTOMER_KEY = "customer:"
NAMED_MIN_CHARS = 3
"""A shorter customer reference stands in too many words to be looked for."""
_CONTAINERS = frozenset({"body", "raw", "payload", "content", "data", "document"})
"""Names that a log line hides whole; where a body is shown they are the way to it."""

_SECRET_PARTS = ("secret", "password", "passwd", "token", "authorization", "cookie", "api_key", "apikey", "credential")
# Bodies and who the payer is: by name, because their values look like anything.
_PRIVATE_NAMES = frozenset(
    {
        "body",
        "raw",
        "payload",
        "content",
        "data",
        "document",
        "metadata",
        "email",
        "customer",
        "customer_email",
        "customer_reference",
        "line_items",
        "description",
        "webhook-signature",
        "signature",
    }
)
_CREDENTIALS = r"(?:secret|password|passwd|token|api[_-]?key|credentials?)"
_OF_A_PAYER = r"\b(?:customer_reference|customer_email|customer|wallet|payer|description)"
_IS = r"['\"]?\s{0,3}[=:]\s{0,3}"
_QUOTED = r"(['\"])(?!\[redacted\])(?:\\.|(?!\2)[^\\]){1,2048}+"
"""A text from its quote on, to the one that ends it, as Python and JSON write it. Its quote is the second group."""
_TEXTS = r"'(?:\\.|[^'\\])*+'?|\"(?:\\.|[^\"\\])*+\"?"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"whsec_[A-Za-z0-9+/=_-]{1,512}"), f"whsec_{REDACTED}"),
    (re.compile(r"svc_sk_live_[\x21-\x2b\x2d-\x39\x3b-\x7e]{1,512}"), f"svc_sk_live_{REDACTED}"),
    (re.compile(r"\b(Basic|Bearer)\s+[A-Za-z0-9+/=._~-]{4,4096}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"://[^\s@\"]{1,256}@"), f"://{REDACTED}@"),
    (re.compile(rf"({_CREDENTIALS}{_IS}){_QUOTED}", re.IGNORECASE), rf"\1\2{REDACTED}"),
    (
        re.compile(rf"({_CREDENTIALS}=)(?!\[redacted\])[^\s,;&'\")\]}}]{{1,512}}", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (re.compile(rf"({_OF_A_PAYER}{_IS}){_QUOTED}"), rf"\1\2{REDACTED}"),
    (re.compile(rf"(['\"]metadata['\"]\s{{0,3}}:\s{{0,3}})\{{(?:[^{{}}'\"]|{_TEXTS})*+"), rf"\1{{{REDACTED}"),
    (re.compile(rf"(['\"]line_items['\"]\s{{0,3}}:\s{{0,3}})\[(?:[^\[\]'\"]|{_TEXTS})*+\]?"), rf"\1{REDACTED}"),
    (re.compile(r"((['\"])customer:)(?!\[redacted\])(?:\\.|(?!\2)[^\\]){1,512}+"), rf"\1{REDACTED}"),
    (re.compile(r"\$argon2[a-z]{1,2}\$[^\s\"']{1,512}"), REDACTED),
    (re.compile(r"\bcustomer:(?!\[redacted\])[^\s,;\"')\]}]{1,512}"), f"customer:{REDACTED}"),
    (
        re.compile(
            r"(\b(?:customer_reference|customer_email|customer|wallet|payer)['\"]?\s{0,3}[=:]\s{0,3}['\"]?)"
            r"(?!\[redacted\])[^\s,;&'\")\]}=]{1,512}+(?!=)"
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){1,8}"), REDACTED),
)
_OF_A_CUSTOMER = ("id", "reference", "email", "address", "name", "phone", "wallet", "customer")
_CUSTOMER_NAMES = ("customer", "customers", "customer_reference", "customer_id", "email", "wallet", "payer")
"""How the names of the fields end that say whose an event is, wherever they stand."""
_OF_A_PERSON = (*_CUSTOMER_NAMES, "customerid", "customerreference", "customer_name", "phone", "address")
"""And those that say who somebody is, or where."""
# A wallet's address: who paid. It is the base58 of 32 bytes, wherever it stands, but for an id behind its prefix; and
# what looks like one by itself: both cases and a digit.
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS = {character: digit for digit, character in enumerate(_BASE58)}
_RUN = re.compile(rf"(?<![A-Za-z0-9])[{_BASE58}]{{32,44}}(?![A-Za-z0-9])")
_LOOKS_LIKE_A_WALLET = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[1-9])")
_ID_PREFIX = re.compile(r"(?:^|[^A-Za-z0-9])(?:app|cs|dlv|evt|ik|mer|ord|pay|plan|price|prod|req|sub)_$")
_PREFIX_MAX_CHARS = 8
_KEY_BYTES = 32
_TRIGGERS = (
    "@", "whsec_", "svc_sk_", "basic", "bearer", "argon2", "customer", "wallet", "payer", "secret", "passw", "token",
    "api_key", "api-key", "apikey", "credential", "metadata", "line_items", "description",
)  # fmt: skip


def _is_customers_key(text: str) -> bool:
    """Whether it is the key of a customer and nothing else, whose reference may be any text."""
    return text.startswith(CUSTOMER_KEY) and text[len(CUSTOMER_KEY) :][:1].strip() != ""


def scrub(text: str) -> str:
    """The text with every secret, e-mail address and customer reference in it masked, cut at TEXT_MAX_CHARS."""
    if len(text) > TEXT_MAX_CHARS:
        text = text[:TEXT_MAX_CHARS] + " [cut]"
    if len(text) >= WALLET_MIN_CHARS:
        text = _RUN.sub(_wallet_masked, text)
    lowered = text.lower()
    if not any(trigger in lowered for trigger in _TRIGGERS):
        return text
    for pattern, mask in _PATTERNS:
        text = pattern.sub(mask, text)
    return text


def _wallet_masked(run: re.Match[str]) -> str:
    """The mask in place of a wallet's address, or what stood there."""
    found, text = run[0], run.string
    if _is_key(found):
        before = text[max(0, run.start() - _PREFIX_MAX_CHARS) : run.start()]
        return found if _ID_PREFIX.search(before) else REDACTED
    beside = text[max(0, run.start() - 1) : run.start()] + text[run.end() : run.end() + 1]
    is_alone = not set(beside) & {"_", "-"}
    return REDACTED if is_alone and _LOOKS_LIKE_A_WALLET.match(found) else found


def _is_key(base58: str) -> bool:
    """Whether this is 32 bytes: a leading 1 is a byte of zeros."""
    number = 0
    for character in base58:
        number = number * len(_BASE58) + _DIGITS[character]
    zeros = len(base58) - len(base58.lstrip(_BASE58[0]))
    return zeros + (number.bit_length() + 7) // 8 == _KEY_BYTES


def is_private(name: str) -> bool:
    """Whether a field of this name is masked whatever it holds."""
    lowered = name.lower()
    return lowered in _PRIVATE_NAMES or any(part in lowered for part in _SECRET_PARTS)


def redacted(value: Any, depth: int = 0) -> Any:
    """A value fit for a log line: secrets masked, bytes as their length, nothing endless."""
    if isinstance(value, str):
        return CUSTOMER_KEY + REDACTED if _is_customers_key(value) else scrub(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if depth >= DEPTH_MAX:
        return "…"
    if isinstance(value, Mapping):
        return redacted_fields(value, depth + 1)
    if isinstance(value, list | tuple | set | frozenset):
        return [redacted(item, depth + 1) for item in list(value)[:ITEMS_MAX]]
    try:
        return scrub(str(value))
    except Exception as error:  # noqa: BLE001 - a foreign __str__ must not break the line that speaks of it
        return f"<{type(value).__name__}: {type(error).__name__}>"


def redacted_fields(fields: Mapping[Any, Any], depth: int = 0) -> dict[str, Any]:
    """The same for named fields; private names lose their value."""
    shown = {}
    for name, value in list(fields.items())[:ITEMS_MAX]:
        text = str(name)
        shown[text] = REDACTED if is_private(text) and value is not None else redacted(value, depth)
    return shown


def masked(value: Any, *, hide: bool = False) -> Any:
    """An event's body as it may be shown and kept as a fixture: the same JSON with personal values and secrets masked;
    ids, amounts, times, statuses stay. `hide`: all of it."""
    if isinstance(value, Mapping):
        return {name: masked(item, hide=hide or _is_personal(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [masked(item, hide=hide) for item in value]
    if isinstance(value, str):
        return REDACTED if hide else scrub(value)
    return value


def _is_personal(name: str) -> bool:
    lowered = name.lower()
    return lowered not in _CONTAINERS and (is_private(name) or lowered.endswith(_OF_A_PERSON))


def customers_in(value: Any, *, is_one: bool = False) -> Iterator[str]:
    """Whatever a body says of its customer, wherever it stands: references, e-mail addresses, wallets. `is_one`: this
    is a customer; of a record of one, what names them."""
    if isinstance(value, Mapping):
        names = _OF_A_CUSTOMER if is_one else _CUSTOMER_NAMES
        for name, item in value.items():
            yield from customers_in(item, is_one=str(name).lower().endswith(names))
    elif isinstance(value, list):
        for item in value:
            yield from customers_in(item, is_one=is_one)
    elif is_one and isinstance(value, str | int) and not isinstance(value, bool):
        yield str(value)


def without(customers: Iterable[str], text: str) -> str:
    """The text with each of these masked that is long enough to be a name, also as an address or a `repr` spells it."""
    named = {one for one in customers if len(one) >= NAMED_MIN_CHARS}
    spelled = {spelling for one in named for spelling in (one, quote(one, safe=""), repr(one)[1:-1])}
    for one in sorted(spelled, key=len, reverse=True):  # one may begin as another does
        text = text.replace(one, REDACTED)
    return text
