"""Successors: which of two handlers, that no version of the code has together, takes the other's place (cases H7, H8).

A handler that was renamed without a mapping is a new one to the ledger. While old and new version are at work, or
where the plugin cannot be loaded, nothing may be kept for both: each order would be sent twice. A handler that is
really new beside one of its plugin that was really dropped looks the same. What two plugins do is two things.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.ledger import processes
from consumer.ledger.processes import BROKEN, INSTALLED
from consumer.plugin import Handler
from consumer.plugin.handler import matches


@dataclass(frozen=True, kw_only=True)
class Version:
    """What a worker said of itself: the handlers that are installed, and the plugins that it cannot load."""

    started_at: datetime
    handlers: frozenset[str]
    broken: frozenset[str] = frozenset()


async def versions(session: AsyncSession) -> list[Version]:
    """What the workers of the last week said, the one that began last first. One from before 2026-12 did not say what
    is installed beside what it runs: nothing is known of it."""
    found = [
        Version(
            started_at=one.started_at,
            handlers=frozenset(one.said[INSTALLED].split()),
            broken=frozenset(one.said.get(BROKEN, "").split()),
        )
        for one in await processes.listed(session)
        if INSTALLED in one.said
    ]
    return sorted(found, key=lambda one: one.started_at, reverse=True)


def stand_for_each_other(one: Handler, other: Handler, told: Sequence[Version]) -> bool:
    """Whether one may be the other under another name: they do the same, no version ever had both, and of the workers
    that began last with either of them each lacks the other. Nobody is known to lack what nobody spoke of. Pure."""
    with_one, with_other = _newest(one, told), _newest(other, told)
    return (
        _do_the_same(one, other)
        and not any({one.name, other.name} <= version.handlers for version in told)
        and with_one is not None
        and with_other is not None
        and _lacks(with_one, other)
        and _lacks(with_other, one)
    )


def without_forerunners(kept: Iterable[Handler], told: Sequence[Version]) -> list[Handler]:
    """Those in whose place none of the others has come. Pure."""
    among = list(kept)
    return [one for one in among if not any(_comes_after(other, one, told) for other in among)]


def _comes_after(later: Handler, one: Handler, told: Sequence[Version]) -> bool:
    if not stand_for_each_other(later, one, told):
        return False
    first, last = _newest(one, told), _newest(later, told)
    return first is not None and last is not None and last.started_at > first.started_at


def _do_the_same(one: Handler, other: Handler) -> bool:
    """Of one plugin: what fulfils, also in two steps; else what is of one kind."""
    if (one.plugin, one.fulfils) != (other.plugin, other.fulfils):
        return False
    if not any(matches(mine, its) or matches(its, mine) for mine in one.types for its in other.types):
        return False
    return one.fulfils or one.transactional == other.transactional


def _newest(handler: Handler, told: Sequence[Version]) -> Version | None:
    return next((one for one in told if handler.name in one.handlers), None)


def _lacks(version: Version, handler: Handler) -> bool:
    """One that cannot be loaded is not dropped."""
    return handler.name not in version.handlers and handler.plugin not in version.broken
