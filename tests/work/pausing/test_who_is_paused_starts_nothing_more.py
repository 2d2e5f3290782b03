"""What a worker sees of its handlers reaches their limits; who is paused is told of at once and kept for the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from consumer.clock import DrivenClock
from consumer.errors import HandlerTimeout, LedgerUnavailable
from consumer.ledger import Database
from consumer.ledger.handling import handlers
from consumer.ledger.handling.handlers import ALL
from consumer.ledger.tables import AuditRow, RunStatus
from consumer.plugin import Context, Event, Handler
from consumer.telemetry.loop_watch import Blocked
from consumer.work.execution.loop_pool import Harm
from consumer.work.pausing import pauser
from consumer.work.pausing.pauser import Pauser, pause_in

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AUDIT = AuditRow.__table__
DEAD, DONE, AGAIN = RunStatus.DEAD, RunStatus.SUCCEEDED, RunStatus.RETRYING


async def nothing(event: Event, ctx: Context) -> None:
    """Nothing."""


def handler(name: str, *, transactional: bool) -> Handler:
    return Handler(name=name, types=("*",), function=nothing, transactional=transactional, pause_after=5)


HANDLERS = {one.name: one for one in (handler("projects", transactional=True), handler("acts", transactional=False))}


class World:
    """A pauser, whom it told of, and what it let be counted."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.counted: list[str] = []
        observer: Any = SimpleNamespace(
            blocked=lambda name: self.counted.append(f"blocked {name}"),
            stopped=lambda name: self.counted.append(f"stopped {name}"),
        )
        registry: Any = HANDLERS
        nobody: Any = None
        self.pauser = Pauser(
            database=nobody, registry=registry, clock=DrivenClock(), observer=observer, worker="w",
            on_pause=lambda name, _: self.told.append(name),
        )  # fmt: skip

    def takes(self, name: str, *statuses: RunStatus, attempts: int = 0, code: str | None = None) -> list[str]:
        """A batch with runs of this handler was stored; who was paused by then."""
        runs = [
            SimpleNamespace(application="default", handler=name, attempts=attempts, code=code, status=status)
            for status in statuses
        ]
        taken: Any = SimpleNamespace(runs=runs)
        self.pauser.taken(taken)
        return self.told

    def stores(self, name: str, status: RunStatus, *, code: str | None = None) -> list[str]:
        """A result of the dispatcher was stored; who was paused by then."""
        result: Any = SimpleNamespace(
            finish=SimpleNamespace(run=SimpleNamespace(handler=name, application="default"), status=status, code=code)
        )
        self.pauser.result(result)
        return self.told


@pytest.fixture
def world() -> World:
    return World()


def test_it_is_told_counted_and_kept_for_the_ledger_once(world: World) -> None:
    for _ in range(7):
        world.stores("acts", DEAD)
    assert (world.told, world.counted) == (["acts"], ["stopped acts"])
    assert world.pauser.unstored == {("acts", ALL)}
    world.pauser.resumed("acts")
    for _ in range(4):
        world.stores("acts", DEAD)
    assert world.told == ["acts"], "its record is a clean one"
    assert world.stores("acts", DEAD) == ["acts", "acts"]


@pytest.mark.parametrize(
    ("name", "given", "counts"),
    [
        ("projects", {"attempts": 1}, True),
        ("projects", {"code": "rejected"}, True),
        ("projects", {}, False),
        ("acts", {"attempts": 1}, False),
        ("acts", {"code": "rejected"}, False),
        ("gone", {"attempts": 1}, False),
    ],
)
def test_of_a_batch_what_projections_came_to_counts(
    world: World, name: str, given: dict[str, Any], counts: bool
) -> None:
    assert world.takes(name, *[DEAD] * 4, **given) == []
    assert world.takes(name, DEAD, **given) == ([name] if counts else [])


@pytest.mark.parametrize(
    ("name", "code", "counts"),
    [("projects", HandlerTimeout.code, True), ("projects", "rejected", False), ("acts", HandlerTimeout.code, False)],
)
def test_only_a_projection_hangs_in_its_transaction(world: World, name: str, code: str, counts: bool) -> None:
    for _ in range(4):
        assert world.stores(name, AGAIN, code=code) == []
    assert world.stores(name, AGAIN, code=code) == ([name] if counts else [])


def test_a_result_of_a_handler_that_is_gone_pauses_nobody(world: World) -> None:
    for _ in range(9):
        assert world.stores("gone", DEAD) == []


def test_each_way_to_harm_a_loop_counts_by_its_own_limit(world: World) -> None:
    for lost in (0, 2):
        world.pauser.harm(Harm(handler="acts", seconds=1.0, at="here", lost=lost))
    assert (world.told, world.counted) == ([], ["blocked acts"] * 2)
    world.pauser.harm(Harm(handler="acts", seconds=1.0, at="here", lost=3))
    assert world.told == ["acts"]
    for _ in range(3):
        assert "projects" not in world.told
        world.pauser.cut(Harm(handler="projects", seconds=1.0, at="here"))
    assert world.told == ["acts", "projects"]
    world.pauser.abandoned({"left": 20, "few": 19})
    assert world.told == ["acts", "projects", "left"]


@pytest.mark.parametrize(
    ("task", "told", "counted"),
    [("handler:projects", ["projects"], ["blocked projects"] * 5), ("work:relay", [], []), (None, [], [])],
)
def test_who_stood_on_the_workers_loop_is_blamed_where_it_is_a_handler(
    world: World, task: str | None, told: list[str], counted: list[str]
) -> None:
    for _ in range(5):
        assert world.told == []
        world.pauser.blocked(Blocked(seconds=1.0, at="here", task=task))
    assert (world.told, [one for one in world.counted if one.startswith("blocked")]) == (told, counted)


async def test_it_is_paused_in_the_ledger_once_for_its_first_reason_with_who_and_why(sqlite_ledger: Database) -> None:
    # case: H9
    async with sqlite_ledger.transaction() as session:
        await handlers.register(session, list(HANDLERS.values()), NOW)
    for worker, reason in (("w1", "5 runs dead in a row"), ("w2", "it blocked")):
        await pause_in(sqlite_ledger, "acts", reason, actor=worker, now=NOW)
    async with sqlite_ledger.reading() as session:
        paused = await handlers.paused(session)
        audited = (await session.execute(select(AUDIT.c.actor, AUDIT.c.action, AUDIT.c.subject, AUDIT.c.reason))).all()
    assert paused.wholly == {"acts"}
    assert [tuple(row) for row in audited] == [("w1", "handler.pause", "handler:acts", "5 runs dead in a row")]


async def test_a_pause_that_the_ledger_did_not_take_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # case: H9
    stored: list[tuple[str, str]] = []
    broken = True

    async def stores(_: object, name: str, reason: str, **__: object) -> None:
        if broken:
            raise LedgerUnavailable
        stored.append((name, reason))

    monkeypatch.setattr(pauser, "pause_in", stores)
    for _ in range(5):
        world.stores("acts", DEAD)
    with pytest.raises(LedgerUnavailable):
        await world.pauser.store()
    assert world.pauser.unstored == {("acts", ALL)}
    broken = False
    for _ in range(2):
        await world.pauser.store()
    assert stored == [("acts", "5 runs dead in a row")]
    assert world.pauser.unstored == frozenset()
