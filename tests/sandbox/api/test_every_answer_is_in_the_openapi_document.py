"""The OpenAPI document: made from the tables, and nothing the API answers is outside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import GenerationConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sandbox.api.endpoints import ENDPOINTS
from consumer.sandbox.api.fields import SESSION_FIELDS
from consumer.sandbox.api.openapi import openapi_document
from tests.sandbox.support import Api, basic, body, create, subscribe

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
DOCUMENT = openapi_document()
SCHEMA: Any = schemathesis.openapi.from_dict(DOCUMENT, config=SchemathesisConfig())
EXAMPLES_PER_ENDPOINT = 40
CREATE = "/v1/checkout-sessions"
# Fields that make no rule across fields: with a valid request around them, some creates get through.
FREE_FIELDS = ("order_id", "line_items", "customer_email", "customer_reference", "metadata", "ui_mode")


async def test_the_document_is_served_and_has_the_twenty_endpoints(api: Api) -> None:
    served = (await api.get("/openapi.json")).json
    assert served == DOCUMENT
    operations = [(method.upper(), path) for path, item in served["paths"].items() for method in item]
    assert sorted(operations) == sorted((endpoint.method, endpoint.path) for endpoint in ENDPOINTS)
    assert len(operations) == 20
    assert [endpoint.number for endpoint in ENDPOINTS] == list(range(1, 21))


def test_the_create_request_has_every_field_of_the_table() -> None:
    schema = DOCUMENT["paths"]["/v1/checkout-sessions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert list(schema["properties"]) == [field.name for field in SESSION_FIELDS]
    assert schema["required"] == ["mode", "order_id", "success_url", "cancel_url"]
    assert schema["additionalProperties"] is False


@dataclass
class Served:
    """A sandbox in a thread of its own, and ids that exist there."""

    base_url: str
    known: dict[str, list[str]]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One sandbox for the whole module: schemathesis calls from ordinary functions."""
    ready: Future[Served] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        try:
            async with Sandbox(SandboxConfig(driven=True, seed=7, limits=False)) as sandbox:
                ready.set_result(Served(sandbox.base_url, _fill(sandbox)))
                await stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield ready.result(timeout=30)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=30)
        loop.close()


def _fill(sandbox: Sandbox) -> dict[str, list[str]]:
    engine = sandbox.engine
    for _ in range(30):
        engine.payments.pay(create(engine))
        subscribe(engine)
    world = engine.world
    return {
        "checkout-sessions": [create(engine).id for _ in range(200)] + [one.id for one in world.sessions],
        "orders": [one.id for one in world.orders],
        "payments": [one.id for one in world.payments],
        "subscriptions": [one.id for one in world.subscriptions],
        "products": [one.id for one in world.products],
        "prices": [one.id for one in world.prices],
        "events": [one.id for one in world.events],
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
@SCHEMA.parametrize()  # type: ignore[untyped-decorator]  # schemathesis has no types
@settings(max_examples=EXAMPLES_PER_ENDPOINT, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_no_5xx_and_no_undocumented_answer(case: Any, served: Served) -> None:
    noun = case.path.split("/")[2]
    known = served.known.get(noun, [])
    if known and case.path_parameters and len(str(case.path_parameters.get("id", ""))) % 2:
        case.path_parameters["id"] = known.pop(0)
        known.append(case.path_parameters["id"])
    if case.method == "POST" and case.path == CREATE and isinstance(case.body, dict) and len(str(case.body)) % 2:
        case.body = body() | {name: value for name, value in case.body.items() if name in FREE_FIELDS}
    case.call_and_validate(base_url=served.base_url, headers={"Authorization": basic()}, checks=CHECKS, timeout=20)


def test_the_generator_also_sends_what_is_wrong() -> None:
    modes = {mode.name for mode in GenerationConfig().modes}
    assert {"POSITIVE", "NEGATIVE"} <= modes
