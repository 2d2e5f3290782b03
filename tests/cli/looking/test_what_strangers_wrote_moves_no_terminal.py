"""Ids, customers, errors and reasons are written by others: whatever they hold, a command that shows them moves no
cursor, changes no colour or direction, and begins no line that looks like its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from consumer.events import Delivery
from consumer.ledger import Database, audit
from consumer.ledger.handling import events, runs
from consumer.ledger.handling.runs import Run
from consumer.ledger.reading import quarantine
from consumer.ledger.tables import RunStatus
from consumer.ledger.trail.verification import verified
from consumer.reason import Reason
from tests.support.desk import Called, Desk
from tests.support.handling.projections import START, Projections, own, said

FAKE = "error[none]: all is well"
ODD = f"\x1b[31m\x9b2J\x7f\x85\u202egnp.exe\u2066\u2028\r\n{FAKE}\x07"
ORDER, CUSTOMER, SUBSCRIPTION = (f"{one}{ODD}" for one in ("A1", "jane", "sub_1"))
EVENT = "evt_1"
"""Of an event's id only letters, digits and some signs are taken."""
SIZE = {"COLUMNS": "80", "LINES": "24", "TERM": "dumb"}


def clean(text: str) -> bool:
    """Whether only letters, blanks and ends of lines stand there, and no line is a stranger's."""
    return text.replace("\n", "").isprintable() and not any(line.startswith(FAKE) for line in text.splitlines())


@pytest.fixture
def odd(desk: Desk, environ: dict[str, str], upgraded: None) -> Desk:
    """A ledger whose every text is odd."""
    asyncio.run(filled(environ["CONSUMER_DATABASE_URL"]))
    return desk


async def filled(url: str) -> None:
    database = Database(url)
    modules = ("handlers.fulfilment.handler", "handlers.access.handler")
    projections = Projections(database, *modules, options={modules[0]: {"matching": "off"}, modules[1]: {}})
    paid: dict[str, Any] = {
        "id": f"ord_1{ODD}",
        "order_id": ORDER,
        "status": "PAID",
        "amount": "7",
        "customer_reference": CUSTOMER,
    }
    subscribed: dict[str, Any] = {"id": SUBSCRIPTION, "status": ODD, "customer_reference": CUSTOMER, "price_id": ODD}
    registered = {"session_id": f"cs_1{ODD}", "order_id": ORDER, "expected_amount": "50"}
    await projections.feed(own("checkout.registered", f"order:{ORDER}", registered))
    await projections.feed(said("order.paid", EVENT, **paid), said("subscription.created", "evt_2", **subscribed))
    async with database.transaction() as session:
        [(seq, key)] = [(row.seq, row.key) for row in [await events.get(session, "default", EVENT)] if row is not None]
        died = Run(
            application="default", event_id=EVENT, handler="shop:ship", seq=seq, key=key, status=RunStatus.DEAD,
            blocking=False, attempts=1, code=f"odd{ODD}", reason=f"odd{ODD}", fingerprint="a" * 16, trace=f"at{ODD}",
        )  # fmt: skip
        await runs.add(session, [died], START)
        audit.note(
            session, at=START, application="default", actor=f"ops{ODD}", action="order.released",
            subject=f"order:{ORDER}", before=None, after=orjson.dumps({"is": ODD}).decode(), reason=ODD,
        )  # fmt: skip
        kept = Delivery(application="default", id=f"dlv{ODD}", raw=b"{}", received_at=START, event_id=f"evt_3{ODD}")
        await quarantine.put(session, [(kept, Reason.NOT_CONFIRMED)], START)
    await database.stop()


# case: I10
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("words", "shows"),
    [
        (("events", "list"), "evt_1"),
        (("events", "show", EVENT), "A1"),
        (("events", "show", "--raw", EVENT), "jane"),
        (("explain", "order", ORDER), "A1"),
        (("explain", "subscription", SUBSCRIPTION), "sub_1"),
        (("explain", "customer", CUSTOMER), "jane"),
        (("find", ORDER), "A1"),
        (("dead", "list"), "odd"),
        (("dead", "list", "--each"), "odd"),
        (("quarantine", "list"), "evt_3"),
        (("findings", "list"), "A1"),
        (("audit", "list"), "ops"),
        (("status",), "dead_runs"),
    ],
)
def test_an_answer(odd: Desk, words: tuple[str, ...], shows: str, as_json: bool) -> None:
    done = odd.call(*words, *(["--json"] if as_json else []))
    assert shows in done.stdout, done.stderr
    assert clean(done.stdout)
    assert clean(done.stderr)


# case: I10
@pytest.mark.parametrize(
    "words",
    [
        ("events", "show", f"evt_9{ODD}"),
        ("events", "list", "--order", f"A9{ODD}"),
        ("explain", "order", f"A9{ODD}"),
        ("find", f"A9{ODD}"),
        ("dead", "list", "--handler", f"shop:{ODD}"),
        ("audit", "export", f"nowhere{ODD}/trail.jsonl"),
        (f"find{ODD}",),
        ("find", "A1", f"--{ODD}"),
    ],
)
def test_an_error(odd: Desk, words: tuple[str, ...]) -> None:
    done = odd.call(*words)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("error[")
    assert clean(done.stdout + done.stderr)


def on_a_terminal(*words: str, environ: dict[str, str]) -> str:
    """What a terminal is sent, which ends each line its own way."""
    screen, terminal = os.openpty()
    try:
        command = [sys.executable, "-m", "consumer", *words]
        with subprocess.Popen(command, env=os.environ | environ | SIZE, stdout=terminal, stderr=terminal) as process:
            os.close(terminal)
            sent = b"".join(iter(lambda: _more(screen), b""))
        assert process.returncode == 0, sent
    finally:
        os.close(screen)
    return sent.decode().replace("\r\n", "\n")


def _more(screen: int) -> bytes:
    try:
        return os.read(screen, 65536)
    except OSError:  # nobody writes there any more
        return b""


def exported(odd: Desk, *words: str) -> Called:
    done = odd.call("audit", "export", *words)
    assert done.returncode == 0, done.stderr
    return done


# case: I10, G12
def test_an_export_on_a_terminal_reads_the_same_and_moves_nothing(odd: Desk, environ: dict[str, str]) -> None:
    shown = on_a_terminal("audit", "export", "-", environ=environ)
    assert clean(shown)
    assert [orjson.loads(line) for line in shown.splitlines()] == [
        orjson.loads(line) for line in exported(odd, "-").stdout.split("\n")[:-1]
    ]


# case: G12
def test_an_export_in_a_file_or_a_pipe_is_what_is_verified(odd: Desk, tmp_path: Path) -> None:
    file = tmp_path / "trail.jsonl"
    exported(odd, str(file))
    piped = exported(odd, "-").stdout.encode()
    assert file.read_bytes() == piped
    assert verified(piped.splitlines(keepends=True)).fault is None
    assert odd.ask("audit", "verify", str(file))["entries"] > 0
