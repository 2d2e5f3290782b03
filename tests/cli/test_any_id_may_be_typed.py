"""Whatever an id looks like, `find` and `explain` take it: like a kind, like an option, behind options."""

from __future__ import annotations

import asyncio
import shlex
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from consumer.events import Delivery
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.reading import quarantine
from consumer.reason import Reason
from tests.support.desk import Desk
from tests.support.handling.projections import said


@pytest.fixture
def shop(desk: Desk, environ: dict[str, str], upgraded: None) -> Desk:
    """Orders `order`, `A-1`, `-dash` and ` lead` are paid."""
    path = Path(environ["CONSUMER_DATABASE_URL"].split("///", 1)[1])
    with sqlite3.connect(path) as database:
        made = "INSERT INTO fulfilment_order (application, order_id, observed_version, paid_at) VALUES (?, ?, 0, ?)"
        at = "2026-01-01 00:00:00.000000"
        database.executemany(made, [("default", one, at) for one in ("order", "A-1", "-dash", " lead")])
    database.close()
    return desk


# case: A50
@pytest.mark.parametrize(
    ("words", "order_id"),
    [
        (("order",), "order"),
        (("order", "order"), "order"),
        (("order", "A-1"), "A-1"),
        (("--application", "default", "A-1"), "A-1"),
        (("--application", "default", "order", "A-1"), "A-1"),
        (("order", "--application", "default", "A-1"), "A-1"),
        (("--application=default", "order"), "order"),
        (("--", "-dash"), "-dash"),
        (("order", "--", "-dash"), "-dash"),
        (("order", "--application", "default", "--", "-dash"), "-dash"),
        (("--", "order"), "order"),
        (("order:A-1",), "A-1"),  # as `dead list`, `events list` and the log name it
        (("order", "order:A-1"), "A-1"),
        (("order:order",), "order"),
        ((" lead",), " lead"),
        ((" A-1 ",), "A-1"),  # with what was copied at its ends
    ],
)
def test_explain_takes_it(shop: Desk, words: tuple[str, ...], order_id: str) -> None:
    done = shop.call("explain", "--json", *words)
    assert done.returncode == 0, done.stderr
    assert f'"order_id": "{order_id}"' in done.stdout


def test_find_takes_what_lists_show(shop: Desk) -> None:
    [found] = shop.ask("find", "order:A-1")["found"]
    assert (found["kind"], found["subject"]) == ("order", ["order", "A-1"])
    for nothing in ("order:", "order:A-2", "parcel:A-1"):
        shop.ask("find", nothing, code=1)


