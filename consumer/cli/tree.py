"""Tree: which module brings which command. A call loads only the module of its first word, so that who looks does not
wait for the simulator, the demo and every role to be imported; whoever asks for all, loads all. The first help is
`outline.py`'s."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

MEANT_MAX: Final = 5
SENTENCE_MAX: Final = 1000


class Branch(TyperGroup):
    """Commands under one word. Its help says of each the whole sentence: half of one may say something else."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands, each with its first sentence, however many lines that takes."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(SENTENCE_MAX)) for name, one in found if one and not one.hidden]
            )


class Trunk(Branch):
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


COMMANDS: Final[Mapping[str, str]] = {
    "demo": "developing.everything:demo",
    "dev": "developing.everything:dev",
    "serve": "roles:serve",
    "work": "roles:work",
    "sync": "roles:sync",
    "console": "roles:console",
    "sandbox": "developing.simulator:app",
    "status": "looking.status:status",
    "quarantine": "repairing.quarantine:app",
    "backfill": "walking.backfill:backfill",
    "reconcile": "walking.reconcile:reconcile",
    "doctor": "looking.doctor:doctor",
    "events": "looking.events:app",
    "dead": "repairing.dead:app",
    "replay": "repairing.replay:app",
    "rebuild": "repairing.rebuild:rebuild",
    "explain": "looking.explain:app",
    "invariants": "looking.invariants:invariants",
    "audit": "looking.audit:app",
    "prune": "repairing.archive:prune",
    "find": "looking.find:find_anything",
    "findings": "repairing.findings:app",
    "say": "repairing.say:say",
    "console-user": "repairing.console_user:console_user",
    "db": "repairing.schema:app",
    "handlers": "developing.handlers:app",
}
"""Each word to the module of `consumer.cli`, and the function or group in it; in the order of the help."""
JOINED: Final[Mapping[str, str]] = {"events": "repairing.archive", "db": "developing.revising"}
"""Modules that bring further commands of a group."""
LOOKS: Final = frozenset({("events", "list"), ("events", "show")})
"""What only looks needs nothing of what joins its group."""


def tree(*words: str) -> typer.Typer:
    """All commands; only the one that a call with these words needs, where it is known."""
    app = trunk()
    for word in words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS:
        if word in JOINED and words[:2] not in LOOKS:
            import_module(f"consumer.cli.{JOINED[word]}")
        module, _, name = COMMANDS[word].partition(":")
        found = getattr(import_module(f"consumer.cli.{module}"), name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=word, cls=found.info.cls if isinstance(found.info.cls, type) else Branch)
        else:
            app.command(name=word)(found)
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
