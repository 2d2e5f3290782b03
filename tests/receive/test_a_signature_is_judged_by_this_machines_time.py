"""`serve` judges a signature's age by its machine's time: a database whose clock is wrong refuses no webhook."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import aiohttp

from consumer.app import App
from consumer.clock import SharedClock, SystemClock
from consumer.settings import Role, load_settings
from tests.receive.rig import BODY, SECRET, signature
from tests.support.ports import eventually


# case: I20
async def test_a_database_whose_clock_is_wrong_refuses_no_webhook(tmp_path: Path) -> None:
    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/consumer.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_PORT": "0",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
    }
    async with App(load_settings(environ, Role.SERVE)) as app, aiohttp.ClientSession() as http:
        assert isinstance(app.clock, SharedClock)
        app.clock.ahead = timedelta(hours=1)  # as if the ledger had told another time
        await app.receive()
        await eventually(lambda: app.connected.is_set(), what="the log is there")
        headers = {"content-type": "application/json"} | signature(BODY, SystemClock())
        async with http.post(f"{app.public_url}/webhooks", data=BODY, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
