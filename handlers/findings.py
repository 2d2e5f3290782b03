"""Findings: what a projection cannot settle by itself and an operator must see (orphan money, an unmapped price, ...).

Each plugin has its own table of this shape. A finding is open until its cause is gone or an operator closes it; what
an operator closed stays closed. What he closed is what he saw: more of it that came since is open (`as_seen`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from hashlib import sha256
from json import dumps
from typing import Any, Final

from sqlalchemy import JSON, String, Table, and_, bindparam, select, true, update
from sqlalchemy.sql.dml import ReturningUpdate
from sqlmodel import Field

from consumer.plugin import Context, Event, Reject, TableRow, UtcDateTime, Words, insert_into

SYSTEM = "system"
LEFT_OPEN: Final = "finding.left_open"
"""The trail's word for what an operator did not close, since there was more of it than he saw."""
DECIDED_BY: Final[Mapping[str, Sequence[str]]] = {
    "amount_mismatch": ("expected_amount", "amount"),
    "charged_after_end": ("renewed_at",),
    "duplicate_payment": ("payments",),
    "orphan_payment": ("payments",),
    "unidentified_subscription": ("event_id",),
}
"""What of its detail an operator decides about: money that he gives back, mostly. The rest may change as it likes, here
and in a rebuild by a later version."""


class Finding(TableRow):
    """The columns of a finding; unique by (application, kind, subject)."""

    application: str = Field(primary_key=True, sa_type=String(64))
    kind: str = Field(primary_key=True, sa_type=String(40))
    subject: str = Field(primary_key=True, sa_type=Words(255))
    detail: dict[str, Any] = Field(default_factory=dict, sa_type=JSON, nullable=False)
    opened_at: datetime = Field(sa_type=UtcDateTime, nullable=False)
    closed_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    closed_by: str | None = Field(default=None, sa_type=Words(100))
    closed_reason: str | None = Field(default=None, sa_type=Words(500))


async def open_finding(
    ctx: Context, table: Table, kind: str, subject: str, at: datetime, detail: Mapping[str, Any], *, anew: bool = False
) -> None:
    """Open it, or open it again if only its cause had gone; an open one takes the newer detail.

    `anew`: it is another occasion, so that an operator's closing of the last one does not count.
    """
    insert = insert_into(table, ctx.session.get_bind().dialect.name)
    values = {"kind": kind, "subject": subject, "detail": dict(detail), "opened_at": at}
    statement = insert.values(application=ctx.application, **values).on_conflict_do_update(
        index_elements=["application", "kind", "subject"],
        set_={"detail": insert.excluded.detail, "closed_at": None, "closed_by": None, "closed_reason": None},
        where=true() if anew else table.c.closed_by.is_(None) | (table.c.closed_by == SYSTEM),
    )
    await ctx.session.execute(statement)


async def seen(ctx: Context, table: Table, kind: str, subjects: Collection[str]) -> set[str]:
    """Of these subjects, those whose finding is open, or was settled by an operator."""
    those = (table.c.application == ctx.application, table.c.kind == kind, table.c.subject.in_(sorted(subjects)))
    is_seen = table.c.closed_at.is_(None) | (table.c.closed_by != SYSTEM)
    return set((await ctx.session.execute(select(table.c.subject).where(*those, is_seen))).scalars())


async def close_finding(
    ctx: Context, table: Table, kind: str, subject: str, at: datetime, *, by: str = SYSTEM, reason: str | None = None
) -> bool:
    """Close it if it is open; say whether it was."""
    one = {"b_application": ctx.application, "b_kind": kind, "b_subject": subject}
    done = await ctx.session.execute(_closing(table), one | {"closed_at": at, "closed_by": by, "closed_reason": reason})
    return done.first() is not None


@cache
def _closing(table: Table) -> ReturningUpdate[Any]:
    """Built once for each plugin: nearly every paid order asks for it, and has nothing to close."""
    one = and_(
        table.c.application == bindparam("b_application"),
        table.c.kind == bindparam("b_kind"),
        table.c.subject == bindparam("b_subject"),
    )
    return update(table).where(one, table.c.closed_at.is_(None)).returning(table.c.kind)


def as_seen(kind: str, detail: Mapping[str, Any]) -> str | None:
    """What stands for what an operator sees of a finding and decides about; None for a kind of which that is its name
    alone. Pure."""
    if kind not in DECIDED_BY:
        return None
    return sha256(dumps([detail.get(name) for name in DECIDED_BY[kind]]).encode()).hexdigest()[:16]


async def close_by_hand(event: Event, ctx: Context, table: Table) -> None:
    """An operator's word: the finding that it names is closed, and noted. One that is not by now as the word says that
    it was seen stays open, and that is noted; a word that does not say closes it. Raises Reject where it names none."""
    subject = event.object_id
    if subject is None:
        raise Reject("closing a finding needs its subject")
    kind, by = str(event.find("/data/kind")), str(event.find("/data/by") or "operator")[:100]
    reason, seen_then = str(event.find("/data/reason") or "")[:500], event.find("/data/seen")
    if seen_then is not None:
        one = and_(table.c.application == ctx.application, table.c.kind == kind, table.c.subject == subject)
        open_ = select(table.c.detail).where(one, table.c.closed_at.is_(None)).with_for_update()
        detail = (await ctx.session.execute(open_)).scalar()
        if detail is not None and as_seen(kind, detail) not in (None, seen_then):
            ctx.log.warning("finding_left_open", kind=kind, subject=subject)
            ctx.note(f"object:{subject}", LEFT_OPEN, {"kind": kind}, {"by": by, "reason": reason})
            return
    if await close_finding(ctx, table, kind, subject, event.received_at, by=by, reason=reason):
        ctx.note(f"object:{subject}", "finding.closed", {"kind": kind}, {"by": by, "reason": reason})


async def close_findings(ctx: Context, table: Table, kinds: Sequence[str], subject: str, at: datetime) -> None:
    """Close those of these kinds that are open: their cause is gone."""
    one = and_(table.c.application == ctx.application, table.c.kind.in_(kinds), table.c.subject == subject)
    await ctx.session.execute(
        update(table).where(one, table.c.closed_at.is_(None)).values(closed_at=at, closed_by=SYSTEM)
    )
