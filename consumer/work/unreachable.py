"""Reach: whether an error means that a dependency did not answer, or refuses everybody, rather than this event. Pure.

Told by what libraries agree on: the built-in connection errors (also as the explicit cause of a library's own), an
HTTP status on the error, and how connection errors that are none of the built-in ones are called.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from consumer.errors import ConsumerError, HandlerTimeout

CAUSES_MAX = 8
EVERYBODY = frozenset({401, 407, 408, 421, 425, 429})
_NETWORK = frozenset(
    {
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EHOSTUNREACH,
        errno.EHOSTDOWN,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENOTCONN,
        errno.EPIPE,
        errno.ETIMEDOUT,
        errno.EADDRNOTAVAIL,
    }
)
_OURS = frozenset({errno.EMFILE, errno.ENFILE})
"""This process, or its machine, can open nothing more, whatever the event is."""
_NO_THREAD = "can't start new thread"
"""So Python says what is that for threads, as a RuntimeError that has no number."""
_NAMES = ("ConnectionError", "ConnectError", "DisconnectedError", "Disconnected", "TransportError", "Timeout",
          "TimeoutError", "ChunkedEncodingError")  # fmt: skip
_OWN_FILES = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_LOGIN = frozenset({530, 534, 535})
"""What a mail server says to whoever is not logged in: to everybody then."""


def is_unreachable(error: BaseException) -> bool:
    """Whether another event would very likely have failed in the same way, now (cases R11, AU4)."""
    link: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if link is None:
            return False
        if _says_so(link):
            return True
        link = link.__cause__
    return False


def _says_so(error: BaseException) -> bool:
    if isinstance(error, HandlerTimeout):
        return True
    if isinstance(error, ConsumerError):
        return error.retryable and not error.code.startswith("handler_")
    if isinstance(error, TimeoutError | ConnectionError) or (type(error) is RuntimeError and str(error) == _NO_THREAD):
        return True
    reply = smtp_reply(error)
    if reply is not None:
        return reply < 500 or reply in _LOGIN
    status = http_status(error)
    if status is not None:
        return status >= 500 or status in EVERYBODY
    if any(kind.__name__.endswith(_NAMES) for kind in type(error).__mro__):
        return True
    if isinstance(error, OSError) and not isinstance(error, _OWN_FILES):
        # Name resolution has numbers of its own (negative), the rest of the network has the system's.
        number = error.errno
        # Without one it is asyncio's "Multiple exceptions", or a library's own kind: a picture that cannot be read.
        return type(error) is OSError if number is None else number < 0 or number in _NETWORK | _OURS
    return False


def smtp_reply(error: BaseException) -> int | None:
    """What a mail server answered (smtplib, aiosmtplib), or None: 5xx there refuses this mail, or its recipient; it
    is no outage, as HTTP's 5xx is."""
    if not any(kind.__name__ == "SMTPException" for kind in type(error).__mro__):
        return None
    refused = getattr(error, "recipients", None)
    if isinstance(refused, Mapping):  # smtplib: to whom it refuses to send, and how
        replies = [answer[0] for answer in refused.values() if isinstance(answer, tuple) and answer]
        return max((one for one in replies if isinstance(one, int)), default=None)
    code = getattr(error, "smtp_code", getattr(error, "code", None))
    return code if isinstance(code, int) and 400 <= code <= 599 else None


def http_status(error: BaseException) -> int | None:
    """The status of the HTTP answer that an error is about (aiohttp, httpx, requests, urllib), or None."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
                return value
    return None
