"""An error that is kept and raised again and again, through an outage of an hour, keeps nothing that it passed."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

import consumer
import handlers
from consumer.clock import SystemClock
from consumer.errors import SettingsError, TopicUnknown, again
from consumer.payments import PaymentsError, ServiceUnreachable
from consumer.sync.api import Cooldown

FOLDERS = [Path(one.__path__[0]) for one in (consumer, handlers)]


def kept_and_raised() -> Iterator[str]:
    """Where an attribute of an object that lives on is raised as it is."""
    for path in (one for folder in FOLDERS for one in sorted(folder.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Attribute):
                yield f"{path.parent.name}/{path.name}: raise {ast.unparse(node.exc)}"


OF_ONE_ROUND = {
    "backfill/page.py: raise self.held_up",  # of one page, once what was read of it is settled
    "outside/session.py: raise answer.error",  # what a test of a handler's author plans, once for each answer
}


def test_none_is_raised_as_it_is_kept() -> None:
    assert set(kept_and_raised()) == OF_ONE_ROUND


@pytest.mark.parametrize(
    "error",
    [
        TopicUnknown("no such topic", topic="events"),
        SettingsError(["one", "two"]),
        ServiceUnreachable("nobody answers", sent=False, url="/v1/orders"),
        ValueError("what nobody foresaw"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_it_is_the_same_once_more(error: Exception) -> None:
    fresh = again(error)
    assert fresh is not error
    assert (type(fresh), str(fresh), vars(fresh)) == (type(error), str(error), vars(error))


def test_an_hour_of_refusals_holds_no_round() -> None:
    cooldown = Cooldown(SystemClock())
    kept = ServiceUnreachable("nobody answers")
    assert cooldown.take(kept)

    for _ in range(20):
        with pytest.raises(PaymentsError) as raised:
            cooldown.check()
        assert len(list(traceback.walk_tb(raised.value.__traceback__))) == 2
    assert kept.__traceback__ is None
