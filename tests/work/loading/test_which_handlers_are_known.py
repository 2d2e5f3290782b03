"""Which handlers a process has, and which it only knows of: their names fit the ledger, and none is there twice."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import structlog

from consumer.app.options import unknown_handlers
from consumer.clock import DrivenClock
from consumer.ledger import Database
from consumer.ledger.tables import HANDLER_CHARS, HandlerRow
from consumer.plugin import Context, Event, Handler, handles
from consumer.work import registry
from consumer.work.ingest.rolling_deploy import RollingDeploy
from consumer.work.inspection import inspect_plugins
from consumer.work.registry import GROUP, KNOWN_TYPES_MAX, PLUGIN_CHARS, BrokenPlugin, Registry, load_registry

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def nothing(event: Event, ctx: Context) -> None:
    """Nothing."""


def module(*names: str) -> ModuleType:
    """A plugin with handlers of these names."""
    made = ModuleType("shop")
    for number, name in enumerate(names):

        @handles("order.paid", name=name)
        async def function(event: Event, ctx: Context) -> None:
            """Nothing."""

        setattr(made, f"function_{number}", function)
    return made


def loaded(extra: dict[str, ModuleType]) -> tuple[list[str], list[str]]:
    """The names of the handlers of these plugins that are there, and the plugins of them that are broken."""
    found = load_registry(extra=extra)
    return [one.name for one in found.handlers if one.plugin in extra], [one.plugin for one in found.broken]


# case: H7
@pytest.mark.parametrize(
    ("plugin", "name", "fits"),
    [
        ("shop", "n" * HANDLER_CHARS, True),
        ("shop", "n" * (HANDLER_CHARS + 1), False),
        ("p" * PLUGIN_CHARS, "n", True),
        ("p" * (PLUGIN_CHARS + 1), "n", False),
    ],
)
def test_a_name_as_long_as_the_ledger_holds_is_taken(plugin: str, name: str, fits: bool) -> None:
    assert loaded({plugin: module(name)}) == (([name], []) if fits else ([], [plugin]))


@pytest.mark.parametrize(
    ("extra", "there", "broken"),
    [
        ({"shop": ["a", "b"]}, ["a", "b"], []),
        ({"shop": ["a", "a"]}, [], ["shop"]),
        ({"shop": ["a", "b", "b"]}, [], ["shop"]),
        ({"shop": ["a"], "stall": ["b", "a"], "stand": ["c"]}, ["a", "c"], ["stall"]),
    ],
)
def test_a_plugin_that_brings_a_name_twice_is_broken_and_harms_nobody(
    extra: dict[str, list[str]], there: list[str], broken: list[str]
) -> None:
    # case: H8
    assert loaded({plugin: module(*names) for plugin, names in extra.items()}) == (there, broken)


@pytest.mark.parametrize(
    ("transactional", "fulfils", "then"),
    [(True, None, False), (False, None, True), (True, True, True), (False, False, False)],
)
async def test_an_absent_one_fulfils_as_the_ledger_says_or_where_it_has_an_effect(
    sqlite_ledger: Database, transactional: bool, fulfils: bool | None, then: bool
) -> None:
    # case: H8, O9
    rows = [
        HandlerRow(name=f"{plugin}:ship", plugin=plugin, types=types, transactional=transactional, fulfils=fulfils,
                   first_seen_at=NOW, last_seen_at=NOW)
        for plugin, types in (("shop", "order.paid order.expired"), ("stall", "order.paid"), ("shop2", ""))
    ]  # fmt: skip
    async with sqlite_ledger.transaction() as session:
        session.add_all(rows)
        await session.flush()
        broken = [BrokenPlugin("shop", "it is broken"), BrokenPlugin("shop2", "it is broken")]
        [absent] = (await RollingDeploy(Registry([], broken), DrivenClock()).registry(session)).absent
    assert (absent.name, absent.types, absent.transactional) == (
        "shop:ship",
        ("order.paid", "order.expired"),
        transactional,
    )
    assert absent.fulfils is then


def test_who_wants_a_type_is_looked_up_once_and_made_up_types_take_no_memory() -> None:
    # case: I7
    some = Handler(name="shop:some", types=("order.*",), function=nothing)
    registry = Registry([some])
    known = registry.wanting("order.paid")
    assert known == (some,)
    assert registry.wanting("order.paid") is known
    for number in range(KNOWN_TYPES_MAX + 5):
        assert registry.wanting(f"order.made_up_{number}") == (some,)
        assert registry.wanting(f"made_up_{number}") == ()
    assert len(registry._by_type) == KNOWN_TYPES_MAX


def installed(monkeypatch: pytest.MonkeyPatch, **found: tuple[str, ModuleType]) -> None:
    """Beside ours, each under its name in the module of a package that brings it as a plugin of a name."""
    entries = list(entry_points(group=GROUP))
    for package, (plugin, code) in found.items():
        monkeypatch.setitem(sys.modules, package, code)
        about: Any = SimpleNamespace(name=package, version="1.0")
        entries.insert(0, EntryPoint(plugin, package, GROUP)._for(about))  # type: ignore[attr-defined]  # as importlib does it
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)


# case: H8
@pytest.mark.parametrize("plugin", ["acme", "zebra"])
def test_nobody_takes_the_name_of_a_built_in_handler(monkeypatch: pytest.MonkeyPatch, plugin: str) -> None:
    installed(monkeypatch, acme_shop=(plugin, module("fulfilment:order_paid", "acme:mine")))
    found = load_registry()
    assert [one.plugin for one in found.handlers if one.name == "fulfilment:order_paid"] == ["fulfilment"]
    assert [one.plugin for one in found.broken] == [plugin]
    assert "two handlers are called 'fulfilment:order_paid'" in found.broken[0].reason


# case: H8
@pytest.mark.parametrize("source", [
    "class Odd(Exception):\n    def __str__(self): raise ValueError('no text')\nraise Odd",
    "raise SyntaxError",
], ids=["whose text cannot be made", "without a text"])  # fmt: skip
def test_an_import_error_that_cannot_be_shown_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """It ended whatever loaded plugins, `work`, too."""
    (tmp_path / "plugin_that_raises.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    entries = [*entry_points(group=GROUP), EntryPoint("odd", "plugin_that_raises", GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    found = load_registry()
    assert "fulfilment:order_paid" in {one.name for one in found.handlers}
    assert [one.plugin for one in found.broken] == ["odd"]


# case: H8
def test_nobody_takes_the_name_of_a_built_in_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, acme_shop=("fulfilment", module("acme:mine")))
    found = load_registry()
    assert "fulfilment:order_paid" in {one.name for one in found.handlers}
    assert "acme:mine" not in {one.name for one in found.handlers}
    [broken] = found.broken
    assert broken.plugin == "fulfilment"
    assert broken.reason.endswith("; the built-in one is loaded")


# case: H8
def test_of_two_packages_with_one_plugin_neither_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, one_shop=("shop", module("one:mine")), other_shop=("shop", module("other:mine")))
    found = load_registry()
    assert not {"one:mine", "other:mine"} & {one.name for one in found.handlers}
    [broken] = found.broken
    assert broken.reason.endswith("; uninstall all but one")


ODD = """
import logging, os, signal, warnings
import structlog
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here I am")
os.chdir("/")
logging.basicConfig(level=logging.DEBUG, force=True)
logging.disable(logging.CRITICAL)
warnings.simplefilter("error")
structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
"""


# case: H8, S9
def test_a_plugin_changes_nothing_of_the_process_as_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it went the log was another file, and what it logged was written with its secrets; stdout was no JSON."""
    (tmp_path / "odd_shop.py").write_text(ODD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "entry_points", lambda **_: [EntryPoint("odd_shop", "odd_shop", GROUP)])

    def process() -> list[object]:
        root, filters = logging.getLogger(), warnings.filters[:]
        logs = [root.handlers[:], root.level, root.manager.disable, structlog.get_config()]
        return [Path.cwd(), signal.getsignal(signal.SIGTERM), filters, *logs]

    before = process()
    load_registry()
    assert process() == before
    assert capsys.readouterr() == ("", "here I am\n")


