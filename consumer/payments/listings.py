"""Listings: reading by id, and walking a list by its own stop rule (spec, Pagination; cases B1-B17, C29, C30)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

import structlog

from consumer.payments.caller import Caller
from consumer.payments.errors import AnswerTooLarge, CursorLoop, UnexpectedAnswer
from consumer.payments.models import Cursor, Page, Record, dumped
from consumer.payments.requests import checked_limit, path_id

LOG = structlog.get_logger()

LIMIT_MAX = 100
PAGES_MAX = 100_000
EMPTY_PAGES_MAX = 10
CURSOR_MAX_CHARS = 1000

R = TypeVar("R", bound=Record)


class Stop(Enum):
    """When a walk is over."""

    EMPTY_OR_NULL = "numeric cursors: a full last page still hands out a cursor, the page after it is empty"
    NULL = "evt_ cursors: null when there are no more"


class Listing(Generic[R]):
    """A kind of record that can be listed and read by id."""

    collection: ClassVar[str]
    stop: ClassVar[Stop] = Stop.EMPTY_OR_NULL

    def __init__(self, caller: Caller, record: type[R]) -> None:
        self._caller = caller
        self._record = record

    async def list(self, *, limit: int = LIMIT_MAX, cursor: Cursor | None = None) -> Page[R]:
        """One page of at most `limit` (1 to 100) records; `cursor` is the `next_cursor` of the page before.

        Raises ValidationError before anything is sent when `limit` is out of its range.
        """
        return await self._fetched(limit, cursor, walk=False)

    async def pages(
        self, *, limit: int = LIMIT_MAX, cursor: Cursor | None = None, max_pages: int = PAGES_MAX
    ) -> AsyncIterator[Page[R]]:
        """The pages from `cursor` (default: the first) to the end, fetched as they are asked for.

        A walk waits for its places in the budget; give a long one a background priority, so that it leaves room.
        Raises CursorLoop when the list hands out a cursor twice, UnexpectedAnswer when it shows more than
        EMPTY_PAGES_MAX empty pages running, or does not end.
        """
        seen, empty = {str(cursor)}, 0
        for _ in range(max_pages):
            page = await self._fetched(limit, cursor, walk=True)
            empty = 0 if page.items else empty + 1
            if page.items or self.stop is Stop.NULL:
                yield page
            cursor = page.next_cursor
            if cursor is None or (not page.items and self.stop is Stop.EMPTY_OR_NULL):
                return
            if empty > EMPTY_PAGES_MAX:
                raise UnexpectedAnswer("the list shows empty pages and does not end", route=self._route)
            if str(cursor) in seen:
                raise CursorLoop(route=self._route)
            seen.add(str(cursor))
        raise UnexpectedAnswer("the list does not end", pages=max_pages, route=self._route)

    async def iterate(self, *, limit: int = LIMIT_MAX) -> AsyncIterator[R]:
        """Every record from the first to the end; raises as `pages` does."""
        async for page in self.pages(limit=limit):
            for item in page.items:
                yield item

    async def retrieve(self, record_id: str) -> R:
        """One record by its id. Raises ResourceNotFound when this application is not shown such a record."""
        answer = await self._caller.read(f"{self._route}/{{id}}", f"{self._route}/{path_id(record_id)}")
        return answer.read_as(self._record, lambda one: one.is_called(record_id))

    async def _fetched(self, limit: int, cursor: Cursor | None, *, walk: bool) -> Page[R]:
        """A page that is too large to be taken is asked for in parts, down to one record: it holds up no walk. Not by
        numeric cursors: with another limit they may mean another place."""
        params = [("limit", str(checked_limit(limit)))]
        if cursor is not None:
            params.append(("cursor", str(cursor)))
        try:
            answer = await self._caller.read(self._route, self._route, tuple(params), walk=walk)
        except AnswerTooLarge:
            if limit == 1 or self.stop is Stop.EMPTY_OR_NULL:
                raise
            return await self._fetched(max(1, limit // 4), cursor, walk=walk)
        return self._page(answer.document)

    @property
    def _route(self) -> str:
        return f"/v1/{self.collection}"

    def _page(self, document: Mapping[str, Any]) -> Page[R]:
        items = document.get("items")
        cursor = document.get("next_cursor")
        if not isinstance(items, list):
            raise UnexpectedAnswer("the list has no items", route=self._route)
        if not _is_cursor(cursor):
            raise UnexpectedAnswer("the list's cursor is neither text nor a number", route=self._route)
        # An empty one leads nowhere: as none at all, it can only be the end (case U19).
        return Page(tuple(self._item(item) for item in items), None if cursor == "" else cursor)

    def _item(self, item: Any) -> R:
        """One that is no object, or whose reading breaks, hides none of its neighbours: it is a record that says
        nothing, kept as it came."""
        try:
            return self._record.read(item) if isinstance(item, dict) else self._record.read({}, dumped(item))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this record's alone
            LOG.error("listed_record_broke_its_reading", route=self._route, error=type(error).__name__)  # noqa: TRY400 - its text may hold what the record says
            return self._record.unread(item)


def _is_cursor(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, str):
        return len(value) <= CURSOR_MAX_CHARS
    return isinstance(value, int) and not isinstance(value, bool)
