"""An export of the audit trail is verified without the database: what was changed, taken out or put in is refused, and
the first such line is named. A tail that was written anew is shown by an anchor."""

from __future__ import annotations

import asyncio
import json
import os
import random
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from sqlalchemy import text

from consumer.ledger import Database, audit
from consumer.ledger.trail import sealing
from consumer.ledger.trail.chain import CONTENT, START, Export, linked, sealed
from consumer.ledger.trail.verification import verified
from tests.support.desk import Desk

ENTRIES, CHANGES = 40, 1000
AT = datetime(2026, 1, 1, tzinfo=UTC)
PLAN = {"id": "rpl_1", "digest": "d" * 64, "items": 3}


def entries(count: int, actor: str = "ops") -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    last = START
    for number in range(1, count + 1):
        planned = number == 7
        content = dict.fromkeys(CONTENT) | {
            "id": number + 3, "at": (AT + timedelta(seconds=number)).isoformat(), "application": "default",
            "actor": actor, "action": "replay.planned" if planned else "order.changed",
            "subject": "plan:rpl_1" if planned else f"order:{number}", "before": '{"status":"PENDING"}',
            "after": orjson.dumps({"sealed": sealed(PLAN)} if planned else {"hold": None}).decode(), "code_version": "",
        }  # fmt: skip
        last = linked(last, number, content)
        found.append({"number": number, **content, "hash": last})
    return found


def export(found: list[dict[str, object]]) -> bytes:
    writer = Export(len(found), str(found[-1]["hash"]))
    lines = [writer.begin(), *map(writer.entry, found), writer.plan(PLAN), writer.end()]
    return b"".join(lines)


WHOLE = export(entries(ENTRIES))


def fault(content: bytes) -> str | None:
    return verified(content.splitlines(keepends=True)).fault


def changed(random_: random.Random) -> bytes:
    """One byte, or one line, otherwise."""
    at = random_.randrange(len(WHOLE))
    lines = WHOLE.splitlines(keepends=True)
    one, other = random_.randrange(len(lines)), random_.randrange(len(lines))
    match random_.randrange(7):
        case 0:
            return WHOLE[:at] + bytes([WHOLE[at] ^ (1 << random_.randrange(8))]) + WHOLE[at + 1 :]
        case 1:
            return WHOLE[:at] + WHOLE[at + 1 :]
        case 2:
            return WHOLE[:at] + bytes([random_.randrange(256)]) + WHOLE[at:]
        case 3:
            del lines[one]
        case 4:
            lines.insert(one, lines[other])
        case 5:
            lines[one], lines[other] = lines[other], lines[one]
        case 6:
            lines[one] = lines[one].replace(b"1", b"2", 1)
    return b"".join(lines)


def test_a_thousand_changes_are_refused() -> None:
    # case: G12
    assert fault(WHOLE) is None
    random_ = random.Random(16)
    made = 0
    while made < CHANGES:
        content = changed(random_)
        if content != WHOLE:
            made += 1
            assert fault(content) is not None, content[:2000]


def test_the_first_wrong_line_is_named() -> None:
    lines = WHOLE.splitlines(keepends=True)
    assert fault(b"".join([*lines[:5], *lines[6:]])) == "entry 5 was taken out before line 6"
    assert fault(b"".join([*lines[:5], lines[4], *lines[5:]])) == "line 6 was put in"
    forged = orjson.dumps(orjson.loads(lines[5]) | {"actor": "mallory"}) + b"\n"
    assert fault(b"".join([*lines[:5], forged, *lines[6:]])) == "line 6 (entry 5) was changed"
    assert fault(b"".join([*lines[:5], forged, *lines[5:]])) == "line 6 was put in"
    assert fault(b"".join(lines[:-2])) == "plan rpl_1 was taken out before the end of the file"
    assert fault(b"".join(lines[:-1])) == f"the end was taken out after line {ENTRIES + 2}"
    assert fault(b"".join(lines[:20])) == "entry 20 was taken out before the end of the file"
    assert fault(WHOLE + b"\n") == f"line {ENTRIES + 4} was put in"
    assert fault(b"") == "line 1 was changed, or this is no export of the audit trail"
    other = b"".join([*lines[:-2], orjson.dumps({"plan": PLAN | {"items": 4}}) + b"\n", lines[-1]])
    assert fault(other) == f"line {ENTRIES + 2} was changed or put in: no entry is of this plan"


def test_a_tail_that_was_written_anew_is_shown_by_an_anchor() -> None:
    honest, forged = entries(ENTRIES), entries(ENTRIES, actor="mallory")
    anchor = {"number": 20, "hash": honest[19]["hash"]}
    assert fault(export(forged)) is None, "by itself it is a chain like any other"
    told = verified(export(forged).splitlines(keepends=True), anchor)
    assert (told.fault or "").startswith("entry 20 is not the anchor's: the trail was written anew, or")
    assert "restored from a backup" in (told.fault or "")
    assert told.entries == 0
    assert verified(WHOLE.splitlines(keepends=True), anchor).fault is None
    short = verified(export(honest[:10]).splitlines(keepends=True), anchor)
    assert short.fault == "the trail ends at entry 10, and the anchor is of entry 20"
    lines = WHOLE.splitlines(keepends=True)
    assert verified(lines, {"number": 0, "hash": START}).fault is None
    assert verified(lines, {"number": 0, "hash": anchor["hash"]}).fault is not None


