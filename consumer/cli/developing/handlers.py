"""`consumer handlers …`: the plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from consumer.app.options import option_problems
from consumer.cli.bootstrap import ledger, run, settings_for, settings_looking
from consumer.cli.consent import Reason, actor, checked_reason
from consumer.cli.developing.authoring import simulate_module, try_handler
from consumer.cli.developing.provenance import requirement, unreachable
from consumer.cli.developing.scaffold import write_package
from consumer.cli.filters import require_application
from consumer.cli.output import Json, Output
from consumer.cli.plugins import registry_of
from consumer.console.cure import replay_command
from consumer.console.operators import pausing
from consumer.errors import DatabaseMissing, LedgerError
from consumer.ledger.engine.counting import COUNT_MAX
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.handling import handlers as ledger_handlers
from consumer.ledger.handling.queue import PutOff, count_by_status, put_off
from consumer.ledger.plans import candidates
from consumer.ledger.tables import HandlerPauseRow, HandlerRow, RunStatus
from consumer.plugin import Handler
from consumer.settings import Role, Settings
from consumer.work.registry import Registry

MISSED_MAX = 1000

app = typer.Typer(help="The handlers, built-in and merchants' own.", no_args_is_help=True)
app.command("try")(try_handler)
app.command("simulate")(simulate_module)
Name = Annotated[str, typer.Argument(help="Handler name, as `handlers list` shows it.")]
Whose = Annotated[str | None, typer.Option("--application", help="For this application alone; for all when left out.")]


@app.command("list")
def list_handlers(as_json: Json = False) -> None:
    """Every handler that is installed, what it wants, and whether it runs."""
    settings = settings_looking()
    registry = registry_of(settings)
    known, alone, missed, later, died = run(_known(settings, registry))
    rows = [
        _row(one, known.get(one.name), missed.get(one.name, 0), later.get(one.name), died.get(one.name, 0))
        | {"paused_for": _paused_for(alone, one.name)}
        for one in registry.handlers
    ]
    broken = [{"plugin": plugin.plugin, "reason": plugin.reason} for plugin in registry.broken]
    output = Output(as_json)
    output.document({"handlers": rows, "broken": broken})
    output.table(
        ["name", "plugin", "types", "kind", "attempts", "timeout", "state"],
        [
            [row["name"], row["plugin"], " ".join(row["types"]), row["kind"], row["attempts"], f"{row['timeout_s']:g}s",
             _word(row) if known else "-"]
            for row in rows
        ],
        empty="no handler is installed",
    )  # fmt: skip
    for told in (_stands_still, _stands_still_for, _dead, _runbook, _missed):
        for line in filter(None, map(told, rows)):
            output.line(line)
    for plugin in broken:
        output.line(f"broken: {plugin['plugin']}: {plugin['reason']}")


@app.command()
def check(as_json: Json = False) -> None:
    """Import every plugin and say what is wrong, one line a problem; exit 1 when there is one."""
    from consumer.cli.developing.misuse import misused
    from consumer.cli.developing.unmigrated import unmigrated, without_a_zone  # Alembic: only who checks waits for it
    from consumer.work.inspection import Problem, inspect_plugins, warnings_of

    settings = settings_for(Role.OPERATE)
    registry = registry_of(settings)
    renamed = {new: old for old, new in settings.renamed_handlers.items()}
    problems = inspect_plugins(registry, allowed=settings.handlers, renamed=renamed)
    problems += misused(registry)
    problems += unmigrated(registry)
    told = [line.partition(": ") for line in option_problems(registry, settings.handler_options)]
    problems += [Problem(plugin=place, text=text) for place, _, text in told]
    warnings = [*warnings_of(registry), *without_a_zone(registry)]
    output = Output(as_json)
    output.document(
        {
            "handlers": [handler.name for handler in registry.handlers],
            "problems": [{"plugin": one.plugin, "handler": one.handler, "problem": one.text} for one in problems],
            "warnings": [{"plugin": one.plugin, "handler": one.handler, "warning": one.text} for one in warnings],
        }
    )
    for problem in problems:
        output.line(problem.line())
    for warning in warnings:
        output.line(f"warning: {warning.line()}")
    more = f", {len(warnings)} warning(s)" if warnings else ""
    output.line(f"{len(registry.handlers)} handler(s), {len(problems)} problem(s){more}")
    raise typer.Exit(1 if problems else 0)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the package, like shop-shipping.")],
    into: Annotated[Path, typer.Option(help="Folder in which its folder is made.")] = Path(),
    tables: Annotated[bool, typer.Option("--tables", help="A handler with a table of its own and migrations.")] = False,
    consumer: Annotated[
        str | None,
        typer.Option(metavar="REQUIREMENT", help="Its dependency on the consumer, like `… @ git+https://…`."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a package with a handler, its tests and a pyproject.toml that installs."""
    wanted = consumer or requirement()
    written = write_package(name, into, tables=tables, consumer=wanted)
    warnings = [one for one in (unreachable(wanted),) if one]
    output = Output(as_json)
    files = [str(one) for one in written]
    output.document(
        {"name": name, "folder": str(into / name), "files": files, "consumer": wanted, "warnings": warnings}
    )
    for path in written:
        output.line(str(path))
    for warning in warnings:
        output.line(f"warning: {warning}")
    upgrade = " && consumer db upgrade" if tables else ""
    output.line(f"next: pip install -e {into / name} && pytest {into / name} && consumer handlers check{upgrade}")


