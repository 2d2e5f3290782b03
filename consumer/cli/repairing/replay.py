"""`consumer replay …`: do again, exactly what a plan says, and nothing else (cases R1 to R9, R14 to R16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from consumer.cli.bootstrap import ledger, looking, run, settings_for, settings_looking
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
    Status,
    SubscriptionId,
    Type,
    Until,
    more_line,
    page,
    parse_moment,
    require_application,
    require_window,
)
from consumer.cli.output import Json, Output
from consumer.cli.repairing.replay_filter import check_words, parse_age, with_belongings
from consumer.errors import ConsumerError, NotFound, PlanMoved, PlanOver, Terminated, UsageError
from consumer.ledger.engine.database_time import shared_clock, shared_time
from consumer.ledger.plans import items, plans
from consumer.ledger.plans.candidates import Pair, PlanFilter
from consumer.ledger.plans.tables import PlanItemRow, PlanRow, PlanStatus
from consumer.replay.begun import begun
from consumer.replay.effects import Effects
from consumer.settings import Role

if TYPE_CHECKING:
    from consumer.replay.apply import Applied

DIFFERS = 3
"""The exit code when something came out otherwise than planned."""
ITEMS_SHOWN = 10_000
LEFT_OUT = {
    "seeded": "history taken in without effects stays so; what died of it, `consumer dead redrive` lets try again",
    "test": "the service shows nothing of what a test event is about",
    "archived": "`consumer events import` brings their bodies back, then plan again",
}

app = typer.Typer(help="Do again what died, was missed or has a new handler: plan, look, apply.", no_args_is_help=True)
PlanId = Annotated[str, typer.Argument(metavar="PLAN", help="The plan's id, as `replay list` shows it.")]


@app.command("plan")
def plan_command(
    since: Since = None,
    until: Until = None,
    event_type: Type = None,
    handler: HandlerName = None,
    status: Status = None,
    order: Order = None,
    subscription: SubscriptionId = None,
    customer: Customer = None,
    event: EventId = None,
    application: Application = None,
    fingerprint: Fingerprint = None,
    reason_code: Annotated[str | None, typer.Option("--reason-code", help="The code runs ended with.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Also what succeeded; needs --handler, --reason.")] = False,
    new_effect_key: Annotated[
        bool, typer.Option("--new-effect-key", help="With --force: a new idempotency key, so a new effect.")
    ] = False,
    reason: Annotated[str | None, typer.Option(help="Why; kept in the audit trail.")] = None,
    as_json: Json = False,
) -> None:
    """Freeze which dead runs (with --handler: also pairs that never ran) would be done again, and show what that would
    do. Nothing is done."""
    check_words(status, handler, reason, force=force, new_effect_key=new_effect_key)
    wanted = PlanFilter(
        type=event_type,
        handler=handler,
        status=status,
        order=order,
        subscription=subscription,
        customer=customer,
        event=event,
        application=application,
        fingerprint=fingerprint,
        reason_code=reason_code,
        forced=force,
    )
    shown = run(_plan(wanted, since, until, reason, renews_keys=new_effect_key))
    output = Output(as_json)
    output.document(shown)
    _say_plan(output, shown)
    if shown["runs"]:
        confirms = " --new-effect-key" * new_effect_key
        output.line(f"next: consumer replay apply {shown['id']}{confirms} --reason …")


async def _plan(
    wanted: PlanFilter, since: str | None, until: str | None, reason: str | None, *, renews_keys: bool
) -> dict[str, Any]:
    from consumer.app.commands.replaying import planner  # who looks at plans needs none of it
    from consumer.cli.plugins import registry_of
    from consumer.cli.repairing.replay_bar import ReplayBar

    settings = settings_for(Role.OPERATE)
    registry = registry_of(settings)
    async with ledger(settings) as database:
        clock = await shared_clock(database)
        now = clock.now()
        wanted = replace(wanted, since=parse_moment(since, now), until=parse_moment(until, now))
        require_window(wanted.since, wanted.until, now)
        require_application(wanted.application, settings)
        async with database.reading() as session:
            wanted = await with_belongings(session, wanted)
        with ReplayBar("planning") as bar:
            made = planner(database, registry, settings, clock)
            return await made.make(
                wanted,
                by=actor(),
                reason=(reason or "").strip() or None,
                renews_keys=renews_keys,
                told=lambda done, total: bar.told(done, total),
            )


def _say_plan(output: Output, shown: Mapping[str, Any]) -> None:
    actions = ", ".join(f"{count} {action}" for action, count in shown["actions"].items())
    output.line(
        f"plan {shown['id']}: {shown['runs']} run(s) of {shown['events']} event(s)" + f": {actions}" * bool(actions)
    )
    output.table(
        ["handler", "calls", "fails", "parked", "skipped"],
        [[name, one["calls"], one["fails"], one["parked"], one["skipped"]] for name, one in shown["effects"].items()],
        empty="nothing would be done: no run fits that is dead, or as --status and --handler say",
    )
    for name, one in shown["effects"].items():
        if count := one.get("no_handler"):
            output.line(f"{name}: no such handler is installed here; {count} run(s) would wait for it")
    for word in ("emits", "timers"):
        for event_type, count in shown[word].items():
            about = ", ".join(shown["subjects"].get(event_type, [])) if word == "emits" else "when they are due"
            output.line(f"would emit {count} {event_type}: {about}")
    if shown["reads"]:
        output.line(f"would ask for {shown['reads']} read(s)")
    for why, count in shown["refused"].items():
        output.line(f"left out: {count} that are {why}: {LEFT_OUT[why]}")
    if not shown["counted_all"]:
        left = sum(count for states in shown.get("left_alone", {}).values() for count in states.values())
        output.line(f"at least {left} other run(s) are left alone as they stand; not all were counted")
    if not shown["complete"]:
        output.line("there is more than a plan holds: narrow it, or plan again when this one is applied")


@app.command()
def apply(
    plan: PlanId,
    reason: Reason,
    max_age: Annotated[str, typer.Option("--max-age", help="Refuse an older plan: 90m, 2h, or hours.")] = "1h",
    rate: Annotated[float, typer.Option(min=0.1, max=10_000, help="Events sent per second, at most.")] = 200.0,
    new_effect_key: Annotated[
        bool, typer.Option("--new-effect-key", help="Confirm a plan that renews idempotency keys.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Act on exactly what the plan holds, below live work; go on where a killed one stopped. Exit 3 when something came
    out otherwise than planned."""
    why, age = checked_reason(reason), parse_age(max_age)
    row = run(_get(plan))
    if row.renews_keys and not new_effect_key:
        raise UsageError("this plan has new effects, under new idempotency keys: confirm with --new-effect-key")
    consent(f"apply {row.items} run(s) of plan {plan}?", yes=yes)
    output = Output(as_json)
    try:
        done = run(_apply(plan, why, age, rate))
    except PlanMoved as error:
        output.document({"plan": plan, "refused": error.code, "differences": error.differences})
        _say_differences(output, error.differences)
        raise
    except (KeyboardInterrupt, Terminated):
        _say_begun(plan)
        raise
    output.document({**asdict(done), "as_planned": done.is_as_planned})
    _say_applied(output, done)
    if not done.is_as_planned:
        raise typer.Exit(DIFFERS)


