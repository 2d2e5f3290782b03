"""Verdict: from figures to healthy, degraded or stuck. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from consumer.cli.looking.evidence.accounts import judge_accounts
from consumer.cli.looking.evidence.alive import SEEN_WITHIN, alive, refuses
from consumer.cli.looking.evidence.readers import judge_gave_way, reader_since
from consumer.cli.looking.evidence.signatures import ADVICE, Refused, are_ours, look_ours, refused_signatures
from consumer.cli.looking.evidence.workers import judge_workers
from consumer.cli.looking.status_finding import Finding, Grade
from consumer.console.alarms import standing
from consumer.console.alarms.late_decisions import MISSED as PASSED_BY
from consumer.console.alarms.late_decisions import LateDecision
from consumer.console.alarms.queues import Queue
from consumer.console.alarms.unfulfilled import HELD, Waiting
from consumer.console.alarms.unread import Overdue
from consumer.console.cure import command, explain, of_application, replay_command
from consumer.console.invariants.kept import Account
from consumer.document import shown
from consumer.ledger.archiving.passes import LastPass
from consumer.ledger.health import Figures
from consumer.ledger.processes import Process
from consumer.ledger.reading.read_requests import Unreadable
from consumer.ledger.tables import ALARM_AFTER_ATTEMPTS
from consumer.payments import RateLimitError
from consumer.replay.begun import begun
from consumer.runtime.loop import REFUSED
from consumer.sync.canary.sightings import MISSING
from consumer.sync.health.stalled import lasting, told
from consumer.sync.health.status import ApplicationStatus
from handlers.fulfilment.store import REQUESTED

OVERDUE_STUCK_S = 300.0
OUTBOX_STUCK_S = 120.0
HINT_LATE_S = 120.0
QUARANTINE_GROWS = 20
REFUSED_STUCK = 3
UNFULFILLED_LATE_S = 300.0
WALK_LATE_S = 900.0
LOOKED_LATE_S = 900.0
READ_LATE_S = 900.0
UNDERWAY, UNDERWAY_S = "orphan_payment", 60.0
"""A payment may be read before its order is known to be paid: then the finding is closed again at once."""
HOW_PAUSED = "`consumer handlers list` says since when, by whom and why"
HOW_WAITING = " (`consumer handlers list` says since when and for what; they go on by themselves)"
ORDERS_WAIT = frozenset({"credentials_refused", "retention_gap", MISSING})


def judge(
    figures: Figures,
    *,
    unfulfilled: Sequence[Waiting] = (),
    queues: Sequence[Queue] = (),
    broken_plugins: Sequence[str] = (),
    left_out: Sequence[str] = (),
    log: Sequence[Finding] = (),
    application_statuses: Sequence[ApplicationStatus] = (),
    walk_late_s: float = WALK_LATE_S,
    processes: Sequence[Process] = (),
    expected: Collection[str] | None = None,
    expected_within: timedelta = SEEN_WITHIN,
    settings_problems: Sequence[str] = (),
    unproved_max_bytes: int = 0,
    shippers: Sequence[str] = (),
    last_pass: LastPass | None = None,
    unwritable: Finding | None = None,
    late_reads: Sequence[Overdue] = (),
    late: Sequence[LateDecision] = (),
    accounts: Mapping[str, Account] | None = None,
) -> list[Finding]:
    """What is wrong, worst first; empty when all is well. `walk_late_s`: how old a complete walk may be. `log`: what
    is wrong with the log (`judge_log`). `processes`, `expected`, `expected_within`: see `alive`. `shippers`: the
    handlers that could fulfil an order. `last_pass`: how archiving last went. `unwritable`: the ledger takes no write,
    so nobody can tell it that he lives. `late_reads`: the longest wait of each application that is read. `late`: what
    handlers of decisions have not done for long. `accounts`: by application, what of money and access is not as it
    should be."""
    now, wrong, signatures = figures.at, standing.wrong(figures, unproved_max_bytes), refused_signatures(processes)
    found = [Finding(Grade.DEGRADED, "settings_invalid", problem) for problem in settings_problems]
    if unwritable is not None:
        found.append(unwritable)
    else:
        seen_at = figures.worker_seen_at
        found += alive(processes, now, expected=expected, within=expected_within, worker_seen_at=seen_at)
    for paid in unfulfilled:
        found += _unfulfilled(paid, now, shippers)
    for one in application_statuses:
        since = reader_since(processes, now, one.application)
        is_unheard = unwritable is None and refuses(processes, now, one.application)
        found += _reading(one, now, walk_late_s, signatures.get(one.application), since, refuses=is_unheard)
    found += judge_gave_way(processes, now)
    for wait in late_reads:
        found += _late_read(wait, now)
    found += judge_accounts(accounts or {})
    found += _unlisted(signatures, application_statuses, now)
    found += _open(queues, now)
    found += log
    found += _handling(figures, wrong)
    found += [Finding(Grade.DEGRADED, "decisions_late", _late(one, now)) for one in late]
    found += _kept_back(figures, wrong, last_pass)
    found += judge_workers(processes, now, left_out=left_out, broken_plugins=broken_plugins)
    found += _deliveries(figures, wrong)
    found += _unproved(figures, processes, unproved_max_bytes)
    return sorted(found, key=lambda finding: -finding.grade)


def _open(queues: Sequence[Queue], now: datetime) -> Iterator[Finding]:
    """Findings that wait for a person."""
    for queue in queues:
        if queue.kind == UNDERWAY and _age_s(queue.oldest_at, now) < UNDERWAY_S:
            continue
        listed = command(f"consumer findings list --kind {queue.kind}", options=of_application(queue.application))
        text = f"{queue.count} open finding(s) {queue.kind}: `{listed}`"
        yield Finding(Grade.DEGRADED, "findings_open", text)


def _handling(figures: Figures, wrong: Collection[str]) -> Iterator[Finding]:
    """Runs and derived events that do not get on, and why."""
    overdue_s, unsent_s = _age_s(figures.oldest_due_at, figures.at), _age_s(figures.outbox_oldest_at, figures.at)
    if overdue_s > OVERDUE_STUCK_S:
        text = f"due runs are not being worked on, the oldest for {overdue_s / 60:.0f} min"
        text = f"{text}: `consumer handlers list` says whose; restart `work`"
        yield Finding(Grade.STUCK, "runs_overdue", text)
    if unsent_s > OUTBOX_STUCK_S:
        text = f"{figures.outbox_waiting} derived event(s) are not being published, the oldest for"
        text = f"{text} {unsent_s / 60:.0f} min: does the log take a write? restart `work`"
        yield Finding(Grade.STUCK, "outbox_stuck", text)
    if figures.dead:
        yield Finding(Grade.DEGRADED, "dead_runs", _dead(figures.dead))
    if figures.paused_handlers:
        yield Finding(Grade.DEGRADED, "handlers_paused", _paused(figures))
    if figures.waiting_handlers:
        text = f"wait for what they depend on: {', '.join(figures.waiting_handlers)}{HOW_WAITING}"
        yield Finding(Grade.DEGRADED, "handlers_waiting", text)
    if "handlers_gone" in wrong:
        yield Finding(Grade.DEGRADED, "handlers_gone", _gone(figures.gone_handlers))


def _kept_back(figures: Figures, wrong: Collection[str], last_pass: LastPass | None) -> Iterator[Finding]:
    """What was begun and is not at its end: a plan, reads, archiving."""
    if (half := figures.half_applied) is not None:
        yield Finding(Grade.DEGRADED, "plan_half_applied", begun(half.plan, renews_keys=half.renews_keys))
    if "objects_unreadable" in wrong:
        yield Finding(Grade.DEGRADED, "objects_unreadable", _unreadable(figures))
    if last_pass is not None and last_pass.code is not None:
        yield Finding(Grade.DEGRADED, "archive_failing", _unarchived(last_pass))


def _unproved(figures: Figures, processes: Sequence[Process], room: int) -> Iterator[Finding]:
    """What strangers send: the bytes of it that the ledger and the log keep, and what has no application."""
    for application, size in sorted(standing.filling(figures, room).items()):
        text = f"{application}: {size / 2**20:.0f} MiB of what nobody proved, of {room / 2**20:.0f}"
        text = f"{text} (CONSUMER_UNPROVED_MAX_BYTES): `consumer quarantine list` says what, `discard` makes room"
        yield Finding(Grade.DEGRADED, "unproved_fills", text)
    for application, size in sorted(standing.stored(processes, figures.at).items()):
        text = f"{application}: {size / 2**20:.0f} MiB of what nobody proved went into the log within an hour, which"
        text = f"{text} keeps it for a day: `consumer quarantine list` says what; a signature keeps strangers out"
        yield Finding(Grade.DEGRADED, "unproved_fills", text)
    if (astray := standing.misaddressed(processes, figures.at)) is not None:
        yield Finding(Grade.DEGRADED, "webhooks_misaddressed", _astray(astray))


def _astray(one: standing.Astray) -> str:
    """Nobody reads for an application that is not there: what these told comes by no other way (case I14)."""
    where = f" ({', '.join(f'/webhooks/{name}' for name in one.names)})" if one.names else ""
    text = f"{one.count} webhook(s) were posted to an address that no application has{where}, the last at"
    text = f"{text} {shown(one.last_at)}: set the webhook URL at the service right, or the path that the proxy passes"
    return f"{text} on, or give `serve`, `work` and `sync` that application"


def _dead(count: int) -> str:
    text = f"{count} dead run(s): `consumer dead list` says of what; mended, `consumer replay plan` shows what doing"
    return f"{text} them again would do, and names the command that does"


def _paused(figures: Figures) -> str:
    names = figures.paused_handlers
    one = names[0] if len(names) == 1 else "NAME"
    if set(names) <= figures.paused_for.keys():
        whose = figures.paused_for[one] if len(names) == 1 else ()
        one = f"{one} --application {whose[0] if len(whose) == 1 else 'APP'}"
    only = {name: f" only for {' and '.join(whose)}" for name, whose in figures.paused_for.items()}
    told = ", ".join(f"{name}{only.get(name, '')}" for name in names)
    return f"paused: {told} ({HOW_PAUSED}; `consumer handlers resume {one} --reason …` lets it go on)"


def _deliveries(figures: Figures, wrong: Collection[str]) -> Iterator[Finding]:
    """Deliveries the service was not yet asked about, that it denies, or that were put aside: by age and by rate."""
    late_s = _age_s(figures.oldest_unasked_at, figures.at)
    if late_s > HINT_LATE_S:
        text = f"{figures.unasked} delivery(s) wait to be confirmed, the oldest for {late_s / 60:.0f} min"
        text = f"{text}: does `sync` read? `consumer doctor` says what keeps it"
        yield Finding(Grade.STUCK if late_s > UNFULFILLED_LATE_S else Grade.DEGRADED, "hints_late", text)
    if "hints_denied" in wrong:
        text = (
            f"the service does not know {figures.denied} of the deliveries that wait: forged, or another's. "
            "What is never confirmed goes to quarantine: `consumer quarantine list`"
        )
        yield Finding(Grade.DEGRADED, "hints_denied", text)
    if figures.quarantined_lately >= QUARANTINE_GROWS:
        text = f"{figures.quarantined_lately} delivery(s) in ten minutes: `consumer quarantine list`"
        yield Finding(Grade.DEGRADED, "quarantine_grows", text)
    if "records_refused" in wrong:
        text = f"{figures.refused} true record(s) could not be kept: `consumer quarantine list`, `retry` or `discard`"
        grade = Grade.STUCK if figures.refused_lately >= REFUSED_STUCK else Grade.DEGRADED
        yield Finding(grade, "records_refused", text)


def _gone(waits: Mapping[str, int]) -> str:
    """Not stuck: it is over when somebody brings the handler back, or gives its runs up (cases H7, H8)."""
    names = ", ".join(f"{name} ({count})" for name, count in sorted(waits.items()))
    return (
        f"runs wait for a handler nobody has: {names}; `consumer dead discard --handler NAME --reason …` gives them up"
    )


def _late(one: LateDecision, now: datetime) -> str:
    """Somebody paid and does not get it, or goes on after the end (cases A1, A13, O5)."""
    age = f"the oldest for {_age_s(one.oldest_at, now) / 60:.0f} min"
    if one.reason == PASSED_BY:
        cure = f"it was not there: `{replay_command(one.handler, since=one.oldest_at, application=one.application)}`"
        return f"{one.application}: {one.count} decision(s) passed {one.handler} by, {age}; {cure}"
    cure = "`consumer handlers list` and `consumer dead list` say what it waits for"
    return f"{one.application}: {one.count} decision(s) wait for {one.handler} ({one.reason}), {age}; {cure}"


def _unreadable(figures: Figures) -> str:
    """Who asked for these waits, and keeps what he knew before."""
    names = ", ".join(f"{one.kind} {one.object_id}: {one.code}" for one in figures.unreadable_first)
    more = ", …" if figures.unreadable > len(figures.unreadable_first) else ""
    text = f"{figures.unreadable} read(s) failed {ALARM_AFTER_ATTEMPTS} times in a row and more ({names}{more})"
    cures = [f"`{_look_at(one)}` says what waits for it" for one in figures.unreadable_first[:1]]
    return "; ".join([text, *cures, "each is tried again by itself"])


def _look_at(one: Unreadable) -> str:
    """The command that says what is known of it, and what comes next."""
    if one.kind in ("order", "subscription"):
        return explain(one.kind, one.object_id, one.application)
    return command("consumer find", one.object_id, options=of_application(one.application))


def _unarchived(last: LastPass) -> str:
    done = "never" if last.done_at is None else shown(last.done_at)
    return f"bodies older than CONSUMER_RETENTION stay in the ledger: {last.code}; last archived: {done}"


def _unfulfilled(waiting: Waiting, now: datetime, shippers: Sequence[str]) -> Iterator[Finding]:
    """Money was taken and nothing shipped: the business's own alarm (case O5). What is held waits for a decision; all
    else is stuck. Orders that no handler took although one could now are told at once: no time mends that."""
    age_s = waiting.age_s(now)
    is_passed_over = waiting.reason == "no_handler" and shippers
    if age_s < UNFULFILLED_LATE_S and not is_passed_over:
        return
    text = f"{waiting.application}: {waiting.count} paid order(s) not fulfilled ({waiting.reason})"
    text = f"{text}, the oldest {_since(waiting, now)}"
    grade = Grade.DEGRADED if waiting.reason == HELD else Grade.STUCK
    yield Finding(grade, "paid_unfulfilled", text + _cure(waiting, shippers))


def _since(waiting: Waiting, now: datetime) -> str:
    if waiting.oldest_at <= now:
        return f"for {waiting.age_s(now) / 60:.0f} min"
    return f"of {shown(waiting.oldest_at)}, which is to come: a clock was ahead; once it is right, restart `work`"


def _cure(waiting: Waiting, shippers: Sequence[str]) -> str:
    """What to type, where a command is the cure."""
    match waiting.reason:
        case "dead":
            return "; `consumer dead list` says of what, and `consumer replay plan` what doing them again would do"
        case "no_handler" if shippers:
            since, application = waiting.oldest_at, waiting.application
            plans = [replay_command(one, since=since, application=application) for one in shippers]
            return "; " + ", ".join(f"`{plan}`" for plan in plans)
        case "no_handler":
            return f"; install a handler of {REQUESTED}, then `consumer replay plan --handler NAME`"
        case "retrying" | "parked":
            words = f"consumer events list --status {waiting.reason}"
            listed = command(words, options=of_application(waiting.application))
            why = explain("order", "ID", waiting.application)
            return f"; `{listed}` names them, `{why}` why one waits, and until when"
        case _:
            return ""


def _unlisted(
    signatures: Mapping[str, Refused], application_statuses: Sequence[ApplicationStatus], now: datetime
) -> list[Finding]:
    """Refused signatures of applications that nobody reads: no list says whether they were forged."""
    listed = {one.application for one in application_statuses if one.has_credentials and one.walked_at is not None}
    return [
        Finding(Grade.DEGRADED, "signatures_refused", f"{application}: {refused.text}, and none verified; {ADVICE}")
        for application, refused in sorted(signatures.items())
        if application not in listed and look_ours(refused, now)
    ]


def _reading(
    one: ApplicationStatus,
    now: datetime,
    walk_late_s: float,
    refused: Refused | None,
    reader_since: datetime | None,
    *,
    refuses: bool,
) -> list[Finding]:
    """What is wrong with the reading of one application (cases O1, O3, B7, B13, B31, B32). `reader_since`: since when
    the `sync` lives that reads it. `refuses`: webhooks come, and `serve` answers most of them 503: that is no silence,
    where a few, or those of another application alone, hide none."""
    if not one.has_credentials:
        wait = f"{one.hints} delivery(s) wait to be confirmed, and " if one.hints else ""
        text = f"{one.application}: no API credentials: {wait}what webhooks lose stays lost"
        return [Finding(Grade.DEGRADED, "no_credentials", text)]
    is_missed = one.missing is not None
    unsigned = refused if refused and are_ours(refused, one.silent_since, now, is_missed=is_missed) else None
    found = {
        "credentials_refused": one.refused_at and _refusal(one),
        "signatures_refused": unsigned and f"{unsigned.text}, none verified, and the list finds events; {ADVICE}",
        "webhooks_silent": one.silent_since
        and unsigned is None
        and not refuses
        and f"no webhook since {shown(one.silent_since)} while the list finds events: is the endpoint or the "
        "application disabled?",
        "retention_gap": one.gap_at and "events were forgotten before they were read; `consumer reconcile` heals",
        MISSING: _missing(one),
        "reconcile_braked": one.reconcile_braked and "too many changes, none made: `consumer reconcile --dry-run`",
        "paid_unplaced": one.unplaced_paid
        and f"{one.unplaced_paid} paid order(s) are listed that cannot be kept: nobody ships them, "
        "`consumer reconcile --dry-run` names them",
        "walk_late": _age_s(one.walked_at, now) > walk_late_s
        and f"the last complete walk is {_age_s(one.walked_at, now) / 60:.0f} min old",
        "comparison_late": one.walked_at is not None
        and _age_s(one.looked_at or reader_since, now) > LOOKED_LATE_S >= _age_s(one.walked_at, now)
        and f"the service's newest were {_not_compared(one, now)}, although the events are walked: restart `sync`",
        "reading_held_up": _held_up(one, now),
        "never_walked": one.walked_at is None and "the events were never walked to the end: does `sync` run?",
    }
    is_on_its_way = one.missing is not None and not one.missing.is_late
    stuck = ORDERS_WAIT - {MISSING} if is_on_its_way else ORDERS_WAIT
    return [
        Finding(Grade.STUCK if code in stuck else Grade.DEGRADED, code, f"{one.application}: {text}")
        for code, text in found.items()
        if text
    ]


def _not_compared(one: ApplicationStatus, now: datetime) -> str:
    if one.looked_at is None:
        return "never compared with the ledger"
    return f"not compared with the ledger for {_age_s(one.looked_at, now) / 60:.0f} min"


def _late_read(wait: Overdue, now: datetime) -> Iterator[Finding]:
    """Orders and subscriptions that wait for what the service says of them, although it is read."""
    late_s = _age_s(wait.since, now)
    if late_s <= READ_LATE_S:
        return
    text = (
        f"{wait.application}: reads that were asked for wait, the oldest for {late_s / 60:.0f} min: more is asked for "
        "than CONSUMER_API_READS_PER_MINUTE lets, or `sync` stands still: restart it"
    )
    yield Finding(Grade.DEGRADED, "reading_held_up", text)


def _missing(one: ApplicationStatus) -> str:
    """Told by the two ends, whatever lies between looks fine."""
    missed = one.missing
    if missed is None:
        return ""
    what = f"the service shows {missed.orders} paid order(s) and {missed.events} event(s) that the ledger lacks"
    age = f"{missed.age_s / 60:.0f} min" if missed.is_late else f"{missed.age_s:.0f} s"
    return f"{what}, for {age}: {', '.join(missed.ids)}; `consumer explain ID` says more"


def _held_up(one: ApplicationStatus, now: datetime) -> str:
    """The stages that have failed for a while, by the reason; credentials that are refused are told apart."""
    stages = lasting([stage for stage in one.held_up if not one.refused_at or stage.code not in REFUSED], now)
    where = f", in the `sync` that leads ({one.leader})" if one.leader else ""
    paused = any(stage.code == RateLimitError.code for stage in stages) and one.paused_until
    asked = f"; the service asked to wait until {shown(one.paused_until)}, and is tried once a minute" if paused else ""
    return f"{told(stages)}{where}{asked}; `consumer doctor` says why" if stages else ""


def _refusal(one: ApplicationStatus) -> str:
    """Whose credentials are refused, where the one that leads says that its own are: another host may have others."""
    is_theirs = one.leader and any(stage.code in REFUSED for stage in one.held_up)
    whose = f" of the `sync` that leads ({one.leader})" if is_theirs else ""
    return f"the service refuses the credentials{whose}: `consumer doctor`{', there,' if whose else ''} says why"


def _age_s(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else (now - since).total_seconds()
