"""Registry: which handlers there are. Built-ins and merchants' plugins load the same way, by entry point."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

import structlog

from consumer.errors import HandlerInvalid
from consumer.ledger.engine.branches import NotRun, all_brought_by, is_ambiguous, is_own, not_run
from consumer.ledger.tables import HANDLER_CHARS, HandlerRow
from consumer.plugin import Context, Event, Handler, declared
from consumer.plugin.declaration import FULFILMENT
from consumer.work.place import home_of, shown, told_import

GROUP = "consumer.handlers"
KNOWN_TYPES_MAX = 1000
PLUGIN_CHARS = 100
REASON_MAX_CHARS = 300
NOT_READABLE = "this user may not read it, so the plugins in it would silently not run"


@dataclass(frozen=True)
class BrokenPlugin:
    """A plugin that could not be loaded, and why, in one line."""

    plugin: str
    reason: str


class Registry:
    """The handlers of this process, by name and by event type.

    `absent` handlers are not run here, because their plugin is broken, a newer version of the code brought them, or
    they are built in and were left out: their runs are stored and wait, nothing is skipped silently (cases H8, O9).
    `left_out`: the merchant's that are left out here; they are absent while others run them. `instead`: absent ones to
    those that may be the same under another name, and do it here.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        broken: Sequence[BrokenPlugin] = (),
        absent: Sequence[Handler] = (),
        *,
        left_out: Sequence[Handler] = (),
        instead: Mapping[str, Sequence[Handler]] | None = None,
    ) -> None:
        self.handlers = tuple(handlers)
        self.broken = tuple(broken)
        self.absent = tuple(absent)
        self.left_out = tuple(left_out)
        self.instead = dict(instead or {})
        self._by_name = {handler.name: handler for handler in handlers}
        self._by_type: dict[str, tuple[Handler, ...]] = {}

    @property
    def installed(self) -> tuple[Handler, ...]:
        """What this version of the code has, whatever its settings leave out."""
        return self.handlers + self.absent + self.left_out

    def get(self, name: str) -> Handler | None:
        """The handler of that name, if it can run here."""
        return self._by_name.get(name)

    @property
    def shippers(self) -> list[str]:
        """The handlers that could fulfil an order which nobody took."""
        return [one.name for one in self.handlers if one.fulfils and one.wants(FULFILMENT)]

    def wanting(self, event_type: str) -> tuple[Handler, ...]:
        """The handlers for an event type, absent ones too; none is fine (case I7)."""
        found = self._by_type.get(event_type)
        if found is None:
            found = tuple(handler for handler in self.handlers + self.absent if handler.wants(event_type))
            if len(self._by_type) < KNOWN_TYPES_MAX:
                self._by_type[event_type] = found
        return found

    def done_by(self, name: str, event_type: str) -> str | None:
        """Which handler here does what an absent one would do for this type: it may be the same, renamed (case H7)."""
        return next((one.name for one in self.instead.get(name, ()) if one.wants(event_type)), None)

    def keeping(self, absent: Sequence[Handler], instead: Mapping[str, Sequence[Handler]]) -> Registry:
        """The same registry, aware of what else runs are kept for."""
        return Registry(self.handlers, self.broken, [*self.absent, *absent], left_out=self.left_out, instead=instead)


def handler_of(row: HandlerRow) -> Handler:
    """A handler that is not here, as the ledger knows it."""
    return Handler(
        name=row.name,
        types=tuple(row.types.split()),
        function=_cannot_run,
        plugin=row.plugin,
        transactional=row.transactional,
        fulfils=row.fulfils if row.fulfils is not None else not row.transactional,
    )


async def _cannot_run(event: Event, ctx: Context) -> None:
    raise HandlerInvalid("the handler is not here", event_id=event.id, attempt=ctx.attempt)


