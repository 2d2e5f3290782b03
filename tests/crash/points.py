"""The points at which a process is killed: a function of the product, and which call of it, before or after."""

from __future__ import annotations

import functools
import inspect
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Point:
    """`target` is `module:name` as the product calls it; the process dies before or after its `call`-th call."""

    name: str
    target: str
    when: str
    call: int = 1

    def __str__(self) -> str:
        return self.name.replace(" ", "-") + (f"-{self.call}" if self.call > 1 else "")


def arm(point: Point) -> None:
    """From now on this process dies at that point, as if the power had failed."""
    holder, name = place_of(point)
    original = getattr(holder, name)
    setattr(
        holder,
        name,
        _asynchronous(point, original) if inspect.iscoroutinefunction(original) else _plain(point, original),
    )


def place_of(point: Point) -> tuple[Any, str]:
    """What holds the function (a module, a class), and its name there."""
    module, _, path = point.target.partition(":")
    *holders, name = path.split(".")
    return functools.reduce(getattr, holders, import_module(module)), name


def _asynchronous(point: Point, original: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    @functools.wraps(original)
    async def armed(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        mine = calls
        if point.when == "before" and mine == point.call:
            _die()
        found = await original(*arguments, **options)
        if point.when == "after" and mine == point.call:
            _die()
        return found

    return armed


def _plain(point: Point, original: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    @functools.wraps(original)
    def armed(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if point.when == "before" and calls == point.call:
            _die()
        found = original(*arguments, **options)
        if point.when == "after" and calls == point.call:
            _die()
        return found

    return armed


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def work_points(subscription: str, broker: str) -> list[Point]:
    """Between any two steps of the work path, on a log whose classes are these (`module:Class`)."""
    ingest, ledger, dispatcher = "consumer.work.ingest.ingest", "consumer.ledger", "consumer.work.dispatch.dispatcher"
    return [
        Point("group joined", f"{subscription}.start", "after"),
        Point("records polled", f"{ingest}:Ingest.take", "before"),
        Point("records polled", f"{ingest}:Ingest.take", "before", 3),
        Point("transaction open, nothing written", f"{ledger}.handling.events:record", "before"),
        Point("events written, not committed", f"{ledger}.handling.events:record", "after"),
        Point("orders of a batch written, not committed", "handlers.fulfilment.folding:_write", "after"),
        Point("projections written, not committed", "consumer.work.unit_of_work:UnitOfWork.store", "before"),
        Point("runs written, not committed", f"{ledger}.handling.runs:add", "after", 2),
        Point("outbox written, not committed", f"{ledger}.handling.outbox:put", "after", 2),
        Point("everything written, not committed", "consumer.work.unit_of_work:UnitOfWork.store", "after"),
        Point("batch committed, offsets not", f"{ingest}:Ingest.take", "after"),
        Point("batch committed, offsets not", f"{ingest}:Ingest.take", "after", 2),
        Point("offsets committed", f"{subscription}.commit", "after"),
        Point("claimed as they were added, not committed", "consumer.work.ingest.claiming:Claiming.claim", "after", 2),
        Point("claimed as they were added, not handed over", f"{dispatcher}:Dispatcher.take", "before", 2),
        Point("handed over", f"{dispatcher}:Dispatcher.take", "after", 2),
        Point("claimed, not committed", f"{ledger}.handling.runs:claim", "after"),
        Point("claimed, not started", f"{dispatcher}:Dispatcher._start", "before"),
        Point("claimed ahead, not started", "consumer.work.dispatch.ahead:Ahead.put", "after", 3),
        Point("effect done, the next one not started", f"{dispatcher}:Dispatcher._ended", "before", 2),
        Point("before the effect", "tests.crash.shop:act", "before"),
        Point("before the effect", "tests.crash.shop:act", "before", 5),
        Point("after the effect, before its handler returns", "tests.crash.shop:act", "after"),
        Point("after the effect, before its handler returns", "tests.crash.shop:act", "after", 5),
        Point("effect done, result not kept", "consumer.work.dispatch.result_writer:ResultWriter.add", "before"),
        Point("effect done, mark not written", "consumer.work.dispatch.result_writer:ResultWriter.flush", "before", 2),
        Point("marks written, next of the lane not let go", f"{ledger}.handling.runs:_promote", "before"),
        Point("marks written, not committed", f"{ledger}.handling.runs:finish", "after"),
        Point("marks committed", f"{dispatcher}:Dispatcher._stored", "before"),
        Point("projection retried, nothing written", f"{dispatcher}:in_savepoint", "before"),
        Point("projection retried, mark not written", f"{dispatcher}:in_savepoint", "after"),
        Point("projection retried, not committed", f"{dispatcher}:store", "after"),
        Point("projection retried and committed", f"{dispatcher}:Dispatcher._attempt_in_transaction", "after", 2),
        Point("relay leads, not committed", f"{ledger}.leases:acquire", "after"),
        Point("relay has rows, nothing published", f"{broker}.publish_many", "before"),
        Point("published, not marked", f"{broker}.publish_many", "after"),
        Point("published, not marked", f"{broker}.publish_many", "after", 2),
        Point("marked as published, not committed", f"{ledger}.handling.outbox:mark_published", "after"),
        Point("marked as published", "consumer.work.outbound.relay:Relay._mark", "after"),
        Point("handlers registered, not committed", f"{ledger}.handling.handlers:register", "after"),
    ]


def onward_points(subscription: str, broker: str) -> list[Point]:
    """Between any two steps of what is taken with its cause, from its emission to its effect's mark and to the log."""
    ingest, ledger, dispatcher = "consumer.work.ingest.ingest", "consumer.ledger", "consumer.work.dispatch.dispatcher"
    return [
        Point("emitted, not put", f"{ingest}:Ingest._take_emitted", "before"),
        Point("put, not recorded", f"{ledger}.handling.outbox:put", "after"),
        Point("recorded beside its cause, not handled", f"{ingest}:Ingest._take_emitted", "after"),
        Point("recorded beside its cause, not handled", f"{ingest}:Ingest._take_emitted", "after", 3),
        Point("handled, not stored", f"{ingest}:Ingest._handle_onwards", "after"),
        Point("claimed, not committed", f"{ledger}.handling.runs:claim_new", "after"),
        Point("claimed, not committed", f"{ledger}.handling.runs:claim_new", "after", 3),
        Point("committed, not handed over", f"{dispatcher}:Dispatcher.take", "before"),
        Point("committed, not handed over", f"{dispatcher}:Dispatcher.take", "before", 3),
        Point("handed over", f"{dispatcher}:Dispatcher.take", "after", 3),
        Point("committed, offset not", f"{subscription}.commit", "before", 2),
        Point("before its effect", "tests.crash.shop:act", "before", 2),
        Point("after its effect", "tests.crash.shop:act", "after", 2),
        Point("its mark not written", "consumer.work.dispatch.result_writer:ResultWriter.flush", "before"),
        Point("its mark written, not committed", f"{ledger}.handling.runs:finish", "after"),
        Point("done, not published", f"{broker}.publish_many", "before"),
        Point("done and published, not marked", f"{broker}.publish_many", "after"),
    ]


SYNC_POINTS = [
    Point("deliveries polled", "consumer.sync.confirm.hints:HintConsumer._store", "before"),
    Point("hints written, not committed", "consumer.ledger.reading.hints:keep", "after"),
    Point("hints committed, offsets not", "consumer.sync.confirm.hints:HintConsumer._store", "after"),
    Point("hint read, nothing published", "consumer.sync.publisher:EventPublisher.publish", "before"),
    Point("published, hint not dropped", "consumer.sync.publisher:EventPublisher.publish", "after"),
    Point("hint dropped, not committed", "consumer.ledger.reading.hints:drop", "after"),
    Point("hint dropped", "consumer.sync.settlement:Settlement.settle", "after"),
]
"""Between any two steps from a delivery nobody can verify to a confirmed event."""
