"""`backfill`, `reconcile`, `doctor`, and what `status` says of the reading: as processes, against the simulator."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sandbox.scenarios.stage import Stage
from tests.support.ports import eventually, free_port
from tests.support.process import INHERITED, ConsumerProcess, command, ended

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@dataclass
class Operator:
    """An operator's terminal and the service it works with."""

    environ: dict[str, str]
    sandbox: Sandbox
    folder: Path

    async def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command, *arguments, environ=self.environ | more)

    async def answer(self, *arguments: str, exits: int = 0, **more: str) -> Any:
        """The JSON document of a command that ends with this code."""
        done = await self.run(*arguments, "--json", **more)
        assert done.returncode == exits, (done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def process(self, role: str, name: str | None = None) -> ConsumerProcess:
        return ConsumerProcess(role, self.environ, self.folder, name)

    def pay_orders(self, count: int) -> None:
        stage = Stage(self.sandbox, self.sandbox.config.app_id, 1)
        for number in range(count):
            stage.pay(stage.order(f"order-{number}"))

    def leased(self) -> set[str]:
        """The roles that somebody holds or has held."""
        with closing(sqlite3.connect(self.folder / "consumer.db")) as ledger:
            return {role for (role,) in ledger.execute("SELECT role FROM leases")}

    @property
    def listed(self) -> int:
        return len(list(self.sandbox.engine.world.events))


@pytest.fixture
async def operator(environ: dict[str, str], tmp_path: Path) -> AsyncIterator[Operator]:
    async with Sandbox(SandboxConfig(seed=1)) as sandbox:
        found = Operator(
            environ
            | {
                "SVC_BASE_URL": sandbox.base_url,
                "SVC_APP_ID": sandbox.config.app_id,
                "SVC_APP_SECRET": sandbox.config.app_secret,
                "CONSUMER_SYNC_INTERVAL_S": "1",
            },
            sandbox,
            tmp_path,
        )
        assert (await found.run("db", "upgrade")).returncode == 0
        yield found


async def test_a_walk_finds_what_is_missing_and_a_certificate_says_what_became_of_it(operator: Operator) -> None:
    # case: B27
    operator.pay_orders(3)
    certificate = operator.folder / "certificate.json"
    words = ("backfill", "--certificate", str(certificate), "--since", "1h")

    [tried] = (await operator.answer("backfill", "--dry-run"))["walks"]
    assert (tried["published"], tried["dry_run"]) == (operator.listed, True)
    assert (await operator.answer(*words, exits=1))["missing"] == operator.listed
    [walked] = (await operator.answer("backfill"))["walks"]
    assert (walked["published"], walked["recovered"]) == (operator.listed, operator.listed)

    work = operator.process("work")
    work.spawn()
    with ended(work):
        await work.ready()

        async def is_complete() -> bool:
            return (await operator.run(*words)).returncode == 0

        await eventually(is_complete, within_s=60, every_s=0.5, what="every event is handled")
    document = json.loads(certificate.read_text())
    assert (document["verdict"], document["listed"], document["missing"]) == ("complete", operator.listed, 0)
    assert document["recovered"] == operator.listed
    assert (await operator.answer("backfill", "--since", "1h"))["walks"][0]["published"] == 0


async def test_beside_a_leader_a_walk_is_left_to_it_and_a_seed_takes_history_only(operator: Operator) -> None:
    # case: B26, B30
    operator.pay_orders(1)
    for why, words in (((), "--reason must say why"), (("--reason", "sold elsewhere"), "this needs --yes")):
        refused = await operator.run("backfill", "--seed", *why)
        assert (refused.returncode, refused.stderr[:12], words in refused.stderr) == (2, "error[usage]", True)
    sync = operator.process("sync")
    sync.spawn()
    with ended(sync):
        await sync.ready()

        async def leads() -> bool:
            return "sync/default" in await asyncio.to_thread(operator.leased)

        await eventually(leads, within_s=30, every_s=0.2, what="the `sync` process leads")
        said = await operator.run("backfill", "--json")
        [left] = json.loads(said.stdout)["walks"]
        assert (said.returncode, left) == (0, {"application": "default", "another_leads": True, "led_by": "sync"})
        assert "a `sync` process has the lead" in said.stderr

        async def has_walked() -> bool:
            reading = await operator.run("status", "--json")
            return json.loads(reading.stdout)["reading"][0]["walked_at"] is not None

        await eventually(has_walked, within_s=30, every_s=0.2, what="the first walk is complete")
        why = ("--reason", "sold elsewhere until today")
        vague = await operator.run("backfill", "--seed", "--yes", *why)
        assert (vague.returncode, vague.stderr.partition(":")[0]) == (2, "error[usage]")
        assert (await operator.answer("audit", "list"))["entries"] == [], "what was refused was not done"
        [seeded] = (await operator.answer("backfill", "--seed", "--full", "--yes", *why, LOGNAME="ada"))["walks"]
        [noted] = (await operator.answer("audit", "list"))["entries"]
        assert [noted[name] for name in ("actor", "action", "subject", "reason")] == [
            "operator:ada", "history.archived", "application:default", why[1],
        ]  # fmt: skip
        assert json.loads(noted["after"]) == {"full": True, "since": None, "until": None}
        assert (seeded["published"], seeded["left"]) == (0, operator.listed), "no worker runs: all are still missing"
        assert seeded["cut_over"] is not None
        early = await operator.run("backfill", "--seed", "--full", "--yes", *why, "--until", "2099-01-01")
        assert (early.returncode, early.stderr.partition(":")[0]) == (2, "error[usage]")
        nowhere = ("--certificate", str(operator.folder / "none" / "x.json"))
        refused = await operator.run("backfill", *nowhere, "--since", "1h")
        assert (refused.returncode, "folder" in refused.stderr) == (2, True)


async def test_a_backfill_that_is_terminated_gives_its_lead_back_and_the_next_one_walks_on(operator: Operator) -> None:
    # case: B26, B10, G5
    operator.pay_orders(60)
    operator.sandbox.engine.faults.set({"api_slow_s": 1})
    walk = operator.process("backfill")
    walk.spawn()
    with ended(walk):

        async def leads() -> bool:
            return "sync/default" in await asyncio.to_thread(operator.leased)

        await eventually(leads, within_s=30, every_s=0.1, what="the walk has the lead")
        assert walk.stop() == 143
    assert [line.partition(":")[0] for line in walk.log.splitlines()] == ["error[terminated]"]
    operator.sandbox.engine.faults.clear()
    done = await operator.run("backfill", "--json")
    [walked] = json.loads(done.stdout)["walks"]
    assert (done.returncode, done.stderr, walked["another_leads"]) == (0, "", False)
    assert walked["published"] > 0


async def test_of_two_backfills_the_second_waits_and_walks(operator: Operator) -> None:
    # case: B26
    operator.pay_orders(1)
    operator.sandbox.engine.faults.set({"api_slow_s": 8})  # it leads until the other has seen it
    first, second = operator.process("backfill", "first"), operator.process("backfill", "second")
    with ended(first, second):
        first.spawn()
        await eventually(lambda: "sync/default" in operator.leased(), within_s=60)
        second.spawn()
        await eventually(lambda: "another `backfill` has the lead" in second.log, within_s=60)
        operator.sandbox.engine.faults.set({"api_slow_s": 0})
        assert [await asyncio.to_thread(one.wait, 60) for one in (first, second)] == [0, 0]
    walks = [json.loads((operator.folder / f"{one.name}.json").read_text())["walks"][0] for one in (first, second)]
    assert [walk["another_leads"] for walk in walks] == [False, False]
    assert sorted(walk["published"] for walk in walks)[-1] == operator.listed


async def test_drift_of_a_dry_run_is_an_exit_code(operator: Operator) -> None:
    # case: B30, B31
    operator.pay_orders(2)
    [first] = (await operator.answer("reconcile", "--dry-run"))["walks"]
    assert (first["drifted"], first["baseline"] >= 2) == (False, True), "what is there at first is history"
    assert (await operator.answer("reconcile"))["walks"][0]["published"] == 0
    operator.pay_orders(2)
    [early] = (await operator.answer("reconcile", "--dry-run"))["walks"]
    assert (early["drifted"], early["early"]) == (False, True), "nothing has walked the events: whose are they?"
    await operator.answer("backfill")
    assert (await operator.answer("reconcile"))["walks"][0]["early"], "it was paid before that walk"
    operator.pay_orders(2)
    found = await operator.answer("reconcile", "--dry-run", exits=3)
    assert found["walks"][0]["drifted"]
    assert {one["object_id"] for one in found["walks"][0]["differences"] if one["kind"] == "order"}
    braked = await operator.answer("reconcile", "--max-changes", "0", exits=1)
    assert braked["walks"][0]["braked"]
    codes = [finding["code"] for finding in (await operator.answer("status", exits=2))["findings"]]
    assert "reconcile_braked" in codes
    assert (await operator.answer("reconcile"))["walks"][0]["published"] > 0
    assert not (await operator.answer("reconcile", "--dry-run"))["walks"][0]["drifted"]


async def test_doctor_finds_what_is_wrong_and_learns_what_is_not_documented(operator: Operator) -> None:
    # case: S1, O3, U2
    operator.pay_orders(2)
    before = sorted(one.name for one in operator.folder.iterdir())
    well = await operator.answer("doctor", "--learn", CONSUMER_LOCATE_TYPE="/nowhere")
    grades = {check["name"]: check["grade"] for check in well["checks"]}
    for name in ("database", "broker", "handlers", "clock", "default: credentials", "default: identity"):
        assert grades[name] == "ok", well
    for name in ("clock of the broker", "default: clock"):
        assert grades[name] == "ok", well
    assert grades["topic payments.events"] == "warn", "nobody has made it yet, and doctor does not"
    assert sorted(one.name for one in operator.folder.iterdir()) == before
    assert grades["default: events"] == "warn"
    assert "CONSUMER_LOCATE_TYPE" in well["proposals"]["default"]["settings"]

    ill = await operator.answer(
        "doctor", exits=1, SVC_APP_SECRET="svc_sk_live_wrong", CONSUMER_BROKER_URL="kafka://127.0.0.1:1"
    )
    failed = {check["name"] for check in ill["checks"] if check["grade"] == "fail"}
    assert failed == {"broker", "default: credentials"}
    codes = [finding["code"] for finding in (await operator.answer("status", exits=2))["findings"]]
    assert "credentials_refused" in codes


async def test_doctor_checks_the_service_without_a_ledger(operator: Operator) -> None:
    # case: S1, O3
    operator.pay_orders(2)
    before = sorted(one.name for one in operator.folder.iterdir())
    nowhere = {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{operator.folder}/none.db"}
    checks = (await operator.answer("doctor", exits=1, **nowhere))["checks"]
    grades = {check["name"]: check["grade"] for check in checks}
    assert {name for name, grade in grades.items() if grade == "fail"} == {"database"}
    for name in ("broker", "handlers", "clock of the broker", "default: credentials", "default: clock"):
        assert grades[name] == "ok", checks
    assert "default: events" in grades
    wrong = (await operator.answer("doctor", exits=1, SVC_APP_SECRET="svc_sk_live_wrong", **nowhere))["checks"]
    assert {check["name"] for check in wrong if check["grade"] == "fail"} == {"database", "default: credentials"}
    assert sorted(one.name for one in operator.folder.iterdir()) == before


async def test_a_broker_that_is_away_is_one_line(operator: Operator) -> None:
    # case: I25
    away = {"CONSUMER_BROKER_URL": f"kafka://127.0.0.1:{free_port()}", "CONSUMER_LOG_LEVEL": "info"}
    done = await operator.run("backfill", **away)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error[broker_unavailable]: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr


async def test_a_test_event_is_followed_to_the_ledger(operator: Operator) -> None:
    # case: U8
    roles = [operator.process("serve"), operator.process("sync")]
    with ended(*roles):
        for role in roles:
            role.spawn()
        for role in roles:
            await role.ready()
        operator.sandbox.set_webhook_url(f"{roles[0].addresses['public_url']}/webhooks/default")
        found = await operator.answer("doctor", "--test-event")
    [check] = [one for one in found["checks"] if one["name"] == "default: test event"]
    assert check["grade"] == "ok", check


async def test_progress_is_for_terminals_only(operator: Operator) -> None:
    operator.pay_orders(1)
    assert (await operator.run("backfill", "--dry-run")).stderr == ""
    ours, theirs = pty.openpty()
    environ = {name: os.environ[name] for name in INHERITED if name in os.environ} | operator.environ
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "consumer", "backfill", "--dry-run", "--json",
        env=environ | {"TERM": "xterm"}, stdout=asyncio.subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    try:
        answered, _ = await asyncio.wait_for(process.communicate(), 60)
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
    assert json.loads(answered)["walks"][0]["published"] == operator.listed
    assert "default" in shown


async def test_of_several_applications_the_one_without_credentials_is_told_and_the_others_served(
    operator: Operator,
) -> None:
    # case: S7, S8, I29
    operator.pay_orders(1)
    more = {"CONSUMER_APPLICATIONS": '[{"name": "club"}, {"name": "shop", "authenticity": "signature", '
            '"webhook_secrets": ["whsec_c2FuZGJveC13ZWJob29rLXNlY3JldC0zMi1ieXRlcyE="]}]'}  # fmt: skip
    operator.environ |= more
    sync = operator.process("sync")
    sync.spawn()
    with ended(sync):
        await sync.ready()

        async def walked() -> bool:
            reading = json.loads((await operator.run("status", "--json")).stdout)["reading"]
            return {one["application"]: one["walked_at"] is not None for one in reading}["default"]

        await eventually(walked, within_s=30, every_s=0.3, what="the others are read")
    findings = (await operator.answer("status", exits=2))["findings"]
    assert [one["text"].partition(":")[0] for one in findings if one["code"] == "no_credentials"] == ["club", "shop"]
    checks = (await operator.answer("doctor", exits=1))["checks"]
    grades = {check["name"]: check["grade"] for check in checks}
    assert (grades["default: credentials"], grades["club: credentials"], grades["shop: credentials"]) == (
        "ok", "fail", "warn",
    )  # fmt: skip
    assert (await operator.answer("backfill"))["without_credentials"] == ["club", "shop"]
    assert (await operator.run("sync", SVC_BASE_URL="", SVC_APP_ID="", SVC_APP_SECRET="")).returncode == 2