@contextmanager
def nobody() -> Iterator[None]:
    """Who may read every file is another user meanwhile."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


@pytest.mark.parametrize("hidden", ["folder", "package", "entry_points.txt"])
def test_a_folder_of_plugins_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    """To Python what is in it is not there: its handler would get no event, and nobody would hear of it."""
    with TemporaryDirectory() as above:
        folder = Path(above, "plugins")
        package = folder / "shop-1.0.dist-info"
        package.mkdir(parents=True)
        told = package / "entry_points.txt"
        told.write_text(f"[{GROUP}]\nshop = shop\n")
        Path(above).chmod(0o755)
        closed = {"folder": folder, "package": package, "entry_points.txt": told}[hidden]
        closed.chmod(0)
        own = Path(above, "bin")
        own.mkdir(mode=0o711)
        paths = [str(folder), f"{folder}/in it", f"{above}/none", "/no.zip", "", "__editable__.placeholder", str(own)]
        with monkeypatch.context() as patch, nobody():
            patch.setattr(sys, "path", paths)
            patch.setattr(sys, "argv", [f"{own}/consumer"])
            assert registry.unreadable() == [str(folder if hidden == "folder" else package)]
        closed.chmod(0o755)
        monkeypatch.setattr(registry, "unreadable", lambda: [str(folder)])
        assert [one.plugin for one in load_registry().broken] == [str(folder)]


RENAMED = {"shop:send": "shop:ship"}


# case: H7
@pytest.mark.parametrize("named", ["shop:send", "shop:ship", "shop"])
def test_a_renamed_handler_is_named_by_either_name(named: str) -> None:
    allowed = ["fulfilment", named]
    found = load_registry(allowed, RENAMED, extra={"shop": module("shop:send")})
    assert [one.name for one in found.handlers if one.plugin == "shop"] == ["shop:ship"]
    assert unknown_handlers(found, allowed, RENAMED) == []
    assert inspect_plugins(found, allowed=allowed, renamed=RENAMED) == []


# case: H7
def test_of_a_mapping_that_is_left_out_nothing_untrue_is_said() -> None:
    found = load_registry(["fulfilment"], RENAMED, extra={"shop": module("shop:send")})
    assert inspect_plugins(found, allowed=["fulfilment"], renamed=RENAMED) == []


# case: H8
def test_a_name_that_a_broken_plugin_may_have_stops_nobody() -> None:
    allowed = ["fulfilment", "shop:ship", "own name"]
    found = load_registry(allowed, RENAMED, extra={"shop": ModuleType("empty")})
    assert [one.plugin for one in found.broken] == ["shop"]
    assert unknown_handlers(found, allowed, RENAMED) == []
    assert [one.plugin for one in inspect_plugins(found, allowed=allowed, renamed=RENAMED)] == ["shop"]
    found = load_registry(allowed, extra={"shop": module("shop:ship")})
    assert unknown_handlers(found, allowed) == ["CONSUMER_HANDLERS: no handler or plugin is called 'own name'"]
