"""A signature is good for a few minutes around its time, and no longer."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from consumer.app import App
from consumer.clock import SharedClock, SystemClock
from consumer.settings import Role, load_settings
from tests.receive.rig import BODY, SECRET, Rig, signature
from tests.support.ports import eventually


@pytest.mark.parametrize("age_s", [301, 86_400, -302, -86_400])
async def test_a_signature_too_old_or_too_new_is_401(rig: Rig, age_s: int) -> None:
    # case: I20
    reply = await rig.signed(age_s=age_s)
    assert (reply.status, reply.code) == (401, "bad_signature")
    assert await rig.records("events") == []


@pytest.mark.parametrize("age_s", [0, 299, -299])
async def test_a_signature_within_its_time_is_taken(rig: Rig, age_s: int) -> None:
    assert (await rig.signed(age_s=age_s)).status == 200


@pytest.mark.parametrize("stamp", ["", "yesterday", "nan", "inf", "-inf", "1e400", "0x10", "99999999999999999999"])
async def test_a_malformed_time_is_401(rig: Rig, stamp: str) -> None:
    # case: I20
    reply = await rig.send(headers={**signature(BODY, rig.clock), "webhook-timestamp": stamp})
    assert reply.status == 401


# case: I20
async def test_a_database_whose_clock_is_wrong_refuses_no_webhook(tmp_path: Path) -> None:
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_PORT": "0",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
        "CONSUMER_LINGER_S": "0",
    }
    async with App(load_settings(environ, Role.SERVE)) as app, aiohttp.ClientSession() as http:
        assert isinstance(app.clock, SharedClock)
        app.clock.ahead = timedelta(hours=1)  # as if the ledger had told another time
        await app.receive()
        await eventually(lambda: app.connected.is_set(), what="the log is there")
        headers = {"content-type": "application/json"} | signature(BODY, SystemClock())
        async with http.post(f"{app.public_url}/webhooks", data=BODY, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
