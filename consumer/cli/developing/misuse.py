"""Misuse: what a handler does with its `ctx` and is refused when it runs, and a handler that is lost to another of its
function's name, as far as the text tells beforehand, for `consumer handlers check`. Reads the author's code; runs
nothing of it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from consumer.plugin import Handler
from consumer.plugin.emission import wrong_emission
from consumer.plugin.payloads import not_a_plugins
from consumer.work.inspection import Problem
from consumer.work.place import shown
from consumer.work.registry import Registry

OF_A_TRANSACTION: Final = frozenset({"emit", "withdraw", "request_read", "note", "session", "insert_new", "locked"})
OF_THE_NETWORK: Final = frozenset({"http", "payments"})
SAYS: Final = frozenset({"emit", "withdraw"})
DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef)
Defined = ast.FunctionDef | ast.AsyncFunctionDef


def misused(registry: Registry) -> list[Problem]:
    """A problem for each line; the built-in handlers say what is theirs."""
    return [
        Problem(plugin=handler.plugin, handler=handler.name, text=text)
        for handler in registry.handlers
        if not handler.is_built_in
        for text in misuses(handler)
    ]


def misuses(handler: Handler) -> list[str]:
    """Where it uses what its kind does not have, or emits or withdraws a type that is no plugin's: in the handler, and
    in the functions of its module that it gives `ctx` to. And what was lost to it: see `_lost`."""
    function = inspect.unwrap(handler.function)
    tree = _tree_of(function)
    begin = None if tree is None else next((one for one in ast.walk(tree) if _is_of(one, function)), None)
    if tree is None or not isinstance(begin, DEFINES):
        return []
    defined = {one.name: one for one in tree.body if isinstance(one, DEFINES)}
    open_ = [(begin, name) for name in _contexts(begin, batch=handler.together is not None)]
    found = dict.fromkeys(_lost(tree, begin, function))
    seen = set(open_)
    while open_:
        node, ctx = open_.pop(0)
        told = [*(_of_another_kind(node, ctx, handler) if node is begin else ()), *_refused(node, ctx, function)]
        for line, text in told:
            found[f"{text} ({shown(function.__code__.co_filename)}:{line} in {node.name})"] = None
        onwards = [one for one in _given_to(node, ctx, defined) if one not in seen]
        seen.update(onwards)
        open_ += onwards
    return list(found)


def _tree_of(function: Any) -> ast.Module | None:
    """The text of its module; None where there is none."""
    try:
        return ast.parse(inspect.getsource(inspect.getmodule(function)))  # type: ignore[arg-type]  # None is a TypeError
    except (OSError, TypeError, SyntaxError):
        return None


def _is_of(node: ast.AST, function: Any) -> bool:
    """Whether this text is that function's; its first line is its first decorator's."""
    if not isinstance(node, DEFINES) or node.name != function.__name__:
        return False
    return bool(min([node.lineno, *(one.lineno for one in node.decorator_list)]) == function.__code__.co_firstlineno)


def _lost(tree: ast.Module, begin: Defined, function: Any) -> Iterator[str]:
    """Handlers that stand in the module under the same name: Python has the last one only, nobody runs the others."""
    for one in tree.body:
        if isinstance(one, DEFINES) and one is not begin and one.name == begin.name and _is_handler(one):
            text = f"another handler of the module is a function {one.name}, too, and is lost: give one another name"
            yield f"{text} ({shown(function.__code__.co_filename)}:{one.lineno} in {one.name})"


def _is_handler(node: Defined) -> bool:
    named = [inside for decorator in node.decorator_list for inside in ast.walk(decorator)]
    return any("handles" in (getattr(one, "id", None), getattr(one, "attr", None)) for one in named)


def _contexts(node: Defined, *, batch: bool) -> Iterator[str]:
    """The name by which it has its context, or of a batch each event's."""
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    if not batch:
        yield from names[1:2]
        return
    for one in ast.walk(node):
        if isinstance(one, ast.For | ast.comprehension) and isinstance(one.iter, ast.Name) and one.iter.id in names[:1]:
            match one.target:
                case ast.Tuple(elts=[_, ast.Name(id=name)]):
                    yield name


def _of_another_kind(node: Defined, ctx: str, handler: Handler) -> Iterator[tuple[int, str]]:
    """What of the context the other kind of handler has."""
    lacks, has = (OF_THE_NETWORK, "effect") if handler.transactional else (OF_A_TRANSACTION, "transactional")
    for one in ast.walk(node):
        match one:
            case ast.Attribute(value=ast.Name(id=name), attr=part) if name == ctx and part in lacks:
                yield one.lineno, f"ctx.{part} is for {has} handlers only"


def _refused(node: Defined, ctx: str, function: Any) -> Iterator[tuple[int, str]]:
    """The types it emits or withdraws that are refused."""
    own = _own_names(node)
    for one in ast.walk(node):
        match one:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=verb)) if name == ctx and verb in SAYS:
                for said in _types_in(one, own, function.__globals__):
                    if text := wrong_emission(said, "key", {}, None) or not_a_plugins(verb, said):
                        yield one.lineno, text


def _types_in(call: ast.Call, own: Collection[str], names: Mapping[str, Any]) -> Iterator[str]:
    """The types that a call names, where they are written there or are a constant of the module."""
    given = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "type")]
    for one in given:
        for said in (one.body, one.orelse) if isinstance(one, ast.IfExp) else (one,):
            match said:
                case ast.Constant(value=str(value)):
                    yield value
                case ast.Name(id=name) if name not in own and isinstance(names.get(name), str):
                    yield names[name]


def _own_names(node: Defined) -> frozenset[str]:
    """The names that are the function's own, whatever its module calls by them."""
    stored = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return frozenset(stored | {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)})


def _given_to(node: Defined, ctx: str, defined: Mapping[str, Defined]) -> Iterator[tuple[Defined, str]]:
    """The functions of the module that are called with the context, and what it is called there."""
    for one in ast.walk(node):
        match one:
            case ast.Call(func=ast.Name(id=name)) if name in defined:
                other = defined[name]
                takes = [*other.args.posonlyargs, *other.args.args]
                pairs = [(given, parameter.arg) for given, parameter in zip(one.args, takes, strict=False)]
                pairs += [(keyword.value, keyword.arg) for keyword in one.keywords if keyword.arg is not None]
                yield from ((other, to) for given, to in pairs if isinstance(given, ast.Name) and given.id == ctx)
