"""Differences: what would come out otherwise than planned, item by item. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from consumer.ledger.plans.candidates import Pair
from consumer.ledger.plans.items import Derived
from consumer.ledger.tables import RunStatus
from consumer.replay.effects import Effects, Predicted

SHOWN = 5


def differences(planned: Predicted, now: Predicted) -> list[dict[str, str]]:
    """Items that are gone, that are new, and whose effects differ: each with its event, handler and what is so."""
    before = {pair.id: (pair, effects) for pair, effects in planned}
    after = {pair.id: (pair, effects) for pair, effects in now}
    found = [_item(pair, "is not to be done any more: its run has moved on") for pair in _missing(before, after)]
    found += [_item(pair, f"was not in the plan: {pair.action.value}") for pair in _missing(after, before)]
    for id_ in sorted(before.keys() & after.keys()):
        what = _otherwise(*before[id_], *after[id_])
        if what:
            found.append(_item(before[id_][0], what))
    return found


def _missing(these: dict[tuple[str, str, str], tuple[Pair, Effects]], from_: object) -> list[Pair]:
    return sorted(pair for id_, (pair, _) in these.items() if id_ not in from_)  # type: ignore[operator]  # a mapping


def _item(pair: Pair, what: str) -> dict[str, str]:
    return {"application": pair.application, "event_id": pair.event_id, "handler": pair.handler, "what": what}


def _otherwise(before: Pair, planned: Effects, after: Pair, now: Effects) -> str:
    if before.action is not after.action:
        return f"was to {before.action.value}, would now {after.action.value}"
    old, new = Counter(planned.compared()), Counter(now.compared())
    if old == new:
        return ""
    said = [f"no more: {word}" for word in list(old - new)[:SHOWN]]
    return "; ".join([*said, *[f"new: {word}" for word in list(new - old)[:SHOWN]]])


def by_timers(derived: Sequence[Derived]) -> Sequence[Derived]:
    """What came of timers that were set under the plan and went off since: foretold is the timer alone."""
    mine = {(one.application, one.event_id) for one in derived if one.is_timer}
    found = []
    for one in derived:  # in their order: what it came of is before it
        if (one.application, one.cause) in mine:
            mine.add((one.application, one.event_id))
            found.append(one)
    return found


def word(one: Derived) -> str:
    """As `Emits.word`: the id of a timer may contain the time at which it was set."""
    return f"{one.type} {one.key}" if one.is_timer else f"{one.type} {one.event_id}"


ENDS = {"called": RunStatus.SUCCEEDED, "no_handler": RunStatus.RETRYING}
"""What a run ends as, where a prediction has another word for it."""


GOES_ON = (RunStatus.RETRYING, RunStatus.PARKED)
"""How a run stands that is not at its end."""


def came_out_otherwise(
    predicted: Predicted, observed: Counter[str], standings: Mapping[tuple[str, str, str], str], *, is_cut: bool
) -> list[str]:
    """The derived events that were predicted and did not come (`missing: ...`), those that came unannounced
    (`unplanned: ...`), and runs that ended otherwise. `observed` are words as `Emits.word`; `standings` how the runs of
    items stand. `is_cut`: the plan was cancelled before its end: what was left undone, or still goes on, is not missing
    and has not ended."""
    expected = Counter(one.word for _, effects in predicted for one in effects.emits)
    found = [] if is_cut else [f"missing: {word}" for word in (expected - observed).elements()]
    found += [f"unplanned: {word}" for word in (observed - expected).elements()]
    for pair, effects in predicted:
        status, wanted = standings.get(pair.id), ENDS.get(effects.ends, effects.ends)
        if status is None or status == wanted or (is_cut and status in GOES_ON):
            continue
        found.append(f"{pair.event_id} for {pair.handler} is {status}, {wanted} was predicted")
    return found
