"""Many facts at once: the rows of all their orders are read by one statement, the rules fold the facts in memory, and
what changed is written by one statement. What follows is what follows of each fact singly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import BindParameter, Executable, Integer, bindparam, literal_column, select, update

from consumer.plugin import Context, Event, among_given, each_given, insert_into
from handlers.fulfilment.order import Order
from handlers.fulfilment.store import Change, apply, changed, follow, order_of
from handlers.fulfilment.tables import FINDINGS, ORDERS

_APPLICATION: BindParameter[str] = bindparam("b_application")
_LOCK = (
    select(ORDERS.c.order_id, *[ORDERS.c[name] for name in Order._fields])
    .where(ORDERS.c.application == _APPLICATION, among_given(ORDERS.c.order_id, "b_order_ids"))
    .order_by(ORDERS.c.order_id)
    .with_for_update()
)
_CHANGE = update(ORDERS).where(ORDERS.c.application == _APPLICATION, ORDERS.c.order_id == bindparam("b_order_id"))
_ORPHANS = select(FINDINGS.c.subject).where(
    FINDINGS.c.application == _APPLICATION,
    FINDINGS.c.kind == "orphan_payment",
    among_given(FINDINGS.c.subject, "b_order_ids"),
    FINDINGS.c.closed_at.is_(None),
)


@dataclass(frozen=True)
class Fact:
    """What one event says of one order. `is_history`: a seed told that it is paid, so nobody is to ship it."""

    event: Event
    ctx: Context
    order_id: str
    applied_to: Callable[[Order], Order]
    is_history: bool = False


async def apply_all(facts: Sequence[Fact], *, invents: bool = True) -> list[Change]:
    """What became of the order by each of these facts of one application, in their order. Orders that nobody knows are
    invented, or else left alone."""
    if len(facts) < 2:
        alone = [
            await apply(one.ctx, one.event, one.order_id, one.applied_to, invents=invents, is_history=one.is_history)
            for one in facts
        ]
        return [change for change in alone if change is not None]
    ctx, order_ids = facts[0].ctx, sorted({fact.order_id for fact in facts})
    known = await (_locked if invents else _lock)(ctx, order_ids)
    facts = [fact for fact in facts if fact.order_id in known]
    orphans = await _orphans(ctx, [order_id for order_id, order in known.items() if order.paid_at is None])
    changes = folded(facts, known, orphans)
    await _write(ctx, known, {fact.order_id: change.after for fact, change in zip(facts, changes, strict=True)})
    for fact, change in zip(facts, changes, strict=True):
        await follow(fact.ctx, fact.event, fact.order_id, change, is_history=fact.is_history)
    return changes


def folded(facts: Sequence[Fact], known: Mapping[str, Order], orphans: Collection[str]) -> list[Change]:
    """Each fact upon what the ones before it left. `orphans`: the orders of payments that were seen before. Pure."""
    orders, changes = dict(known), []
    for fact in facts:
        before = orders[fact.order_id]
        after = orders[fact.order_id] = fact.applied_to(before)
        changes.append(Change(before, after, may_be_orphan=fact.order_id in orphans))
    return changes


async def _locked(ctx: Context, order_ids: Sequence[str]) -> dict[str, Order]:
    """The orders, under their locks; those that nobody knows have a row from here on. Whoever inserts one meanwhile has
    its lock: theirs is waited for."""
    if not order_ids:
        return {}
    found = await _lock(ctx, order_ids)
    if missing := [order_id for order_id in order_ids if order_id not in found]:
        given = {"b_application": ctx.application, "b_order_ids": missing}
        inserted = await ctx.session.execute(_inserting(ctx.session.get_bind().dialect.name), given)
        new = {order_id: Order() for order_id in inserted.scalars()}
        found |= new | await _lock(ctx, [order_id for order_id in missing if order_id not in new])
    return found


async def _lock(ctx: Context, order_ids: Sequence[str]) -> dict[str, Order]:
    if not order_ids:
        return {}
    rows = await ctx.session.execute(_LOCK, {"b_application": ctx.application, "b_order_ids": order_ids})
    return {order_id: order_of(values) for order_id, *values in rows}


async def _orphans(ctx: Context, order_ids: Sequence[str]) -> frozenset[str]:
    """Asked with the locks held: whoever opens such a finding holds its order's."""
    if not order_ids:
        return frozenset()
    given = {"b_application": ctx.application, "b_order_ids": order_ids}
    return frozenset((await ctx.session.execute(_ORPHANS, given)).scalars())


async def _write(ctx: Context, before: Mapping[str, Order], after: Mapping[str, Order]) -> None:
    """Those that changed in the same columns by one statement: as good as all."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for order_id, order in after.items():
        if names := changed(before[order_id], order):
            one = {"b_application": ctx.application, "b_order_id": order_id}
            alike.setdefault(names, []).append(one | {name: getattr(order, name) for name in names})
    connection = await ctx.session.connection()
    for rows in alike.values():
        await connection.execute(_CHANGE, rows)


@cache
def _inserting(dialect: str) -> Executable:
    given = each_given("b_order_ids")
    # SQLite takes ON CONFLICT behind a SELECT for a join without its WHERE.
    blank = select(_APPLICATION, given.c.value, literal_column("0", Integer)).where(literal_column("1 = 1"))
    insert = insert_into(ORDERS, dialect).from_select(["application", "order_id", "observed_version"], blank)
    return insert.on_conflict_do_nothing().returning(ORDERS.c.order_id)
