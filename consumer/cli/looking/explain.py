"""`consumer explain …`: why an order, a subscription or a customer stands where it does, and what happens next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.app.options import option_problems
from consumer.cli.cures import replay_command, who_fulfils
from consumer.cli.developing.handlers import registry_of
from consumer.cli.output import Json, Output, shown
from consumer.cli.process import ledger, run, settings_looking
from consumer.console.explain import explain_customer, explain_order, explain_subscription
from consumer.console.unread import is_read
from consumer.errors import SettingsError
from consumer.settings import Settings
from handlers.access.policy import Policy

app = typer.Typer(help="Why something stands where it does, and what happens next.", no_args_is_help=True)
In = Annotated[str, typer.Option("--application", help="Application.")]
Explain = Callable[[AsyncSession, Policy, datetime, bool], Awaitable[dict[str, Any]]]


@app.command()
def order(
    order_id: Annotated[str, typer.Argument(metavar="ID", help="The merchant's order id.")],
    application: In = "default",
    as_json: Json = False,
) -> None:
    """Why an order is fulfilled, or is not."""
    _explain(
        application,
        lambda session, _policy, _now, is_read: explain_order(session, application, order_id, is_read=is_read),
        as_json,
    )


@app.command()
def subscription(
    subscription_id: Annotated[str, typer.Argument(metavar="ID", help="Subscription id.")],
    application: In = "default",
    as_json: Json = False,
) -> None:
    """Why a subscription gives access, or does not."""
    _explain(
        application,
        lambda session, policy, now, is_read: explain_subscription(
            session, application, subscription_id, policy, now, is_read=is_read
        ),
        as_json,
    )


@app.command()
def customer(
    reference: Annotated[str, typer.Argument(metavar="REF", help="The merchant's customer reference.")],
    application: In = "default",
    as_json: Json = False,
) -> None:
    """Why a customer has access, or has not."""
    _explain(
        application,
        lambda session, policy, now, is_read: explain_customer(
            session, application, reference, policy, now, is_read=is_read
        ),
        as_json,
    )


def _explain(application: str, explain: Explain, as_json: bool) -> None:
    found = run(_look(settings := settings_looking(), application, explain))
    _name_cures(found["next"], found["state"], settings)
    output = Output(as_json)
    output.document(found)
    output.fields(_flat(found["state"]))
    for part in ("subscriptions", "sources", "checkouts"):
        for entry in found.get(part, []):
            output.line(f"{part.removesuffix('s')}: " + _words(entry))
    output.line("\nwhat happened")
    for entry in found["timeline"]:
        output.line("  " + _words(entry))
    output.line("what happens next")
    for entry in found["next"] or [{"nothing": "is due"}]:
        output.line("  " + _words(entry))


def _name_cures(entries: list[dict[str, Any]], state: Mapping[str, Any], settings: Settings) -> None:
    """What nobody handled and somebody could now: the command for it."""
    for entry in entries:
        if entry["code"] == "no_handler":
            names = who_fulfils(registry_of(settings).handlers)
            entry["run"] = [replay_command(name, order=state["order_id"]) for name in names]


async def _look(settings: Settings, application: str, explain: Explain) -> dict[str, Any]:
    problems = option_problems(registry_of(settings), settings.handler_options)
    if problems:
        raise SettingsError(problems)
    policy = Policy.model_validate(settings.handler_options.get("access", {}))
    one, now = settings.application(application), datetime.now(UTC)
    async with ledger(settings) as database, database.reading() as session:
        has_reader = (one is not None and one.has_credentials) or await is_read(session, application, now)
        return await explain(session, policy, now, has_reader)


def _flat(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if value not in (None, [], {})}


def _words(entry: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={shown(value)}" for name, value in entry.items() if value not in (None, "", [], {}))
