"""Declaration: what `@handles` accepts, checked as the module is imported; every refusal says what it wants. Pure."""

from __future__ import annotations

import functools
import hashlib
import inspect
import linecache
import re
from collections.abc import Callable, Coroutine, Sequence
from types import CodeType
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from consumer.errors import HandlerInvalid
from consumer.events import Event
from consumer.plugin.context import Context
from consumer.plugin.handler import LONGEST_S, RUNBOOK_CHARS, Handler, matches
from consumer.plugin.payloads import CATALOGUE
from consumer.retry import OnDead, RetryPolicy

F = TypeVar("F", bound=Callable[..., Any])

FULFILMENT = "fulfilment.requested"
FACTOR_MAX = 1000.0
TRANSACTION_MAX_S = 60.0
_CREDENTIALS = re.compile(r"://[^/?#\s]*@")
_PATTERN = re.compile(r"([a-z0-9_]+(\.[a-z0-9_]+)*)?(\.\*)?\Z|\*\Z")

HandlerFunction = Callable[[Event[Any], Context], Coroutine[Any, Any, None]]
BatchFunction = Callable[[Sequence[tuple[Event[Any], Context]]], Coroutine[Any, Any, None]]

_MARK = "__consumer_handler__"
_BUILT_IN = "handlers"


def code_version(function: Callable[..., Any]) -> str:
    """A short fingerprint of the function's source, recorded with every attempt (case R14)."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : _last_line(code)] if code is not None else []
    source = "".join(lines) or repr(code or function)
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def _last_line(code: CodeType) -> int:
    """The last line of a function's code; `inspect.getsource` reads its tokens for that, which every command pays."""
    inside = (_last_line(one) for one in code.co_consts if isinstance(one, CodeType))
    return max(*(line for *_, line in code.co_lines() if line), *inside, code.co_firstlineno)


def checked_types(types: tuple[str, ...]) -> tuple[str, ...]:
    """The event types, if each may be one. Raises HandlerInvalid."""
    if not types:
        raise HandlerInvalid("@handles needs at least one event type")
    for pattern in types:
        if not isinstance(pattern, str) or not pattern or not _PATTERN.match(pattern):
            raise HandlerInvalid("an event type is dotted lower case, or ends in '.*'", type=pattern)
    return types


def checked_fulfils(given: bool | None, types: tuple[str, ...], *, transactional: bool) -> bool:
    """Whether an order is fulfilled by this handler; by default an effect handler that names `fulfilment.requested`, or
    types of the plugin's own only, by which an order may be handed on to it. Raises HandlerInvalid for one that says so
    and never hears of a paid order."""
    named = bool({FULFILMENT, "fulfilment.*"} & set(types))
    is_own = not any(matches(pattern, one) for pattern in types for one in CATALOGUE)
    if given and not (named or is_own or "*" in types):
        what = f"fulfils=True is for handlers of {FULFILMENT}, and of what such a handler emits"
        raise HandlerInvalid(what, types=" ".join(types))
    return given if given is not None else (named or is_own) and not transactional


def checked_function(function: F, *, batch: bool = False) -> F:
    """The function, if it is async and takes exactly (event, ctx), or (batch). Raises HandlerInvalid."""
    where = getattr(function, "__qualname__", repr(function))
    if isinstance(function, functools.partial):
        raise HandlerInvalid("a handler is an async function: call the functools.partial from one", at=where)
    takes = "batch: Sequence[tuple[Event, Context]]" if batch else "event: Event, ctx: Context"
    if not inspect.iscoroutinefunction(function):
        raise HandlerInvalid(f"a handler is an async function: async def name({takes})", at=where)
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    wanted = 1 if batch else 2
    if len(positional) < wanted or len(required) > wanted:
        what = "a handler with batch=True takes exactly (batch)" if batch else "a handler takes exactly (event, ctx)"
        raise HandlerInvalid(what, at=where)
    return function


def checked_batch(given: bool, *, transactional: bool) -> bool:
    """Whether it takes many events at once. Raises HandlerInvalid for an effect handler."""
    if given and not transactional:
        raise HandlerInvalid("batch=True is for projections (transactional=True): an effect is one event's")
    return given


