"""The subscriber on the phone: "I paid and have no access". Any id leads by one command to the cause; one more mends
it."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.sandbox.engine import records as r
from consumer.sandbox.engine.sessions import SessionRequest
from consumer.sandbox.scenarios.stage import Stage
from tests.promises.phone.phone import OPEN, Phone
from tests.support.ports import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def let_in(opened: Path, customer: str | None) -> None:
    await eventually((opened / str(customer)).exists, within_s=40, every_s=0.1, what=f"{customer} is let in")


def of_nobody(phone: Phone) -> r.Subscription:
    """Somebody subscribes, and no record of the service's says who."""
    engine = phone.found.sandbox.engine
    application = engine.applications.get(phone.found.sandbox.config.app_id)
    request = SessionRequest(
        mode="subscription",
        order_id="sub-of-nobody",
        success_url="https://shop.example/success",
        cancel_url="https://shop.example/cancel",
        price_id="svc_price_monthly",
    )
    session = engine.sessions.create(application, request).session
    engine.payments.pay(session)
    return engine.subscriptions.any(str(engine.session(session.id).subscription_id))


# case: O5, A36, A42, A50
async def test_any_id_leads_to_the_cause_and_one_command_mends_it(phone: Phone, opened: Path) -> None:
    shop = Stage(phone.found.sandbox, phone.found.sandbox.config.app_id, 1)
    phone.break_handlers()
    dead = shop.subscribe()
    cure = await phone.cure(await phone.ids_of_subscription(dead), "no such account")
    phone.mend_handlers()
    await phone.type(cure, yes=True)
    await let_in(opened, dead.customer_reference)

    assert (await phone.call("handlers", "pause", OPEN, "--reason", "new login")).returncode == 0
    waiting = shop.subscribe()
    cure = await phone.cure(await phone.ids_of_subscription(waiting), "is paused since")
    await phone.type(cure, yes=False)
    await let_in(opened, waiting.customer_reference)

    nobodys = of_nobody(phone)
    cure = await phone.cure(await phone.ids_of_subscription(nobodys, granted=False), "unresolved_subscriber")
    await phone.type(cure, yes=True, customer="maud")
    await let_in(opened, "maud")

    (opened / "maud").unlink()
    held = await phone.call("say", "access.held", "maud", "--reason", "chargeback", "--yes")
    assert held.returncode == 0, held.stderr
    cure = await phone.cure([*await phone.ids_of_subscription(nobodys, granted=False), "maud"], "chargeback")
    await phone.type(cure, yes=True)
    await let_in(opened, "maud")