async def _apply(plan_id: str, reason: str, max_age: timedelta, rate_per_s: float) -> Applied:
    from consumer.app.commands.replaying import applying  # as above
    from consumer.cli.plugins import registry_of
    from consumer.cli.repairing.replay_bar import ReplayBar

    settings = settings_for(Role.OPERATE)
    async with (
        ledger(settings) as database,
        applying(database, registry_of(settings), settings, rate_per_s=rate_per_s) as made,
    ):
        if not await made.has_worker():
            typer.echo("no worker lives: this waits for `consumer work` to be started, some minutes at most", err=True)
        for name, application in await made.paused(plan_id):
            only, whose = (f" --application {application}", f" for {application}") if application else ("", "")
            cure = f"`consumer handlers resume {name}{only} --reason …`"
            typer.echo(f"{name} is paused{whose}: this waits for {cure}, some minutes", err=True)
        with ReplayBar(plan_id) as bar:
            return await made.run(
                plan_id,
                by=actor(),
                reason=reason,
                max_age=max_age,
                told=lambda step: bar.told(step.done, step.total, step.left_s, step.paused),
            )


def _say_begun(plan: str) -> None:
    """To who ended an `apply` before its end, where it had begun."""
    with suppress(ConsumerError):  # that it was ended is the answer
        row = run(_get(plan))
        if row.status == PlanStatus.APPLYING:
            typer.echo(begun(row.id, renews_keys=row.renews_keys), err=True)


def _say_differences(output: Output, found: Sequence[Mapping[str, str]]) -> None:
    names = ("event_id", "handler", "what")
    output.table(list(names), [[one[name] for name in names] for one in found], empty="")


def _say_applied(output: Output, done: Applied) -> None:
    output.line(f"plan {done.plan}: {done.status}")
    output.fields(done.items)
    rows = [[handler, status, count] for handler, states in done.runs.items() for status, count in states.items()]
    output.table(["handler", "runs", "count"], rows, empty="no run was touched")
    for one in done.moved:
        output.line(f"not as planned any more, left alone: {one['event_id']} for {one['handler']}")
    for kind, count in done.timers.items():
        output.line(f"goes off later: {count} {kind}")
    for line in done.by_timers:
        output.line(f"came of a timer that went off meanwhile: {line}")
    for line in done.otherwise:
        output.line(f"came out otherwise: {line}")


