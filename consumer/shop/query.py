"""QueryApi: the consumer's query API, as a shop asks it."""

from __future__ import annotations

from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel, ValidationError
from yarl import URL

from consumer.document import parse
from consumer.errors import TermsDiffer
from consumer.payments import UnexpectedAnswer
from consumer.payments.answers import bounded
from consumer.shop.standing import AccessStanding, OrderStanding, QueryFailed

ANSWER_MAX_BYTES: Final = 4 * 1024 * 1024
APPLICATION_UNKNOWN: Final = "the application is unknown there"


class QueryApi:
    """Use as `async with`. `base_url`: the internal address of the role `console` (`http://…:9090`); `token`: its
    CONSUMER_API_TOKEN; neither belongs into a browser. `application`: whose orders and customers are asked for; None:
    the consumer's only one, or its `default`. `timeout_s` bounds one request."""

    def __init__(
        self, base_url: str, token: str | None = None, *, application: str | None = None, timeout_s: float = 5.0
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._application = application
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def order(self, order_id: str) -> OrderStanding:
        """Where an order stands; one that nobody has heard of is `none`. Raises QueryFailed."""
        found = await self._ask("GET", f"orders/{_quoted(order_id)}")
        unknown = {"order_id": order_id, "is_known": False}
        return _read(OrderStanding, unknown if found is None else {**found, "order_id": order_id})

    async def access(self, customer: str) -> AccessStanding:
        """What a customer may use; one that nobody has heard of may use nothing. Raises QueryFailed."""
        found = await self._ask("GET", f"customers/{_quoted(customer)}/access")
        if found is None:  # a consumer of the version before
            raise QueryFailed(APPLICATION_UNKNOWN, application=self._application)
        return _read(AccessStanding, found)

    async def register(
        self,
        session_id: str,
        *,
        order_id: str,
        customer: str | None = None,
        expected_amount: str | None = None,
        mode: str = "payment",
        price_id: str | None = None,
    ) -> None:
        """Say whose a checkout is, for which order, what it costs, before any money moves; again is no news. Raises
        QueryFailed, TermsDiffer when the session is registered with other terms."""
        said = {"order_id": order_id, "customer": customer, "expected_amount": expected_amount, "mode": mode,
                "price_id": price_id}  # fmt: skip
        body = {name: value for name, value in said.items() if value is not None}
        path = f"checkouts/{_quoted(session_id)}"
        try:
            answer = await self._ask("PUT", path, body)
        except QueryFailed as error:
            if price_id is None or error.fields.get("status") != HTTPStatus.BAD_REQUEST:
                raise
            del body["price_id"]  # a consumer of the version before knows no price, and refuses what it does not know
            answer = await self._ask("PUT", path, body)
        if answer is None:
            raise QueryFailed(APPLICATION_UNKNOWN, application=self._application)

    async def read_order(self, order_id: str) -> None:
        """Have an order read at the service, soon. Raises QueryFailed."""
        await self._ask("POST", f"orders/{_quoted(order_id)}/read", {})

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The answer, None where what is asked for is unknown. Another 404 is of a wrong address."""
        if self._session is None:
            raise QueryFailed("not started: use it as `async with`")
        whose = "" if self._application is None else f"?application={_quoted(self._application)}"
        url = URL(f"{self._base_url}/api/{path}{whose}", encoded=True)
        try:
            async with self._session.request(method, url, json=body, allow_redirects=False) as answer:
                if not answer.ok and answer.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                    raise QueryFailed(status=answer.status)
                found: dict[str, Any] = parse(await bounded(answer.content.iter_any(), "", ANSWER_MAX_BYTES))
        except (aiohttp.ClientError, TimeoutError, ValueError, UnexpectedAnswer) as error:
            raise QueryFailed(reason=type(error).__name__) from error
        if answer.status == HTTPStatus.NOT_FOUND:
            _read(_Unknown, found)
            return None
        if answer.status == HTTPStatus.CONFLICT:
            raise TermsDiffer(_read(_Conflict, found).error.differing)
        return found


class _Differing(BaseModel):
    code: Literal["terms_differ"]
    differing: tuple[str, ...]


class _Conflict(BaseModel):
    error: _Differing


class _NotFound(BaseModel):
    code: Literal["not_found"]


class _Unknown(BaseModel):
    error: _NotFound


T = TypeVar("T", bound=BaseModel)


def _read(model: type[T], document: dict[str, Any]) -> T:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise QueryFailed("the answer is not what the query API says", what=model.__name__) from error


def _quoted(word: str) -> str:
    return quote(word, safe="")
