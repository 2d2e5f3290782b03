"""`make mutants`: single changes to the code that decides, each of which a test has to notice. Exit 1 when less than
95 % of them are noticed. `make mutants MODULE=consumer/work/transition.py` (or a folder) plays a part, `ONE_IN=50` a
sample of all. Quick runs (`EACH=15`, `NEAR=1`) call more survivors than are; `ONE_IN=0` plays those again, and nothing
else. An interrupted run goes on where it was, as long as the module is the same."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from tests.mutants import plan
from tests.mutants.look.lines import BUDGET_S, LookFailed, look
from tests.mutants.session import Judging, Tally, TestsFail, checkout, equivalents, known, play
from tests.mutants.warm import NotCollected

BAR = 0.95
MINUTES = 480.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what was asked for, print a table; the exit code."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="files or folders; all when left out, the decisive ones first")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="judge no longer than that; the next run goes on"
    )
    parser.add_argument("--one-in", type=int, default=1, help="a sample: one mutant in so many; 0: survivors again")
    parser.add_argument(
        "--each", type=float, default=BUDGET_S, help="seconds of tests for a mutant: with few, more survive than should"
    )
    parser.add_argument(
        "--near", action="store_true", help="judged by the mirroring tests alone: looked at in a minute"
    )
    parser.add_argument("--report", action="store_true", help="play nothing, show what earlier runs found")
    asked = parser.parse_args(arguments)
    try:
        modules = plan.modules(asked.modules)
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds: the copy is removed
    try:
        tallies = (
            _reported(modules)
            if asked.report
            else _played(modules, plan.places(asked.modules, modules, near=asked.near), asked)
        )
    except (LookFailed, NotCollected) as error:
        _say(f"nothing is judged: {error}")
        return 1
    _show(tallies)
    judged, killed = sum(one.judged for one in tallies), sum(one.killed for one in tallies)
    _say(f"all: {killed} of {judged} noticed" + (f" ({killed / judged:.1%})" if judged else ""))
    return 0 if judged and killed >= BAR * judged else 1


def _played(modules: list[str], places: plan.Places, asked: argparse.Namespace) -> list[Tally]:
    places = look(modules, places)
    until, tallies = time.monotonic() + asked.minutes * 60, []
    with checkout(), closing(Judging(places, asked.each)) as judging:
        for module in modules:
            if time.monotonic() > until:
                break
            try:
                tallies.append(tally := play(module, judging, until, _say, asked.one_in))
                _say(f"{module}: {tally.killed} of {tally.judged}")
            except TestsFail as error:
                _say(f"{module} is not played: {error}")
    return tallies


def _reported(modules: list[str]) -> list[Tally]:
    return [found for one in modules if (found := known(one)) is not None]


def _show(tallies: list[Tally]) -> None:
    reasons = equivalents()
    for one in tallies:
        share = f"{one.killed / one.judged:.0%}" if one.judged else "none"
        left = f", {one.untested} not played yet" if one.untested else ""
        _say(f"{one.module}: {one.killed} of {one.judged} noticed ({share}), {len(one.equivalent)} equivalent{left}")
        for mutant in sorted(one.survived):
            _say(f"  SURVIVED  {mutant.was}  ->  {mutant.becomes}  ({mutant.note})")
        for mutant in sorted(one.equivalent):
            _say(f"  equivalent  {mutant.was}  ->  {mutant.becomes}: {reasons[mutant]}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
