"""Table: what was played, between two marks of the tests' README; which pairs that covers, on the faults' own page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.faults.pairs import PAIRS
from tests.faults.play import Played
from tests.faults.rows.every import EMBEDDED, SERVERS

README: Final = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- faults: written by `python -m tests.faults` -->", "<!-- end of faults -->"
PAGE: Final = Path(__file__).parent / "README.md"
BEGIN_PAIRS, END_PAIRS = "<!-- pairs: written by `python -m tests.faults --pairs` -->", "<!-- end of pairs -->"
SCENES: Final = {"embedded": "embedded", "servers": "Kafka, PostgreSQL"}
NOT_GREEN: Final = 3
HEAD: Final = (
    "| fault | on | not green after s | named after s | by | green after its cure, s |",
    "|---|---|---|---|---|---|",
)


def line(played: Played) -> str:
    """Its line."""
    by = f"`{played.code}`" + (f": {played.said}" if played.said else "")
    cells = (played.fault, played.scene, f"{played.not_green_s:.0f}", f"{played.named_s:.0f}", by)
    return f"| {' | '.join(cells)} | {played.green_s:.0f} |"


def keep(played: Played) -> None:
    """Put it into the table, in place of what it was there."""
    before, lines, after = _stands()
    lines[_key(line(played))] = line(played)
    order = [(row.name, SCENES["embedded"]) for row in EMBEDDED] + [(row.name, SCENES["servers"]) for row in SERVERS]
    rows = [lines[key] for key in order if key in lines]
    README.write_text("\n".join([f"{before}{BEGIN}\n", *HEAD, *rows, f"\n{END}{after}"]))


def noticed_s(fault: str, on: str) -> float | None:
    """After how many seconds `status` was not green, played `on` embedded or servers; None where the table lacks it."""
    line = _stands()[1].get((fault, SCENES[on]))
    return None if line is None else float(line.split("|")[NOT_GREEN])


def pairs_table() -> str:
    """Each role and dependency by each way it may fail: the rows that play it, or why there is none."""
    lines = ["| who, what | how | played as |", "|---|---|---|"]
    for subject, kinds in PAIRS.items():
        for kind, played in kinds.items():
            told = "; ".join(played) if isinstance(played, tuple) else f"not: {played}"
            lines.append(f"| {subject} | {kind} | {told} |")
    return "\n".join(lines)


def keep_pairs() -> None:
    """Write them into the page of the faults."""
    before, _, rest = PAGE.read_text().partition(BEGIN_PAIRS)
    after = rest.partition(END_PAIRS)[2]
    PAGE.write_text(f"{before}{BEGIN_PAIRS}\n\n{pairs_table()}\n\n{END_PAIRS}{after}")


def _stands() -> tuple[str, dict[tuple[str, str], str], str]:
    """What stands before the table, its lines, and what stands after it."""
    before, _, rest = README.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    return before, {_key(one): one for one in old.splitlines() if one.startswith("| ") and one not in HEAD}, after


def _key(text: str) -> tuple[str, str]:
    cells = [cell.strip() for cell in text.split("|")]
    return cells[1], cells[2]
