"""Who paused or resumed a handler is named wherever the pause is told: in `handlers list`, in the audit trail."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.desk import Desk


# case: G12
@pytest.mark.usefixtures("upgraded")
def test_by_the_name_at_the_terminal(desk: Desk, environ: dict[str, str]) -> None:
    path = Path(environ["CONSUMER_DATABASE_URL"].split("///", 1)[1])
    with sqlite3.connect(path) as database:
        at = "2026-01-01 00:00:00.000000"
        columns = "name, plugin, types, code_version, first_seen_at, last_seen_at"
        given = ("fulfilment:order_paid", "fulfilment", "order.paid", "", at, at)
        database.execute(f"INSERT INTO handlers ({columns}) VALUES (?, ?, ?, ?, ?, ?)", given)
    database.close()
    for verb in ("pause", "resume", "pause"):
        done = desk.call("handlers", verb, "fulfilment:order_paid", "--reason", "stocktaking", LOGNAME="ada")
        assert done.returncode == 0, done.stderr
    assert "by operator:ada: stocktaking" in desk.call("handlers", "list").stdout
    assert desk.call("audit", "list").stdout.count("operator:ada") == 3
    long = desk.call("handlers", "pause", "fulfilment:order_paid", "--reason", "x", LOGNAME="a" * 200)
    assert long.returncode == 0, "a name of any length can be kept"


# case: G12
@pytest.mark.usefixtures("upgraded")
def test_every_command_names_who_types_it_alike(desk: Desk) -> None:
    for words in (
        ["say", "access.held", "cus_1", "--reason", "x", "--yes"],
        ["replay", "plan", "--type", "order.paid"],
    ):
        done = desk.call(*words, LOGNAME="ada")
        assert done.returncode == 0, done.stderr
    noted = desk.ask("audit", "list")["entries"]
    assert [one["actor"] for one in noted if one["action"] in ("access.held", "replay.planned")] == ["operator:ada"] * 2


def _one_run(environ: dict[str, str], **differs: object) -> None:
    row = {"event_id": "evt_1", "application": "default", "handler": "fulfilment:order_paid", "seq": 1,
           "key": "order:A-1", "status": "retrying", "blocking": 1, "attempts": 0, "code": "retry_later",
           "reason": "no keys left", "code_version": "", "created_at": "2026-01-01 00:00:00.000000",
           "updated_at": "2026-01-01 00:00:00.000000", "next_at": "2999-01-01 00:00:00.000000"} | differs  # fmt: skip
    names = ", ".join(row)
    with closing(sqlite3.connect(Path(environ["CONSUMER_DATABASE_URL"].split("///", 1)[1]))) as database, database:
        database.execute(f"INSERT INTO runs ({names}) VALUES ({', '.join('?' * len(row))})", list(row.values()))


# case: R10
@pytest.mark.usefixtures("upgraded")
def test_a_handler_whose_runs_die_does_not_just_run(desk: Desk, environ: dict[str, str]) -> None:
    _one_run(environ, status="dead", code="rejected", blocking=0, next_at=None)
    told = desk.call("handlers", "list").stdout
    assert "dead: fulfilment:order_paid: `consumer dead list --handler fulfilment:order_paid` says what of" in told
    listed = {one["name"]: one["dead"] for one in desk.ask("handlers", "list")["handlers"]}
    assert listed.pop("fulfilment:order_paid") == 1
    assert set(listed.values()) == {0}
    assert desk.call("dead", "list", "--handler", "fulfilment:order_paid").returncode == 0


# case: O5
@pytest.mark.usefixtures("upgraded")
def test_what_a_handler_puts_off_for_ever_is_listed(desk: Desk, environ: dict[str, str]) -> None:
    _one_run(environ)
    told = desk.call("handlers", "list").stdout
    assert "waits: fulfilment:order_paid: puts off evt_1 since 2026-01-01 00:00 UTC: no keys left" in told
    listed = {one["name"]: one["put_off"] for one in desk.ask("handlers", "list")["handlers"]}
    assert listed.pop("fulfilment:order_paid")["reason"] == "no keys left"
    assert set(listed.values()) == {None}
    assert "wait for what they depend on: fulfilment:order_paid" in desk.call("status").stdout


# case: H9, G8
@pytest.mark.usefixtures("upgraded")
def test_it_is_paused_for_one_application_and_listed_with_it(desk: Desk, environ: dict[str, str]) -> None:
    name = "fulfilment:order_paid"
    path = Path(environ["CONSUMER_DATABASE_URL"].split("///", 1)[1])
    with closing(sqlite3.connect(path)) as database, database:
        at = "2026-01-01 00:00:00.000000"
        columns = "name, plugin, types, code_version, first_seen_at, last_seen_at"
        given = (name, "fulfilment", "order.paid", "", at, at)
        database.execute(f"INSERT INTO handlers ({columns}) VALUES (?, ?, ?, ?, ?, ?)", given)
    words = [name, "--application", "default", "--reason", "it sells junk"]
    done = desk.call("handlers", "pause", *words, LOGNAME="ada")
    assert (done.returncode, done.stdout) == (0, f"{name}: paused for default\n"), done.stderr
    told = desk.call("handlers", "list").stdout
    assert f"paused for default: {name}: since " in told
    assert "by operator:ada: it sells junk" in told
    [listed] = [one for one in desk.ask("handlers", "list")["handlers"] if one["name"] == name]
    assert (listed["paused"], listed["paused_at"]) == (False, None)
    [alone] = listed["paused_for"]
    assert (alone["application"], alone["paused_by"], alone["paused_reason"]) == (
        "default", "operator:ada", "it sells junk",
    )  # fmt: skip
    status = desk.call("status")
    assert f"paused: {name} only for default (" in status.stdout
    assert f"`consumer handlers resume {name} --application default --reason …`" in status.stdout
    unnamed = desk.call("handlers", "resume", name, "--application", "", "--reason", "x")
    assert (unnamed.returncode, "name the application" in unnamed.stderr) == (2, True), "a variable that is not set"
    unknown = desk.call("handlers", "pause", name, "--application", "defualt", "--reason", "x")
    assert (unknown.returncode, "there is no such application" in unknown.stderr) == (2, True)
    resumed = desk.ask("handlers", "resume", *words)
    assert resumed == {"handler": name, "state": "running", "application": "default"}
    again = desk.call("handlers", "resume", *words)
    assert (again.returncode, "it is not paused for this application alone" in again.stderr) == (1, True)
    desk.ask("handlers", "pause", name, "--reason", "all")
    refused = desk.call("handlers", "resume", *words)
    assert (refused.returncode, "it is paused for all applications" in refused.stderr) == (1, True)
    noted = desk.ask("audit", "list")["entries"][1:]
    assert [(one["action"], one["application"]) for one in noted] == [
        ("handler.resume", "default"), ("handler.pause", "default"),
    ]  # fmt: skip