def test_what_is_wrong_with_the_settings_is_said_once_however_many_looks_it_takes(shop: Desk, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    credentials = {"SVC_APP_ID": "svc_app_1", "SVC_BASE_URL": "http://127.0.0.1:1"}
    done = shop.call("explain", "A-1", SVC_APP_SECRET_FILE=str(tmp_path / "empty"), **credentials)
    assert done.returncode == 0
    assert done.stderr.count("warning[settings_invalid]: SVC_APP_SECRET_FILE") == 1


# case: A50
def test_the_command_that_find_prints_can_be_typed(shop: Desk) -> None:
    for given in (("order",), ("A-1",), ("--", "-dash")):
        found = shop.call("find", *given).stdout.splitlines()[-1]
        done = shop.call(*shlex.split(found)[1:])
        assert done.returncode == 0, f"{found}: {done.stderr}"
        assert f"order id {given[-1]}" in " ".join(done.stdout.split())


# case: A50
@pytest.mark.parametrize("words", [("find", "-dash"), ("explain", "-dash"), ("explain", "order", "-dash")])
def test_an_id_like_an_option_says_how(shop: Desk, words: tuple[str, ...]) -> None:
    done = shop.call(*words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "behind `--`: consumer find -- -ID" in done.stderr
    assert "--`" not in shop.call("find", "A-1", "--jsn").stderr, "a mistyped option is none"


@pytest.fixture
def sold(shop: Desk, environ: dict[str, str]) -> Desk:
    """Order `A-1` has the service's id `ord_1`, a session and a payment; `w-1` is said by a delivery in quarantine,
    `w-2` by an event that nobody has handled yet."""
    with sqlite3.connect(environ["CONSUMER_DATABASE_URL"].split("///", 1)[1]) as database:
        database.execute("UPDATE fulfilment_order SET service_order_id = 'ord_1' WHERE order_id = 'A-1'")
        of = "application, session_id, order_id, status"
        database.execute(f"INSERT INTO fulfilment_checkout ({of}) VALUES ('default', 'cs_1', 'A-1', 'OPEN')")
        of = "application, payment_id, order_id, amount, seen_at"
        at = "2026-01-01 00:00:00.000000"
        database.execute(f"INSERT INTO fulfilment_payment ({of}) VALUES ('default', 'pay_1', 'A-1', '1', ?)", (at,))
    database.close()
    asyncio.run(_sent(environ["CONSUMER_DATABASE_URL"]))
    return shop


async def _sent(url: str) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    body = b'{"order_id": "w-1"}'
    kept = Delivery(application="default", id="dlv_1", raw=body, received_at=at, headers={}, event_id="evt_1")
    database = Database(url)
    async with database.transaction() as session:
        await quarantine.put(session, [(kept, Reason.NOT_CONFIRMED)], at)
        await events.record(session, [said("order.paid", "evt_2", order_id="w-2")], at)
    await database.stop()


# case: A50
@pytest.mark.parametrize("name", ["ord_1", "cs_1", "pay_1"])
@pytest.mark.parametrize("kind", ["order", "customer"])
def test_another_id_of_an_order_is_explained_whatever_it_was_called(sold: Desk, kind: str, name: str) -> None:
    done = sold.call("explain", kind, name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name} is an id of order A-1:\n")
    assert "what happens next" in done.stdout
    assert sold.ask("explain", kind, name)["state"]["order_id"] == "A-1"


# case: A50
def test_an_order_that_only_a_delivery_knows_says_what_becomes_of_it(sold: Desk) -> None:
    for words in (("explain", "order", "w-1"), ("explain", "w-1"), ("find", "w-1")):
        done = sold.call(*words)
        assert done.returncode == 0, done.stderr
        assert "said in evt_1, in quarantine" in done.stdout
        assert "consumer quarantine retry 1 --reason …" in done.stdout
    [found] = sold.ask("explain", "order", "w-1")["found"]
    assert found["detail"].endswith("consumer quarantine retry 1 --reason …")


# case: A50
@pytest.mark.parametrize("words", [("order", "w-2"), ("w-2",)])
def test_an_order_whose_event_nobody_handled_is_shown_and_not_sent_in_a_circle(
    sold: Desk, words: tuple[str, ...]
) -> None:
    done = sold.call("explain", *words)
    assert done.returncode == 0, done.stderr
    assert "no order of this id is known yet" in done.stdout
    assert "order.paid" in done.stdout
    assert "consumer explain" not in done.stdout


@pytest.mark.parametrize("words", [("find", "A-1"), ("explain", "A-1"), ("explain", "order", "A-1")])
def test_an_application_that_is_not_set_up_is_no_empty_answer(shop: Desk, words: tuple[str, ...]) -> None:
    done = shop.call(*words, "--application", "typo")
    assert (done.returncode, done.stderr) == (
        2, "error[usage]: there is no such application (application=typo, known=default)\n"
    )  # fmt: skip


@pytest.mark.usefixtures("upgraded")
def test_a_kind_without_an_id(desk: Desk) -> None:
    done = desk.call("explain", "subscription")
    assert done.returncode == 2
    assert "nothing is named subscription; consumer explain subscription takes an id" in done.stderr
    assert "Subscription id." in desk.call("explain", "subscription", "--help").stdout
    assert "Any id will do" in desk.call("explain", "--help").stdout


# case: A50
def test_a_customer_whose_order_no_handler_took(shop: Desk, environ: dict[str, str]) -> None:
    with sqlite3.connect(environ["CONSUMER_DATABASE_URL"].split("///", 1)[1]) as database:
        database.execute("UPDATE fulfilment_order SET customer = 'c1', requested_at = paid_at WHERE order_id = 'A-1'")
    database.close()
    done = shop.call("explain", "customer", "c1", "--json")
    assert done.returncode == 0, done.stderr
    assert '"code": "no_handler"' in done.stdout
    options = {"CONSUMER_HANDLER_OPTIONS": '{"access": {"past_due": "nonsense"}}'}
    assert shop.call("explain", "customer", "c1", **options).returncode == 2
    assert shop.call("explain", "order", "A-1", **options).returncode == 0
