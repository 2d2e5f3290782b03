"""Outcome: what one attempt ended with. A closed set: every place that handles it has one `match`."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from consumer.causes import DEADLOCK
from consumer.document import storable
from consumer.errors import (
    ConsumerError,
    HandlerEndsProcess,
    HandlerInvalid,
    HandlerMisuse,
    HandlerTimeout,
    NotUnderstood,
)
from consumer.plugin import Event, Reject, RetryLater
from consumer.plugin.handler import LONGEST_S
from consumer.retry import Failure
from consumer.telemetry.redaction import customers_in, scrub, without
from consumer.work.place import Home, places_of, told
from consumer.work.unreachable import CAUSES_MAX, is_unreachable

REASON_MAX_CHARS = 300
LOOKED_AT_MAX_CHARS, NAMES_MAX = 16 * 1024, 500
"""Of a failure's text, and of whom its event names: masking costs their product."""
CODE_MAX_CHARS = 60
TRACE_MAX_CHARS = 1200
FRAMES_IN_FINGERPRINT = 3
GAVE_WAY: Final = "handler_gave_way"
GAVE_WAY_S: Final = 0.2
DEADLOCKED: Final = "a deadlock: this transaction and another one waited for each other's rows"
IN_GROUP_MAX = 100
_NAME = type.__dict__["__name__"]


@dataclass(frozen=True)
class Succeeded:
    """The handler returned None."""


@dataclass(frozen=True)
class Failed:
    """The handler did not: `failure` says how, `fingerprint` is the same for failures of the same kind and place,
    `trace` are the author's own lines it came through, innermost first."""

    failure: Failure
    fingerprint: str
    trace: str | None = None


Outcome = Succeeded | Failed


def failed(
    error: BaseException,
    home: Home | None = None,
    *,
    came_by: BaseException | None = None,
    about: Iterable[Event] = (),
) -> Failed:
    """Normalise whatever a handler raised; an exception that cannot even be looked at is named by its type. What comes
    out can be stored: a result that cannot be would hold up everybody's. `home` is where the author's code lives;
    `came_by` the error that shows the way, where it is another one. `about`: what was handled; nothing that is stored
    or logged names whom it says it is about, whatever the handler's author wrote into it (case S9)."""
    try:
        customers = _customers(about)
        found = [(_failure(one, customers), one) for one in islice(_each(error), IN_GROUP_MAX)]
        failure, decisive = max(found, key=lambda one: _weight(one[0]))
        return Failed(failure, _fingerprint(decisive), _trace(came_by or decisive, home))
    except Exception as odd:  # noqa: BLE001 - its text, its fields are the author's own code
        reason = _clean(f"{type_name(error)}, which cannot be shown: {type_name(odd)}")
        return Failed(Failure("handler_failed", reason), _digest([type_name(error)]))


def ended_its_process(handler: str, process: str, times: int, *, again_s: float | None) -> Failed:
    """The attempt had no end that anybody saw: `process`, and what had it before, `times` in all, ended with it. It is
    tried again in so many seconds; None: never."""
    code = HandlerEndsProcess.code
    often = "the process ended" if times == 1 else f"{times} processes ended"
    reason = f"{often} while it ran, last {process}: out of memory, a crash in C code, os._exit, or killed from outside"
    return Failed(Failure(code, reason, permanent=again_s is None, after_s=again_s), _digest([code, handler]))


def _each(error: BaseException) -> Iterator[BaseException]:
    """The errors that a handler's TaskGroup gathered, or the one that it raised."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _each(one)
    else:
        yield error


def _weight(failure: Failure) -> int:
    """Of several that came at once, the one that counts: what is for good, then what is the event's own fault, then
    what does not answer, then who asks for later."""
    if failure.permanent:
        return 3
    if failure.after_s is not None:
        return 0
    return 1 if failure.unreachable else 2


def _customers(about: Iterable[Event]) -> Collection[str]:
    """Whoever these events name, found by the locators or in the body: our own events have them in `data`."""
    found: set[str] = set()
    for event in about:
        if event.customer is not None:
            found.add(event.customer)
        try:
            found.update(islice(customers_in(event.data), NAMES_MAX))
        except NotUnderstood:  # an event of a handler's test: whatever its body is, it names nobody
            continue
    return found


def type_name(value: object) -> str:
    """What the type of this is called, past whatever its author's metaclass makes of the question."""
    return str(_NAME.__get__(type(value)))


def has_timed_out(outcome: Outcome) -> bool:
    """Whether the handler was cut off."""
    return isinstance(outcome, Failed) and outcome.failure.code == HandlerTimeout.code


def has_given_way(outcome: Outcome) -> bool:
    """Whether PostgreSQL ended its statement so that another transaction could go on: a deadlock. What its own
    transaction holds, it holds on to, so in there the next meets the same."""
    return isinstance(outcome, Failed) and outcome.failure.code == GAVE_WAY


def _trace(error: BaseException, home: Home | None) -> str | None:
    """The author's lines, or where the handler begins when it came through none of them; no values."""
    if home is None:
        return None
    return _clean(told(places_of(error, home)) or str(home.start), most=TRACE_MAX_CHARS)


def _failure(error: BaseException, customers: Collection[str]) -> Failure:
    match error:
        case RetryLater():
            after_s = min(max(float(error.after_s), 0.0), LONGEST_S)
            return Failure(_code(error), _clean(error.reason, customers), after_s=after_s)
        case Reject():
            return Failure(_code(error), _clean(error.reason, customers), permanent=True)
        case HandlerMisuse() | HandlerInvalid():
            return Failure(_code(error), _clean(error.message, customers), permanent=True)
        case ConsumerError():
            return Failure(_code(error), _clean(error.message, customers), unreachable=is_unreachable(error))
        case Exception() if _is_of_a_deadlock(error):
            return Failure(GAVE_WAY, DEADLOCKED, after_s=GAVE_WAY_S)
        case Exception():
            reason = _clean(f"{type_name(error)}: {error}", customers)
            return Failure("handler_failed", reason, unreachable=is_unreachable(error))
        case _:
            return Failure("handler_crashed", _clean(f"the handler raised {type_name(error)}"))


def _is_of_a_deadlock(error: BaseException) -> bool:
    """Also where the handler caught that, and raised an error of its own."""
    link: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if link is None:
            return False
        if DEADLOCK in (getattr(link, "sqlstate", None), getattr(getattr(link, "orig", None), "sqlstate", None)):
            return True
        link = link.__cause__ or link.__context__
    return False


def _code(error: ConsumerError) -> str:
    """A subclass of an author's own may call itself anything."""
    return _clean(error.code)[:CODE_MAX_CHARS]


def _clean(reason: object, customers: Collection[str] = (), most: int = REASON_MAX_CHARS) -> str:
    """One bounded line without secrets. Names go before anything is cut or masked: of one that lost a part the rest
    would stay."""
    return storable(scrub(without(customers, str(reason)[:LOOKED_AT_MAX_CHARS])).replace("\n", " "), most)


def _fingerprint(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_IN_FINGERPRINT:]
    place = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.name}" for frame in frames]
    return _digest([type(error).__qualname__, *place])


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("|".join(parts).encode("utf-8", "replace")).hexdigest()[:16]
