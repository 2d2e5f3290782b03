"""Rate limits: who is counted, and what is answered."""

from __future__ import annotations

import aiohttp
import pytest

from consumer.sandbox import DEFAULT_APP_ID, Engine, Refusal, Sandbox, SandboxConfig
from consumer.sandbox.engine.limits import PER_ADDRESS
from tests.sandbox.support import Api, make_engine


@pytest.fixture
def engine() -> Engine:
    return make_engine(limits=True)


def calls_until_refused(call: object, most: int = 2000) -> tuple[int, Refusal]:
    for number in range(most):
        try:
            call()  # type: ignore[operator]  # a plain callable
        except Refusal as refusal:
            return number, refusal
    raise AssertionError("never refused")


def test_three_hundred_requests_in_any_minute_per_address(engine: Engine) -> None:
    """Whoever asks ten times a second gets 300 in the first minute, and not one more."""
    # case: X54
    passed: list[int] = []
    waits: dict[int, int | None] = {}
    for second in range(120):
        for _ in range(10):
            try:
                engine.limits.address("10.0.0.1")
            except Refusal as refusal:
                waits[second] = refusal.retry_after_s
            else:
                passed.append(second)
        engine.advance(1)
    assert max(sum(start <= second < start + 60 for second in passed) for start in range(120)) == 300
    assert len(passed) == 600
    assert waits == {second: 60 - second % 60 for second in range(120) if second % 60 >= 30}
    engine.limits.address("10.0.0.2")


def test_a_bucket_is_a_switch() -> None:
    # case: X54
    engine = make_engine(limits=True, limit_window="bucket")
    passed, refusal = calls_until_refused(lambda: engine.limits.address("10.0.0.1"))
    assert (passed, refusal.problem_code, refusal.retry_after_s) == (300, "rate_limited", 1)
    engine.advance(1)
    assert calls_until_refused(lambda: engine.limits.address("10.0.0.1"))[0] == 5


def test_a_limit_that_others_used_up_frees_evenly(engine: Engine) -> None:
    # case: X54
    engine.limits.drain(PER_ADDRESS, "10.0.0.1")
    with pytest.raises(Refusal) as caught:
        engine.limits.address("10.0.0.1")
    assert caught.value.retry_after_s == 1
    engine.advance(1)
    assert calls_until_refused(lambda: engine.limits.address("10.0.0.1"))[0] == 5


def test_writes_and_reads_per_application(engine: Engine) -> None:
    # case: X54
    application = engine.application
    assert calls_until_refused(lambda: engine.limits.request(application, write=True))[0] == 120
    assert calls_until_refused(lambda: engine.limits.request(application, write=False))[0] == 600
    engine.advance(60)
    assert calls_until_refused(lambda: engine.limits.request(application, write=True))[0] == 120


def test_writes_per_merchant_across_applications(engine: Engine) -> None:
    # case: X54
    applications = [engine.application]
    applications += [engine.applications.add(engine.application.merchant_id, str(n))[0] for n in range(3)]
    passed = 0
    for application in applications:
        for _ in range(100):
            try:
                engine.limits.request(application, write=True)
                passed += 1
            except Refusal:
                break
    assert passed == 300


def test_ten_test_events_an_hour_shared_with_the_dashboard(engine: Engine) -> None:
    # case: X54
    passed, refusal = calls_until_refused(lambda: engine.send_test_event(DEFAULT_APP_ID))
    assert passed == 10
    assert refusal.retry_after_s == 3600
    engine.advance(3599)
    with pytest.raises(Refusal):
        engine.send_test_event(DEFAULT_APP_ID)
    engine.advance(1)
    assert calls_until_refused(lambda: engine.send_test_event(DEFAULT_APP_ID))[0] == 10


def test_a_fixed_window_is_a_switch() -> None:
    # case: X54
    engine = make_engine(limits=True, limit_window="fixed")
    engine.advance(45)
    passed, refusal = calls_until_refused(lambda: engine.limits.address("a"))
    assert (passed, refusal.retry_after_s) == (300, 15)
    engine.advance(14)
    with pytest.raises(Refusal):
        engine.limits.address("a")
    engine.advance(1)
    assert calls_until_refused(lambda: engine.limits.address("a"))[0] == 300


async def test_over_the_limit_the_answer_is_429_with_retry_after() -> None:
    # case: X54
    async with Sandbox(SandboxConfig(driven=True)) as sandbox, aiohttp.ClientSession() as http:
        api = Api(lambda: sandbox.base_url, http)
        for _ in range(120):
            assert (await api.post("/v1/checkout-sessions/none/cancel")).status == 404
        reply = await api.post("/v1/checkout-sessions/none/cancel")
        assert (reply.status, reply.code, reply.headers["Retry-After"]) == (429, "rate_limited", "60")
        assert reply.json["request_id"].startswith("req_")
        assert (await api.get("/v1/application")).status == 200, "reads have their own limit"
        for _ in range(300 - 122):
            await api.get("/v1/application")
        over = await api.call("GET", "/v1/application", headers={"Authorization": None})
        assert over.status == 429, "an address is counted before anyone looks at its credentials"
        await sandbox.advance(60)
        assert (await api.get("/v1/application")).status == 200
