"""Workers: what they run, by their own word: the settings and the plugins of who looks may be others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from consumer.app.options import BUILT_IN
from consumer.cli.looking.status_finding import Finding, Grade
from consumer.console.alarms.lives import is_living, mixed
from consumer.ledger.processes import BROKEN, HANDLERS, Process

NAMED_MAX = 5


def judge_workers(
    processes: Sequence[Process], now: datetime, *, left_out: Sequence[str], broken_plugins: Sequence[str]
) -> list[Finding]:
    """What the living workers do not do. `left_out`, `broken_plugins`: what the settings here would make of it, where
    no worker says (none lives, or all are of an older version)."""
    telling = [one for one in processes if one.role == "work" and HANDLERS in one.said and is_living(one, now)]
    if telling:
        left_out, broken_plugins = _left_out(telling), _broken(telling)
    found = [Finding(_grade(one), "built_in_left_out", f"CONSUMER_HANDLERS leaves out {one}") for one in left_out]
    if broken_plugins:
        grade = Grade.STUCK if BUILT_IN.keys() & set(broken_plugins) - _there(telling) else Grade.DEGRADED
        found.append(Finding(grade, "plugins_broken", f"cannot be loaded: {', '.join(broken_plugins)}"))
    differ = mixed(processes, now)
    if differ is not None:
        names = ", ".join(differ.handlers[:NAMED_MAX])
        more = f" and {len(differ.handlers) - NAMED_MAX} more" if len(differ.handlers) > NAMED_MAX else ""
        where = f"pid {differ.lacking.pid} on {differ.lacking.host}"
        text = f"the {differ.workers} workers do not run the same handlers: some lack {names}{more} ({where})"
        found.append(Finding(Grade.DEGRADED, "workers_differ", text))
    return found


def _left_out(workers: Sequence[Process]) -> list[str]:
    """The built-in plugins of which no worker has a handler, though each could load them."""
    there = _there(workers) | set(_broken(workers))
    return [f"{name} ({harm})" for name, harm in BUILT_IN.items() if name not in there]


def _there(workers: Sequence[Process]) -> set[str]:
    """The plugins of which some worker has a handler."""
    return {name.partition(":")[0] for one in workers for name in one.said[HANDLERS].split()}


def _grade(left_out: str) -> Grade:
    """Without fulfilment orders wait. Who sells no subscription may do without access."""
    return Grade.STUCK if left_out.startswith("fulfilment") else Grade.DEGRADED


def _broken(workers: Sequence[Process]) -> list[str]:
    return sorted({name for one in workers for name in one.said.get(BROKEN, "").split()})
