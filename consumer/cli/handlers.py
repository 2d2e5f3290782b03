"""`consumer handlers …`: the plugins."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from consumer.cli.output import Json, Output
from consumer.cli.process import ledger, run, settings_for
from consumer.errors import LedgerError, NotFound
from consumer.ledger import audit
from consumer.ledger import handlers as ledger_handlers
from consumer.ledger.tables import HandlerRow
from consumer.settings import Role, Settings
from consumer.work.registry import Registry, load_registry

app = typer.Typer(help="The handlers, built-in and merchants' own.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Handler name, as `handlers list` shows it.")]
Reason = Annotated[str, typer.Option(help="Why; kept in the audit trail.")]


def registry_of(settings: Settings) -> Registry:
    """The handlers that these settings load."""
    return load_registry(settings.handlers, {new: old for old, new in settings.renamed_handlers.items()})


@app.command("list")
def list_handlers(as_json: Json = False) -> None:
    """Every handler that is installed, what it wants, and whether it runs."""
    settings = settings_for(Role.OPERATE)
    registry = registry_of(settings)
    known = run(_known(settings))
    rows: list[dict[str, Any]] = [
        {
            "name": handler.name,
            "plugin": handler.plugin,
            "types": list(handler.types),
            "kind": "transactional" if handler.transactional else "effect",
            "attempts": handler.retry.attempts,
            "timeout_s": handler.timeout_s,
            "on_dead": handler.on_dead,
            "version": handler.version,
            "paused": handler.name in known and known[handler.name].paused_at is not None,
        }
        for handler in registry.handlers
    ]
    broken = [{"plugin": plugin.plugin, "reason": plugin.reason} for plugin in registry.broken]
    output = Output(as_json)
    output.document({"handlers": rows, "broken": broken})
    output.table(
        ["name", "plugin", "types", "kind", "attempts", "timeout", "state"],
        [
            [row["name"], row["plugin"], " ".join(row["types"]), row["kind"], row["attempts"], f"{row['timeout_s']:g}s",
             "paused" if row["paused"] else "runs"]
            for row in rows
        ],
        empty="no handler is installed",
    )  # fmt: skip
    for plugin in broken:
        output.line(f"broken: {plugin['plugin']}: {plugin['reason']}")


@app.command()
def pause(name: Name, reason: Reason, as_json: Json = False) -> None:
    """Stop a handler; its runs wait and nothing else is held up."""
    run(_set(name, reason, paused=True))
    _said(name, "paused", as_json)


@app.command()
def resume(name: Name, reason: Reason, as_json: Json = False) -> None:
    """Let a paused handler go on with what waited, oldest first."""
    run(_set(name, reason, paused=False))
    _said(name, "running", as_json)


def _said(name: str, state: str, as_json: bool) -> None:
    output = Output(as_json)
    output.document({"handler": name, "state": state})
    output.line(f"{name}: {state}")


async def _known(settings: Settings) -> dict[str, HandlerRow]:
    """What the ledger knows; nothing when there is none yet, since the list is useful without it."""
    try:
        async with ledger(settings) as database, database.reading() as session:
            return {row.name: row for row in await ledger_handlers.everyone(session)}
    except LedgerError:
        return {}


async def _set(name: str, reason: str, *, paused: bool) -> None:
    now = datetime.now(UTC)
    async with ledger(settings_for(Role.OPERATE)) as database, database.transaction() as session:
        done = (
            await ledger_handlers.pause(session, name, by="operator", reason=reason, now=now)
            if paused
            else await ledger_handlers.resume(session, name)
        )
        if not done:
            raise NotFound("the ledger knows no such handler; see `consumer handlers list`", handler=name)
        _audit(session, name, reason, now, paused=paused)


def _audit(session: Any, name: str, reason: str, now: datetime, *, paused: bool) -> None:
    audit.note(
        session,
        at=now,
        application="",
        actor="operator",
        action="handler.pause" if paused else "handler.resume",
        subject=f"handler:{name}",
        reason=reason,
    )
