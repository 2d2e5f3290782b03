"""The customer on the phone: "I paid and got nothing". Any id leads by one command to the cause; one more mends it."""

from __future__ import annotations

import json

import pytest

from consumer.sandbox.scenarios.stage import Stage
from tests.promises.phone.phone import Phone
from tests.support.ports import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


# case: O5, A50, F20, F30
async def test_any_id_leads_to_the_cause_and_one_command_mends_it(phone: Phone) -> None:
    phone.break_handlers()
    phone.found.pay_order()
    cure = await phone.cure(await phone.ids_of_order(phone.found.paid[-1]), "no such address")
    phone.mend_handlers()
    await phone.type(cure, yes=True)
    await phone.found.shipped(within_s=40)

    assert (await phone.call("handlers", "pause", "warehouse:ship", "--reason", "stocktaking")).returncode == 0
    phone.found.pay_order()
    cure = await phone.cure(await phone.ids_of_order(phone.found.paid[-1]), "is paused since")
    await phone.type(cure, yes=False)
    await phone.found.shipped(within_s=40)

    shop = Stage(phone.found.sandbox, phone.found.sandbox.config.app_id, 1)
    session = shop.order("dear")
    said = [f"session_id={session.id}", f"order_id={session.order_id}", "expected_amount=99.00"]
    words = [word for one in said for word in ("--set", one)]
    done = await phone.call("say", "checkout.registered", session.order_id, *words, "--reason", "a test", "--yes")
    assert done.returncode == 0, done.stderr

    async def is_registered() -> bool:
        told = await phone.call("explain", "order", session.order_id, "--json")
        state = json.loads(told.stdout).get("state") if told.returncode == 0 else None  # its event comes first
        return state is not None and state["registered_at"] is not None

    await eventually(is_registered, within_s=40, every_s=0.2, what="the registration is known")
    shop.pay(session)
    phone.found.paid.append(session.order_id)
    cure = await phone.cure(await phone.ids_of_order(session.order_id, requested=False), "held.")
    await phone.type(cure, yes=True)
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
