"""Order ids at the bound of the service's document, and beyond it, whose webhooks are only hints: what the service can
look up is shipped; what it cannot is held, shown, and released by the command that is told."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from consumer.sandbox.scenarios.stage import Stage
from tests.promises.deployment import Deployment, deployment, embedded, started
from tests.support.desk import Called, Desk
from tests.support.ports import eventually

LONGEST = ("A" * 128, "A/?&#% " * 18 + "A1", "物ö" * 64)
TOO_LONG = ("A" * 255, "物ö" * 127 + "1")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


# case: F26
async def test_in_authenticity_api(tmp_path: Path) -> None:
    async with deployment(tmp_path, **embedded(tmp_path)) as found:
        port = found.environ["CONSUMER_PORT"]
        found.sandbox.set_webhook_url(f"http://127.0.0.1:{port}/webhooks/default")
        desk = Desk(found.environ)
        async with started(*(found.process(role) for role in ("serve", "work", "sync"))):
            for order_id in LONGEST:
                _pay(found, order_id)
            await found.shipped(within_s=90)
            for order_id in TOO_LONG:
                _pay(found, order_id)
                cured = partial(_shipped_or_cured, found, desk, order_id)
                await eventually(cured, within_s=60, every_s=0.5, what="shipped, or cured by the command that is told")
                await found.shipped(within_s=90)
        found.assert_one_parcel_each()


def _pay(found: Deployment, order_id: str) -> None:
    stage = Stage(found.sandbox, found.sandbox.config.app_id, 1)
    stage.pay(stage.order(order_id=order_id))
    found.paid.append(order_id)


async def _shipped_or_cured(found: Deployment, desk: Desk, order_id: str) -> bool:
    """Whether nothing is left to do: a walk of the list of orders has shown the order, or the command that `explain`
    tells released it. What held it may change between the two: then the command is refused, and read anew."""
    if order_id in found.warehouse.keys:
        return True
    status = json.loads((await _call(desk, "status", "--json")).stdout)
    assert order_id in [held["order_id"] for held in status["held"]], status
    explained = json.loads((await _call(desk, "explain", order_id, "--json")).stdout)
    told = re.findall(r"consumer [^\"\\]+?--reason …", json.dumps(explained["next"], ensure_ascii=False))
    assert told, explained["next"]
    cure = shlex.split(told[0])[1:]
    done = await _call(desk, *[word.replace("…", "seen at the service") for word in cure], "--yes")
    changed = ("nothing holds the order", "that does not hold the order by now")
    if done.returncode != 0 and not any(words in done.stderr for words in changed):
        pytest.fail(done.stderr)  # no AssertionError: a cure that is refused is not tried again
    return done.returncode == 0


async def _call(desk: Desk, *words: str) -> Called:
    return await asyncio.to_thread(desk.call, *words)
