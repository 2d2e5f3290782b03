"""The customer on the phone: "I paid and got nothing". Any id leads by one command to the cause; one more mends it."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from consumer.sandbox.scenarios.stage import Stage
from tests.promises.deployment import Deployment, Places, deployment, embedded, started
from tests.support.desk import Called, Desk
from tests.support.merchant.plugin import install_plugin
from tests.support.ports import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PICKY = """
from pathlib import Path
from consumer.plugin import Reject, handles

@handles("fulfilment.requested", name="warehouse:ship", first_wait_s=0.2)
async def ship(event, ctx):
    if Path({broken!r}).exists():
        raise Reject("no such address")
    async with ctx.http.post({url!r}, json={{"order_id": event.order_id}},
                             headers={{"Idempotency-Key": ctx.idempotency_key}}) as answer:
        answer.raise_for_status()
"""


class Phone:
    """Who answers it: types commands, and reads what they print."""

    def __init__(self, found: Deployment) -> None:
        self.found = found
        self._desk = Desk(found.environ)

    async def call(self, *words: str) -> Called:
        return await asyncio.to_thread(self._desk.call, *words)

    async def next_of(self, any_id: str) -> list[dict[str, Any]]:
        """What comes next, by one command."""
        done = await self.call("explain", any_id, "--json")
        assert done.returncode == 0, f"{any_id}: {done.stderr}"
        return list(json.loads(done.stdout)["next"])

    async def told(self, any_id: str, cause: str) -> str:
        """The command that mends it; waits until this is the cause that is told."""

        async def by_its_name() -> str:
            entries = await self.next_of(any_id)
            [one] = [entry for entry in entries if cause in json.dumps(entry)] or [{}]
            cures = re.findall(r"consumer [^\"\\]+?--reason …", json.dumps(one, ensure_ascii=False))
            assert cures, entries
            return str(cures[0])

        return str(await eventually(by_its_name, within_s=40, every_s=0.3, what=f"{any_id}: {cause}"))

    async def type(self, cure: str, *, yes: bool) -> None:
        words = [word.replace("…", "the customer called") for word in shlex.split(cure)[1:]]
        done = await self.call(*words, *(["--yes"] if yes else []))
        assert done.returncode == 0, f"{cure}: {done.stderr}"

    def ids(self, order_id: str) -> list[str]:
        """Whatever the customer may have: the merchant's order id, the session's, the service's order's, the payment's,
        the event's."""
        world = self.found.sandbox.engine.world
        [session] = [one for one in world.sessions if one.order_id == order_id]
        [order] = [one for one in world.orders if one.order_id == order_id]
        assert order.payment_id is not None
        events = [
            one.id.rpartition("/")[2] for one in world.events if order_id in json.dumps(one.snapshot, default=str)
        ]
        return [order_id, session.id, order.id, order.payment_id, *events[:1]]


@pytest.fixture(params=["files", pytest.param("servers", marks=[pytest.mark.kafka, pytest.mark.postgres])])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    """Where log and ledger are: files, or Kafka and PostgreSQL."""
    if request.param == "files":
        return embedded(tmp_path)
    broker_url, database_url = (request.getfixturevalue(name) for name in ("kafka_url", "postgres_url"))
    return {"broker_url": broker_url, "database_url": database_url}


@pytest.fixture
async def phone(places: Places, tmp_path: Path) -> AsyncIterator[Phone]:
    async with deployment(tmp_path, **places) as found:
        source = PICKY.format(broken=str(tmp_path / "broken"), url=found.warehouse.url)
        found.environ |= install_plugin(tmp_path, "warehouse_plugin", source)
        port = found.environ["CONSUMER_PORT"]
        found.sandbox.set_webhook_url(f"http://127.0.0.1:{port}/webhooks/default")
        async with started(*(found.process(role) for role in ("serve", "work", "sync"))):
            found.pay_order()
            await found.shipped(within_s=60)
            yield Phone(found)


# case: O5, A50, F20
async def test_any_id_leads_to_the_cause_and_one_command_mends_it(phone: Phone, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    phone.found.pay_order()
    dead = phone.found.paid[-1]
    cures = {await phone.told(one, "no such address") for one in phone.ids(dead)}
    assert len(cures) == 1, "whichever id it is"
    broken.unlink()
    await phone.type(cures.pop(), yes=True)
    await phone.found.shipped(within_s=40)

    assert (await phone.call("handlers", "pause", "warehouse:ship", "--reason", "stocktaking")).returncode == 0
    phone.found.pay_order()
    waiting = phone.found.paid[-1]
    cures = {await phone.told(one, "is paused since") for one in phone.ids(waiting)}
    assert len(cures) == 1
    await phone.type(cures.pop(), yes=False)
    await phone.found.shipped(within_s=40)

    shop = Stage(phone.found.sandbox, phone.found.sandbox.config.app_id, 1)
    session = shop.order("dear")
    said = [f"session_id={session.id}", f"order_id={session.order_id}", "expected_amount=99.00"]
    words = [word for one in said for word in ("--set", one)]
    done = await phone.call("say", "checkout.registered", session.order_id, *words, "--reason", "a test", "--yes")
    assert done.returncode == 0, done.stderr

    async def is_registered() -> bool:
        told = await phone.call("explain", "order", session.order_id, "--json")
        return told.returncode == 0 and json.loads(told.stdout)["state"]["registered_at"] is not None

    await eventually(is_registered, within_s=40, every_s=0.2, what="the registration is known")
    shop.pay(session)
    phone.found.paid.append(session.order_id)
    cures = {await phone.told(one, "held.") for one in phone.ids(session.order_id)}
    assert len(cures) == 1
    await phone.type(cures.pop(), yes=True)
    await phone.found.shipped(within_s=40)
    phone.found.assert_one_parcel_each()


# case: O5
async def test_an_order_that_nobody_knows_is_no_order(phone: Phone) -> None:
    paid = phone.found.paid[-1]
    done = await phone.call("explain", paid + "x")
    assert (done.returncode, done.stderr.startswith("error[not_found]")) == (1, True)
    assert paid in done.stderr, "what is near it"
    done = await phone.call("say", "fulfilment.marked_paid", paid + "x", "--reason", "she says so", "--yes")
    assert done.returncode == 2
    assert "--unknown" in done.stderr