def singly(function: BatchFunction) -> HandlerFunction:
    """A function that takes many, called with one."""

    @functools.wraps(function)
    async def one(event: Event[Any], ctx: Context) -> None:
        return await function([(event, ctx)])

    return one


def checked_policy(attempts: int, first_s: float, factor: float, ceiling_s: float) -> RetryPolicy:
    """When it is tried again; times in seconds. Raises HandlerInvalid."""
    checked_count("attempts", attempts)
    for option, value in (("first_wait_s", first_s), ("wait_factor", factor), ("max_wait_s", ceiling_s)):
        checked_number(option, value)
    if not (0 <= first_s <= LONGEST_S and 0 <= ceiling_s <= LONGEST_S and 1 <= factor <= FACTOR_MAX):
        raise HandlerInvalid(f"waits are from 0 to {LONGEST_S:g} seconds, wait_factor from 1 to {FACTOR_MAX:g}")
    try:
        return RetryPolicy(attempts=attempts, first_s=first_s, factor=factor, ceiling_s=max(ceiling_s, first_s))
    except ValueError as error:
        raise HandlerInvalid(str(error)) from error


def checked_on_dead(given: OnDead) -> OnDead:
    """What happens behind a dead run. Raises HandlerInvalid."""
    if given not in ("block", "continue"):
        raise HandlerInvalid("on_dead is 'block' or 'continue'", given=given)
    return given


def checked_limit(option: str, value: int) -> int:
    """A whole number, 0 for never. Raises HandlerInvalid."""
    if type(value) is not int or value < 0:
        raise HandlerInvalid(f"{option} is a whole number, 0 for never", given=value)
    return value


def checked_positive(option: str, value: float) -> float:
    """Seconds above zero, at most LONGEST_S. Raises HandlerInvalid."""
    if not 0 < checked_number(option, value) <= LONGEST_S:
        raise HandlerInvalid(f"{option} must be above zero, and at most {LONGEST_S:g}", given=value)
    return value


def checked_timeout(value: float, *, transactional: bool) -> float:
    """Seconds that one attempt may take: in a transaction, which keeps its rows from others, at most
    TRANSACTION_MAX_S. Raises HandlerInvalid."""
    if checked_positive("timeout_s", value) > TRANSACTION_MAX_S and transactional:
        raise HandlerInvalid(f"timeout_s of a transactional handler is at most {TRANSACTION_MAX_S:g}", given=value)
    return value


def checked_number(option: str, value: float) -> float:
    """A number. Raises HandlerInvalid."""
    if type(value) not in (int, float):
        raise HandlerInvalid(f"{option} is a number", given=value)
    return value


def checked_flag(option: str, value: bool) -> bool:
    """True or False. Raises HandlerInvalid."""
    if not isinstance(value, bool):
        raise HandlerInvalid(f"{option} is True or False", given=value)
    return value


def checked_name(value: str | None) -> str | None:
    """A text, or none. Raises HandlerInvalid."""
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise HandlerInvalid("name is a text, and not empty", given=value)
    return value