@app.command()
def pause(name: Name, reason: Reason, application: Whose = None, as_json: Json = False) -> None:
    """Stop a handler; its runs wait and nothing else is held up."""
    settings = settings_looking()
    require_application(application, settings)
    run(_paused(settings, name, checked_reason(reason), application))
    _said(name, "paused", application, as_json)


@app.command()
def resume(name: Name, reason: Reason, application: Whose = None, as_json: Json = False) -> None:
    """Let a paused handler go on with what waited. Without `--application` that lifts each of its pauses."""
    run(_resumed(settings_looking(), name, checked_reason(reason), application))
    _said(name, "running", application, as_json)


def _row(handler: Handler, known: HandlerRow | None, missed: int, later: PutOff | None, died: int) -> dict[str, Any]:
    """What it declares, and how it stands."""
    return {
        "name": handler.name,
        "plugin": handler.plugin,
        "types": list(handler.types),
        "kind": "transactional" if handler.transactional else "effect",
        "fulfils": handler.fulfils,
        "attempts": handler.retry.attempts,
        "timeout_s": handler.timeout_s,
        "on_dead": handler.on_dead,
        "version": handler.version,
        "breaker_after": handler.breaker_after,
        "pause_after": handler.pause_after,
        "missed": missed,
        "dead": died,
        "put_off": asdict(later) if later else None,
        **_state(known),
        "runbook": known.runbook if known else handler.runbook,
    }


def _state(row: HandlerRow | None) -> dict[str, Any]:
    """Whether it is paused (since when, by whom, why), and whether it waits for what it depends on."""
    return {
        "paused": row is not None and row.paused_at is not None,
        "paused_at": row.paused_at if row else None,
        "paused_by": row.paused_by if row else None,
        "paused_reason": row.paused_reason if row else None,
        "waiting_since": row.waiting_since if row else None,
        "waiting_reason": row.waiting_reason if row else None,
    }


def _paused_for(alone: Sequence[HandlerPauseRow], name: str) -> list[dict[str, Any]]:
    """For which applications alone it is paused: since when, by whom, why."""
    return [
        {name: getattr(one, name) for name in ("application", "paused_at", "paused_by", "paused_reason")}
        for one in alone
        if one.handler == name
    ]


def _word(row: Mapping[str, Any]) -> str:
    stands = "paused" if row["paused"] else "waits" if row["waiting_since"] or row["put_off"] else "runs"
    if row["paused_for"] and not row["paused"]:
        stands = f"paused for {', '.join(one['application'] for one in row['paused_for'])}"
    return f"{stands}, {_up_to(row['dead'], COUNT_MAX)} dead" if row["dead"] else stands


