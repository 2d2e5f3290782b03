"""`consumer dead …`: runs that used up their attempts, and what to do about them (cases R10, R12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Protocol

import typer
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.cli.bootstrap import ledger, looking, run, settings_looking, time_there
from consumer.cli.consent import Reason, Yes, actor, checked_reason, consent
from consumer.cli.filters import (
    Application,
    Customer,
    EventId,
    Fingerprint,
    HandlerName,
    Limit,
    Order,
    Since,
    SubscriptionId,
    Type,
    Until,
    moments,
    page,
    require_fingerprint,
    require_named,
    takes,
    whose_keys,
)
from consumer.cli.output import Json, Output, shown
from consumer.console.cure import of_application
from consumer.console.event_view import place_in
from consumer.console.operators.deaths import SUBJECTS_MAX, death_groups, per_application
from consumer.errors import UsageError
from consumer.ledger.engine.counting import COUNT_MAX
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.handling import dead, handlers
from consumer.ledger.handling.dead import DeadFilter, DeadRun
from consumer.ledger.tables import RunStatus
from consumer.settings import Settings

app = typer.Typer(help="Dead runs: look, try again, give up.", no_args_is_help=True)

Everything = Annotated[bool, typer.Option("--all", help="All of them, without a filter.")]


class Act(Protocol):
    """What is done with the runs that fit: `dead.redrive`, `dead.discard`, `dead.restore`."""

    def __call__(
        self, session: AsyncSession, runs: Sequence[DeadRun], *, by: str, reason: str, now: datetime
    ) -> Awaitable[int]:
        """Do it to these runs; returns to how many."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """What a list shows: runs that fit, what the authors of their handlers tell the operator, how many of each kind
    there are whatever the limit, and how many in all where none fits."""

    runs: Sequence[DeadRun]
    runbooks: Mapping[str, str]
    by_kind: Counter[tuple[str, str | None]]
    in_all: int


def chosen(
    since: Since = None,
    until: Until = None,
    event_type: Type = None,
    handler: HandlerName = None,
    order: Order = None,
    subscription: SubscriptionId = None,
    customer: Customer = None,
    event: EventId = None,
    application: Application = None,
    fingerprint: Fingerprint = None,
) -> DeadFilter:
    """The dead runs that these options choose. Raises UsageError."""
    begin, end = moments(since, until)
    return DeadFilter(
        since=begin,
        until=end,
        type=event_type,
        handler=handler,
        order_id=order,
        subscription_id=subscription,
        event_id=event,
        application=application,
        fingerprint=fingerprint,
        keys=run(_whose(customer, application)) if customer is not None else None,
    )


@app.command("list")
@takes(chosen)
def list_dead(
    wanted: DeadFilter,
    discarded: Annotated[bool, typer.Option("--discarded", help="Those that were given up instead.")] = False,
    each: Annotated[bool, typer.Option("--each", help="One line a run.")] = False,
    limit: Limit = 1000,
    as_json: Json = False,
) -> None:
    """The dead runs that fit, oldest event first, grouped by what they died of; `--each` shows every one."""
    wanted = replace(wanted, discarded=discarded, limit=limit)
    listed = run(_listed(wanted))
    found, runbooks, by_kind = listed.runs, listed.runbooks, listed.by_kind
    output = Output(as_json)
    groups, total, kinds = death_groups(found, by_kind, runbooks), by_kind.total(), len(by_kind)
    is_all = total < COUNT_MAX
    counts = {"total": total, "kinds": kinds, "counted_all": is_all}
    dead_runs = [_shown(one) | {"runbook": runbooks.get(one.handler)} for one in found]
    output.document({"dead": dead_runs, "groups": groups} | counts)
    more = f"{total - len(found)} more: these are the first {len(found)} (--limit)" if total > len(found) else None
    if found and not each:
        at_least = "" if is_all else "at least "
        output.line(f"{at_least}{total} {'discarded' if discarded else 'dead'} run(s), {kinds} kind(s) of failure")
        _print_groups(output, groups, at_least, wanted.application)
        if kinds > len(groups):
            output.line(f"{kinds - len(groups)} more kind(s) of failure are not among the runs looked at (--limit)")
        if more:
            output.line(more)
        return
    output.table(
        ["died", "application", "event", "type", "about", "handler", "attempts", "code", "fingerprint",
         "reason", "at"],
        [
            [one.died_at, one.application, one.event_id, one.type, one.key, one.handler, one.attempts, one.code,
             one.fingerprint, one.reason, place_in(one.trace)]
            for one in found
        ],
        empty=_none_fits(listed.in_all, discarded=discarded),
    )  # fmt: skip
    for handler, text in runbooks.items():
        output.line(f"runbook of {handler}: {text}")
    if more:
        output.line(more)


def _none_fits(in_all: int, *, discarded: bool) -> str:
    """Said when none fits: what a filter leaves out is there all the same."""
    if not in_all:
        return "nothing was discarded" if discarded else "nothing is dead"
    at_least = "" if in_all < COUNT_MAX else "at least "
    return f"no {'discarded' if discarded else 'dead'} run fits ({at_least}{in_all} in all)"


def _print_groups(output: Output, groups: Sequence[dict[str, Any]], at_least: str, application: str | None) -> None:
    known = {one.name for one in looking()[0].applications}
    of_which = len(known.union(*(one["applications"] for one in groups))) > 1
    for one in groups:
        count = f"{at_least}{one['count']}"
        output.line(f"{count} x {one['handler']}  {one['code']}: {one['reason']}  [{one['fingerprint']}]")
        if one["place"]:
            output.line(f"   at {one['place']}")
        if one["runbook"]:
            output.line(f"   runbook: {one['runbook']}")
        if of_which:
            output.line(f"   {per_application(one)}")
        more = "" if one["count"] <= SUBJECTS_MAX else ", …"
        seen = "" if one["looked_at"] == one["count"] else f" (the first {one['looked_at']})"
        output.line(f"   from {shown(one['first'])} to {shown(one['last'])}{seen}: {', '.join(one['subjects'])}{more}")
        mark = f" --fingerprint {one['fingerprint']}" if one["fingerprint"] else ""
        mark += f" {of_application(application)}" if application is not None else ""
        output.line(f"   consumer dead redrive --handler {one['handler']}{mark} --reason …")


@app.command()
@takes(chosen)
def redrive(
    wanted: DeadFilter,
    reason: Reason,
    everything: Everything = False,
    limit: Limit = 1000,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Let the dead runs that fit try again, with all their attempts and the same idempotency keys."""
    _act(replace(wanted, limit=limit), everything, reason, yes, as_json, "redrive", dead.redrive)