@pytest.fixture
def noted(desk: Desk, environ: dict[str, str], upgraded: None) -> str:
    """A ledger in which something was noted and planned."""
    url = environ["CONSUMER_DATABASE_URL"]

    async def write() -> None:
        database = Database(url)
        for number in range(sealing.BATCH + 3):
            async with database.transaction() as session:
                subject = f"order:{number}"
                audit.note(session, at=AT, application="default", actor="op", action="x", subject=subject, after="{}")
        await database.stop()

    asyncio.run(write())
    desk.ask("replay", "plan")
    return url


@pytest.mark.usefixtures("upgraded")
def test_an_events_id_is_shown_as_what_it_is(desk: Desk, environ: dict[str, str]) -> None:
    async def write() -> None:
        database = Database(environ["CONSUMER_DATABASE_URL"])
        async with database.transaction() as session:
            for actor in ("fulfilment:order_paid", "operator:ada"):
                about = {"application": "default", "action": "x", "subject": "order:1", "after": "{}"}
                audit.note(session, at=AT, actor=actor, reason="evt_1", **about)
        await database.stop()

    asyncio.run(write())
    told = desk.call("audit", "list").stdout.splitlines()
    assert sum(line.endswith("event evt_1") for line in told) == 1
    assert sum(line.endswith("evt_1") for line in told) == 2
    assert {one["reason"] for one in desk.ask("audit", "list")["entries"]} == {"evt_1"}


def test_the_commands(desk: Desk, noted: str, tmp_path: Path) -> None:
    assert [one["number"] for one in desk.ask("audit", "list", "--limit", "2")["entries"]] == [None, None]
    told = json.loads(desk.call("audit", "anchor").stdout)
    assert told["number"] == sealing.BATCH + 4
    (tmp_path / "anchor.json").write_text(json.dumps(told))
    [newest] = desk.ask("audit", "list", "--subject", "order:5")["entries"]
    assert newest["number"] == 6
    file = str(tmp_path / "audit.jsonl")
    umask = os.umask(0)
    try:
        assert desk.ask("audit", "export", file)["hash"] == told["hash"]
    finally:
        os.umask(umask)
    assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600, "its owner's alone, whatever the umask is"
    nowhere = {"CONSUMER_DATABASE_URL": "sqlite+aiosqlite:////nowhere/x.db"}
    done = desk.call("audit", "verify", file, "--anchor", str(tmp_path / "anchor.json"), **nowhere)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"verified: {told['number']} entries, 1 plan(s)")
    assert "no anchor" not in done.stdout
    entry = json.loads(Path(file).read_text().splitlines()[12])
    (tmp_path / "older.json").write_text(json.dumps({"number": 12, "hash": entry["hash"]}))
    for given, since in ((("--anchor", str(tmp_path / "older.json")), "what follows entry 12:"), ((), "any entry:")):
        done = desk.call("audit", "verify", file, *given)
        assert (
            done.stdout.splitlines()[1] == f"no anchor vouches for {since} who can write the ledger can write it anew"
        )
    for odd in ({"number": -1, "hash": "x"}, {"number": True, "hash": "x"}, {"number": 1, "hash": None}):
        (tmp_path / "odd.json").write_text(json.dumps(odd))
        done = desk.call("audit", "verify", file, "--anchor", str(tmp_path / "odd.json"))
        assert (done.returncode, done.stderr[:33]) == (2, "error[usage]: this is no anchor: ")
    content = Path(file).read_bytes()
    assert desk.call("audit", "export", "-").stdout.encode() == content
    Path(file).write_bytes(content.replace(b'"actor":"op"', b'"actor":"me"', 1))
    done = desk.call("audit", "verify", file, "--json", **nowhere)
    assert (done.returncode, json.loads(done.stdout)["fault"]) == (3, "line 2 (entry 1) was changed")
    assert desk.ask("audit", "verify", str(tmp_path / "none"), code=2).startswith(
        "error[usage]: the file cannot be read"
    )
    assert desk.ask("audit", "verify", file, "--anchor", file, code=2).startswith("error[usage]: ")

    async def rewrite() -> None:
        database = Database(noted)
        async with database.transaction() as session:
            await session.execute(text("UPDATE audit SET actor = 'x', number = NULL, hash = NULL"))
            await session.execute(text("DELETE FROM chain_head"))
        await database.stop()

    asyncio.run(rewrite())
    desk.ask("audit", "export", file)
    assert desk.call("audit", "verify", file).returncode == 0
    done = desk.call("audit", "verify", file, "--anchor", str(tmp_path / "anchor.json"))
    assert done.returncode == 3
    assert "the trail was written anew" in done.stdout


def test_an_export_follows_a_link_fills_a_pipe_and_refuses_a_folder(desk: Desk, noted: str, tmp_path: Path) -> None:
    # case: G12
    file, link, pipe = tmp_path / "audit.jsonl", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(file)
    desk.ask("audit", "export", str(link))
    assert link.is_symlink()
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    desk.ask("audit", "export", str(pipe))
    reader.join(10)
    assert read == [file.read_bytes()]
    assert pipe.is_fifo()
    for name in ("", ".", "./", "/", str(tmp_path)):
        assert desk.ask("audit", "export", name, code=2).startswith("error[usage]: the file cannot be written: ")
    assert {one.name for one in tmp_path.iterdir()} >= {"audit.jsonl", "link", "pipe"}
    assert not list(tmp_path.glob(".*"))
