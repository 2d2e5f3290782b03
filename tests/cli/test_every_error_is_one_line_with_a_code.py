"""Whatever an operator types, the answer is one line on stderr with a code, never a traceback."""

from __future__ import annotations

import errno
import json
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from consumer.cli.looking import events
from tests.support.desk import Desk
from tests.support.ports import free_port


def _is_one_line(text: str, code: str) -> bool:
    return text.startswith(f"error[{code}]: ") and len(text.splitlines()) == 1 and "Traceback" not in text


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["evnts"], "usage"),
        (["events", "list", "--limit", "many"], "usage"),
        (["events", "list", "--since", "yesterday"], "usage"),
        (["events", "list", "--status", "fine"], "usage"),
        (["demo", "--only", "no-such-scenario"], "usage"),
        (["doctor", "--application", "nobody"], "usage"),
        (["backfill", "--until", "1h"], "usage"),
        (["say", "access.held", "c1", "--reason", "x", "--yes", "--application", "nobody"], "usage"),
        (["say", "access.held", "c1", "--reason", "x", "--yes"], "database_missing"),
        (["backfill", "--certificate", "none.json"], "usage"),
        (["backfill", "--seed", "--since", "2h", "--until", "4h", "--reason", "x", "--yes"], "usage"),
        (["backfill", "--seed", "--full", "--yes"], "usage"),
        (["backfill", "--since", "2999-01-01"], "usage"),
        (["backfill", "--since", "2h", "--until", "2h", "--certificate", "none.json"], "usage"),
        (["backfill", "--since", "2h", "--certificate", "no/such/folder.json"], "usage"),
        (["backfill", "--since", "999999w", "--dry-run"], "usage"),
        (["backfill", "--since", "0001-01-01T00:00:00+14:00"], "usage"),
        (["backfill", "--since", "0001-01-01", "--dry-run"], "usage"),
        (["events", "list", "--since", "999999w"], "usage"),
        (["events", "list", "--until", "9999-12-31T23:59:59-14:00"], "usage"),
    ],
)
def test_wrong_words_exit_2(desk: Desk, arguments: list[str], code: str) -> None:
    done = desk.call(*arguments)
    assert done.returncode == 2
    assert _is_one_line(done.stderr, code), done.stderr


