"""Outcome: what one attempt ended with. A closed set: every place that handles it has one `match`."""

from __future__ import annotations

import hashlib
import traceback
from dataclasses import dataclass

from consumer.errors import ConsumerError, HandlerInvalid, HandlerMisuse, HandlerTimeout
from consumer.plugin import Reject, RetryLater
from consumer.retry import Failure
from consumer.telemetry.redaction import scrub
from consumer.work.reach import is_unreachable

REASON_MAX_CHARS = 300
FRAMES_IN_FINGERPRINT = 3


@dataclass(frozen=True)
class Succeeded:
    """The handler returned None."""


@dataclass(frozen=True)
class Failed:
    """The handler did not: `failure` says how, `fingerprint` is the same for failures of the same kind and place."""

    failure: Failure
    fingerprint: str


Outcome = Succeeded | Failed


def failed(error: BaseException) -> Failed:
    """Normalise whatever a handler raised."""
    return Failed(_failure(error), _fingerprint(error))


def has_timed_out(outcome: Outcome) -> bool:
    """Whether the handler was cut off."""
    return isinstance(outcome, Failed) and outcome.failure.code == HandlerTimeout.code


def _failure(error: BaseException) -> Failure:
    match error:
        case RetryLater():
            return Failure(error.code, _clean(error.reason), after_s=error.after_s)
        case Reject():
            return Failure(error.code, _clean(error.reason), permanent=True)
        case HandlerMisuse() | HandlerInvalid():
            return Failure(error.code, _clean(error.message), permanent=True)
        case ConsumerError():
            return Failure(error.code, _clean(error.message), unreachable=is_unreachable(error))
        case Exception():
            reason = _clean(f"{type(error).__name__}: {error}")
            return Failure("handler_failed", reason, unreachable=is_unreachable(error))
        case _:
            return Failure("handler_crashed", f"the handler raised {type(error).__name__}")


def _clean(reason: str) -> str:
    """One bounded line without secrets; PostgreSQL's text cannot hold a NUL."""
    return scrub(reason).replace("\0", "").replace("\n", " ")[:REASON_MAX_CHARS]


def _fingerprint(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_IN_FINGERPRINT:]
    place = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.name}" for frame in frames]
    return hashlib.sha256("|".join([type(error).__qualname__, *place]).encode()).hexdigest()[:16]
