"""Authenticity `signature`, all roles as processes: a signed test event that looks real does nothing but show itself; a
real one goes out when the API is away; and reads that lag behind their events are made again until they agree."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from consumer.console.alarms.queues import queues
from consumer.sandbox import SandboxConfig
from consumer.sandbox.scenarios.stage import Stage
from tests.promises.deployment import Deployment, deployment, embedded, started, stopped
from tests.support.ports import eventually

LAG_S = 3.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@asynccontextmanager
async def _signed(folder: Path, **assumptions: Any) -> AsyncIterator[Deployment]:
    """All roles at work; webhooks are believed by their signature."""
    config = SandboxConfig(seed=1, assumptions=assumptions)
    signature = {"CONSUMER_AUTHENTICITY": "signature", "CONSUMER_WEBHOOK_SECRETS": config.webhook_secret}
    async with deployment(folder, **embedded(folder), config=config, **signature) as found, _all_roles(found):
        yield found


@asynccontextmanager
async def _all_roles(found: Deployment) -> AsyncIterator[None]:
    serve, work, sync = found.process("serve"), found.process("work"), found.process("sync")
    async with started(serve, work, sync):
        found.sandbox.set_webhook_url(f"{serve.addresses['public_url']}/webhooks/default")
        yield
        assert await stopped(serve, work, sync) == [0, 0, 0]


async def _findings(found: Deployment) -> set[str]:
    async with found.database.reading() as session:
        return {one.kind for one in await queues(session)}


async def _allowed(found: Deployment, customer: str) -> bool:
    return bool(await found.count(f"access_entitlement WHERE allowed AND customer = '{customer}'"))


# case: F24, A47, F20, G6
async def test_test_events_that_look_real_fulfil_and_grant_nothing_and_are_shown(tmp_path: Path) -> None:
    async with _signed(tmp_path, test_event="real_type") as found:
        engine, app_id = found.sandbox.engine, found.sandbox.config.app_id
        engine.send_test_event(app_id)
        nobody = {"id": "sub_nobody", "status": "ACTIVE", "customer_reference": "cus_test"}
        engine.events.made_up("subscription.created", app_id, nobody, {})
        found.pay_order()
        Stage(found.sandbox, app_id, 1).subscribe("cus_real")
        await found.shipped(within_s=30)

        async def is_granted() -> bool:
            return await _allowed(found, "cus_real")

        async def is_shown() -> bool:
            # Had the list brought the made-up event before its webhook did, there would be nothing to withhold.
            by_list = await found.count("events WHERE type = 'subscription.created' AND trust = 'read'")
            return await _findings(found) >= {"paid_unmatched"} | (
                {"unreadable_subscription"} if not by_list else set()
            )

        await eventually(is_granted, within_s=30, every_s=0.2, what="the real subscriber has access")
        await eventually(is_shown, within_s=60, every_s=0.2, what="the test events are shown to an operator")
        await found.settled()
        found.assert_one_parcel_each()
        assert not await _allowed(found, "cus_test")
        assert await found.count("fulfilment_order WHERE hold = 'unmatched'") == 1


# case: F24, B28, G6
async def test_test_events_that_the_service_lists_fulfil_nothing_either(tmp_path: Path) -> None:
    config = SandboxConfig(seed=1, assumptions={"test_event": "real_type", "test_event_listed": True})
    async with deployment(tmp_path, **embedded(tmp_path), config=config) as found, _all_roles(found):
        found.pay_order()
        await found.shipped(within_s=30)
        found.sandbox.engine.send_test_event(found.sandbox.config.app_id)

        async def is_shown() -> bool:
            return "paid_unmatched" in await _findings(found)

        await eventually(is_shown, within_s=30, every_s=0.2, what="the test event is shown to an operator")
        await found.settled()
        found.assert_one_parcel_each()


# case: F1, A1, A34, G7
async def test_a_signature_is_proof_while_the_api_is_away(tmp_path: Path) -> None:
    async with _signed(tmp_path) as found:
        found.sandbox.engine.faults.set({"server_error": True})
        found.pay_order()
        Stage(found.sandbox, found.sandbox.config.app_id, 1).subscribe("cus_real")
        began = time.monotonic()
        await found.shipped(within_s=30)

        async def is_granted() -> bool:
            return await _allowed(found, "cus_real")

        await eventually(is_granted, within_s=30, every_s=0.2, what="the subscriber has access")
        print(f"\nwithout the API: shipped and granted after {time.monotonic() - began:.1f} s")
        found.sandbox.engine.faults.clear()
        await found.settled()
        found.assert_one_parcel_each()


# case: A7, F19, F20, X64
async def test_reads_that_lag_are_made_again_until_they_agree(tmp_path: Path) -> None:
    async with _signed(tmp_path, read_lag_s=LAG_S) as found:
        stage = Stage(found.sandbox, found.sandbox.config.app_id, 1)
        found.pay_order()
        subscription = stage.by_hand(stage.subscribe("cus_real"))
        await found.shipped(within_s=40)

        async def status() -> Any:
            return await found.one(
                f"SELECT status FROM access_subscription WHERE subscription_id = '{subscription.id}'"
            )

        async def is_active() -> bool:
            return bool(await status() == "ACTIVE") and await _allowed(found, "cus_real")

        await eventually(is_active, within_s=40, every_s=0.2, what="a read shows the subscription")
        found.sandbox.engine.subscriptions.fail(stage.again(subscription))
        began = time.monotonic()

        async def is_past_due() -> bool:
            return bool(await status() == "PAST_DUE")

        await eventually(is_past_due, within_s=40, every_s=0.2, what="a read shows that it is past due")
        print(f"\nPAST_DUE after {time.monotonic() - began:.1f} s, with reads {LAG_S:.0f} s late")
        await found.settled()
        found.assert_one_parcel_each()
        assert await _findings(found) == set()
