"""`consumer handlers try` and `simulate`: what a handler would do, and what becomes of it when things go wrong."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from consumer.cli.bootstrap import ledger, run, settings_for
from consumer.cli.output import Json, Output
from consumer.cli.plugins import registry_of
from consumer.errors import NotFound, UsageError
from consumer.plugin import Handler
from consumer.settings import Role, Settings
from consumer.telemetry.redaction import masked
from consumer.work.place import told_import
from consumer.work.registry import REASON_MAX_CHARS, Registry, handlers_of

if TYPE_CHECKING:
    from consumer.cli.developing.trying import Tried
    from consumer.testing.assertions import Given
    from consumer.testing.simulation import History

FOUND = 1
ALONE = "each was played alone: between two handlers no order is kept, and what one does to another's is not seen"
BY_ITS_OWN = " by ctx; what it does to files, by a connection of a C library or by a program was done, and is not shown"


def try_handler(
    name: Annotated[str, typer.Argument(help="Handler name, as `handlers list` shows it.")],
    event: Annotated[str, typer.Option(help="Id of a recorded event, or a file of `events show ID --json`.")],
    application: Annotated[str | None, typer.Option(help="Application; whichever has it when left out.")] = None,
    as_json: Json = False,
) -> None:
    """Run one handler on one event and undo it: what it would write, emit and call. Exit 1 if it fails."""
    settings = settings_for(Role.OPERATE)
    tried = run(_try(settings, name, event, application))
    output = Output(as_json)
    output.document(_document(tried))
    _print(output, tried)
    if tried.refused or tried.transition.code is not None:
        raise typer.Exit(FOUND)


def simulate_module(
    module: Annotated[str, typer.Argument(help="Module of the handlers, like shop.handler.")],
    runs: Annotated[int, typer.Option(min=1, max=100_000, help="How many histories for each handler.")] = 1000,
    seed: Annotated[int, typer.Option(help="The same seed plays the same histories.")] = 1,
    handler: Annotated[str | None, typer.Option(help="Only the handler of this name.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="ctx.options; may be repeated.")
    ] = None,
    given: Annotated[
        str | None,
        typer.Option(
            metavar="[MODULE:]NAME", help="Function that prepares each play's workbench, as the kit's `given=`."
        ),
    ] = None,
    parts: Annotated[
        int | None,
        typer.Option("--processes", min=1, max=64, help="How many play; left out: one per processor, at most four."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Play handlers, each alone, under duplicates, reorderings, replicas at once, crashes, outages, lost answers and
    late events. Prints the smallest failing history as a test to paste, and exits 1."""
    from consumer.cli.developing.simulating import processes, simulated  # the workbench: only who plays waits for it
    from consumer.testing.simulation import as_test

    found = {one.name: one for one in _handlers(module) if handler in (None, one.name)}
    if not found:
        raise NotFound("the module declares no such handler", handler=handler)
    options = _options(option or [])
    at_once = parts or processes()
    begins = None if given is None else _given(given, module)
    told = {
        name: simulated(one.function, runs=runs, seed=seed, options=options, parts=at_once, given=begins)
        for name, one in found.items()
    }
    output = Output(as_json)
    handlers = [_told(found[name], one, options, begins) for name, one in told.items()]
    output.document({"runs": runs, "seed": seed, "given": given, "handlers": handlers})
    for name, history in told.items():
        if history is None:
            output.line(f"{name}: {runs} histories, and each left what it should")
            continue
        lines = [f"{name}: fails", "", *history.tells.splitlines(), "", "the smallest history, as a test:", ""]
        for line in lines:
            output.line(line)
        for line in as_test(found[name].function, history, options, begins).splitlines():
            output.line(f"    {line}" if line else "")
    if len(told) > 1:
        output.line(ALONE)
    if any(told.values()):
        raise typer.Exit(FOUND)


def _told(handler: Handler, history: History | None, options: dict[str, Any], begins: Given | None) -> dict[str, Any]:
    from consumer.testing.simulation import as_test

    if history is None:
        return {"handler": handler.name, "failed": False}
    steps = [str(step) for step in history.steps]
    test = as_test(handler.function, history, options, begins)
    return {"handler": handler.name, "failed": True, "tells": history.tells, "steps": steps, "test": test}


def _handlers(module: str) -> list[Handler]:
    sys.path.append(str(Path.cwd()))  # last: a file beside an author's module is no library
    return handlers_of(_module(module))


def _given(name: str, module: str) -> Given:
    """The function that prepares a workbench: of the handlers' module, or of another. Raises UsageError."""
    where, _, function = name.rpartition(":")
    found: Any = getattr(_module(where or module), function, None)
    is_plain = inspect.isfunction(found) and found.__qualname__.isidentifier()  # the test that is printed imports it
    if not is_plain or inspect.iscoroutinefunction(found):
        raise UsageError("--given names no function like def stocked(workbench): …", given=name[:100])
    begins: Given = found
    return begins


def _module(module: str) -> ModuleType:
    try:
        return import_module(module)
    except KeyboardInterrupt:
        raise  # an operator's
    except BaseException as error:  # whatever an author's module does at import stays its own
        told = told_import(error, [module], REASON_MAX_CHARS)
        raise UsageError(f"the module cannot be imported: {told}", module=module[:100]) from error


def _options(given: list[str]) -> dict[str, Any]:
    pairs = [one.partition("=") for one in given]
    if any(not sign or not name for name, sign, _ in pairs):
        raise UsageError("--option takes NAME=VALUE")
    return {name: value for name, _, value in pairs}


async def _try(settings: Settings, name: str, event: str, application: str | None) -> Tried:
    from consumer.cli.developing.trying import attempt, event_named

    handler = _named(registry_of(settings), name)
    async with ledger(settings) as database:
        return await attempt(
            database, handler, await event_named(database, event, application), settings.handler_options
        )


def _named(registry: Registry, name: str) -> Handler:
    found = registry.get(name)
    if found is None:
        raise NotFound("no such handler is installed; see `consumer handlers list`", handler=name[:100])
    return found


def _document(tried: Tried) -> dict[str, Any]:
    transition = tried.transition
    return {
        "handler": tried.handler, "event_id": tried.event.id, "status": transition.status.value,
        "code": transition.code,
        "reason": transition.reason, "trace": transition.trace, "refused": tried.refused, "wrote": masked(tried.wrote),
        "emitted": masked(tried.emitted), "reads": tried.reads, "called": masked(tried.called),
    }  # fmt: skip


def _print(output: Output, tried: Tried) -> None:
    transition = tried.transition
    said = f": {transition.code}: {transition.reason}" if transition.code else ""
    output.line(f"{tried.handler} on {tried.event.type} {tried.event.id}: {transition.status.value}{said}")
    for place in (transition.trace or "").split(" < "):
        if place:
            output.line(f"  at {place}")
    for text in tried.refused:
        output.line(f"refused: {text}")
    for what, entries in (
        ("write", tried.wrote),
        ("emit", tried.emitted),
        ("read", tried.reads),
        ("call", tried.called),
    ):
        for entry in entries:
            output.line(f"would {what}: {orjson.dumps(masked(entry), default=str).decode()}")
    by_its_own = "" if tried.is_transactional else BY_ITS_OWN
    output.line(f"nothing was written, emitted or sent{by_its_own}")
