"""Outline: what `consumer --help` says, without the commands: nobody who asks for it waits for all of them to be
imported. `tests/cli/test_help_is_quick.py` holds it to what they say themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import typer

# In the order of the help.
SAID: Final[Mapping[str, str]] = {
    "demo": "Everything in one process: plays named scenarios; exit 0 only if every outcome is as expected.",
    "dev": "Everything in one process on ./data, stays up; with the sandbox unless SVC_BASE_URL is set.",
    "serve": "Receive webhooks and put them on the log.",
    "work": "Run handlers on events.",
    "sync": "Read the service: confirm hints, do the reads that handlers asked for.",
    "console": "Serve the query API and the operator's pages.",
    "status": "How things stand; exit 0 healthy, 1 degraded, 2 stuck (orders wait), 3 it could not be known.",
    "backfill": "One walk of the service's events: what the ledger lacks is published.",
    "reconcile": "One walk of orders, subscriptions and payments: what differs is published as observations.",
    "doctor": "Check settings, database, broker, handlers, clocks and credentials; exit 1 when one fails.",
    "rebuild": "Drop a plugin's tables and derive them again from the runs that the ledger has, with `work` stopped.",
    "invariants": "Every payment in one class, every access with its source.",
    "prune": "Take the bodies of settled events out of the ledger, into archives that were read back before.",
    "find": "What has this id: order, session, payment, subscription, customer, event, delivery, idempotency key.",
    "say": "Tell the built-in handlers something: an order paid by hand, a hold, a gift, a customer found.",
    "console-user": "Print a line for the file CONSUMER_CONSOLE_USERS; the password is asked for, or read from stdin.",
    "sandbox": "The simulator of the payments service, alone.",
    "quarantine": "Deliveries that could not be verified or understood.",
    "events": "The recorded events.",
    "dead": "Dead runs: look, try again, give up.",
    "replay": "Do again what died, was missed or has a new handler: plan, look, apply.",
    "explain": "Why something stands where it does, and what happens next. Any id will do.",
    "audit": "The audit trail: who did what, as a chain that can be verified.",
    "findings": "What waits for a person's decision.",
    "db": "The database schema.",
    "handlers": "The handlers, built-in and merchants' own.",
}


def outline(app: typer.Typer) -> typer.Typer:
    """The app with every word and what it says, and nothing behind them."""
    for word, said in SAID.items():
        app.command(name=word, help=said)(_nothing)
    return app


def _nothing() -> None:
    return None
