"""Odd records: what the service shows and nobody can keep. Each is left alone with its reason, which is said as what it
is: something that lasts, seen anew by every look."""

from __future__ import annotations

from typing import Any, Final

from consumer.ledger.reading.observation import Observation
from consumer.telemetry.logs import Condition

NAMED_MAX: Final = 100
"""Odd records told one by one; beyond them those of a kind are told together."""


class OddRecords:
    """Those that one stage of an application has met."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Condition] = {}
        self._more: dict[str, Condition] = {}

    def is_whole(self, found: Observation) -> bool:
        """Whether it can be published and remembered. An odd one keeps none of its neighbours waiting: what is written
        by others is never trusted to be what was foreseen."""
        name = (found.kind, found.object_id)
        try:
            found.event()
            _ = found.observed
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this record's alone
            self._condition(found).lasts(error)  # its code only: its text may hold what the record says
            return False
        if name in self._known:
            self._known.pop(name).over()
        return True

    def _condition(self, found: Observation) -> Condition:
        name = (found.kind, found.object_id)
        if name not in self._known and len(self._known) >= NAMED_MAX:
            of_kind = Condition("records_not_kept", level="error", application=found.application, kind=found.kind)
            return self._more.setdefault(found.kind, of_kind)
        fields: dict[str, Any] = {"application": found.application, "kind": found.kind, "object_id": found.object_id}
        return self._known.setdefault(name, Condition("record_not_kept", level="error", **fields))
