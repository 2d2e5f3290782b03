"""The catalogue of payloads holds every event a handler may get, reads what it shows, and is the page in the docs."""

from __future__ import annotations

import pytest

from consumer.console.operators.vocabulary import WORDS
from consumer.errors import PayloadUnexpected
from consumer.payload import known_types, nearest_type, payload_class
from consumer.plugin import Event, FulfilmentRequested, declared
from consumer.plugin.catalogue import PAGE, page
from consumer.plugin.payloads import CATALOGUE
from consumer.sandbox.engine.events import TYPES
from consumer.testing import Workbench
from consumer.work.signatures import payload_problems
from tests.testing.right_handlers import RIGHT
from tests.testing.wrong_handlers import last_wins


def test_every_type_has_a_class() -> None:
    assert {*TYPES, *WORDS} <= CATALOGUE <= known_types().keys()


@pytest.mark.parametrize("event_type", sorted(CATALOGUE))
def test_an_example_reads_as_its_class(event_type: str) -> None:
    with Workbench() as bench:
        event = bench.event(event_type)
    assert type(event.payload) is payload_class(event_type)
    if event_type not in TYPES:
        assert not event.payload.more


def test_words_take_the_fields_that_the_vocabulary_names() -> None:
    for word, known in WORDS.items():
        assert set(known.needs + known.may) <= payload_class(word).model_fields.keys(), word


def test_unknown_fields_survive_and_what_does_not_fit_is_told_without_values(workbench: Workbench) -> None:
    event: Event[FulfilmentRequested] = workbench.event("fulfilment.requested", data={"color": "red"})  # type: ignore[assignment]  # narrowed by the test
    assert event.payload.more == {"color": "red"}
    wrong: Event[FulfilmentRequested] = workbench.event("fulfilment.requested", data={"order_id": {"secret": 1}})  # type: ignore[assignment]  # narrowed by the test
    with pytest.raises(PayloadUnexpected, match="order_id: Input should be a valid string") as told:
        _ = wrong.payload
    assert "secret" not in str(told.value)


def test_check_compares_the_annotation_with_the_types() -> None:
    for function in RIGHT:
        handler = declared(function)
        assert handler is not None
        assert not payload_problems(handler)
    half = declared(last_wins)
    assert half is not None
    assert payload_problems(half) == [
        "it is annotated Event[AccessGranted], and an event of access.revoked carries AccessRevoked"
    ]


def test_the_page_is_what_the_catalogue_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m consumer.plugin.catalogue`"


def test_the_nearest_type() -> None:
    assert (nearest_type("order.payed"), nearest_type("zzz")) == ("order.paid", None)