@pytest.mark.parametrize("level", ["info", "loud"])
def test_what_nobody_foresaw_is_one_line_too(desk: Desk, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    def unforeseen(*_: object) -> None:
        raise ZeroDivisionError("no user's business")

    monkeypatch.setattr(events, "moments", unforeseen)
    done = desk.call("events", "list", CONSUMER_LOG_LEVEL=level)
    assert done.returncode == 1
    assert _is_one_line(done.stderr, "internal"), done.stderr
    assert "business" not in done.stderr


def test_of_several_that_nobody_foresaw_each_kind_is_named(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def unforeseen(*_: object) -> None:
        raise ExceptionGroup("parts", [ZeroDivisionError("no user's business"), KeyError("secret")])

    monkeypatch.setattr(events, "moments", unforeseen)
    done = desk.call("events", "list")
    assert done.stderr.startswith("error[internal]: ExceptionGroup of ZeroDivisionError, KeyError (")
    assert "secret" not in done.stderr


def test_where_it_broke_is_shown_to_who_asks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def unforeseen(*_: object) -> None:
        kept_here = "of no concern"
        raise ZeroDivisionError(len(kept_here))

    monkeypatch.setattr(events, "moments", unforeseen)
    done = desk.call("events", "list", CONSUMER_LOG_LEVEL="debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error[internal]: ")
    assert "of no concern" not in done.stderr, "the values of variables are not shown"


def test_a_ledger_without_a_schema_says_what_to_do(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "consumer.db").touch()
    done = desk.call("events", "list")
    assert done.returncode == 1
    assert _is_one_line(done.stderr, "schema_outdated"), done.stderr
    assert "consumer db upgrade" in done.stderr


def test_a_role_that_dies_says_so_in_its_log_too(desk: Desk, tmp_path: Path) -> None:
    """Who collects logs sees why, beside its start and its stop."""
    (tmp_path / "consumer.db").touch()
    done = desk.call("work", CONSUMER_LOG_FORMAT="json", CONSUMER_INTERNAL_PORT=str(free_port()))
    assert done.returncode == 1
    *before, last = done.stderr.splitlines()
    assert _is_one_line(last, "schema_outdated"), done.stderr
    [died] = [line for line in map(json.loads, before) if line["event"] == "role_died"]
    assert (died["code"], died["role"], died["level"]) == ("schema_outdated", "work", "error")
    assert died["reason"]


def test_a_database_that_is_away(desk: Desk) -> None:
    done = desk.call("events", "list", CONSUMER_DATABASE_URL="postgresql+asyncpg://nobody@127.0.0.1:1/none")
    assert done.returncode == 1
    assert _is_one_line(done.stderr, "ledger_unavailable"), done.stderr


def test_a_file_that_is_no_database(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "consumer.db").write_bytes(b"this is not a database, but it is long enough to be looked at" * 100)
    done = desk.call("db", "upgrade")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error[")
    assert "internal" not in done.stderr


@pytest.mark.usefixtures("upgraded")
def test_what_a_database_refuses_is_named_by_its_own_code(desk: Desk, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "consumer.db") as database:
        database.execute("CREATE TRIGGER no BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'their words'); END")
    database.close()
    done = desk.call("say", "access.held", "c1", "--reason", "x", "--yes")
    assert done.returncode == 1
    assert _is_one_line(done.stderr, "ledger_error"), done.stderr
    assert "(state=SQLITE_CONSTRAINT_TRIGGER)" in done.stderr
    assert "their words" not in done.stderr


def test_the_line_says_what_mends_it(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "consumer.db").write_bytes(b"this is not a database, but it is long enough to be looked at" * 100)
    done = desk.call("find", "x")
    assert _is_one_line(done.stderr, "ledger_corrupt"), done.stderr
    assert f"path={tmp_path}/consumer.db" in done.stderr
    assert f"({tmp_path}/consumer.db) (see in the kernel's log whether the disk" in desk.call("status").stdout
    assert "; see in the kernel's log whether the disk can be read" in done.stderr
    assert "restore the ledger from a backup" in done.stderr
    listed = desk.call("handlers", "list")
    assert listed.returncode == 0
    assert "warning[ledger_corrupt]: whether they run, wait or are paused is not known" in listed.stderr
    assert "runs" not in listed.stdout, "nobody knows that they run"


@pytest.mark.usefixtures("upgraded")
def test_an_event_nobody_knows(desk: Desk) -> None:
    done = desk.call("events", "show", "evt_none")
    assert done.returncode == 1
    assert _is_one_line(done.stderr, "not_found"), done.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["access.complimentary_granted", "c", "--set", "entitlment=pro"], "usage", "it takes entitlement, until"),
        (["access.held", "c", "--set", "until=14d"], "usage", "2030-01-31"),
        (["access.held", "c", "--set", "until"], "usage", "NAME=VALUE"),
        (["access.held", "c", "--set", "until=2999-01-01", "--set", "until=2999-02-01"], "usage", "once"),
        (["access.hold", "c"], "usage", "access.held"),
        (["fulfilment.released", "nobody"], "not_found", "the order is unknown"),
        (["fulfilment.finding_closed", "p1", "--set", "kind=orphan_payment"], "not_found", "no such finding is open"),
        (["access.held", "a customer nobody has seen"], "usage", "this needs --yes"),
    ],
)
@pytest.mark.usefixtures("upgraded")
def test_a_word_is_looked_at_before_anybody_is_asked(desk: Desk, words: list[str], code: str, told: str) -> None:
    # case: A42, F37
    done = desk.call("say", *words, "--reason", "support")
    assert done.returncode == (1 if code == "not_found" else 2)
    assert _is_one_line(done.stderr, code), done.stderr
    assert told in done.stderr


