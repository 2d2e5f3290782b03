"""Deaths: dead runs by what they died of, so that a thousand of one failure are one line (case R10). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from consumer.console.event_view import place_in
from consumer.ledger.handling.dead import DeadRun

SUBJECTS_MAX: Final = 5


def death_groups(
    found: Sequence[DeadRun], by_kind: Mapping[tuple[str, str | None], int], runbooks: Mapping[str, str]
) -> list[dict[str, Any]]:
    """By fingerprint and handler: how many of all, and of those `found` since when, the last, what they died of and
    where, whose they are (how many of which application, too), and what the handler's author tells the operator."""
    grouped: dict[tuple[str, str | None], list[DeadRun]] = {}
    for one in found:
        grouped.setdefault((one.handler, one.fingerprint), []).append(one)
    return [
        {
            "handler": handler,
            "fingerprint": fingerprint,
            "count": max(by_kind.get((handler, fingerprint), 0), len(runs)),
            "looked_at": len(runs),
            "first": min(one.died_at for one in runs),
            "last": max(one.died_at for one in runs),
            "code": runs[-1].code,
            "reason": runs[-1].reason,
            "place": place_in(runs[-1].trace) or "",
            "runbook": runbooks.get(handler),
            "applications": dict(sorted(Counter(one.application for one in runs).items())),
            "subjects": list(dict.fromkeys(one.key for one in runs))[:SUBJECTS_MAX],
        }
        for (handler, fingerprint), runs in grouped.items()
    ]


def per_application(group: Mapping[str, Any]) -> str:
    """Whose the runs of a group are, in words; of how many this is said, where not all were looked at."""
    told = ", ".join(f"{name} ({count})" for name, count in group["applications"].items())
    return f"of {told}" if group["looked_at"] == group["count"] else f"of the first {group['looked_at']}: {told}"
