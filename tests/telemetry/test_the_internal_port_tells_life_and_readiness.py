"""The internal port: liveness is the event loop only, readiness asks and turns 503 when the process drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from consumer.clock import DrivenClock
from consumer.errors import ConsumerError, GroupForbidden, LogLocked, TopicForbidden
from consumer.telemetry.internal import FIRST_KEEP_S, Check, Readiness, internal_app
from consumer.telemetry.metrics import Metrics

Client = TestClient[web.Request, web.Application]


class Probe:
    """A check whose answer the test decides."""

    def __init__(self) -> None:
        self.answer: bool | Exception | None = True
        self.asked = 0

    async def __call__(self) -> bool:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.Event().wait()
        return bool(self.answer)


@pytest.fixture
async def clock() -> DrivenClock:
    return DrivenClock()


@pytest.fixture
async def probe() -> Probe:
    return Probe()


@pytest.fixture
async def readiness(clock: DrivenClock, probe: Probe) -> Readiness:
    checks: dict[str, Check] = {"broker": probe}
    return Readiness(clock, checks, limit_s=0.05)


@pytest.fixture
async def client(readiness: Readiness) -> AsyncIterator[Client]:
    async with TestClient(TestServer(internal_app(metrics=Metrics(), readiness=readiness))) as found:
        yield found


async def test_liveness_holds_while_everything_else_is_away(client: Client, probe: Probe) -> None:
    # case: O10
    probe.answer = False
    answer = await client.get("/healthz")
    assert (answer.status, (await answer.json())["status"]) == (200, "ok")
    assert probe.asked == 0


async def test_readiness_follows_start_checks_and_drain(
    client: Client,
    readiness: Readiness,
    probe: Probe,
    clock: DrivenClock,
) -> None:
    # case: I4
    async def ready() -> tuple[int, str]:
        clock.advance(2)
        answer = await client.get("/readyz")
        return answer.status, (await answer.json())["status"]

    assert await ready() == (503, "starting")
    readiness.started()
    assert await ready() == (200, "ready")
    probe.answer = False
    assert await ready() == (503, "not_ready")
    probe.answer = True
    assert await ready() == (200, "ready")
    readiness.drain()
    assert await ready() == (503, "draining")
    readiness.started()
    assert await ready() == (503, "draining")
    assert (await client.get("/healthz")).status == 200


async def test_a_hanging_or_failing_check_is_an_answer(readiness: Readiness, probe: Probe, clock: DrivenClock) -> None:
    readiness.started()
    probe.answer = None
    assert (await readiness.answers())[2] == {"broker": "timeout"}
    probe.answer = RuntimeError("away")
    clock.advance(2)
    assert (await readiness.answers())[2] == {"broker": "failed"}


@pytest.mark.parametrize(
    ("error", "about"),
    [
        (TopicForbidden(topic="payments.events.dead", reason="TopicAuthorizationFailedError"), "payments.events.dead"),
        (GroupForbidden(group="payments.work"), "payments.work"),
        (LogLocked(path="/data/log.db"), "/data/log.db"),
    ],
)
async def test_a_problem_says_what_it_is_about(
    readiness: Readiness, probe: Probe, error: ConsumerError, about: str
) -> None:
    # case: O2
    probe.answer = error
    readiness.started()
    await readiness.answers()
    assert readiness.problems == {"broker": (error.code, f"{error.message} ({about})")}


async def test_probing_costs_a_bounded_amount(readiness: Readiness, probe: Probe) -> None:
    readiness.started()
    await asyncio.gather(*(readiness.answers() for _ in range(50)))
    assert probe.asked == 1


async def test_metrics_are_exposed(client: Client) -> None:
    answer = await client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert "consumer_receive_in_flight 0.0" in await answer.text()


async def test_the_first_ready_answer_comes_at_once(readiness: Readiness, probe: Probe, clock: DrivenClock) -> None:
    readiness.started()
    probe.answer = False
    assert not (await readiness.answers())[0]
    probe.answer = True
    clock.advance(FIRST_KEEP_S)
    assert (await readiness.answers())[0]
    probe.answer = False
    clock.advance(FIRST_KEEP_S)
    assert (await readiness.answers())[0]  # from here on an answer is kept: probing costs a bounded amount
    clock.advance(1)
    assert not (await readiness.answers())[0]
    clock.advance(FIRST_KEEP_S)
    asked = probe.asked
    await readiness.answers()
    assert probe.asked == asked
