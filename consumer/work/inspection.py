"""Inspection: what is wrong with the plugins, one line a problem (`consumer handlers check`). Imports them all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from consumer.ledger.engine.branches import brought_by
from consumer.payload import is_known, nearest_type
from consumer.plugin import Handler
from consumer.plugin.handler import matches
from consumer.plugin.options import is_no_model
from consumer.work.migrations import migration_problems
from consumer.work.place import home_of
from consumer.work.registry import GROUP, Registry, unknown_names
from consumer.work.signatures import payload_problems, signature_problems

PAID = ("order.paid", "checkout.session.completed")
GRANTED, REVOKED = "access.granted", "access.revoked"
NO_REQUEST = (
    "{heard} may come more than once for an order, and for one that is held, or a test: who delivers handles "
    "fulfilment.requested, once per order; who delivers nothing says fulfils=False"
)
SPLIT = (
    "it takes access.granted, and {others} access.revoked: between two handlers no order is kept, and what is tried "
    "again late opens what was closed; one handler of both types keeps them in order"
)
NO_MODEL = "OPTIONS in its module is no class of a pydantic model: ctx.options is the table as it stands, not checked"


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
    found += [Problem(plugin=branch, text=text) for branch, text in migration_problems()]
    return found


# --- one handler -----------------------------------------------------------------------------------------------


def _of_handler(handler: Handler) -> list[str]:
    found = signature_problems(handler.function, batch=handler.together is not None)
    found += payload_problems(handler)
    return [f"{text} ({home_of(handler.function).start})" for text in found]


def warnings_of(registry: Registry) -> list[Problem]:
    """What is likely a mistake, and may be meant: a type that nobody is known to send (case H10), OPTIONS that are no
    model, a delivery by what comes more than once for an order (case F4), access opened and closed by two handlers."""
    found = []
    splitting = _splitting(registry.handlers)
    for handler in registry.handlers:
        told = [mistyped(pattern) for pattern in handler.types if not is_known(pattern)]
        told += [NO_MODEL] if is_no_model(handler.function) else []
        told += [NO_REQUEST.format(heard=heard)] if (heard := _hears_of_payment(handler)) else []
        told += [SPLIT.format(others=splitting[handler.name])] if handler.name in splitting else []
        at = home_of(handler.function).start
        found += [Problem(plugin=handler.plugin, handler=handler.name, text=f"{text} ({at})") for text in told]
    return found


def _hears_of_payment(handler: Handler) -> str:
    """By which types an effect handler hears that somebody paid, before that is one request; empty where it does not,
    or where it says that it delivers nothing."""
    if handler.transactional or handler.says_fulfils is False:
        return ""
    return " ".join(pattern for pattern in handler.types if any(_names(pattern, one) for one in PAID))


def _splitting(handlers: Sequence[Handler]) -> dict[str, str]:
    """Effect handlers that open access without closing it, in a plugin where others close it without opening it, and
    none does both: each with those others."""
    found: dict[str, str] = {}
    for plugin in dict.fromkeys(handler.plugin for handler in handlers):
        takes = {one.name: _takes_of_access(one) for one in handlers if one.plugin == plugin and not one.transactional}
        closing = " ".join(name for name, taken in takes.items() if taken == {REVOKED})
        if closing and {GRANTED, REVOKED} not in takes.values():
            found |= {name: closing for name, taken in takes.items() if taken == {GRANTED}}
    return found


def _takes_of_access(handler: Handler) -> set[str]:
    return {one for one in (GRANTED, REVOKED) if any(_names(pattern, one) for pattern in handler.types)}


def _names(pattern: str, event_type: str) -> bool:
    """Whether this type is meant; who takes everything means none."""
    return pattern != "*" and matches(pattern, event_type)


def mistyped(pattern: str) -> str:
    """What is wrong with a type that nobody sends, and what to do."""
    near = nearest_type(pattern)
    hint = f"; did you mean {near!r}?" if near else ";"
    own = f"an own type is declared by its payload: class Name(Payload, event={pattern!r})"
    return f"no event of type {pattern!r} is known{hint} {own}"


# --- all together ----------------------------------------------------------------------------------------------


def _of_entries(entries: Sequence[EntryPoint]) -> list[Problem]:
    return [
        Problem(plugin=entry.name, text=f"the entry point must name a module, not {entry.value} ({brought_by(entry)})")
        for entry in entries
        if ":" in entry.value
    ]


def _of_names(registry: Registry, allowed: Collection[str] | None, renamed: Mapping[str, str]) -> list[Problem]:
    installed = {one.name for one in (*registry.handlers, *registry.absent, *registry.left_out)}
    found = [
        Problem(plugin="CONSUMER_HANDLERS", text=f"no handler and no plugin is called {one}")
        for one in unknown_names(registry, allowed, renamed)
    ]
    for new, old in sorted(renamed.items()):
        if old not in installed and not registry.broken:
            text = f"{old} is to be known by the name {new}, but no installed handler is called {new}"
            found.append(Problem(plugin="CONSUMER_RENAMED_HANDLERS", text=text))
    return found
