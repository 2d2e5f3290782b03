"""Inspection: what is wrong with the plugins, one line a problem (`consumer handlers check`). Imports them all."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from alembic.script import ScriptDirectory

from consumer.ledger.engine import schema
from consumer.payload import Payload, is_known, nearest_type, payload_class
from consumer.plugin import Context, Event, Handler
from consumer.work.place import home_of
from consumer.work.registry import GROUP, Registry

TRANSACTION_MAX_S = 60.0
REVISION_CHARS = 32
"""What Alembic's own table holds; SQLite lets more pass, PostgreSQL does not."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that is wrong, with the plugin and the handler (if it is one handler's)."""

    plugin: str
    text: str
    handler: str | None = None

    def line(self) -> str:
        """`plugin: handler: what is wrong`."""
        return ": ".join(part for part in (self.plugin, self.handler, self.text) if part)


def inspect_plugins(
    registry: Registry,
    *,
    allowed: Collection[str] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> list[Problem]:
    """Everything that is wrong; empty when all is well. `allowed`, `renamed` as for `load_registry`."""
    found = [Problem(plugin=one.plugin, text=f"cannot be loaded: {one.reason}") for one in registry.broken]
    for handler in registry.handlers:
        found += [Problem(plugin=handler.plugin, handler=handler.name, text=text) for text in _of_handler(handler)]
    found += _of_entries(list(entry_points(group=GROUP)))
    found += _of_names(registry, allowed, renamed or {})
    found += _of_migrations(list(entry_points(group=schema.GROUP)))
    return found


# --- one handler -----------------------------------------------------------------------------------------------


def _of_handler(handler: Handler) -> list[str]:
    found = signature_problems(handler.function)
    found += payload_problems(handler)
    if handler.transactional and handler.timeout_s > TRANSACTION_MAX_S:
        found.append(f"timeout_s={handler.timeout_s:g} is too long for a transaction (at most {TRANSACTION_MAX_S:g})")
    return found


def warnings_of(registry: Registry) -> list[Problem]:
    """What is likely a mistake, and may be meant: a type that nobody is known to send (case H10)."""
    return [
        Problem(
            plugin=handler.plugin, handler=handler.name, text=f"{mistyped(pattern)} ({home_of(handler.function).start})"
        )
        for handler in registry.handlers
        for pattern in handler.types
        if not is_known(pattern)
    ]


def mistyped(pattern: str) -> str:
    """What is wrong with a type that nobody sends, and what to do."""
    near = nearest_type(pattern)
    hint = f"; did you mean {near!r}?" if near else ";"
    own = f"an own type is declared by its payload: class Name(Payload, event={pattern!r})"
    return f"no event of type {pattern!r} is known{hint} {own}"


def signature_problems(function: Any) -> list[str]:
    """What its annotations say that is not so; a parameter without one is fine (mypy --strict is stricter)."""
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:  # noqa: BLE001 - annotations are the author's own code
        return [f"its annotations cannot be read: {type(error).__name__}: {error}"]
    first, second = list(inspect.signature(function).parameters)[:2]
    found = []
    for parameter, wanted in ((first, Event), (second, Context)):
        given = hints.get(parameter, wanted)
        given = typing.get_origin(given) if typing.get_origin(given) is Event else given
        if given is not Any and not (isinstance(given, type) and issubclass(wanted, given)):
            found.append(f"parameter {parameter!r} is annotated {_named(given)}, it gets {wanted.__name__}")
    returns = hints.get("return", type(None))
    if returns not in (type(None), Any, typing.NoReturn):
        found.append(f"it is annotated to return {_named(returns)}, a handler returns None")
    return found


def payload_problems(handler: Handler) -> list[str]:
    """Where `Event[...]` names another payload than the handler's types carry."""
    try:
        hints = typing.get_type_hints(handler.function)
    except Exception:  # noqa: BLE001 - told as a problem of the signature
        return []
    given = hints.get(next(iter(inspect.signature(handler.function).parameters)))
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


def _named(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


# --- all together ----------------------------------------------------------------------------------------------


def _of_entries(entries: Sequence[EntryPoint]) -> list[Problem]:
    return [
        Problem(plugin=entry.name, text=f"the entry point must name a module, not {entry.value}")
        for entry in entries
        if ":" in entry.value
    ]


def _of_names(registry: Registry, allowed: Collection[str] | None, renamed: Mapping[str, str]) -> list[Problem]:
    names = {handler.name for handler in registry.handlers}
    plugins = {handler.plugin for handler in registry.handlers} | {one.plugin for one in registry.broken}
    found = [
        Problem(plugin="CONSUMER_HANDLERS", text=f"no handler and no plugin is called {one}")
        for one in sorted(allowed or ())
        if one not in names | plugins
    ]
    for new, old in sorted(renamed.items()):
        if old not in names:
            text = f"{old} is to be known by the name {new}, but no installed handler is called {new}"
            found.append(Problem(plugin="CONSUMER_RENAMED_HANDLERS", text=text))
    return found


def _of_migrations(entries: Sequence[EntryPoint]) -> list[Problem]:
    found = []
    for entry in entries:
        try:
            package = import_module(entry.value)
            folder = Path(package.__path__[0]) / "versions"
        except KeyboardInterrupt:
            raise  # an operator's
        except BaseException as error:  # noqa: BLE001 - whatever a plugin does at import stays its own
            text = f"its migrations cannot be imported: {type(error).__name__}: {error}"
            found.append(Problem(plugin=entry.name, text=text[:300]))
            continue
        if not folder.is_dir() or not any(folder.glob("*.py")):
            found.append(Problem(plugin=entry.name, text=f"its migrations have no versions in {folder}"))
    if not found:
        found += _of_revisions({entry.name for entry in entries})
    return found


def _of_revisions(labels: set[str]) -> list[Problem]:
    try:
        script = ScriptDirectory.from_config(schema.alembic_config())
        heads = script.get_heads()
        bases = {label for base in script.get_bases() for label in _labels(script, base)}
        long = sorted(one.revision for one in script.walk_revisions() if len(one.revision) > REVISION_CHARS)
    except Exception as error:  # noqa: BLE001 - a migration is a plugin's own code
        return [Problem(plugin="migrations", text=f"cannot be read: {type(error).__name__}: {error}"[:300])]
    found = [
        Problem(plugin=label, text="its first migration lacks branch_labels with the name of the plugin")
        for label in sorted(labels - bases)
    ]
    found += [
        Problem(plugin="migrations", text=f"the id of a revision has at most {REVISION_CHARS} characters: {one}")
        for one in long
    ]
    wanted = len(labels) + 1
    if not found and len(heads) > wanted:
        found.append(Problem(plugin="migrations", text=f"{len(heads)} heads for {wanted} branches: {', '.join(heads)}"))
    return found


def _labels(script: Any, revision: str) -> set[str]:
    return set(script.get_revision(revision).branch_labels)
