"""Authenticity `api`, `serve` and `sync` as processes: a webhook that comes again with another amount is in quarantine,
and one that comes again as it was is not; the service's record stays what is acted on."""

from __future__ import annotations

import asyncio
import json
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from consumer.columns import unpacked
from tests.promises.deployment import deployment, embedded, started
from tests.support.ports import eventually
from tests.support.process import command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def _post(address: str, body: bytes) -> int:
    where = urlsplit(address)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=30)
    try:
        connection.request("POST", where.path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


# case: I16
async def test_another_amount_under_a_settled_id_lies_in_quarantine(tmp_path: Path) -> None:
    async with deployment(tmp_path, **embedded(tmp_path)) as found:
        serve, work, sync = found.process("serve"), found.process("work"), found.process("sync")
        async with started(serve, work, sync):
            address = f"{serve.addresses['public_url']}/webhooks/default"
            found.hear(at_work=False)
            found.pay_order()
            await found.shipped(within_s=120)
            event_id = str(await found.one("SELECT id FROM events WHERE type = 'order.paid'"))
            record = unpacked(await found.one("SELECT raw FROM events WHERE type = 'order.paid'"))

            async def says(body: bytes) -> None:
                assert await asyncio.to_thread(_post, address, body) == 200

            async def is_settled() -> bool:
                return await found.count(f"settled_hints WHERE event_id = '{event_id}'") == 1

            await says(record)
            await eventually(is_settled, within_s=60, every_s=0.2, what="the webhook is confirmed")
            other = record.replace(b'"amount":"25.00"', b'"amount":"99.00"')
            assert other != record
            await says(record)
            await says(other)

            async def is_kept() -> bool:
                return await found.count("quarantine") > 0 and await found.count("hints") == 0

            await eventually(is_kept, within_s=60, every_s=0.2, what="the other body is kept")
            listed = await asyncio.to_thread(command, "quarantine", "list", "--json", environ=found.environ)
            [row] = json.loads(listed.stdout)["quarantine"]
            assert (row["event_id"], row["reason"]) == (event_id, "other_body")
            assert 0 < row["bytes"] <= len(other)
            show = ("quarantine", "show", str(row["id"]), "--json")
            shown = await asyncio.to_thread(command, *show, environ=found.environ)
            assert json.loads(shown.stdout)["bytes"] == len(other)
            found.assert_one_parcel_each()
