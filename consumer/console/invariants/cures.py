"""Cures: for each thing that can be broken, what it means and the command that mends it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import Final

from consumer.console.cure import command
from consumer.console.invariants.report import Problem

LOST_ROW: Final = "consumer rebuild fulfilment --reason …"
LOST_ACCESS: Final = "consumer rebuild access --reason …"
RECONCILE: Final = "consumer reconcile --application {application}"
RECHECK: Final = "consumer say access.recheck {application} --application {application} --reason …"
RELEASE: Final = "consumer say fulfilment.released {subject} --application {application} --reason …"
ATTACH: Final = (
    "consumer say access.customer_attached {subject} --set customer=… --application {application} --reason …"
)

CURES: Final[Mapping[str, tuple[str, str]]] = {
    # money
    "payment_unseen": ("the service shows this payment, and it was never observed here", RECONCILE),
    "payment_unrecorded": ("this payment was observed, and is not in the books", LOST_ROW),
    "orphan_unseen": ("no paid order goes with this payment, and no finding says so", LOST_ROW),
    "duplicate_unseen": ("a further payment of an order that is paid, and no finding says so", LOST_ROW),
    "unknown_subscription_paid": ("a payment of a subscription that is not known here", RECONCILE),
    "after_end_unseen": ("a charge after the subscription's end, and no finding says so", LOST_ACCESS),
    "underpaid": ("the payment is smaller than what its order costs",
                  "consumer find {subject} --application {application}"),
    # orders
    "paid_not_taken": ("the service shows this order PAID, and it is not paid here", RECONCILE),
    "paid_here_only": ("paid here, the service shows another status, and no finding says so",
                       "consumer explain order {subject} --application {application}"),
    "requested_unpaid": ("fulfilment was requested for an order that is not paid", LOST_ROW),
    "paid_not_requested": ("paid, neither requested nor held nor unfulfillable", RELEASE),
    "requested_twice": ("fulfilment was requested more than once",
                        "consumer explain order {subject} --application {application}"),
    "requested_under_two_ids": ("requested, and so was what is the same order there; one is to be unfulfillable",
                                "consumer explain order {subject} --application {application}"),
    "fulfilled_unrequested": ("a handler fulfilled it, and the books do not show a request", LOST_ROW),
    "request_lost": ("fulfilment was requested, and the request is gone", "consumer events import FILE"),
    "requested_ahead": ("requested at a time that is to come, and not done; once the clock is right, restart `work`",
                        "consumer explain order {subject} --application {application}"),
    "fulfilment_dead": ("paid, and its fulfilment is dead",
                        "consumer replay plan --status dead --order {subject} --application {application}"),
    "no_handler": ("paid, and no handler has fulfilled it",
                   "consumer replay plan --handler {handler} --order {subject} --application {application}"),
    "hold_unseen": ("held, and no finding says so", RELEASE),
    "asked_too_long": ("held for an answer of the service that does not come", RECONCILE),
    "unfulfillable_unseen": ("unfulfillable, and no finding says so", LOST_ROW),
    # access
    "access_missing": ("a live subscription with a customer and a price, and no decision about it", RECHECK),
    "access_without_source": ("access is given, and nothing gives it", RECHECK),
    "access_withheld": ("access is refused, though something gives it", RECHECK),
    "deadline_missed": ("a deadline of this access has passed, and nothing was decided", RECHECK),
    "brake_unseen": ("a revocation was stopped, and no open finding says so",
                     "consumer say access.brake_released {application} --application {application} --reason …"),
    "unresolved_unseen": ("a live subscription of nobody, and no finding says so", ATTACH),
    "unmapped_unseen": ("a live subscription whose price grants nothing, and no finding says so", RECHECK),
    "ended_kept": ("the service shows it ENDED, and it is live here", RECONCILE),
    "revived": ("the service shows it live, it is ENDED here, and no finding says so", RECONCILE),
    "subscription_unknown": ("the service shows it live, and it is not known here", RECONCILE),
    "after_end_unflagged": ("charged after its end, and not marked so", LOST_ACCESS),
    # work
    "projection_dead": ("events are not in the books: this handler gave them up",
                        "consumer dead redrive --handler {subject} --application {application} --reason …"),
    "not_derived": ("events came in from archives, and no rebuild since: orders, gifts and holds may be lacking",
                    "consumer rebuild all --reason …"),
    "import_cut": ("an import of archives goes on, or was cut: half of a past is no ground to derive from",
                   "consumer events import --missing DIR"),
}  # fmt: skip
"""Code to what it says, and the command."""

LOST: Final[Mapping[str, str]] = {
    "paid_not_taken": LOST_ROW,
    "unknown_subscription_paid": LOST_ACCESS,
    "ended_kept": LOST_ACCESS,
    "revived": LOST_ACCESS,
    "subscription_unknown": LOST_ACCESS,
}
"""The cure where the ledger has the observation: the service has nothing new to say, so what was made of it is lost."""

UNKNOWN: Final = ("subscription_unknown", "unknown_subscription_paid", "revived")

FOR_ALL: Final[Mapping[str, str]] = {
    "fulfilment_dead": "consumer replay plan --status dead --application {application}",
    "no_handler": "consumer replay plan --handler {handler} --application {application}",
}
"""The command that cures all of a kind at once, where the one for a single subject is another."""


def problem(
    code: str,
    application: str,
    kind: str,
    subject: str,
    more: str = "",
    *,
    handlers: Sequence[str] = (),
    is_recorded: bool = False,
) -> Problem:
    """What is broken about a subject, with its cure spelled out. `handlers`: those that could fulfil an order.
    `is_recorded`: what the service shows is an event of the ledger."""
    says, cure = CURES[code]
    cure = LOST.get(code, cure) if is_recorded else cure
    return Problem(
        code=code, application=application, kind=kind, subject=subject, says=f"{says}{more}",
        cure=_spelled(cure, application, handlers, subject),
    )  # fmt: skip


def in_order(problems: Sequence[Problem]) -> list[Problem]:
    """The same, of one application: while a subscription is not known here, what it gives looks like access from
    nowhere, and a recheck would take it away. So that one is cured first, and access is looked at again after it."""
    first = next((one.cure for code in UNKNOWN for one in problems if one.code == code), None)
    recheck = RECHECK.partition("{")[0]
    return [replace(one, cure=first) if first and one.cure.startswith(recheck) else one for one in problems]


def cure_of_all(problems: Sequence[Problem], handlers: Sequence[str]) -> list[str]:
    """The commands that cure these, which are all of one code."""
    for_all = FOR_ALL.get(problems[0].code)
    if for_all is not None and len(problems) > 1:
        return [_spelled(for_all, one, handlers) for one in dict.fromkeys(one.application for one in problems)]
    return list(dict.fromkeys(one.cure for one in problems))


def _spelled(cure: str, application: str, handlers: Sequence[str], subject: str = "") -> str:
    if "{handler}" in cure and not handlers:
        return "install a plugin that handles fulfilment.requested; `consumer handlers list` then names the command"
    each = handlers if "{handler}" in cure else ("",)
    return "; ".join(_command(cure, subject, application=quote(application), handler=quote(one)) for one in each)


def _command(cure: str, subject: str, **others: str) -> str:
    words, given, options = cure.partition(" {subject}")
    if not given or words.rpartition(" ")[2].startswith("--"):  # an option takes its value as it is
        return cure.format(subject=quote(subject), **others)
    return command(words, subject, options=options.strip().format(**others))
