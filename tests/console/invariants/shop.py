"""A shop in which money and access are as they should be, one payment in every class; a test plants what is not."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from consumer.console.invariants.check import Check
from consumer.console.invariants.report import Report
from consumer.console.invariants.service import LastObservations
from consumer.ledger import Database
from consumer.ledger.handling import runs
from consumer.ledger.handling.dead import DISCARDED
from consumer.ledger.handling.runs import Run
from consumer.ledger.reading import observations
from consumer.ledger.reading.observation import ObjectKind, Observation
from consumer.ledger.tables import RunStatus
from consumer.plugin import derived_id
from tests.support.handling.projections import START, Projections, own, said

FULFILMENT, ACCESS = "handlers.fulfilment.handler", "handlers.access.handler"
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "fulfilment": {"matching": "auto"},
    "access": {"entitlements": {"monthly": ["films"], "yearly": ["films", "music"]}},
}
NOW = START + timedelta(hours=2)


class Shop:
    """Reads as the stages make them, and words as an operator says them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.projections = Projections(
            database, FULFILMENT, ACCESS, options={FULFILMENT: OPTIONS["fulfilment"], ACCESS: OPTIONS["access"]}
        )
        self._version = 0

    async def read(self, kind: ObjectKind, id_: str, *, is_baseline: bool = False, **record: Any) -> None:
        """A read that differed, published and remembered; of the first walk (`is_baseline`) only remembered."""
        self._version += 1
        seen = Observation(
            application="default", kind=kind, object_id=id_, version=self._version, read_at=self.projections.now,
            record={"id": f"svc_{id_}" if kind == "order" else id_, **record},
        )  # fmt: skip
        async with self.database.transaction() as session:
            await observations.keep(session, [seen.observed])
        if not is_baseline:
            await self.projections.feed(seen.event())
            await self.projections.relay()

    async def paid(self, order: str, amount: str = "25.00", *, ships: str | None = "succeeded") -> None:
        """An order that is paid, and what became of its fulfilment."""
        await self.read("order", order, order_id=order, status="PAID", amount=amount)
        await self.pays(f"pay_{order}", order, amount)
        if ships is not None:
            await self.runs(order, ships)

    async def pays(self, payment: str, order: str | None, amount: str = "25.00", **more: Any) -> None:
        """A payment that succeeded."""
        fields = {"status": "SUCCEEDED", "amount": amount, "order_id": order, **more}
        await self.read("payment", payment, **fields)

    async def runs(
        self, order: str, status: str, handler: str = "shop:ship", type_: str = "fulfilment.requested"
    ) -> None:
        """A run of the merchant's own handler; `discarded`: one that an operator gave up."""
        key = f"order:{order}"
        run = Run(
            application="default", event_id=derived_id("default", type_, key, "order"), handler=handler, seq=1,
            key=key, status=RunStatus.SKIPPED if status == DISCARDED else RunStatus(status), blocking=False,
            code=DISCARDED if status == DISCARDED else None,
        )  # fmt: skip
        async with self.database.transaction() as session:
            await runs.add(session, [run], START)

    async def subscribes(self, id_: str, customer: str | None, price: str = "monthly", **more: Any) -> None:
        """A live subscription, as it was read."""
        fields = {"status": "ACTIVE", "price_id": price, "customer_reference": customer, **more}
        await self.read("subscription", id_, **fields)
        await self.pays(f"pay_{id_}", None, "10.00", subscription_id=id_, succeeded_at=START.isoformat())

    async def say(self, word: str, key: str, **data: Any) -> None:
        """An operator's word."""
        await self.projections.feed(own(word, key, {"by": "op", "reason": "why", **data}, at=self.projections.now))
        await self.projections.relay()

    async def sql(self, *statements: str) -> None:
        """What no code of ours would do."""
        async with self.database.transaction() as session:
            for statement in statements:
                await session.execute(text(statement))

    async def check(self) -> Report:
        """The account, two hours later."""
        service = LastObservations(self.database)
        return await Check(self.database, service, OPTIONS, NOW, handlers=["shop:ship"]).run("default")


async def healthy(database: Database) -> Shop:
    """Every class once, every reason for access once; all of it explained."""
    shop = Shop(database)
    await shop.paid("A1")
    await shop.paid("A2", "0.000001")
    await shop.paid("due", ships="retrying")
    await shop.paid("given-up", ships="discarded")
    await shop.paid("mailed", ships="discarded")
    await shop.runs("mailed", "succeeded", handler="shop:mail")
    await shop.paid("refunded", ships="discarded")
    await shop.runs("refunded", "succeeded", handler="shop:mail")
    await shop.say("fulfilment.unfulfillable", "order:refunded")
    await shop.paid("twice")
    await shop.pays("pay_twice_again", "twice")
    await shop.paid("late")
    await shop.projections.feed(said("checkout.session.expired", "evt_late", id="ses_late", order_id="late"))
    await shop.say("checkout.registered", "order:dear", session_id="ses_d", order_id="dear", expected_amount="30.00")
    await shop.paid("dear", ships=None)  # held: another amount than registered
    await shop.paid("gone", ships="dead")
    await shop.say("fulfilment.unfulfillable", "order:gone")
    await shop.pays("pay_orphan", None)
    await shop.pays("pay_unpaid", "unpaid")
    await shop.pays("pay_back", None)
    await shop.say("fulfilment.finding_closed", "object:pay_back", kind="orphan_payment")
    await shop.read("order", "old", is_baseline=True, order_id="old", status="PAID", amount="5.00")
    await shop.read("payment", "pay_old", is_baseline=True, order_id="old", status="SUCCEEDED", amount="5.00")
    await shop.subscribes("sub_1", "cus_1")
    await shop.subscribes("sub_2", "cus_2", "yearly")
    await shop.subscribes("sub_nobody", None)
    await shop.subscribes("sub_unmapped", "cus_3", "another")
    await shop.subscribes("sub_ended", "cus_4")
    await shop.read("subscription", "sub_ended", status="ENDED", end_reason="MERCHANT_CANCELED", price_id="monthly",
                    customer_reference="cus_4", ended_at=START.isoformat())  # fmt: skip
    late = START + timedelta(minutes=1)
    await shop.projections.feed(said("subscription.renewed", "evt_renewed", id="sub_ended", at=late))
    await shop.pays("pay_after", None, "10.00", subscription_id="sub_ended", succeeded_at=late.isoformat())
    begun = said("checkout.session.completed", "evt_begun", id="ses_sub", order_id="S1", mode="subscription")
    await shop.projections.feed(begun)
    await shop.pays("pay_in_its_session", None, "10.00", session_id="ses_sub")
    await shop.subscribes("sub_held", "cus_5")
    await shop.say("access.held", "customer:cus_5")
    await shop.say("access.complimentary_granted", "customer:cus_6", entitlement="music")
    await shop.projections.pass_time(minutes=30)  # timers go off
    return shop