def load_registry(
    allowed: Collection[str] | None = None,
    renamed: Mapping[str, str] | None = None,
    extra: Mapping[str, ModuleType] | None = None,
) -> Registry:
    """Load every plugin that is installed, and the `extra` modules (by plugin name).

    `allowed`: names of handlers or plugins (None: all). Of built-in ones that it leaves out the work waits: who names
    them again wants what was paid meanwhile. That of others waits while another worker runs them. `renamed`: a
    handler's new name to the name under which the ledger knows it (case H7). A plugin that fails to import, or that
    brings a name twice, is broken: it harms nobody. Of two packages that bring a plugin of one name neither is loaded:
    nobody could say whose events these are. Nor is one whose migrations are not to be had, or are brought by two; a
    branch of no plugin is told as one. What this package brings itself comes first: no other can take a built-in's
    name, or that of its handlers.
    """
    handlers: dict[str, Handler] = {}
    built_in: list[Handler] = []
    left_out: list[Handler] = []
    broken: list[BrokenPlugin] = []
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, []).append(entry)
    tableless = not_run()
    installed = {name: partial(_module, entries, tableless) for name, entries in found.items()}
    given = {name: partial(_itself, module) for name, module in (extra or {}).items()}
    own = {name for name, entries in found.items() if any(map(is_own, entries))}
    for plugin, load in sorted({**installed, **given}.items(), key=lambda one: (one[0] not in own, one[0])):
        try:
            with _undisturbed():
                module = load()
            loaded = [_renamed(handler, renamed or {}) for handler in handlers_of(module)]
            loaded = [replace(handler, plugin=plugin) for handler in loaded]
            _refuse_names(loaded)
            _refuse_twice(loaded, handlers)
        except KeyboardInterrupt:
            raise  # an operator's
        except BaseException as error:  # noqa: BLE001 - whatever a plugin does at import stays its own
            modules = [entry.value for entry in found.get(plugin, ())]
            broken.append(BrokenPlugin(plugin, told_import(error, modules, REASON_MAX_CHARS)))
            continue
        handlers.update({handler.name: handler for handler in loaded if _is_allowed(handler, allowed, renamed or {})})
        (built_in if plugin in own else left_out).extend(one for one in loaded if one.name not in handlers)
    broken += [BrokenPlugin(name, f"{_brought(found[name])}; the built-in one is loaded") for name in sorted(own)
               if is_ambiguous(found[name])]  # fmt: skip
    told = {one.plugin for one in broken}
    broken += [BrokenPlugin(one.label, one.reason) for one in tableless if one.label not in told]
    broken += [BrokenPlugin(path, NOT_READABLE) for path in unreadable()]
    return Registry(tuple(handlers.values()), broken, built_in, left_out=left_out)


def unreadable() -> list[str]:
    """Of the folders in which plugins are looked for, and of the packages in them, those that this user may not read:
    to Python they are not there. The folder one stands in, or a command's own, is none of them."""
    found: list[str] = []
    for folder in dict.fromkeys(path for path in map(Path, sys.path) if path.is_absolute()):
        try:
            packages = [one for one in folder.iterdir() if one.suffix in (".dist-info", ".egg-info")]
        except PermissionError:
            found += [str(folder)] if _is_there(folder) and folder not in (_folder(), Path(sys.argv[0]).parent) else []
        except OSError:
            continue  # a zip, or one that is not there
        else:
            found += [str(one) for one in packages if _is_hidden(one / "entry_points.txt")]
    return found


def _is_there(folder: Path) -> bool:
    """False, too, where it lies in a folder that hides what is in it."""
    try:
        folder.stat()
    except OSError:
        return False
    return True


def _is_hidden(file: Path) -> bool:
    try:
        file.open("rb").close()
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


@contextmanager
def _undisturbed() -> Iterator[None]:
    """For a plugin's import. What it prints goes to stderr: stdout may be one JSON document. Folder, warnings
    and logging (which keeps secrets out) are the process's; they are afterwards what they were."""
    root, lines, folder = logging.getLogger(), structlog.get_config(), _folder()
    handlers, level, disabled = root.handlers[:], root.level, root.manager.disable
    heard = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        try:
            yield
        finally:
            if folder is not None:
                os.chdir(folder)
            root.handlers[:] = handlers
            root.setLevel(level)
            logging.disable(disabled)
            structlog.configure(**lines)
            for one, before in heard.items():
                if signal.getsignal(one) is not before:  # who stops this role would not be heard
                    signal.signal(one, before)