def checked_runbook(value: str | None) -> str | None:
    """One short line for the operator, or none. Raises HandlerInvalid."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > RUNBOOK_CHARS or not value.isprintable():
        what = f"runbook is one line of text, or an https address, of at most {RUNBOOK_CHARS} printable characters"
        raise HandlerInvalid(what, characters=len(value) if isinstance(value, str) else None)
    if _CREDENTIALS.search(value):
        raise HandlerInvalid("runbook is shown to everybody who looks: leave user and password out of its address")
    return value.strip()


def checked_count(option: str, value: int) -> int:
    """A whole number above zero. Raises HandlerInvalid."""
    if type(value) is not int or value < 1:
        raise HandlerInvalid(f"{option} is a whole number above zero", given=value)
    return value


class Options(TypedDict, total=False):
    """What `@handles(..., batch=True)` takes beside that, as `handles` explains it."""

    fulfils: bool | None
    name: str | None
    attempts: int
    first_wait_s: float
    wait_factor: float
    max_wait_s: float
    timeout_s: float
    concurrency: int
    on_dead: OnDead
    breaker_after: int
    pause_after: int
    runbook: str | None


@overload
def handles(
    *types: str, transactional: Literal[True], batch: Literal[True], **options: Unpack[Options]
) -> Callable[[BatchFunction], BatchFunction]: ...


@overload
def handles(
    *types: str, transactional: bool = False, batch: Literal[False] = False, **options: Unpack[Options]
) -> Callable[[HandlerFunction], HandlerFunction]: ...


def handles(
    *types: str,
    transactional: bool = False,
    fulfils: bool | None = None,
    name: str | None = None,
    attempts: int = 8,
    first_wait_s: float = 1.0,
    wait_factor: float = 3.0,
    max_wait_s: float = 3600.0,
    timeout_s: float = 30.0,
    concurrency: int = 16,
    on_dead: OnDead = "block",
    breaker_after: int = 5,
    pause_after: int = 20,
    runbook: str | None = None,
    batch: bool = False,
) -> Callable[[Any], Any]:
    """Declare an async function as the handler of event types.

    `types`: exact (`order.paid`), or a wildcard (`subscription.*`, `*`). `name` defaults to `module:function`; the
    ledger keys runs by it, so renaming without a mapping makes a new handler. `attempts` counts the first try;
    waits between tries grow from `first_wait_s` by `wait_factor` up to `max_wait_s` (seconds). One attempt may take
    `timeout_s`, at most 60 in a transaction. `concurrency` bounds how many run at once in one process.
    `on_dead="block"` keeps later events of the same key waiting behind a dead one, `"continue"` lets them go.

    `fulfils`: an order is fulfilled when those handlers of `fulfilment.requested` that fulfil have succeeded; the
    others (statistics, a mail to the team) neither make it so nor keep it from being so. Left out: an effect handler
    that names the type does, a projection does not. A projection that says so may hand the order on, by an event of the
    plugin's own: then the order is fulfilled when those that fulfil of that event's handlers have succeeded, too; an
    effect handler does, unless it says `fulfils=False`.

    `breaker_after` attempts in a row that could not reach what the handler depends on (connection refused, no answer
    in time, 5xx, 401, 429) open its breaker: its runs wait, at no cost, until a probe gets through; 0 turns that off.
    `pause_after` dead runs in a row (or half of many) pause the handler until an operator resumes it; 0 turns that off.
    Of several applications each is counted, and paused, alone.

    `runbook`: one line for the operator, or an https address, of at most 200 characters. It is shown wherever somebody
    meets a failed run of this handler: in `status`, `explain`, `dead list`, `events show`, and on the pages.

    `batch`: a projection that takes many events at once, `async def name(batch: Sequence[tuple[Event, Context]])`. They
    are of one application; of one key in their order. It succeeds or fails as a whole: when it raises, each of them
    comes again alone, so one at a time is the same to it.

    Raises HandlerInvalid when the declaration is not usable. The function is returned unchanged.
    """

    if any(callable(one) for one in types):
        raise HandlerInvalid('@handles needs the event type: @handles("order.paid")')
    checked_flag("transactional", transactional)
    checked_flag("batch", batch)
    if fulfils is not None:
        checked_flag("fulfils", fulfils)

    def mark(function: Any) -> Any:
        together = checked_function(function, batch=True) if checked_batch(batch, transactional=transactional) else None
        one = checked_function(function) if together is None else singly(together)
        made = Handler(
            name=checked_name(name) or f"{function.__module__}:{function.__qualname__}",
            types=checked_types(types),
            function=one,
            together=together,
            transactional=transactional,
            fulfils=checked_fulfils(fulfils, types, transactional=transactional),
            says_fulfils=fulfils,
            retry=checked_policy(attempts, first_wait_s, wait_factor, max_wait_s),
            timeout_s=checked_timeout(timeout_s, transactional=transactional),
            concurrency=checked_count("concurrency", concurrency),
            on_dead=checked_on_dead(on_dead),
            breaker_after=checked_limit("breaker_after", breaker_after),
            pause_after=checked_limit("pause_after", pause_after),
            runbook=checked_runbook(runbook),
            version=code_version(function),
            is_built_in=(function.__module__ or "").partition(".")[0] == _BUILT_IN,
        )
        for face in (function, one):
            setattr(face, _MARK, made)
        return function

    return mark


def declared(function: object) -> Handler | None:
    """The declaration `handles` left on a function, or None."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, Handler) else None
