"""`consumer explain …`: why an order, a subscription or a customer stands where it does, and what happens next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from consumer.cli.bootstrap import ledger, run, settings_looking
from consumer.cli.filters import Application, OneApplication, one_application, require_application
from consumer.cli.looking.find import Name, look_up, show_found
from consumer.cli.output import Json, Output, shown
from consumer.cli.tree import Branch
from consumer.console.cure import replay_command
from consumer.console.explain import explain
from consumer.console.find import Found, find_shown, near
from consumer.console.mentions import SUBJECTS
from consumer.console.timeline import changed, words
from consumer.document import as_time, label
from consumer.errors import NotFound, UsageError
from consumer.ledger.engine.database_time import shared_time
from consumer.settings import Settings
from handlers.access.policy import Policy


class AnyId(Branch):
    """`explain ANYTHING`: what is no kind of subject, or stands alone, is any id. Options may come first;
    behind `--` everything is an id."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The subcommand and its arguments."""
        return super().parse_args(ctx, self._with_kind(args))

    def _with_kind(self, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        valued = {place + 1 for place, one in enumerate(args[:end]) if one == "--application"}
        words = [place for place, one in enumerate(args[:end]) if not one.startswith("-") and place not in valued]
        if not words and ("--help" in args or not args):
            return args
        is_kind = bool(words) and args[words[0]] in self.commands
        if is_kind and (len(words) > 1 or len(args) > end + 1 or "--help" in args):
            return [args[words[0]], *args[: words[0]], *args[words[0] + 1 :]]
        return ["anything", *args]


app = typer.Typer(
    cls=AnyId, help="Why something stands where it does, and what happens next. Any id will do.", no_args_is_help=True
)


@app.command()
def order(
    order_id: Annotated[str, typer.Argument(metavar="ID", help="The merchant's order id.")],
    application: OneApplication = None,
    as_json: Json = False,
) -> None:
    """Why an order is fulfilled, or is not."""
    _explain_one(application, ("order", order_id), as_json)


@app.command()
def subscription(
    subscription_id: Annotated[str, typer.Argument(metavar="ID", help="Subscription id.")],
    application: OneApplication = None,
    as_json: Json = False,
) -> None:
    """Why a subscription gives access, or does not."""
    _explain_one(application, ("subscription", subscription_id), as_json)


@app.command()
def customer(
    reference: Annotated[str, typer.Argument(metavar="REF", help="The merchant's customer reference.")],
    application: OneApplication = None,
    as_json: Json = False,
) -> None:
    """Why a customer has access, or has not."""
    _explain_one(application, ("customer", reference), as_json)


@app.command(hidden=True)
def anything(name: Name, application: Application = None, as_json: Json = False) -> None:
    """Why what has this id, of any kind, stands where it does."""
    settings = settings_looking()
    try:
        found = run(look_up(settings, name, application))
    except NotFound as error:
        if name in SUBJECTS:  # a kind that stands alone: somebody forgot the id
            raise UsageError(f"nothing is named {name}; consumer explain {name} takes an id behind it") from error
        raise
    subjects = list(dict.fromkeys((one.application, *one.subject) for one in found if one.subject is not None))
    if len(subjects) != 1:
        show_found(found, as_json)
        return
    [(where, kind, id_)] = subjects
    _explain(settings, where, (kind, id_), as_json)


def _explain_one(application: str | None, asked: tuple[str, str], as_json: bool) -> None:
    settings = settings_looking()
    _explain(settings, one_application(application, settings), asked, as_json)


def _explain(settings: Settings, application: str, asked: tuple[str, str], as_json: bool) -> None:
    policy = Policy() if asked[0] == "order" else _policy(settings)
    found = run(_look(settings, application, asked, policy))
    if not isinstance(found, dict):
        _explain_named(settings, application, asked, found, as_json)
        return
    _name_cures(found["next"], found["state"], settings, application)
    output = Output(as_json)
    output.document(found)
    output.fields(_flat(found["state"]))
    for part in ("orders", "subscriptions", "sources", "checkouts"):
        for entry in found.get(part, []):
            output.line(f"{part.removesuffix('s')}: " + _words(entry))
    if found.get("orders_shown"):
        output.line(f"orders: {found['orders_shown']}")
    for name, value in _flat(found.get("policy", {})).items():
        output.line(f"rule: {name}={shown(value)}")
    output.line("\nwhat happened")
    for entry in found["timeline"]:
        output.line("  " + _words(entry))
    output.line("what happens next")
    for entry in found["next"]:
        output.line("  " + _words(entry))
    if not found["next"]:
        output.line("  nothing: nothing is due, and nobody is waited for")


def _explain_named(
    settings: Settings, application: str, asked: tuple[str, str], found: Sequence[Found], as_json: bool
) -> None:
    """What else has this name: its one subject is explained, or all of it is shown."""
    others = list(dict.fromkeys(one.subject for one in found if one.subject is not None))
    if len(others) != 1 or asked in others:
        Output(as_json).line(f"no {asked[0]} of this id is known yet; what has this name:")
        show_found(found, as_json, but=asked)
        return
    [(kind, id_)] = others
    Output(as_json).line(f"{asked[1]} is an id of {kind} {id_}:")
    _explain(settings, application, (kind, id_), as_json)


def _name_cures(entries: list[dict[str, Any]], state: Mapping[str, Any], settings: Settings, application: str) -> None:
    """What nobody handled and somebody could now: the command for it."""
    untaken = [entry for entry in entries if entry["code"] == "no_handler"]
    if not untaken:
        return
    from consumer.cli.plugins import registry_of  # every plugin: only where one is to be named

    names = registry_of(settings).shippers
    for entry in untaken:
        order_id = entry.get("order_id") or state["order_id"]
        entry["run"] = [replay_command(name, order=order_id, application=application) for name in names]


def _policy(settings: Settings) -> Policy:
    """What the options of `access` say, which decide about access and about nothing else. Raises SettingsError."""
    from consumer.app.options import require_options
    from consumer.cli.plugins import registry_of

    require_options(registry_of(settings), settings.handler_options)
    return Policy.model_validate(settings.handler_options.get("access", {}))


async def _look(
    settings: Settings, application: str, asked: tuple[str, str], policy: Policy
) -> dict[str, Any] | Sequence[Found]:
    """The explanation; else what else has this name. Raises NotFound that says what is near, UsageError for an unknown
    application."""
    one = settings.application(application)
    async with ledger(settings) as database, database.reading() as session:
        now, has_credentials = await shared_time(session), one is not None and one.has_credentials
        try:
            return await explain(session, application, asked, policy, now, has_credentials=has_credentials)
        except NotFound as error:
            if found_else := await find_shown(session, asked[1], application=application):
                return found_else
            require_application(application, settings)
            alike = await near(session, asked[1], application=application)
            raise NotFound(error.message, **{**error.fields, "near": ", ".join(alike) or None}) from error


def _flat(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if value not in (None, [], {})}


def _words(entry: Mapping[str, Any]) -> str:
    said = [f"{name}={shown(as_time(value))}" for name, value in words(entry, "before", "after")]
    return "  ".join(
        said + [f"{label(name)}: {shown(as_time(was))} → {shown(as_time(now))}" for name, was, now in changed(entry)]
    )
