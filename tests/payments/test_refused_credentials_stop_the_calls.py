"""The credential circuit: a 401 on every secret stops the calls, a slow probe or a new secret starts them again."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from consumer.payments import (
    AuthenticationError,
    Budget,
    CircuitOpen,
    Credentials,
    MemoryBudgetStore,
    PaymentsError,
    Priority,
    Scope,
)
from tests.payments.support import (
    APP_ID,
    OTHER_SECRET,
    SECRET,
    UNAUTHORIZED,
    Bench,
    InstantClock,
    Reply,
    ScriptedService,
    bench,
    error_reply,
)
from tests.payments.test_secrets_are_checked_shared_and_never_shown import write

OK = Reply(200, {"id": "ord_1", "status": "PENDING"})


async def opened(b: Bench) -> None:
    with pytest.raises(AuthenticationError):
        await b.client.orders.retrieve("ord_1")
    assert b.client.circuit.is_open


async def test_a_401_names_every_cause(service: ScriptedService, b: Bench) -> None:
    # case: S1
    service.will(UNAUTHORIZED)
    with pytest.raises(AuthenticationError) as caught:
        await b.client.orders.retrieve("ord_1")
    for cause in ("Authorization header", "unknown", "revoked", "expired", "disabled", "approved and active"):
        assert cause in str(caught.value)
    assert caught.value.request_id == "req_1"


async def test_both_secrets_are_tried_once_then_the_circuit_opens(service: ScriptedService) -> None:
    # case: C14
    service.answering = lambda _seen: UNAUTHORIZED
    async with bench(service.base_url, secrets=(SECRET, OTHER_SECRET)) as b:
        await opened(b)
        assert [seen.secret for seen in service.seen] == [SECRET, OTHER_SECRET]
        assert [change.is_open for change in b.circuit_changes] == [True]
        assert b.client.circuit.state.open_since == b.clock.now()


async def test_an_open_circuit_fails_calls_at_once_and_sends_nothing(service: ScriptedService, b: Bench) -> None:
    # case: S3, S5, C14
    service.answering = lambda _seen: UNAUTHORIZED
    await opened(b)
    for _ in range(100):
        with pytest.raises(CircuitOpen) as caught:
            await b.client.orders.retrieve("ord_1")
        assert caught.value.retryable
        assert caught.value.retry_after_s > 0
    assert len(service.seen) == 1


async def test_a_storm_of_calls_makes_one_probe_in_30_seconds(service: ScriptedService, b: Bench) -> None:
    # case: S14, S6
    service.answering = lambda _seen: UNAUTHORIZED
    await opened(b)
    before = len(service.seen)
    for _ in range(600):
        b.clock.elapsed_s += 0.5
        with pytest.raises(CircuitOpen):
            await b.client.orders.retrieve("ord_1")
    probes = service.seen[before:]
    assert {seen.path for seen in probes} == {"/v1/application"}
    assert 8 <= len(probes) <= 10
    assert len(b.circuit_changes) == 1, "still the same opening"


async def test_a_probe_that_succeeds_closes_the_circuit_and_the_call_goes_on(
    service: ScriptedService, b: Bench
) -> None:
    # case: S6
    service.answering = lambda _seen: UNAUTHORIZED
    await opened(b)
    service.answering = lambda _seen: OK
    b.clock.elapsed_s += 31
    assert (await b.client.orders.retrieve("ord_1")).id == "ord_1"
    assert service.paths[-2:] == ["GET /v1/application", "GET /v1/orders/ord_1"]
    assert [change.is_open for change in b.circuit_changes] == [True, False]


@pytest.mark.parametrize("reply", [Reply(500), Reply(404), Reply(429, b"", {"Retry-After": "1"}), Reply(cut=True)])
async def test_a_probe_without_a_welcome_leaves_it_open(service: ScriptedService, b: Bench, reply: Reply) -> None:
    # case: S6
    service.answering = lambda _seen: UNAUTHORIZED
    await opened(b)
    service.answering = lambda _seen: reply
    b.clock.elapsed_s += 31
    with pytest.raises(CircuitOpen):
        await b.client.orders.retrieve("ord_1")
    assert b.client.circuit.is_open
    assert len(service.seen) == 2


async def test_a_new_secret_in_the_file_closes_it_at_once(service: ScriptedService, tmp_path: Path) -> None:
    # case: S4
    file = tmp_path / "secret"
    file.write_text(SECRET)
    service.answering = lambda seen: OK if seen.secret == OTHER_SECRET else UNAUTHORIZED
    async with bench(service.base_url, credentials=Credentials(APP_ID, secret_file=file)) as b:
        await opened(b)
        write(file, OTHER_SECRET)
        await b.client.orders.retrieve("ord_1")
        assert service.paths == ["GET /v1/orders/ord_1"] * 2, "no probe is needed"
        assert not b.client.circuit.is_open


async def test_others_learn_at_once_that_a_new_secret_is_accepted(service: ScriptedService, tmp_path: Path) -> None:
    # case: S4, S6
    file, clock = tmp_path / "secret", InstantClock()
    file.write_text(SECRET)
    store = MemoryBudgetStore(clock)
    circuit = f"circuit/{APP_ID}"

    async def times() -> tuple[float, float]:
        refused, accepted = orjson.loads(await store.update([circuit], lambda texts, _now: ({}, texts[circuit])))
        return refused, accepted

    service.answering = lambda seen: OK if seen.secret == OTHER_SECRET else UNAUTHORIZED
    budget = Budget(store, Scope(ip="one", application=APP_ID), clock)
    async with bench(
        service.base_url, credentials=Credentials(APP_ID, secret_file=file), clock=clock, budget=budget
    ) as b:
        await opened(b)
        refused, accepted = await times()
        assert refused > accepted
        write(file, OTHER_SECRET)
        clock.elapsed_s += 1
        await b.client.orders.retrieve("ord_1")
        refused, accepted = await times()
        assert accepted > refused, "also when no probe was needed"


async def test_an_open_circuit_does_not_eat_the_budget(service: ScriptedService, b: Bench) -> None:
    # case: S14
    from consumer.payments import CallKind

    service.answering = lambda _seen: UNAUTHORIZED
    await opened(b)
    before = await b.client.budget.predict_s(CallKind.READ, Priority.LIVE, 294)
    for _ in range(1000):
        with pytest.raises(CircuitOpen):
            await b.client.orders.retrieve("ord_1")
    assert await b.client.budget.predict_s(CallKind.READ, Priority.LIVE, 294) == before


async def test_with_two_secrets_a_probe_is_still_one_request_and_each_gets_its_turn(service: ScriptedService) -> None:
    # case: S14, S6
    service.answering = lambda _seen: UNAUTHORIZED
    async with bench(service.base_url, secrets=(SECRET, OTHER_SECRET)) as b:
        await opened(b)
        before = len(service.seen)
        for _ in range(300):
            b.clock.elapsed_s += 1
            with pytest.raises(CircuitOpen):
                await b.client.orders.retrieve("ord_1")
        probes = service.seen[before:]
        assert 8 <= len(probes) <= 10
        assert {seen.secret for seen in probes} == {SECRET, OTHER_SECRET}
        service.answering = lambda seen: OK if seen.secret == OTHER_SECRET else UNAUTHORIZED
        waited = 0
        while b.client.circuit.is_open:
            b.clock.elapsed_s += 5
            waited += 5
            assert waited <= 70
            try:
                await b.client.orders.retrieve("ord_1")
            except CircuitOpen:
                continue
        assert service.seen[-1].secret == OTHER_SECRET, "the secret that was welcome is the one used"


async def test_processes_that_share_a_store_share_the_probes_and_the_closing(service: ScriptedService) -> None:
    # case: S14, S6
    clock = InstantClock()
    store = MemoryBudgetStore(clock)

    def budget() -> Budget:
        return Budget(store, Scope(ip="one", application=APP_ID), clock)

    service.answering = lambda _seen: UNAUTHORIZED
    async with (
        bench(service.base_url, clock=clock, budget=budget()) as one,
        bench(service.base_url, clock=clock, budget=budget()) as two,
        bench(service.base_url, clock=clock, budget=budget()) as three,
    ):
        pods = (one, two, three)
        for pod in pods:
            await opened(pod)
        before = len(service.seen)
        for _ in range(600):
            clock.elapsed_s += 0.5
            for pod in pods:
                with pytest.raises(CircuitOpen):
                    await pod.client.orders.retrieve("ord_1")
        assert 8 <= len(service.seen) - before <= 10, "three processes, one probe in 30 s"
        service.answering = lambda _seen: OK
        closed_after = 0.0
        while any(pod.client.circuit.is_open for pod in pods):
            clock.elapsed_s += 1
            closed_after += 1
            assert closed_after < 60
            for pod in pods:
                if pod.client.circuit.is_open:
                    try:
                        await pod.client.orders.retrieve("ord_1")
                    except CircuitOpen:
                        continue
        assert closed_after <= 36, "one probe, and the others learn of it within a look"
        assert service.paths.count("GET /v1/application") <= 11


async def test_merchant_deactivated_and_reactivated(service: ScriptedService, b: Bench) -> None:
    # case: S5, S6
    service.answering = lambda _seen: OK
    await b.client.orders.retrieve("ord_1")
    service.answering = lambda _seen: UNAUTHORIZED
    await opened(b)
    b.clock.elapsed_s += 24 * 3600
    with pytest.raises(CircuitOpen):
        await b.client.orders.retrieve("ord_1")
    service.answering = lambda _seen: OK
    b.clock.elapsed_s += 30
    await b.client.orders.retrieve("ord_1")
    assert [change.is_open for change in b.circuit_changes] == [True, False]


async def test_a_probe_that_is_too_much_holds_back_all_calls(service: ScriptedService, b: Bench) -> None:
    # case: C6, S14
    service.answering = lambda _seen: UNAUTHORIZED
    await opened(b)
    service.answering = lambda _seen: error_reply(429, "rate_limited", retry_after="600")
    before = len(service.seen)
    for _ in range(18):  # nine minutes
        b.clock.elapsed_s += 31
        with pytest.raises(PaymentsError):
            await b.client.orders.retrieve("ord_1")
    assert before + 5 <= len(service.seen) <= before + 9, "one a minute"
