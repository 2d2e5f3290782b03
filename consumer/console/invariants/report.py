"""Report: into which class each payment falls, what is broken, and how it is cured. Values only."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

NAMED_MAX: Final = 1000
MICRO: Final = Decimal(1_000_000)


class Class(StrEnum):
    """What became of one SUCCEEDED payment. Each payment is in exactly one class."""

    FULFILLED = "fulfilled"
    LATE = "late"  # fulfilled as well; it landed after every session of the order was over (CS-T5)
    DUE = "due"  # paid, and its fulfilment not done yet
    GIVEN_UP = "given_up"  # paid, and an operator discarded its fulfilment
    HELD = "held"
    UNFULFILLABLE = "unfulfillable"
    DUPLICATE = "duplicate"  # the order was paid more than once (case F29)
    ORPHAN = "orphan"  # no paid order of ours goes with it (cases F28, B33)
    PERIOD = "period"  # a period of a subscription
    AFTER_END = "after_end"  # a charge after the subscription's end (case A22)
    BY_HAND = "by_hand"  # an operator settled it: refunded by hand, or goodwill
    BEFORE = "before"  # there at the first walk, remembered or taken in by a seed, and not acted on (case B30)
    ARRIVING = "arriving"  # the service has just shown it: it may be on its way here
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is not as it should be: what (`code`), about whom, and the command that cures it."""

    code: str
    application: str
    kind: str
    subject: str
    says: str
    cure: str


@dataclass(kw_only=True)
class Sum:
    """So many payments of a class, and their amounts."""

    payments: int = 0
    micro: int = 0


@dataclass(kw_only=True)
class Report:
    """What was found in one application. `without_amount`: payments that show no amount; they are classed, and add
    nothing to a sum. `unread`: those of them of which only the status was kept (the first walk remembers no more): only
    a fresh walk tells what they were for, and how much. `observed`: objects that the service showed. `live`: live
    subscriptions by why they grant or not. `problems`: the first thousand. `is_set_up`: or it is not any more.
    `is_read`: compared with the service as it is now, and not with what was observed last. `stood`: what an earlier
    look named: only that counts, as all else may be on its way here; None: there was none, so everything counts."""

    application: str
    is_set_up: bool = True
    is_read: bool = False
    sums: dict[Class, Sum] = field(default_factory=lambda: {one: Sum() for one in Class})
    without_amount: int = 0
    unread: int = 0
    orders: int = 0
    observed: int = 0
    live: Counter[str] = field(default_factory=Counter)
    grants: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    stood: frozenset[tuple[str, str, str]] | None = None
    named: set[tuple[str, str, str]] = field(default_factory=set, repr=False)

    def add(self, into: Class, micro: int | None) -> None:
        """Count one payment."""
        found = self.sums[into]
        found.payments += 1
        found.micro += micro or 0
        self.without_amount += micro is None

    def name(self, problem: Problem) -> None:
        """Count one problem, once however often it is met."""
        key = (problem.code, problem.kind, problem.subject)
        if key in self.named or not self.counts(*key):
            return
        if len(self.problems) < NAMED_MAX:
            self.named.add(key)
            self.problems.append(problem)
        self.broken[problem.code] += 1

    def counts(self, code: str, kind: str, subject: str) -> bool:
        """Whether this is broken, as far as an earlier look can tell."""
        return self.stood is None or (code, kind, subject) in self.stood

    @property
    def residual(self) -> int:
        """What is in no class, in millionths of a USDC."""
        return self.sums[Class.UNEXPLAINED].micro

    @property
    def holds(self) -> bool:
        """Whether all of it is as it should be."""
        return not self.broken and not self.sums[Class.UNEXPLAINED].payments

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        total = Sum(
            payments=sum(one.payments for one in self.sums.values()), micro=sum(one.micro for one in self.sums.values())
        )
        return {
            "application": self.application,
            "set_up": self.is_set_up,
            "read": self.is_read,
            "holds": self.holds,
            "payments": total.payments,
            "micro_usdc": total.micro,
            "classes": {name.value: asdict(one) | {"usdc": usdc(one.micro)} for name, one in self.sums.items()},
            "residual_micro_usdc": self.residual,
            "without_amount": self.without_amount,
            "unread": self.unread,
            "orders": self.orders,
            "observed": self.observed,
            "live_subscriptions": dict(sorted(self.live.items())),
            "grants": dict(sorted(self.grants.items())),
            "broken": dict(sorted(self.broken.items())),
            "problems": [asdict(one) for one in self.problems],
        }


def usdc(micro: int) -> str:
    """Millionths as a decimal string: 12500000 is `12.5`."""
    return f"{(micro / MICRO).normalize():f}" if micro else "0"


def micro_of(amount: Decimal | None) -> int | None:
    """A decimal amount in millionths; None for what has more than six decimals, or is none."""
    if amount is None:
        return None
    found = amount * MICRO
    return int(found) if found == found.to_integral_value() else None
