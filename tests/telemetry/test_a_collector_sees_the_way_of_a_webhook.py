"""Traces of a deployment: a collector gets one trace of a webhook, from the port that took it to what a handler did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.promises.deployment import deployment, embedded, started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROLES = ("serve", "sync", "work")


class Collector:
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        self._got: list[Any] = []

    async def take(self, request: web.Request) -> web.Response:
        """`POST /v1/traces`."""
        self._got.append(await request.json())
        return web.Response(text="{}")

    def spans(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Role, span and its attributes, in the order of their begin."""
        for resource in (one for sent in self._got for one in sent["resourceSpans"]):
            [role] = _values(resource["resource"], "service.instance.role")
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    yield role, span, {one["key"]: one["value"]["stringValue"] for one in span["attributes"]}


def _values(of: dict[str, Any], name: str) -> list[str]:
    return [one["value"]["stringValue"] for one in of["attributes"] if one["key"] == name]


async def test_from_the_port_to_the_handler_it_is_one_trace(tmp_path: Path) -> None:
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.take)
    async with TestServer(app) as server, deployment(tmp_path, **embedded(tmp_path)) as found:
        found.environ["CONSUMER_TRACES_ENDPOINT"] = str(server.make_url("/"))
        found.environ["CONSUMER_SYNC_INTERVAL_S"] = "60"  # the webhook is to be the first to tell
        async with started(*[found.process(role) for role in ROLES]):
            await found.walked()
            found.sandbox.set_webhook_url(f"http://127.0.0.1:{found.environ['CONSUMER_PORT']}/webhooks/default")
            found.pay_order()
            await found.shipped(within_s=60)
            await found.settled(within_s=60)
        # Who ends sends what it still has.
    seen = list(collector.spans())
    received = {span["traceId"]: span["spanId"] for _, span, _ in seen if span["name"] == "receive"}
    assert {said["application"] for _, _, said in seen} == {"default"}
    taken = {said["type"]: span for _, span, said in seen if span["name"] == "take"}
    calls = [(role, said) for role, span, said in seen if span["name"] == "call"]
    asked = {(role, said["priority"], said["route"], said.get("status")) for role, said in calls}
    assert ("sync", "backfill", "/v1/events", "200") in asked
    [(role, shipped, said)] = [one for one in seen if one[2].get("handler") == "warehouse:ship"]
    assert (role, shipped["name"], said["type"], said["status"]) == ("work", "run", "fulfilment.requested", "succeeded")
    assert shipped["traceId"] in received, "the trace of a webhook"
    assert shipped["traceId"] == taken["fulfilment.requested"]["traceId"]
    assert taken["order.paid"]["parentSpanId"] == received[taken["order.paid"]["traceId"]]
