"""Plans: a recurring price on chain."""

from __future__ import annotations

import pytest

from consumer.sandbox import Engine, PageRefusal, Refusal
from consumer.sandbox.engine.records import Plan, PlanStatus
from tests.sandbox.support import DAY_S, create, make_engine, subscribe


def plan_of(engine: Engine) -> Plan:
    return list(engine.world.plans)[-1]


def test_a_failing_plan_is_retried_four_times_then_fails_and_a_new_session_tries_anew(engine: Engine) -> None:
    # case: X45
    engine.faults.set({"plan_failures": 5})
    session = create(engine, mode="subscription", price_id="svc_price_monthly")
    for wait_s in (30, 120, 600, 3600):
        assert plan_of(engine).status is PlanStatus.PREPARING
        with pytest.raises(PageRefusal) as refused:
            engine.payments.build(session)
        assert refused.value.problem_code == "subscription_preparing"
        attempts = plan_of(engine).attempts
        engine.advance(wait_s - 1)
        assert plan_of(engine).attempts == attempts
        engine.advance(1)
        assert plan_of(engine).attempts == attempts + 1
        session = create(engine, mode="subscription", price_id="svc_price_monthly")
    assert plan_of(engine).status is PlanStatus.READY, "the new session of the last round tried a failed plan anew"


def test_a_failed_plan_refuses_the_payer(engine: Engine) -> None:
    # case: X45
    engine.faults.set({"plan_failures": 5})
    session = create(
        engine, mode="subscription", price_id="svc_price_monthly", expires_at=engine.world.in_seconds(DAY_S)
    )
    engine.advance(30 + 120 + 600 + 3600)
    assert plan_of(engine).status is PlanStatus.FAILED
    with pytest.raises(PageRefusal) as refused:
        engine.payments.pay(session)
    assert refused.value.problem_code == "subscription_plan_failed"
    create(engine, mode="subscription", price_id="svc_price_monthly", order_id="new")
    assert plan_of(engine).status is PlanStatus.READY
    assert len(list(engine.world.plans)) == 1
    engine.payments.pay(session)


def test_a_plan_may_take_its_time() -> None:
    # case: X45
    engine = make_engine(plan_creation_s=45)
    session = create(engine, mode="subscription", price_id="svc_price_monthly")
    engine.advance(44)
    with pytest.raises(PageRefusal):
        engine.payments.pay(session)
    engine.advance(1)
    engine.payments.pay(session)


def test_the_fifty_first_new_plan_in_a_day_is_refused(engine: Engine) -> None:
    # case: X46
    merchant_id = engine.application.merchant_id
    for number in range(51):
        engine.catalog.add_price(merchant_id, "prod_access", "1", interval_days=30, price_id=f"svc_price_{number}")
    for number in range(50):
        create(engine, mode="subscription", price_id=f"svc_price_{number}")
    with pytest.raises(Refusal) as refused:
        create(engine, mode="subscription", price_id="svc_price_50")
    assert (refused.value.problem_code, refused.value.problem.status) == ("plan_limit_reached", 429)
    create(engine, mode="subscription", price_id="svc_price_7")
    engine.advance(DAY_S)
    create(engine, mode="subscription", price_id="svc_price_50")


def test_a_changed_fee_or_wallet_gives_new_subscribers_a_new_plan(engine: Engine) -> None:
    # case: X47
    merchant_id = engine.application.merchant_id
    old = subscribe(engine, customer_reference="old")
    engine.applications.change_merchant(merchant_id, fee_bps=200)
    dearer = subscribe(engine, customer_reference="fee")
    engine.applications.change_merchant(merchant_id, new_wallet=True)
    moved = subscribe(engine, customer_reference="wallet")
    assert len({old.plan_id, dearer.plan_id, moved.plan_id}) == 3
    assert (old.fee, dearer.fee, moved.fee) == (0, 100_000, 100_000)
    engine.advance(30 * DAY_S)
    charged = {p.subscription_id: p for p in engine.world.payments if p.session_id is None}
    assert (charged[old.id].fee, charged[old.id].to_wallet) == (0, old.to_wallet)
    assert charged[moved.id].to_wallet != old.to_wallet
    assert charged[dearer.id].to_wallet == old.to_wallet
