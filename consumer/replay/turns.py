"""Turns: which pairs of a plan are predicted together, and in which order (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from consumer.events import Event, says_test
from consumer.ledger.plans.candidates import Pair
from consumer.ledger.plans.tables import Action

BATCH = 100


@dataclass(frozen=True)
class Turned:
    """A pair and its turn: what may have to do with one another is done one event after the other."""

    turn: int
    pair: Pair


def together(
    pairs: Sequence[Pair], loaded: Mapping[tuple[str, str], Event], *, batch_size: int = BATCH
) -> Iterator[list[Turned]]:
    """Batches of about so many pairs; of what belongs together each event has a turn of its own. Pure."""
    groups = _Groups()
    names = {pair.id: _names(pair, loaded.get((pair.application, pair.event_id))) for pair in pairs}
    for some in names.values():
        groups.join(some)
    by_group: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_group.setdefault(groups.of(names[pair.id][0]), []).append(pair)
    batch: list[Turned] = []
    for group in by_group.values():
        if batch and len(batch) + len(group) > batch_size:
            yield batch
            batch = []
        batch += in_turn(group)
    if batch:
        yield batch


def is_test(event: Event) -> bool:
    """Whether an event of the service says of itself that it is a test. Pure."""
    return event.id.startswith("evt_") and says_test(event.data, event.type)


def without(pairs: Sequence[Pair], names: Collection[tuple[str, str]]) -> Sequence[Pair]:
    """The pairs that are of none of these events, nor wait behind one of them alone. Pure."""
    if not names:
        return pairs
    kept = [one for one in sorted(pairs) if (one.application, one.event_id) not in names]
    leads: dict[tuple[str, str, str], int] = {}
    for one in kept:
        if one.action is not Action.FOLLOW:
            leads.setdefault(one.lane, one.seq)
    return [one for one in kept if one.action is not Action.FOLLOW or leads.get(one.lane, one.seq) < one.seq]


def in_turn(group: Sequence[Pair]) -> list[Turned]:
    """The pairs of a group by turn: an event after the other, by arrival. What follows another of its lane has that
    one's turn, since it goes by itself. Pure."""
    turns: dict[int, int] = {}
    lanes: dict[tuple[str, str, str], int] = {}
    found: list[Turned] = []
    for pair in sorted(group):
        if pair.action is Action.FOLLOW and pair.lane in lanes:
            turn = lanes[pair.lane]
        else:
            turn = turns.setdefault(pair.seq, len(turns))
            lanes[pair.lane] = turn
        found.append(Turned(turn, pair))
    return sorted(found, key=lambda one: (one.turn, one.pair))


def waves(turn: Sequence[Pair], order: Callable[[str], Sequence[str]]) -> Iterator[list[Pair]]:
    """The pairs of a turn, each handler's at once, as a worker calls them: the first events of all keys handler by
    handler, then the second ones. `order`: the handlers for an event type, in their order. Pure."""
    events: dict[tuple[str, str], list[int]] = {}
    placed: dict[tuple[int, int, str, str], list[Pair]] = {}
    for pair in sorted(turn):
        of_key = events.setdefault((pair.application, pair.key), [])
        if pair.seq not in of_key:
            of_key.append(pair.seq)
        names = order(pair.type)
        place = names.index(pair.handler) if pair.handler in names else len(names)
        placed.setdefault((len(of_key), place, pair.handler, pair.application), []).append(pair)
    for _, some in sorted(placed.items()):
        yield some


def _names(pair: Pair, event: Event | None) -> list[str]:
    """What an event is about: everything that has one of these in common stays together."""
    found = [f"{pair.application}/{pair.key}"]
    if event is not None:
        about = {"order": event.order_id, "subscription": event.subscription_id, "customer": event.customer}
        found += [f"{pair.application}/{kind}:{value}" for kind, value in about.items() if value is not None]
    return found


class _Groups:
    """Which names belong together (union-find)."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def of(self, name: str) -> str:
        root = name
        while (parent := self._parents.setdefault(root, root)) != root:
            root = parent
        self._parents[name] = root
        return root

    def join(self, names: Sequence[str]) -> None:
        first = self.of(names[0])
        for name in names[1:]:
            self._parents[self.of(name)] = first
