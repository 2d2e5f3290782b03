"""Accounts: what the last account of money and access found broken, judged for `status`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from consumer.cli.looking.status_finding import Finding, Grade
from consumer.console.invariants.kept import ORDERS_WAIT, Account
from consumer.console.invariants.report import usdc
from consumer.document import shown

ADVICE = "`consumer invariants` names each with its cure"


def judge_accounts(accounts: Mapping[str, Account]) -> list[Finding]:
    """By application: what cannot be as it stands, and money that nothing explains: who paid it waits."""
    found = []
    for application, one in accounts.items():
        lead = f"{application}, as of {shown(one.at)}"
        if one.residual:
            text = f"{lead}: {usdc(one.residual)} USDC of payments that nothing here explains; {ADVICE}"
            found.append(Finding(Grade.STUCK, "money_unexplained", text))
        if one.broken:
            grade = Grade.DEGRADED if ORDERS_WAIT.isdisjoint(one.broken) else Grade.STUCK
            told = ", ".join(f"{count} {code}{_some(one, code)}" for code, count in sorted(one.broken.items()))
            found.append(Finding(grade, "invariants_broken", f"{lead}: {told}; {ADVICE}"))
    return found


def _some(one: Account, code: str) -> str:
    names = one.subjects.get(code, ())
    more = ", …" if one.broken[code] > len(names) else ""
    return f" ({', '.join(names)}{more})" if names else ""
