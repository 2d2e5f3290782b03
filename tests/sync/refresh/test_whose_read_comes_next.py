"""Whose read comes next: subscriptions first, a fifth for others, a single one after every five pages. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from consumer.ledger.tables import ReadRow
from consumer.sync.refresh.schedule import PAGES_RUNNING, Turns, in_turn

AT = datetime(2026, 1, 1, tzinfo=UTC)


def row(name: str) -> ReadRow:
    kind, _, _ = name.partition("-")
    kind = {"s": "subscription", "o": "order", "c": "session"}[kind]
    return ReadRow(application="default", kind=kind, object_id=name, asked=1, due_at=AT, created_at=AT)


def rows(names: str) -> list[ReadRow]:
    return [row(name) for name in names.split()]


def names(found: list[ReadRow]) -> str:
    return " ".join(one.object_id for one in found)


def some(kind: str, number: int) -> str:
    return " ".join(f"{kind}-{one}" for one in range(number))


def test_a_fifth_is_for_others_however_many_subscriptions_wait() -> None:
    # case: B22
    due = rows(f"{some('s', 20)} {some('o', 20)}")
    assert names(in_turn(due, 10)) == "s-0 o-0 s-1 s-2 s-3 s-4 o-1 s-5 s-6 s-7"
    assert names(in_turn(due, 4)) == "s-0 s-1 s-2 s-3"
    assert names(in_turn(due, 5, since_other=4)) == "o-0 s-0 s-1 s-2 s-3"
    assert names(in_turn(due, 5, since_other=0)) == "s-0 s-1 s-2 s-3 o-0"


def test_what_one_side_does_not_need_the_other_takes() -> None:
    # case: B22
    assert names(in_turn(rows(some("s", 3)), 10)) == "s-0 s-1 s-2"
    assert names(in_turn(rows(some("o", 3)), 2)) == "o-0 o-1"
    assert names(in_turn(rows("s-0 o-0 o-1 o-2"), 3)) == "s-0 o-0 o-1"
    assert names(in_turn(rows(f"{some('s', 9)} o-0"), 20, since_other=0)) == "s-0 s-1 s-2 s-3 o-0 s-4 s-5 s-6 s-7 s-8"


def test_sessions_and_orders_take_turns() -> None:
    # case: B22
    due = rows("o-0 o-1 c-0 c-1 c-2")
    assert names(in_turn(due, 9)) == "c-0 o-0 c-1 o-1 c-2"
    assert names(in_turn(due, 9, last_other="session")) == "o-0 c-0 o-1 c-1 c-2"


def paged(turns: Turns, times: int) -> None:
    for _ in range(times):
        turns.paged()


def test_after_five_pages_one_is_read_singly_of_each_kind_in_turn() -> None:
    # case: B22, B23
    turns, read = Turns(), list[str]()
    turns.begin(rows("s-0 s-1 o-0 o-1 c-0"))
    for _ in range(6):
        paged(turns, PAGES_RUNNING - 1)
        assert turns.next() is None
        turns.paged()
        found = turns.next()
        assert turns.next() is found, "it keeps its turn until it is taken"
        if found is not None:
            turns.taken(found)
            assert turns.next() is None
            read.append(found.object_id)
    assert read == ["c-0", "o-0", "s-0", "o-1", "s-1"]


def test_what_a_page_has_answered_meanwhile_is_not_read_again() -> None:
    # case: B22
    turns = Turns()
    turns.begin(rows("c-0 o-0 s-0"))
    turns.did(rows("c-0 o-0"))
    paged(turns, PAGES_RUNNING)
    assert names([one for one in [turns.next()] if one]) == "s-0"
    assert turns.has_done(row("c-0"))
    assert not turns.has_done(row("s-0"))
    turns.begin(rows("c-0"))
    assert not turns.has_done(row("c-0")), "another round"
    assert names([one for one in [turns.next()] if one]) == "c-0", "the pages running outlast the round"


def test_before_its_first_round_nothing_waits() -> None:
    assert Turns().next() is None
