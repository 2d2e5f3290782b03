"""Whatever an id looks like, `find` and `explain` take it: like a kind, like an option, behind options."""

from __future__ import annotations

import shlex
import sqlite3
from pathlib import Path

import pytest

from tests.support.desk import Desk


@pytest.fixture
def shop(desk: Desk, environ: dict[str, str]) -> Desk:
    """Orders `order`, `A-1` and `-dash` are paid."""
    assert desk.call("db", "upgrade").returncode == 0
    path = Path(environ["CONSUMER_DATABASE_URL"].split("///", 1)[1])
    with sqlite3.connect(path) as database:
        made = "INSERT INTO fulfilment_order (application, order_id, observed_version, paid_at) VALUES (?, ?, 0, ?)"
        at = "2026-01-01 00:00:00.000000"
        database.executemany(made, [("default", one, at) for one in ("order", "A-1", "-dash")])
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
    ],
)
def test_explain_takes_it(shop: Desk, words: tuple[str, ...], order_id: str) -> None:
    done = shop.call("explain", "--json", *words)
    assert done.returncode == 0, done.stderr
    assert f'"order_id": "{order_id}"' in done.stdout


# case: A50
def test_the_command_that_find_prints_can_be_typed(shop: Desk) -> None:
    for given in (("order",), ("A-1",), ("--", "-dash")):
        found = shop.call("find", *given).stdout.splitlines()[-1]
        done = shop.call(*shlex.split(found)[1:])
        assert done.returncode == 0, f"{found}: {done.stderr}"
        assert f"order_id  {given[-1]}" in " ".join(done.stdout.split()).replace("order_id ", "order_id  ")


# case: A50
@pytest.mark.parametrize("words", [("find", "-dash"), ("explain", "-dash"), ("explain", "order", "-dash")])
def test_an_id_like_an_option_says_how(shop: Desk, words: tuple[str, ...]) -> None:
    done = shop.call(*words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "behind `--`: consumer find -- -ID" in done.stderr
    assert "--`" not in shop.call("find", "A-1", "--jsn").stderr, "a mistyped option is none"


def test_a_kind_without_an_id(desk: Desk) -> None:
    assert desk.call("db", "upgrade").returncode == 0
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
