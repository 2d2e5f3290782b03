"""What `consumer backfill` says: of each application, of its certificate, of cursors. In this process, against the
simulator."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Never

import pytest

from consumer.cli.output import Output
from consumer.cli.walking.backfill import say_report
from consumer.cli.walking.target_file import TargetFile
from consumer.errors import UsageError
from consumer.lists.bookmark import ListOrder
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sandbox.scenarios.stage import Stage
from consumer.sync.backfill.report import BackfillReport
from tests.support.desk import Called, Desk


@dataclass
class Shop:
    """Two applications: `default`, whose credentials are right, and `zzz` or `aaa`, whose secret is wrong."""

    desk: Desk
    sandbox: Sandbox

    async def call(self, *words: str, **more: str) -> Called:
        return await asyncio.to_thread(self.desk.call, *words, **more)

    def beside(self, name: str, secret: str = "svc_sk_live_wrong") -> dict[str, str]:
        other = {"name": name, "base_url": self.sandbox.base_url, "app_id": "svc_app_other", "app_secret": secret}
        return {"CONSUMER_APPLICATIONS": json.dumps([other])}

    @property
    def listed(self) -> int:
        return len(list(self.sandbox.engine.world.events))


@pytest.fixture
async def shop(environ: dict[str, str], upgraded: None) -> AsyncIterator[Shop]:
    async with Sandbox(SandboxConfig(seed=1)) as sandbox:
        found = Shop(
            Desk(
                environ
                | {
                    "SVC_BASE_URL": sandbox.base_url,
                    "SVC_APP_ID": sandbox.config.app_id,
                    "SVC_APP_SECRET": sandbox.config.app_secret,
                }
            ),
            sandbox,
        )
        stage = Stage(sandbox, sandbox.config.app_id, 1)
        stage.pay(stage.order("order-1"))
        yield found


@pytest.mark.parametrize("name", ["aaa", "zzz"])
async def test_one_application_that_fails_keeps_no_other_from_its_walk(shop: Shop, name: str) -> None:
    # case: S7, B25, I29
    done = await shop.call("backfill", "--full", "--json", "--yes", **shop.beside(name))
    assert done.returncode == 1
    walks = {walk["application"]: walk for walk in json.loads(done.stdout)["walks"]}
    assert walks["default"]["published"] == shop.listed
    assert (walks[name]["error"], "published" in walks[name]) == ("invalid_api_credentials", False)
    [line] = done.stderr.splitlines()
    assert line.startswith(f"error[invalid_api_credentials]: {name}: ")
    read = await shop.call("backfill", "--full", "--yes", **shop.beside(name))
    assert read.stdout.startswith("default: ")


def _left_alone(environ: dict[str, str], began: datetime) -> None:
    """The first walk began then, and left three events alone."""
    kept = {"history": {"events": 3}, "first_walk": {"began": began.isoformat()}}
    with closing(sqlite3.connect(environ["CONSUMER_DATABASE_URL"].partition("///")[2])) as ledger, ledger:
        for walk, state in kept.items():
            row = ("default", walk, 0, json.dumps(state).encode(), began.isoformat(" "))
            ledger.execute(
                "INSERT INTO bookmarks (application, walk, token, state, updated_at) VALUES (?,?,?,?,?)", row
            )


async def test_history_that_was_left_alone_is_acted_on_with_consent_only(shop: Shop, environ: dict[str, str]) -> None:
    # case: B30
    now = datetime.now(UTC)
    _left_alone(environ, now - timedelta(days=1))
    for words in (("--full",), ("--since", "7d")):
        asked = await shop.call("backfill", *words)
        assert (asked.returncode, asked.stderr[:12], asked.stdout) == (2, "error[usage]", "")
    why = ("--reason", "nobody sold before us")
    for words in (("--full", "--dry-run"), ("--since", "1h")):
        done = await shop.call("backfill", *words)
        assert done.returncode == 0, (words, done.stderr)
    assert await noted(shop) == [], "it acted on none of it"
    consented = await shop.call("backfill", "--full", "--yes", *why)
    assert consented.returncode == 0, consented.stderr
    assert (await shop.call("backfill", "--full")).returncode == 0, "nothing is left that it would ask about"
    assert await noted(shop) == [("history.acted_on", "application:default", why[1])], "who decided that, and why"


async def test_the_very_first_command_ships_no_history_unasked(shop: Shop) -> None:
    # case: B30
    for words in (("--full",), ("--since", "7d")):
        asked = await shop.call("backfill", *words)
        assert (asked.returncode, asked.stderr[:12], asked.stdout) == (2, "error[usage]", "")
    why = ("--reason", "what was sold elsewhere")
    assert (await shop.call("backfill", "--seed", "--full", "--yes", *why)).returncode == 0
    assert [action for action, _, _ in await noted(shop)] == ["history.archived"]
    assert (await shop.call("backfill", "--full")).returncode == 0, "all of it was seen to"


async def test_what_was_just_now_is_acted_on_without_a_question(shop: Shop) -> None:
    # case: B30
    done = await shop.call("backfill", "--since", "10m")
    assert done.returncode == 0, done.stderr


async def noted(shop: Shop) -> list[tuple[str, str, str | None]]:
    entries = json.loads((await shop.call("audit", "list", "--json")).stdout)["entries"]
    return [(one["action"], one["subject"], one["reason"]) for one in entries]


async def _certified(shop: Shop, file: Path, *more: str) -> Called:
    return await shop.call("backfill", "--certificate", str(file), "--since", "1h", *more)


async def test_a_certificate_names_its_window_and_what_it_replaced(shop: Shop, tmp_path: Path) -> None:
    # case: O7
    file = tmp_path / "certificate.json"
    first, second = await _certified(shop, file), await _certified(shop, file)
    document = json.loads(file.read_text())
    assert second.returncode == 1, "nothing was walked: all are missing"
    assert second.stdout.splitlines()[0] == f"default, from {document['since']} to {document['until']}: missing"
    assert ("replaced" in first.stderr, "replaced" in second.stderr) == (False, True)


async def test_a_certificate_that_cannot_be_written_after_all_is_shown(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: O7
    def fail(*_: object) -> Never:
        raise UsageError("the certificate cannot be written: No space left on device")

    monkeypatch.setattr(TargetFile, "writing", fail)
    done = await _certified(shop, tmp_path / "certificate.json", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["listed"] == shop.listed
    [line] = done.stderr.splitlines()
    assert "No space left" in line


def _report(**more: Any) -> BackfillReport:
    return BackfillReport(
        application="shop", order=ListOrder.NEWEST_FIRST, pages=1, listed=1, known=1, published=0, recovered=0,
        strange=0, gap=False, history=0, seconds=1.0, **more,
    )  # fmt: skip


@pytest.mark.parametrize(("refused", "told"), [(0, False), (2, True)])
def test_refused_cursors_are_told(capsys: pytest.CaptureFixture[str], refused: int, told: bool) -> None:
    # case: B11
    say_report(_report(refused=refused), Output(as_json=False))
    assert ("2 cursor(s)" in capsys.readouterr().out) is told
