"""Refusals: webhooks refused for their signature since the last one that verified, by application, for the heartbeat.

Whether they were forged or the secret is wrong cannot be known here: who knows what the service listed says that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import orjson


@dataclass
class _Tally:
    refused: int = 0
    signed: int = 0
    last: float | None = None
    verified: float | None = None


class Refusals:
    """`monotonic`: seconds that never go backwards. Ages are told, so that nobody's clock matters."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._tallies: dict[str, _Tally] = {}

    def refused(self, application: str, *, is_signed: bool) -> None:
        """One was refused; `is_signed`: it carried a signature, as no chance visitor does."""
        tally = self._tallies.setdefault(application, _Tally())
        tally.refused += 1
        tally.signed += is_signed
        tally.last = self._monotonic()

    def verified(self, application: str) -> None:
        """One was true: those refused before it tell nothing."""
        tally = self._tallies.get(application)
        if tally is None or tally.refused:
            tally = self._tallies[application] = _Tally()
        tally.verified = self._monotonic()

    def told(self) -> str | None:
        """As JSON: application to `refused`, `signed`, and how many seconds ago the last was refused and verified."""
        now = self._monotonic()
        found = {
            name: {"refused": one.refused, "signed": one.signed, "last_s": _ago(one.last, now),
                   "verified_s": _ago(one.verified, now)}
            for name, one in self._tallies.items()
        }  # fmt: skip
        return orjson.dumps(found).decode() if found else None


def _ago(at: float | None, now: float) -> float | None:
    return None if at is None else round(now - at, 1)
