"""Odd objects of every kind through running processes, Apache Kafka and PostgreSQL: what is plain is done in the same
time however many odd ones came before, and in the end every order is requested and access is what the service says.
`CONSUMER_TEST_HISTORIES=2000` plays so many."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from consumer.ledger import Database
from tests.hostile.every_object.household import signed
from tests.hostile.every_object.kept import Kept
from tests.hostile.every_object.objects import OddService, Told, happened
from tests.hostile.texts import written
from tests.promises.deployment import started
from tests.support.ledger import first_walks
from tests.support.load import SECRET
from tests.support.loopback import LoopbackServer
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, command

NUMBER = int(os.environ.get("CONSUMER_TEST_HISTORIES", "40"))  # `make chaos` asks for thousands
AT_ONCE = 50
WITHIN_S = 60.0
"""So long at most each fifty take, of which ten are plain: the last as the first."""
OPTIONS = '{"fulfilment": {"lapse_read_delay_s": 1}, "access": {"brake": null}}'
AUTHENTICITIES = {"signature": {"CONSUMER_WEBHOOK_SECRETS": SECRET}, "api": {}}

pytestmark = [
    pytest.mark.slow, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.timeout(300 + NUMBER / AT_ONCE * WITHIN_S)
]  # fmt: skip


@pytest.mark.parametrize("authenticity", AUTHENTICITIES)
async def test_plain_ones_do_not_wait_and_all_end_right(
    tmp_path: Path, kafka_url: str, postgres_url: str, authenticity: str
) -> None:
    # case: U1, I10, I15, F1, F18, B1, B18, G7
    told = happened(NUMBER, ("order", "session", "subscription", "event"))
    service, database = OddService({"events"}, {"events"}), Database(postgres_url)
    kept = Kept(database, service)
    async with LoopbackServer(service.answer, "") as api:
        environ = {
            "CONSUMER_BROKER_URL": kafka_url,
            "CONSUMER_DATABASE_URL": postgres_url,
            "CONSUMER_TOPIC_PREFIX": f"objects-{uuid.uuid4().hex[:8]}",
            "CONSUMER_SYNC_INTERVAL_S": "1",
            "CONSUMER_AUTHENTICITY": authenticity,
            "CONSUMER_HANDLER_OPTIONS": OPTIONS,
            "SVC_BASE_URL": api.url,
            "SVC_APP_ID": "svc_app_test",
            "SVC_APP_SECRET": "svc_sk_live_test",
            **AUTHENTICITIES[authenticity],
        }
        serve, work, sync = (ConsumerProcess(role, environ, tmp_path) for role in ("serve", "work", "sync"))
        try:
            await said("db", "upgrade", environ=environ)
            await said("reconcile", "--json", environ=environ)
            async with started(serve, work, sync):
                await eventually(
                    lambda: first_walks.are_over(database), within_s=60, every_s=0.2, what="the first walks are over"
                )
                waiting, took = iter(told), list[float]()
                while some := list(islice(waiting, AT_ONCE)):
                    took.append(await in_time(service, kept, some, f"{serve.addresses['public_url']}/webhooks/default"))
                odd = len(await kept.lacking(told))
                service.oddly.clear()
                service.shown |= {"orders", "subscriptions", "payments"}
                await said("reconcile", "--max-changes", str(len(told)), "--json", environ=environ)
                await eventually(lambda: is_right(kept, told), within_s=WITHIN_S, every_s=0.5, what="all is right")
        finally:
            await database.stop()
    print(f"\n{NUMBER} odd ones, {authenticity}: plain ones within {max(took):.0f} s; {odd} needed another path")


async def said(*words: str, environ: dict[str, str]) -> None:
    done = await asyncio.to_thread(command, *words, environ=environ, within_s=2 * WITHIN_S)
    assert done.returncode == 0, done.stdout + done.stderr


async def in_time(service: OddService, kept: Kept, some: list[Told], address: str) -> float:
    """They happen; seconds until the plain ones are done. What of the others was taken in, or refused, has a name."""
    began = time.monotonic()
    async with aiohttp.ClientSession() as http:
        for one in some:
            service.tell(one, datetime.now(UTC))
            body = written(service.event(one))
            headers = {"Content-Type": "application/json", **signed(f"msg_{one.number}", body, datetime.now(UTC))}
            async with http.post(address, data=body, headers=headers) as answer:
                assert answer.status == 200 or (one.odd and answer.status == 400), one
    plain = [one for one in some if one.odd is None]
    await eventually(lambda: none_of(kept.lacking(plain)), within_s=WITHIN_S, every_s=0.2, what="plain ones are done")
    took = time.monotonic() - began
    await eventually(lambda: none_of(kept.nameless(some)), within_s=WITHIN_S, every_s=0.2, what="each has a name")
    return took


async def none_of(found: Awaitable[list[Any]]) -> bool:
    return not await found


async def is_right(kept: Kept, told: list[Told]) -> bool:
    """All orders are requested, access is exact, and nothing waits; what is not so is said."""
    lacking, wrong = await kept.lacking(told), await kept.wrong()
    assert (lacking, wrong) == ([], [])
    return True