@app.command()
@takes(chosen)
def discard(
    wanted: DeadFilter,
    reason: Reason,
    everything: Everything = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take a discard back: they are dead again.")] = False,
    limit: Limit = 1000,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Give the dead runs that fit up, so that nothing waits for them; `--undo` takes it back. With `--handler`: also
    the runs that wait for it, when no worker has it any more, or with `--event`, which names one."""
    is_named = wanted.event_id is not None and wanted.handler is not None
    verb, act = ("restore", dead.restore) if undo else ("discard", partial(dead.discard, named=is_named))
    waiting_at = time_there() if wanted.handler is not None and not undo else None
    wanted = replace(wanted, limit=limit, discarded=undo, waiting_at=waiting_at)
    _act(wanted, everything, reason, yes, as_json, verb, act)


def _act(wanted: DeadFilter, everything: bool, reason: str, yes: bool, as_json: bool, verb: str, act: Act) -> None:
    reason = checked_reason(reason)
    if not everything and replace(wanted, limit=0, discarded=False) == DeadFilter(limit=0):
        raise UsageError(f"say which to {verb}: a filter, or --all")
    found, is_more = run(_chosen(wanted))
    if found:
        consent(_question(verb, found), yes=yes)
    done = run(_do(found, reason, act)) if found else 0
    output = Output(as_json)
    shown_runs = [_shown(one) for one in found]
    output.document({"action": verb, "found": len(found), "changed": done, "runs": shown_runs, "more": is_more})
    output.line(f"{verb}: {done} of {len(found)} run(s)" if found else "no run fits")
    if done < len(found):
        output.line(f"{len(found) - done} left alone: no longer as they were shown, or not to {verb}; look again")
    if is_more:
        output.line("more is left: this was as many as --limit says")


def _question(verb: str, found: Sequence[DeadRun]) -> str:
    names = ", ".join(sorted({one.handler for one in found}))
    waiting = sum(one.status in (RunStatus.RETRYING, RunStatus.PARKED) for one in found)
    why = f", {waiting} of them not dead, but waiting" if waiting else ""
    return f"{verb} {len(found)} run(s) of {names}{why}?"


async def _require_known(session: AsyncSession, settings: Settings, wanted: DeadFilter) -> None:
    """Raise UsageError or NotFound for what nobody has ever had: "no run fits" would hide the slip of a finger."""
    await require_named(session, settings, wanted)
    if wanted.fingerprint is not None:
        await require_fingerprint(session, wanted.fingerprint, discarded=wanted.discarded)


async def _whose(customer: str, application: str | None) -> tuple[tuple[str, str], ...]:
    settings = looking()[0]
    async with ledger(settings) as database, database.reading() as session:
        return await whose_keys(session, settings, customer, application)


async def _chosen(wanted: DeadFilter) -> tuple[Sequence[DeadRun], bool]:
    """Those that fit, and whether there are more than the limit. Raises UsageError, NotFound."""
    settings = settings_looking()
    async with ledger(settings) as database, database.reading() as session:
        found, is_more = page(await dead.search(session, replace(wanted, limit=wanted.limit + 1)), wanted.limit)
        if not found:
            await _require_known(session, settings, wanted)
        return found, is_more


async def _listed(wanted: DeadFilter) -> _Listed:
    settings = settings_looking()
    async with ledger(settings) as database, database.reading() as session:
        found, in_all = await dead.search(session, wanted), 0
        if not found:
            await _require_known(session, settings, wanted)
            in_all = (await dead.totals(session, DeadFilter(discarded=wanted.discarded))).total()
        return _Listed(
            runs=found,
            runbooks=await handlers.runbooks(session, {one.handler for one in found}),
            by_kind=await dead.totals(session, wanted)
            if len(found) == wanted.limit
            else Counter((one.handler, one.fingerprint) for one in found),
            in_all=in_all,
        )


async def _do(found: Sequence[DeadRun], reason: str, act: Act) -> int:
    async with ledger(looking()[0]) as database, database.transaction() as session:
        return await act(session, found, by=actor(), reason=reason, now=await shared_time(session))


def _shown(one: DeadRun) -> dict[str, Any]:
    return {
        "application": one.application,
        "event_id": one.event_id,
        "type": one.type,
        "key": one.key,
        "handler": one.handler,
        "status": "discarded" if one.status == RunStatus.SKIPPED else one.status,
        "blocking": one.blocking,
        "attempts": one.attempts,
        "code": one.code,
        "reason": one.reason,
        "fingerprint": one.fingerprint,
        "trace": one.trace,
        "code_version": one.code_version,
        "died_at": one.died_at,
    }