def _folder() -> Path | None:
    """Where the process is, unless that was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _module(entries: Sequence[EntryPoint], tableless: Sequence[NotRun]) -> ModuleType:
    """The module of a plugin. Raises HandlerInvalid when several packages bring it and do not mean the same module, and
    when nobody makes its tables: each of its runs would die of it."""
    entries = [one for one in entries if is_own(one)] or entries
    if is_ambiguous(entries):
        raise HandlerInvalid(f"{_brought(entries)}; uninstall all but one")
    lacking = (one.reason for one in tableless if not is_own(entries[0]) and one.is_of(entries[0]))
    if (reason := next(lacking, None)) is not None:
        raise HandlerInvalid(reason)
    return import_module(entries[0].value)


def _brought(entries: Sequence[EntryPoint]) -> str:
    return f"several packages bring a plugin of this name: {all_brought_by(entries)}"


def _itself(module: ModuleType) -> ModuleType:
    return module


def handlers_of(module: ModuleType) -> list[Handler]:
    """The handlers declared in a module, in the order they stand there. Raises HandlerInvalid when there are none."""
    found = {id(value): handler for value in vars(module).values() if (handler := declared(value)) is not None}
    if not found:
        file = getattr(module, "__file__", None)  # a module made in memory has none
        at = f" (at {shown(file)}:1)" if file is not None else ""
        raise HandlerInvalid(f"the module declares no handler (@handles){at}", module=module.__name__)
    return list(found.values())


def _renamed(handler: Handler, renamed: Mapping[str, str]) -> Handler:
    return replace(handler, name=renamed[handler.name]) if handler.name in renamed else handler


def _refuse_names(loaded: Sequence[Handler]) -> None:
    """One name that the ledger cannot hold would keep every handler's worker from starting."""
    for handler in loaded:
        if len(handler.name) > HANDLER_CHARS or len(handler.plugin) > PLUGIN_CHARS:
            most = f"{HANDLER_CHARS} characters at most, its plugin's {PLUGIN_CHARS}"
            raise HandlerInvalid(f"the name of a handler has {most}{_at(handler)}", handler=handler.name[:60])
        if not handler.name.isprintable():
            what = f"the name of a handler has printable characters only{_at(handler)}"
            raise HandlerInvalid(what, handler=ascii(handler.name))


def _at(handler: Handler) -> str:
    return f" (at {home_of(handler.function).start})"


def _refuse_twice(loaded: Sequence[Handler], there: Mapping[str, Handler]) -> None:
    seen = dict(there)
    for handler in loaded:
        if (other := seen.get(handler.name)) is not None:
            both = " and ".join(f"plugin {one.plugin!r} ({home_of(one.function).start})" for one in (other, handler))
            raise HandlerInvalid(f"two handlers are called {handler.name!r}: {both}; give one another name=")
        seen[handler.name] = handler


def _is_allowed(handler: Handler, allowed: Collection[str] | None, renamed: Mapping[str, str]) -> bool:
    """By its name in the ledger, in the code, or its plugin's."""
    return allowed is None or not {handler.plugin, *_names_of(handler, renamed)}.isdisjoint(allowed)


def _names_of(handler: Handler, renamed: Mapping[str, str]) -> set[str]:
    return {handler.name, *(new for new, old in renamed.items() if old == handler.name)}


def unknown_names(registry: Registry, allowed: Collection[str] | None, renamed: Mapping[str, str]) -> list[str]:
    """Of CONSUMER_HANDLERS, what no handler and no plugin is called, in the ledger or in the code. While a plugin
    cannot be loaded any may be its (case H8). `renamed` as for `load_registry`."""
    if registry.broken:
        return []
    known = {name for one in registry.handlers for name in (one.plugin, *_names_of(one, renamed))}
    return sorted(set(allowed or ()) - known)
