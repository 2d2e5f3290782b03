"""`CONSUMER_HANDLERS` that leaves out a built-in plugin: nothing would be fulfilled, or nobody get access. It is an
error in the log at the start, and degraded in `status`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import structlog

from consumer.app import App
from consumer.settings import Role, load_settings
from tests.support.desk import Desk
from tests.support.merchant.plugin import install_plugin

SHIPS = """
from consumer.plugin import Context, Event, handles

@handles("fulfilment.requested", name="leftout:ship")
async def ship(event: Event, ctx: Context) -> None:
    ctx.log.info("shipped")
"""


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """With a plugin of the merchant's, the only one that is allowed."""
    (tmp_path / "path").mkdir()
    install_plugin(tmp_path / "path", "leftout", SHIPS)
    monkeypatch.syspath_prepend(tmp_path / "path")
    return environ | {"CONSUMER_HANDLERS": "leftout:ship"}


# case: H1
async def test_at_the_start_it_is_an_error_in_the_log(environ: dict[str, str]) -> None:
    with structlog.testing.capture_logs() as logs:
        async with App(load_settings(environ, Role.WORK)) as app:
            app.check_plugins()
    told = {one["plugin"].partition(" ")[0]: one["log_level"] for one in logs if one["event"] == "built_in_left_out"}
    assert told == {"fulfilment": "error", "access": "error"}
    loaded = {one["plugin"]: one["handlers"] for one in logs if one["event"] == "plugin_loaded"}
    assert loaded == {"leftout": ["leftout:ship"]}


async def test_status_says_what_no_longer_happens_and_that_orders_wait(environ: dict[str, str]) -> None:
    def look() -> None:
        desk = Desk(environ)
        assert desk.call("db", "upgrade").returncode == 0
        done = desk.call("status", "--json")
        told = [one for one in json.loads(done.stdout)["findings"] if one["code"] == "built_in_left_out"]
        grades = {one["text"].split()[3]: one["grade"] for one in told}
        assert grades == {"fulfilment": "stuck", "access": "degraded"}
        assert any("no paid order becomes fulfilment.requested" in one["text"] for one in told)
        assert len(told) == 2
        assert done.returncode == 2

        allowed = desk.call("status", "--json", CONSUMER_HANDLERS="leftout,fulfilment,access")
        assert "built_in_left_out" not in allowed.stdout

    await asyncio.to_thread(look)
