"""A process says when it begins and when it ends. With level debug, one trace id shows the way of an event: from its
webhook through every process to the handler of what came of it. Without it, every line that is written on its way
carries the id all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.promises.deployment import deployment, embedded, started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROLES = ("serve", "sync", "work")
WEBHOOK = (("serve", "webhook_stored"), ("sync", "hint_kept"), ("sync", "event_published"))


# case: O1
async def test_through_all_processes(tmp_path: Path) -> None:
    async with deployment(tmp_path, **embedded(tmp_path)) as found:
        found.environ |= {"CONSUMER_LOG_LEVEL": "debug", "CONSUMER_LOG_FORMAT": "json"}
        found.environ["CONSUMER_SYNC_INTERVAL_S"] = "60"  # the webhook is to be the first to tell
        processes = [found.process(role) for role in ROLES]
        async with started(*processes):
            await found.walked()
            found.sandbox.set_webhook_url(f"http://127.0.0.1:{found.environ['CONSUMER_PORT']}/webhooks/default")
            found.pay_order()
            await found.shipped(within_s=60)
            await found.settled(within_s=60)
        lines = [line for process in processes for line in _lines(process.log)]
    for role, process in zip(ROLES, processes, strict=True):
        its = {line["event"]: line for line in _lines(process.log)}
        assert its["role_started"]["role"] == role
        assert its["role_started"]["settings"]
        assert its["role_started"]["internal_url"]
        assert its["role_stops"]["signalled"]
        assert list(its)[-1] == "role_stopped"
    paid = next(line for line in lines if line["event"] == "event_recorded" and line["type"] == "order.paid")
    way = [line for line in lines if line.get("trace_id") == paid["trace_id"]]
    assert all({"role", "pid", "version", "at"} <= line.keys() for line in way)
    steps = [(line["role"], line["event"]) for line in sorted(way, key=lambda line: line["at"])]
    in_order = [steps.index(one) for one in (*WEBHOOK, ("work", "event_recorded"))]
    assert in_order == sorted(in_order), steps
    # The service was asked for the order: that answer is the cause of what follows, in the trace of who asked.
    [ended] = [line for line in lines if line["event"] == "handler_ended" and line["handler"] == "warehouse:ship"]
    assert (ended["type"], ended["status"], ended["key"]) == ("fulfilment.requested", "succeeded", paid["key"])
    answered = [line for line in lines if line.get("trace_id") == ended["trace_id"] and line["role"] == "work"]
    caused = [(line["event"], line["type"]) for line in answered]
    # What the answer led to is taken with it, and published for others meanwhile.
    assert caused.count(("derived_published", "fulfilment.requested")) == 1
    caused.remove(("derived_published", "fulfilment.requested"))
    assert caused.pop(0) in [("event_recorded", one) for one in ("order.paid", "checkout.session.completed")]
    recorded = [("event_recorded", one) for one in ("order.observed", "fulfilment.requested")]
    assert caused == [*recorded, *[(step, "fulfilment.requested") for step in ("handler_began", "handler_ended")]]


def _lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]
