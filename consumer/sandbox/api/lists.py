"""Lists: pages and their cursors - numeric for most, `evt_` ids for events (spec, Pagination; cases X55, X57)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from consumer.sandbox.engine.events import public_id
from consumer.sandbox.engine.records import Event
from consumer.sandbox.engine.shelf import R, Shelf
from consumer.sandbox.engine.world import World
from consumer.sandbox.errors import Refusal

DEFAULT_LIMIT = 20
MAX_LIMIT = 100
PARAMETERS = ("limit", "cursor")


@dataclass(frozen=True)
class Page:
    """What the query asks for."""

    limit: int
    cursor: str | None


def page_query(query: Mapping[str, str]) -> Page:
    """`limit` and `cursor` of a list request. Raises validation_failed."""
    text = query.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MAX_LIMIT):
        raise Refusal("validation_failed", f"limit must be an integer from 1 to {MAX_LIMIT}.", field="limit")
    return Page(int(text), query.get("cursor"))


def numeric_list(
    world: World, shelf: Shelf[R], owner: str, page: Page, keep: Callable[[R], bool] = lambda _record: True
) -> dict[str, Any]:
    """One page of records with a numeric cursor. A full last page still has a cursor (case B15)."""
    newest_first = world.assumptions.text("lists_order") == "newest_first"
    by_offset = world.assumptions.text("numeric_cursor") == "offset"
    number = _cursor_number(world, page.cursor)
    if number is None:
        return {"items": [], "next_cursor": None}
    seqs = shelf.seqs(owner)
    skip = number if by_offset else 0
    wanted = _after(seqs, None if by_offset or page.cursor is None or number == 0 else number, newest_first)
    seen = (world.seen(shelf, shelf.at_seq(seq).id) for seq in wanted)
    readable = (record for record in seen if record is not None and keep(record))
    items = list(islice(readable, skip, skip + page.limit))
    cursor: int | str | None = None
    if len(items) == page.limit:
        cursor = skip + len(items) if by_offset else items[-1].seq
        if world.assumptions.text("cursor_type") == "string":
            cursor = str(cursor)
    return {"items": items, "next_cursor": cursor}


def _after(seqs: list[int], cursor: int | None, newest_first: bool) -> Iterator[int]:
    """The sequence numbers that follow the cursor, in list order; found by bisection."""
    if newest_first:
        end = len(seqs) if cursor is None else bisect_left(seqs, cursor)
        return (seqs[position] for position in range(end - 1, -1, -1))
    start = 0 if cursor is None else bisect_right(seqs, cursor)
    return (seqs[position] for position in range(start, len(seqs)))


def _cursor_number(world: World, cursor: str | None) -> int | None:
    """The number of a numeric cursor, 0 for none; None for an empty page."""
    if cursor is None:
        return 0
    if cursor.isascii() and cursor.isdigit() and len(cursor) <= 18:
        return int(cursor)
    return invalid_cursor(world)


def invalid_cursor(world: World) -> int | None:
    """A cursor that names nothing: where to start, None for an empty page. Raises validation_failed (assumption)."""
    answer = world.assumptions.text("invalid_cursor")
    if answer == "refuse":
        raise Refusal("validation_failed", "The cursor is not valid.", field="cursor")
    return 0 if answer == "first_page" else None


def event_list(world: World, app_id: str, page: Page) -> dict[str, Any]:
    """One page of events. `next_cursor` is an `evt_` id, null when there are no more.

    Positions are found by bisection, so that a long log costs no more than a short one.
    """
    seqs = world.events.seqs(app_id)
    newest_first = world.assumptions.text("events_order") == "newest_first"
    inclusive = world.assumptions.text("events_cursor") == "inclusive"
    step = -1 if newest_first else 1
    position = len(seqs) - 1 if newest_first else 0
    if page.cursor is not None:
        event = find_event(world, app_id, page.cursor)
        if event is None or not event.listed:
            if invalid_cursor(world) is None:
                return {"items": [], "next_cursor": None}
        else:
            position = bisect_left(seqs, event.seq) + (0 if inclusive else step)
    items: list[Event] = []
    following: Event | None = None
    while 0 <= position < len(seqs):
        event = world.events.at_seq(seqs[position])
        position += step
        if not event.listed or world.seen(world.events, event.id) is None:
            continue
        if len(items) == page.limit:
            following = event
            break
        items.append(event)
    cursor = None
    if following is not None:
        cursor = public_id(following if inclusive else items[-1])
    return {"items": items, "next_cursor": cursor}


def find_event(world: World, app_id: str, event_id: str) -> Event | None:
    """An application's own event by its public id, as reads see it."""
    for key in (event_id, f"{app_id}/{event_id}"):
        event = world.seen(world.events, key)
        if event is not None and event.app_id == app_id and public_id(event) == event_id:
            return event
    return None


def own(world: World, shelf: Shelf[R], owner: str, record_id: str) -> R:
    """A record of that owner as reads see it; not_found for a foreign one just as for none (case X56)."""
    record: R | None = world.seen(shelf, record_id)
    if record is None or record.app_id != owner:
        raise Refusal("not_found")
    return record
