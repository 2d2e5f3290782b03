"""An application without API credentials: what handlers asked to be read waits, and `status` and `explain` say so."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from consumer.ledger import Database
from consumer.ledger.reading import read_requests
from consumer.plugin import ReadRequest
from handlers.access.tables import AccessSubscription
from tests.support.desk import Desk

SECRETS = {
    "CONSUMER_AUTHENTICITY": "signature",
    "CONSUMER_WEBHOOK_SECRETS": "whsec_dGVzdC1zZWNyZXQtb2YtdGhlLWNsaS10ZXN0cyE=",
}
SERVICE = {"SVC_BASE_URL": "http://127.0.0.1:1", "SVC_APP_ID": "svc_app_1", "SVC_APP_SECRET": "svc_sk_live_1"}


@pytest.mark.usefixtures("upgraded")
def test_by_status_and_by_explain(desk: Desk, environ: dict[str, str]) -> None:
    # case: I15, A50
    asyncio.run(asked(environ["CONSUMER_DATABASE_URL"]))
    said = desk.call("status", **SECRETS)
    assert "default: 1 read(s) wait for API credentials, the oldest since 2026-01-01 00:00:00" in said.stdout
    assert "wait for API credentials" not in desk.call("status", **SECRETS, **SERVICE).stdout
    for about in (["subscription", "S1"], ["customer", "c"]):
        assert "code=read  attempts=0  error=no_credentials" in desk.call("explain", *about, **SECRETS).stdout
        assert "no_credentials" not in desk.call("explain", *about, **SECRETS, **SERVICE).stdout


async def asked(url: str) -> None:
    """A subscription is known and somebody asked for a read of it."""
    database, at = Database(url), datetime(2026, 1, 1, tzinfo=UTC)
    try:
        async with database.transaction() as session:
            session.add(AccessSubscription(application="default", subscription_id="S1", customer="c"))
            await read_requests.ask(session, "default", [ReadRequest(kind="subscription", object_id="S1")], at)
    finally:
        await database.stop()