def _stands_still(row: Mapping[str, Any]) -> str:
    """Since when, and why; empty where it gets on."""
    if row["paused"]:
        since = f"{row['paused_at']:%Y-%m-%d %H:%M} UTC"
        return f"paused: {row['name']}: since {since} by {row['paused_by']}: {row['paused_reason']}"
    if row["waiting_since"]:
        since = f"{row['waiting_since']:%Y-%m-%d %H:%M} UTC"
        return f"waits: {row['name']}: what it depends on does not answer since {since}: {row['waiting_reason']}"
    if (oldest := row["put_off"]) is not None:
        since = f"{oldest['since']:%Y-%m-%d %H:%M} UTC"
        return f"waits: {row['name']}: puts off {oldest['event_id']} since {since}: {oldest['reason']}"
    return ""


def _stands_still_for(row: Mapping[str, Any]) -> str:
    """The same of each application for which alone it is paused; a line each."""
    return "\n".join(
        f"paused for {one['application']}: {row['name']}: since {one['paused_at']:%Y-%m-%d %H:%M} UTC"
        f" by {one['paused_by']}: {one['paused_reason']}"
        for one in row["paused_for"]
    )


def _dead(row: Mapping[str, Any]) -> str:
    """Where its dead runs are told; empty where it has none."""
    return f"dead: {row['name']}: `consumer dead list --handler {row['name']}` says what of" if row["dead"] else ""


def _runbook(row: Mapping[str, Any]) -> str:
    """What its author tells the operator; empty where it runs."""
    return f"runbook of {row['name']}: {row['runbook']}" if row["runbook"] and _word(row) != "runs" else ""


def _missed(row: Mapping[str, Any]) -> str:
    """How many events, and what to type; empty where it missed none."""
    if not row["missed"]:
        return ""
    count = _up_to(row["missed"], MISSED_MAX)
    cure = f"`{replay_command(row['name'])}` shows what acting on them would do"
    return f"missed: {row['name']}: {count} event(s) from before it was there, or from while it was away: {cure}"


def _up_to(count: int, most: int) -> str:
    """A number that was counted no further than that."""
    return f"at least {count}" if count >= most else str(count)


def _said(name: str, state: str, application: str | None, as_json: bool) -> None:
    output = Output(as_json)
    output.document({"handler": name, "state": state, "application": application})
    output.line(f"{name}: {state}{f' for {application}' if application else ''}")


async def _known(
    settings: Settings, registry: Registry
) -> tuple[dict[str, HandlerRow], Sequence[HandlerPauseRow], dict[str, int], dict[str, PutOff], dict[str, int]]:
    """What the ledger knows of handlers, which are paused for one application alone, how many events each missed, what
    each puts off, and how many of its runs are dead; nothing when there is no ledger yet, since the list is useful
    without it."""
    try:
        async with ledger(settings) as database, database.reading() as session:
            known = {row.name: row for row in await ledger_handlers.everyone(session)}
            alone = await ledger_handlers.pauses(session)
            missed: dict[str, int] = {}
            for one in registry.handlers:
                since = known[one.name].first_seen_at if one.name in known else None
                missed[one.name] = await candidates.missed(session, one.name, one.types, since, MISSED_MAX)
            counted = await count_by_status(session)
            died = {name: count for (name, status), count in counted.items() if status == RunStatus.DEAD}
            return known, alone, missed, await put_off(session, await shared_time(session)), died
    except DatabaseMissing:
        return {}, (), {}, {}, {}
    except LedgerError as error:
        unknown = "whether they run, wait or are paused is not known"
        typer.echo(f"warning[{error.code}]: {unknown}: {error.message}", err=True)
        return {}, (), {}, {}, {}


async def _paused(settings: Settings, name: str, reason: str, application: str | None) -> None:
    async with ledger(settings) as database, database.transaction() as session:
        now = await shared_time(session)
        await pausing.pause(session, name, by=actor(), reason=reason, now=now, application=application)


async def _resumed(settings: Settings, name: str, reason: str, application: str | None) -> None:
    async with ledger(settings) as database, database.transaction() as session:
        now = await shared_time(session)
        await pausing.resume(session, name, by=actor(), reason=reason, now=now, application=application)
