"""A plugin's own payloads: the kit makes complete events of them, and a type says one thing only."""

from __future__ import annotations

import threading
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, PydanticSchemaGenerationError

from consumer.errors import HandlerInvalid, PayloadUnexpected
from consumer.payload import payload_class
from consumer.plugin import Context, Event, OrderEvent, Payload, handles
from consumer.testing import Workbench


class Word(Enum):
    HIGH = "high"


class Line(BaseModel):
    sku: str
    count: int


class Needs(Payload, event="own.needs"):
    """Required fields of every kind, none with an example."""

    order_id: str
    name: str
    count: int
    big: Annotated[int, Field(ge=1)]
    price: Decimal
    at: datetime
    day: date
    kind: Literal["gift", "sale"]
    word: Word
    line: Line
    lines: tuple[Line, ...]
    by_sku: dict[str, int]
    perhaps: str | None
    is_new: bool


class Shaped(Payload, event="own.shaped"):
    sku: str = Field(pattern=r"^[0-9]{4}$")


class Shown(Payload, event="own.shown"):
    sku: str = Field(pattern=r"^[0-9]{4}$", examples=["1234"])


@handles("own.needs", name="own:reads")
async def reads(event: Event[Needs], ctx: Context) -> None:
    said = event.payload
    body: dict[str, Any] = {"kind": said.kind, "order": said.order_id, "sku": said.line.sku}
    async with ctx.http.put("https://shop.example", json=body) as answer:
        answer.raise_for_status()


# case: H11
def test_what_the_author_gives_no_example_of_is_made_up_by_its_type(workbench: Workbench) -> None:
    event = workbench.event("own.needs", order_id="A-1", data={"name": "Ada"})
    said = event.payload
    assert isinstance(said, Needs)
    assert (said.order_id, said.name, said.count, said.word, said.perhaps) == ("A-1", "Ada", 1, Word.HIGH, None)
    assert workbench.run(reads, event).succeeded
    assert workbench.outside.requests[0].body == {"kind": "gift", "order": "A-1", "sku": "sku"}


# case: H11
def test_what_no_type_tells_is_asked_for_by_name(workbench: Workbench) -> None:
    with pytest.raises(PayloadUnexpected, match=r"Shaped\.sku: give the event a value.*or the class an example"):
        workbench.event("own.shaped")
    given, shown = workbench.event("own.shaped", data={"sku": "4711"}), workbench.event("own.shown")
    assert isinstance(given.payload, Shaped)
    assert isinstance(shown.payload, Shown)
    assert (given.payload.sku, shown.payload.sku) == ("4711", "1234")


# case: H10
@pytest.mark.parametrize("event_type", ["order.paid", "own.needs"])
def test_a_type_that_says_something_already_is_not_bound_again(event_type: str) -> None:
    before = payload_class(event_type)
    with pytest.raises(HandlerInvalid, match=rf"{event_type}.*carries .*{before.__name__} already"):

        class Again(Payload, event=event_type):
            extra: str

    assert payload_class(event_type) is before


def test_the_same_class_again_is_a_reload() -> None:
    def declared() -> type[Payload]:
        class Reloaded(Payload, event="own.reloaded"):
            order_id: str

        return Reloaded

    declared()
    newest = declared()
    assert payload_class("own.reloaded") is newest


# case: H11
def test_a_reading_of_ones_own_needs_no_binding(workbench: Workbench) -> None:
    class WithShop(OrderEvent):
        shop: str

    event = workbench.event("order.paid", order_id="A-1", data={"shop": "north"})
    own = WithShop.read(event.payload.model_dump(), event.type)
    assert (own.order_id, own.shop) == ("A-1", "north")


def test_a_field_that_nothing_can_read_is_refused_where_it_is_declared() -> None:
    with pytest.raises(PydanticSchemaGenerationError):

        class Unreadable(Payload, event="own.unreadable"):
            parcel: threading.Thread