def test_a_port_that_is_taken(desk: Desk) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = desk.call(
            "serve",
            CONSUMER_PORT=str(taken.getsockname()[1]),
            CONSUMER_INTERNAL_PORT="0",
            CONSUMER_AUTHENTICITY="signature",
            CONSUMER_WEBHOOK_SECRETS="whsec_dGVzdC1zZWNyZXQtb2YtdGhlLWNsaS10ZXN0cyE=",
        )
    assert done.returncode == 1
    assert _is_one_line(done.stderr, "port_taken"), done.stderr


@pytest.mark.parametrize("words", [["sandbox", "--port"], ["dev", "--sandbox-port"]])
def test_a_port_that_the_sandbox_cannot_have(desk: Desk, tmp_path: Path, words: list[str]) -> None:
    """Which, and what to do: another sandbox mostly has it."""
    more = ["--data", str(tmp_path / "kept")]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = desk.call(*words, port, *more)
    assert done.returncode == 1
    assert _is_one_line(done.stderr, "port_taken"), done.stderr
    assert f"another port ({words[-1]}; 0 takes a free one)" in done.stderr
    assert f"port={port}" in done.stderr


PRESSED_AT_ONCE = """
import sys
class Pressed:
    def find_spec(self, name, *_):
        if name == "consumer.cli.tree":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed())
from consumer.cli import main
main()
"""


def test_who_changes_his_mind_at_once_sees_no_traceback() -> None:
    """Ctrl-C while the command is still imported, which takes most of its start."""
    done = subprocess.run([sys.executable, "-c", PRESSED_AT_ONCE], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_an_argument_that_is_no_text_is_a_usage_error(desk: Desk) -> None:
    done = desk.call("explain", "order", "A\udcff1")
    assert done.returncode == 2
    assert _is_one_line(done.stderr, "usage"), done.stderr
    assert "UTF-8" in done.stderr


def test_an_error_that_names_what_others_wrote_stays_one_line(desk: Desk) -> None:
    done = desk.call("doctor", "--application", "a\n\x1b[2Jb")
    assert _is_one_line(done.stderr, "usage"), done.stderr
    assert "\x1b" not in done.stderr


def test_a_folder_that_was_removed_leads_nowhere(tmp_path: Path) -> None:
    """As under a shell, or a timer, that stands where a release was cleared away."""
    gone = ["sh", "-c", 'mkdir "$0" && cd "$0" && rmdir "$0" && exec "$@"', str(tmp_path / "gone")]
    words = [*gone, sys.executable, "-m", "consumer", "events", "list"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert _is_one_line(done.stderr, "usage"), done.stderr
    assert "folder was removed" in done.stderr


def test_a_process_that_may_open_no_more_files_says_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a very low `ulimit -n`."""

    def used_up(*_: object) -> None:
        raise RuntimeError("no loop") from OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(events, "moments", used_up)
    done = desk.call("events", "list")
    assert done.returncode == 1
    assert _is_one_line(done.stderr, "descriptors_used_up"), done.stderr


@pytest.mark.parametrize("words", [["status", "--loud"], ["status"]])
def test_a_status_that_could_not_look_has_not_found_orders_waiting(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Its 1 and 2 say that things are degraded, or stuck, and wake somebody."""
    monkeypatch.setattr("consumer.cli.looking.status.worst", lambda _: 1 / 0)
    done = desk.call(*words)
    assert done.returncode == 3
    assert _is_one_line(done.stderr, "usage" if "--loud" in words else "internal"), done.stderr


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_data_folder_that_is_none_is_said_to_be_that(tmp_path: Path, desk: Desk, kind: str) -> None:
    data = tmp_path / "data"
    data.symlink_to(tmp_path / "nowhere") if kind == "link" else data.write_text("")
    done = desk.call("db", "upgrade", CONSUMER_DATABASE_URL=f"sqlite+aiosqlite:///{data}/consumer.db")
    assert done.returncode == 1
    assert _is_one_line(done.stderr, "ledger_not_opened"), done.stderr
    assert f"{data} is {'a symbolic link that leads nowhere' if kind == 'link' else 'no folder'}" in done.stderr
