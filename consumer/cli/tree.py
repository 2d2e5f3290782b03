"""Tree: which module brings which command. A call loads only the module of its first word, so that who looks does not
wait for the simulator, the demo and every role to be imported; whoever asks for all, loads all. The first help is
`outline.py`'s."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final

import typer
from typer.core import TyperGroup

Add = Callable[[typer.Typer], None]
MEANT_MAX: Final = 5


class Trunk(TyperGroup):
    """All commands. Of a word that is none, the commands that end in it, or in one like it, are named."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word, and the rest."""
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            meant = [f"'consumer {one}'" for one in self._meant(word)]
            ctx.fail(f"No such command {word!r}." + (f" Did you mean {' or '.join(meant)}?" if meant else ""))
        return super().resolve_command(ctx, args)

    def _meant(self, word: str) -> list[str]:
        by_last: dict[str, list[str]] = {}
        for first, command in self.commands.items():
            by_last.setdefault(first, []).append(first)
            for last in (name for name, one in getattr(command, "commands", {}).items() if not one.hidden):
                by_last.setdefault(last, []).append(f"{first} {last}")
        alike = [word] if word in by_last else difflib.get_close_matches(word, by_last)
        return [one for last in alike for one in by_last[last]][:MEANT_MAX]


def _everything(app: typer.Typer) -> None:
    from consumer.cli.developing import everything

    app.command()(everything.demo)
    app.command()(everything.dev)


def _sandbox(app: typer.Typer) -> None:
    from consumer.cli.developing import simulator

    app.add_typer(simulator.app, name="sandbox")


def _roles(app: typer.Typer) -> None:
    from consumer.cli import roles

    roles.add_to(app)


def _status(app: typer.Typer) -> None:
    from consumer.cli.looking import status

    status.add_to(app)


def _quarantine(app: typer.Typer) -> None:
    from consumer.cli.repairing import quarantine

    app.add_typer(quarantine.app, name="quarantine")


def _backfill(app: typer.Typer) -> None:
    from consumer.cli.walking import backfill

    backfill.add_to(app)


def _reconcile(app: typer.Typer) -> None:
    from consumer.cli.walking import reconcile

    reconcile.add_to(app)


def _doctor(app: typer.Typer) -> None:
    from consumer.cli.looking import doctor

    doctor.add_to(app)


def _events(app: typer.Typer) -> None:
    from consumer.cli.looking import events
    from consumer.cli.repairing import archive as archive  # its commands join the list's

    app.add_typer(events.app, name="events")


def _prune(app: typer.Typer) -> None:
    from consumer.cli.repairing import archive

    app.command()(archive.prune)


def _dead(app: typer.Typer) -> None:
    from consumer.cli.repairing import dead

    app.add_typer(dead.app, name="dead")


def _replay(app: typer.Typer) -> None:
    from consumer.cli.repairing import replay

    app.add_typer(replay.app, name="replay")


def _rebuild(app: typer.Typer) -> None:
    from consumer.cli.repairing import rebuild

    app.command()(rebuild.rebuild)


def _explain(app: typer.Typer) -> None:
    from consumer.cli.looking import explain

    app.add_typer(explain.app, name="explain")


def _invariants(app: typer.Typer) -> None:
    from consumer.cli.looking import invariants

    app.command()(invariants.invariants)


def _audit(app: typer.Typer) -> None:
    from consumer.cli.looking import audit

    app.add_typer(audit.app, name="audit")


def _find(app: typer.Typer) -> None:
    from consumer.cli.looking import find

    find.add_to(app)


def _findings(app: typer.Typer) -> None:
    from consumer.cli.repairing import findings

    app.add_typer(findings.app, name="findings")


def _say(app: typer.Typer) -> None:
    from consumer.cli.repairing import say

    app.command()(say.say)


def _console_user(app: typer.Typer) -> None:
    from consumer.cli.repairing import console_user

    app.command()(console_user.console_user)


def _db(app: typer.Typer) -> None:
    from consumer.cli.developing import revising as revising  # its command joins the schema's
    from consumer.cli.repairing import schema

    app.add_typer(schema.app, name="db")


def _handlers(app: typer.Typer) -> None:
    from consumer.cli.developing import handlers

    app.add_typer(handlers.app, name="handlers")


def _events_alone(app: typer.Typer) -> None:
    from consumer.cli.looking import events

    app.add_typer(events.app, name="events")


# In the order of the help; the words that each of them brings.
PARTS: Final[Mapping[Add, tuple[str, ...]]] = {
    _everything: ("demo", "dev"),
    _roles: ("serve", "work", "sync", "console"),
    _sandbox: ("sandbox",),
    _status: ("status",),
    _quarantine: ("quarantine",),
    _backfill: ("backfill",),
    _reconcile: ("reconcile",),
    _doctor: ("doctor",),
    _events: ("events",),
    _dead: ("dead",),
    _replay: ("replay",),
    _rebuild: ("rebuild",),
    _explain: ("explain",),
    _invariants: ("invariants",),
    _audit: ("audit",),
    _prune: ("prune",),
    _find: ("find",),
    _findings: ("findings",),
    _say: ("say",),
    _console_user: ("console-user",),
    _db: ("db",),
    _handlers: ("handlers",),
}


# What only looks needs nothing of what repairs under the same word.
ALONE: Final[Mapping[tuple[str, ...], Add]] = {
    ("events", "list"): _events_alone,
    ("events", "show"): _events_alone,
}


def tree(*words: str) -> typer.Typer:
    """All commands; only those that a call with these words needs, where they are known."""
    app = trunk()
    alone = ALONE.get(words[:2])
    found = [alone] if alone else [add for add, known in PARTS.items() if words[:1] and words[0] in known]
    for add in found or PARTS:
        add(app)
    return app


def trunk() -> typer.Typer:
    """The tree without a command."""
    app = typer.Typer(
        name="consumer",
        cls=Trunk,
        help="Webhook consumer and fulfilment worker for the payments service.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_nothing)  # with a single command in it, it stays a tree
    return app


def _nothing() -> None:
    return None
