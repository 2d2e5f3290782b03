"""What a handler's context tells of its attempt: whether it is a replay or history, and whose clients it uses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumer.clock import DrivenClock
from consumer.errors import HandlerMisuse
from consumer.plugin import Context, Event, declared, handles
from consumer.wire import SEED
from consumer.work.execution.contexts import Contexts
from consumer.work.execution.loop_proxy import LoopProxy
from tests.work.workshop import order_paid


@handles("order.paid", name="test:acts")
async def acts(event: Event, ctx: Context) -> None:
    """Nothing."""


def made(contexts: Contexts, plan: str | None = None, **given: Any) -> Context:
    handler = declared(acts)
    assert handler is not None
    return contexts.make(handler, order_paid(1), attempt=1, plan=plan, **given)


# case: G10
@pytest.mark.parametrize(
    ("plan", "is_replay", "is_history"), [(None, False, False), ("plan_1", True, False), (SEED, False, True)]
)
def test_what_is_seeded_is_history_and_what_a_plan_sends_a_replay(
    plan: str | None, is_replay: bool, is_history: bool
) -> None:
    ctx = made(Contexts(DrivenClock()), plan)
    assert (ctx.is_replay, ctx.is_history) == (is_replay, is_history)


async def test_the_payments_client_is_the_applications_and_a_proxy_on_another_loop_only() -> None:
    client, home = object(), asyncio.get_running_loop()
    contexts = Contexts(DrivenClock(), payments={"default": client, "other": object()})
    assert made(contexts).payments is client
    assert isinstance(made(contexts, home=home).payments, LoopProxy)
    nobodys = Contexts(DrivenClock(), payments={"other": client})
    for one in (None, home):
        with pytest.raises(HandlerMisuse, match="not configured"):
            made(nobodys, home=one).payments  # noqa: B018 - asking for it is what is refused
