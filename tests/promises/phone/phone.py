"""Phone: who answers the customer's call, with nothing but the commands."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

from consumer.plugin.emission import idempotency_key
from consumer.sandbox.engine import records as r
from tests.promises.deployment import Deployment
from tests.support.desk import Called, Desk
from tests.support.ports import eventually

SHIP, OPEN = "warehouse:ship", "login:open"
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

@handles("access.granted", name="login:open", first_wait_s=0.2)
async def open_(event, ctx):
    if Path({broken!r}).exists():
        raise Reject("no such account")
    Path({opened!r}, event.customer).touch()
"""
"""A plugin that gives up what it is asked for while the file `broken` is there."""


class Phone:
    """Who answers it: types commands, and reads what they print."""

    def __init__(self, found: Deployment, broken: Path) -> None:
        self.found = found
        self._broken = broken
        self._desk = Desk(found.environ)

    def break_handlers(self) -> None:
        """From now on the shop's handlers give up what they are asked for."""
        self._broken.touch()

    def mend_handlers(self) -> None:
        """From now on they work again."""
        self._broken.unlink()

    async def call(self, *words: str) -> Called:
        """A command, and how it ended."""
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

    async def cure(self, ids: list[str], cause: str) -> str:
        """The command that mends it: the same, whichever id the customer has."""
        cures = {await self.told(one, cause) for one in ids}
        assert len(cures) == 1, cures
        return cures.pop()

    async def type(self, cure: str, *, yes: bool, customer: str = "") -> None:
        """The command as it was told, with what only a person knows."""
        words = [word.replace("customer=…", f"customer={customer}") for word in shlex.split(cure)[1:]]
        words = [word.replace("…", "the customer called") for word in words]
        done = await self.call(*words, *(["--yes"] if yes else []))
        assert done.returncode == 0, f"{cure}: {done.stderr}"

    async def ids_of_order(self, order_id: str, *, requested: bool = True) -> list[str]:
        """Whatever the customer may have: the merchant's order id, the session's, the service's order's, the payment's,
        the customer reference, the event's, its delivery's, and, once it was `requested`, the key it was shipped by."""
        world = self.found.sandbox.engine.world
        [order] = [one for one in world.orders if one.order_id == order_id]
        assert order.payment_id is not None
        assert order.customer_reference is not None
        ids = [order_id, order.session_id, order.id, order.payment_id, order.customer_reference]
        ids += await self._of_event("order.paid", f"order:{order_id}", order.id)
        return ids + ([await self._key(SHIP, f"order:{order_id}")] if requested else [])

    async def ids_of_subscription(self, subscription: r.Subscription, *, granted: bool = True) -> list[str]:
        """The same of a subscription: its own, the session's, the order id that the merchant gave to it, the payment's,
        the event's, its delivery's; and once access was `granted`, the customer's and the key it was opened by."""
        world = self.found.sandbox.engine.world
        [session] = [one for one in world.sessions if one.id == subscription.session_id]
        assert session.payment_id is not None
        ids = [subscription.id, session.id, session.order_id, session.payment_id]
        ids += await self._of_event("subscription.created", f"subscription:{subscription.id}", subscription.id)
        customer = str(subscription.customer_reference)
        return ids + ([customer, await self._key(OPEN, f"customer:{customer}")] if granted else [])

    async def _of_event(self, type_: str, key: str, object_id: str) -> list[str]:
        """The service's event about the object, and the id of the delivery by which it came here."""
        events = self.found.sandbox.engine.world.events
        [event_id] = [one.id.rpartition("/")[2] for one in events if (one.type, one.object_id) == (type_, object_id)]
        wanted = f"SELECT delivery_id FROM events WHERE key = '{key}' AND id = '{event_id}'"
        delivery_id = await self._stored(wanted)
        assert delivery_id.startswith("dlv_"), "nobody listed it before"
        return [event_id, delivery_id]

    async def _key(self, handler: str, key: str) -> str:
        event_id = await self._stored(f"SELECT event_id FROM runs WHERE handler = '{handler}' AND key = '{key}'")
        return idempotency_key("default", event_id, handler)

    async def _stored(self, statement: str) -> str:
        async def one() -> Any:
            return await self.found.one(statement)

        return str(await eventually(one, within_s=40, every_s=0.2, what=statement))
