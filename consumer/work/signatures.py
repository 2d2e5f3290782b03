"""Signatures: what a handler's annotations say that is not so. Reads the author's own code; runs nothing of it but what
stands under `if TYPE_CHECKING:`, since annotations may name what is imported there only."""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from consumer.payload import Payload, is_known, payload_class
from consumer.plugin import Context, Event, Handler

GETS_MANY = "Sequence[tuple[Event, Context]]"


def signature_problems(function: Any, *, batch: bool = False) -> list[str]:
    """What its annotations say that is not so; a parameter without one is fine (mypy --strict is stricter). `batch`: it
    takes many events at once."""
    try:
        hints = hints_of(function)
    except Exception as error:  # noqa: BLE001 - annotations are the author's own code
        return [f"its annotations cannot be read: {type(error).__name__}: {error}"]
    first, second = [*inspect.signature(function).parameters, ""][:2]
    found = []
    if batch:
        given = hints.get(first, Any)
        if given is not Any and not _is_batch(given):
            found.append(f"parameter {first!r} is annotated {_named(given)}, it gets {GETS_MANY}")
    for parameter, wanted in () if batch else ((first, Event), (second, Context)):
        if not _takes(given := hints.get(parameter, wanted), wanted):
            found.append(f"parameter {parameter!r} is annotated {_named(_plain(given))}, it gets {wanted.__name__}")
    returns = hints.get("return", type(None))
    if returns not in (type(None), Any, typing.NoReturn):
        found.append(f"it is annotated to return {_named(returns)}, a handler returns None")
    return found


def _is_batch(given: Any) -> bool:
    """Whether a list of (event, ctx) is one of these."""
    origin, pair = typing.get_origin(given) or given, (*typing.get_args(given), Any)[0]
    if not (isinstance(origin, type) and issubclass(list, origin)):
        return False
    event, context = typing.get_args(pair) if typing.get_origin(pair) is tuple else (pair, pair)
    return pair is Any or (_takes(event, Event) and _takes(context, Context))


def _takes(given: Any, wanted: type) -> bool:
    plain = _plain(given)
    return plain is Any or (isinstance(plain, type) and issubclass(wanted, plain))


def _plain(given: Any) -> Any:
    return Event if typing.get_origin(given) is Event else given


def payload_problems(handler: Handler) -> list[str]:
    """Where `Event[...]` names another payload than the handler's types carry."""
    try:
        hints = hints_of(handler.function)
    except Exception:  # noqa: BLE001 - told as a problem of the signature
        return []
    given = hints.get(next(iter(inspect.signature(handler.function).parameters)))
    if handler.together is not None:
        given = next(iter(typing.get_args(next(iter(typing.get_args(given)), None))), None)
    arguments = typing.get_args(given) if typing.get_origin(given) is Event else ()
    named = {one for argument in arguments for one in (typing.get_args(argument) or (argument,))}
    if not named or Payload in named or Any in named:
        return []
    return [
        f"it is annotated Event[{_named(arguments[0])}], and an event of {pattern} carries {found.__name__}"
        for pattern in handler.types
        if is_known(pattern) and "*" not in pattern
        and not any(isinstance(one, type) and issubclass(found := payload_class(pattern), one) for one in named)
    ]  # fmt: skip


def hints_of(function: Any) -> dict[str, Any]:
    """Its annotations as they are meant. A name that is imported for a type checker only, and is not there when the
    code runs (a stub's), counts as Any. Raises what the author's annotations raise."""
    function = inspect.unwrap(function)
    try:
        return typing.get_type_hints(function)
    except NameError:
        return typing.get_type_hints(function, localns=_for_type_checkers(function))


def _for_type_checkers(function: Any) -> dict[str, Any]:
    """What the module's blocks `if TYPE_CHECKING:` name."""
    module = inspect.getmodule(function)
    names = dict(vars(module)) if module is not None else {}
    found: dict[str, Any] = {}
    for statement in _guarded(module):
        meant = dict.fromkeys(_names_in(statement), Any)
        with suppress(Exception):  # a stub is not there when the code runs
            exec(compile(ast.Module([statement], []), "<TYPE_CHECKING>", "exec"), names)  # noqa: S102 - the author's own
        found |= {name: names.get(name, unknown) for name, unknown in meant.items()}
    return found


def _guarded(module: Any) -> Iterator[ast.stmt]:
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            yield from node.body


def _names_in(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.Import(names) | ast.ImportFrom(names=names):
            yield from ((one.asname or one.name.partition(".")[0]) for one in names)
        case ast.Assign(targets):
            yield from (one.id for one in targets if isinstance(one, ast.Name))
        case ast.AnnAssign(target=ast.Name(name)) | ast.ClassDef(name=name):
            yield name


def _named(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)