@app.command()
def show(
    plan: PlanId,
    with_items: Annotated[bool, typer.Option("--items", help="Each item, with what is predicted for it.")] = False,
    as_json: Json = False,
) -> None:
    """A plan: what was predicted, and how far it is."""
    row, progress, listed = run(_show(plan, with_items))
    output = Output(as_json)
    document = {**_row(row), **orjson.loads(row.predicted), "progress": progress}
    if with_items:
        document["more"] = row.items > len(listed)
        document["each"] = [_item(pair, item) for pair, item in listed]
    output.document(document)
    _say_plan(output, document)
    output.fields({name: value for name, value in _row(row).items() if value is not None} | {"progress": progress})
    if with_items:
        output.table(
            ["event", "type", "handler", "action", "status", "predicted", "idempotency keys", "behind"],
            [_item_cells(pair, item) for pair, item in listed],
            empty="no items",
        )
        if row.items > len(listed):
            output.line(f"{row.items - len(listed)} more: these are the first {len(listed)}")


@app.command("list")
def list_plans(limit: Limit = 20, as_json: Json = False) -> None:
    """The newest plans."""

    async def load() -> Sequence[PlanRow]:
        async with ledger(settings_looking()) as database, database.reading() as session:
            return await plans.newest(session, limit + 1)

    found, is_more = page(run(load()), limit)
    rows = [_row(row) for row in found]
    half_applied = [begun(row.id, renews_keys=row.renews_keys) for row in found if row.status == PlanStatus.APPLYING]
    output = Output(as_json)
    output.document({"plans": rows, "more": is_more})
    names = ["id", "status", "created_at", "created_by", "items", "began_by", "ended_at"]
    output.table(names, [[row[name] for name in names] for row in rows], empty="no plan was made yet")
    for line in half_applied:
        output.line(line)
    if is_more:
        output.line(more_line(limit))


@app.command()
def cancel(plan: PlanId, reason: Reason, yes: Yes = False, as_json: Json = False) -> None:
    """Nothing more of the plan is acted on; what was taken stays done."""
    why = checked_reason(reason)
    row = run(_get(plan))
    consent(f"cancel plan {plan}, {row.status}?", yes=yes)

    async def end() -> int:
        async with ledger(looking()[0]) as database, database.transaction() as session:
            left = await plans.cancel(session, plan, by=actor(), reason=why, now=await shared_time(session))
            if left is None:
                raise PlanOver(plan=plan)
            return left

    left = run(end())
    output = Output(as_json)
    output.document({"plan": plan, "status": "cancelled", "items_left": left})
    output.line(f"plan {plan}: cancelled, {left} item(s) left undone")


async def _get(plan_id: str) -> PlanRow:
    async with ledger(settings_looking()) as database, database.reading() as session:
        row = await plans.get(session, plan_id)
    if row is None:
        raise NotFound("there is no such plan; see `consumer replay list`", plan=plan_id[:64])
    return row


async def _show(plan_id: str, with_items: bool) -> tuple[PlanRow, dict[str, int], Sequence[tuple[Pair, PlanItemRow]]]:
    row = await _get(plan_id)
    async with ledger(looking()[0]) as database, database.reading() as session:
        progress = await items.progress(session, plan_id, await shared_time(session))
        listed = await items.of_plan(session, plan_id, ITEMS_SHOWN) if with_items else []
    return row, {**progress.items, "working": progress.working, "waiting": progress.waiting}, listed


def _row(row: PlanRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "status": row.status,
        "created_at": row.created_at,
        "created_by": row.created_by,
        "reason": row.reason,
        "filters": orjson.loads(row.filters),
        "forced": row.forced,
        "new_effect_key": row.renews_keys,
        "items": row.items,
        "digest": row.digest,
        "began_at": row.began_at,
        "began_by": row.began_by,
        "ended_at": row.ended_at,
        "ended_by": row.ended_by,
    }


def _item_cells(pair: Pair, row: PlanItemRow) -> list[str]:
    effects = Effects.of(row.predicted)
    told = (effects.words(), effects.keys(), effects.waits())
    cells = [pair.event_id, pair.type, pair.handler, pair.action.value, row.status]
    return cells + [" ".join(words) for words in told]


def _item(pair: Pair, row: PlanItemRow) -> dict[str, Any]:
    return {
        "application": pair.application,
        "event_id": pair.event_id,
        "type": pair.type,
        "key": pair.key,
        "handler": pair.handler,
        "action": pair.action.value,
        "status": row.status,
        "predicted": orjson.loads(row.predicted),
    }
