"""Standing: what the ledger's figures say is wrong and no metric of its own tells: one answer for `status` and for the
alerts. Pure."""

from __future__ import annotations

from typing import Final

from consumer.ledger.health import Figures

DENIED_MANY: Final = 20
CODES: Final = frozenset({"hints_denied", "records_refused", "handlers_gone", "plan_half_applied", "unproved_fills"})


def wrong(figures: Figures, unproved_max_bytes: int) -> frozenset[str]:
    """Those of CODES that hold. `unproved_max_bytes`: the room for what nobody proved, of one application; 0: any."""
    found = {
        "hints_denied": figures.denied >= DENIED_MANY,
        "records_refused": figures.refused_lately > 0,
        "handlers_gone": bool(figures.gone_handlers),
        "plan_half_applied": figures.half_applied is not None,
        "unproved_fills": bool(filling(figures, unproved_max_bytes)),
    }
    return frozenset(code for code, holds in found.items() if holds)


def filling(figures: Figures, unproved_max_bytes: int) -> dict[str, int]:
    """The bytes of each application that uses more than half of the room."""
    return {name: size for name, size in figures.unproved_bytes.items() if size > unproved_max_bytes / 2 > 0}
