"""Every event of the service that the catalogue shows can be triggered in the simulator, and its body reads as its
class, complete as far as the catalogue goes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from consumer.events import Locators, Source, Trust, build_event
from consumer.payload import Payload, payload_class
from consumer.plugin import OrderEvent, SessionEvent, SubscriptionEvent
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sandbox.control.trigger import trigger
from consumer.sandbox.engine.events import TYPES
from consumer.sandbox.webhooks.envelopes import body_bytes, envelope

NOT_YET = {"cancel_reason", "end_reason"}
"""What a subscription that is not cancelled, or not ended, does not have."""


def test_both_know_the_same_types() -> None:
    said = (OrderEvent, SessionEvent, SubscriptionEvent)
    assert set(TYPES) == {event_type for model in said for event_type in model.event_types}


@pytest.mark.parametrize("event_type", sorted(TYPES))
async def test_what_is_triggered_reads_as_its_class(event_type: str) -> None:
    async with Sandbox(SandboxConfig(seed=1)) as sandbox:
        made = await trigger(sandbox, {"type": event_type})
        [happened] = [one for one in sandbox.engine.world.events if one.type == event_type]
        assert event_type in [one["type"] for one in made["events"]]
        raw = body_bytes(envelope(sandbox.engine, happened))
    event = build_event(
        raw, Locators(), application="default", trust=Trust.SIGNED, source=Source.WEBHOOK, received_at=datetime.now(UTC)
    )  # fmt: skip
    said = event.payload
    assert type(said) is payload_class(event_type)
    assert type(said) is not Payload
    missing = [name for name in type(said).model_fields if getattr(said, name) is None]
    assert set(missing) <= NOT_YET
