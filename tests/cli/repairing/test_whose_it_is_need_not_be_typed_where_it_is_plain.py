"""What belongs to one application: which one need not be typed where there is only one, or only one has it; where it
might be another shop's, nobody guesses (case G8)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from consumer.ledger import Database
from consumer.ledger.handling import events
from tests.contract.ledger import facts
from tests.support.desk import Desk

ONE, TWO = {"CONSUMER_APPLICATIONS": '{"near": {}}'}, {"CONSUMER_APPLICATIONS": '{"near": {}, "far": {}}'}
OF_ONE = (
    ("explain", "order", "order-1"),
    ("findings", "show", "order-1"),
    ("findings", "close", "order-1", "orphan_payment", "--reason", "seen to it", "--yes"),
    ("findings", "list"),
    ("say", "fulfilment.released", "order-1", "--reason", "seen to it", "--yes"),
)


async def recorded(url: str, application: str) -> None:
    """An order `order-1` of the application was paid."""
    database = Database(url)
    async with database.transaction() as session:
        await events.record(session, [replace(facts.event(1), application=application, order_id="order-1")], facts.NOW)
    await database.stop()


# case: G8
@pytest.mark.parametrize("words", OF_ONE)
@pytest.mark.usefixtures("upgraded")
def test_the_only_application_is_meant_whatever_its_name(desk: Desk, words: tuple[str, ...]) -> None:
    told = desk.call(*words, **ONE)
    code, said = (0, "nothing is open") if words == ("findings", "list") else (1, "error[not_found]")
    assert (told.returncode, said in told.stdout + told.stderr) == (code, True), told
    assert "no such application" not in told.stderr


@pytest.mark.parametrize("words", OF_ONE)
@pytest.mark.usefixtures("upgraded")
def test_of_several_it_is_asked_which(desk: Desk, words: tuple[str, ...]) -> None:
    told = desk.call(*words, **TWO)
    assert told.returncode == 2
    assert "whose is it? name the application by --application (known=near, far)" in told.stderr


# case: G8
@pytest.mark.usefixtures("upgraded")
def test_an_event_is_found_in_whichever_application_has_it(desk: Desk, environ: dict[str, str]) -> None:
    """Its list shows all applications' events; by their ids, `show` said that there were none such."""
    url, event_id = environ["CONSUMER_DATABASE_URL"], facts.event(1).id
    asyncio.run(recorded(url, "far"))
    shown = desk.call("events", "show", event_id, "--json", **TWO)
    assert json.loads(shown.stdout)["application"] == "far"
    assert "application  " in desk.call("events", "show", event_id, **ONE).stdout, "though it is set up no more"
    asyncio.run(recorded(url, "near"))
    told = desk.call("events", "show", event_id, **TWO)
    assert (told.returncode, told.stdout) == (2, "")
    assert "name one by --application (known=far, near)" in told.stderr
    assert "application      near" in desk.call("events", "show", event_id, "--application", "near", **TWO).stdout
    assert "the ledger has no such event" in desk.call("events", "show", "evt_none", **TWO).stderr
