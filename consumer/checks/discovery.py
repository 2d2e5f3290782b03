"""Learn: from captured bodies to envelope locators, list order and authenticity. Pure; it proposes, nobody obeys.

The service shows neither its envelope nor how it signs (cases U1-U3, "First contact checklist"): what was captured
tells. Nothing of a payload's content is part of a proposal, only where things lie.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from consumer.events import Locators, first, parse_time
from consumer.lists.bookmark import ListOrder, order_of

DEPTH_MAX: Final = 5
LEAVES_MAX: Final = 500
GOOD_SHARE: Final = 0.9

_EVENT_ID = re.compile(r"evt_\S+\Z")
_TYPE = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+\Z")
_TIME_NAME = re.compile(r"(^|_)(time|timestamp|created|occurred|created_at|occurred_at|sent_at|at)$")
_STANDARD = frozenset({"webhook-id", "webhook-timestamp", "webhook-signature"})
_KINDS = ("order.", "checkout.session.", "subscription.")

Leaf = tuple[str, Any]


@dataclass(frozen=True)
class Place:
    """A JSON pointer, and in which share (0 to 1) of the bodies that should have the fact it finds it."""

    pointer: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """`places`: fact to the best pointers, best first. `fits`: fact to the share that today's locators find.

    `authenticity`: `signature` when Standard Webhooks headers were captured, `hmac` for another signature header
    (named in `signature_headers`), else `api`. `deliveries`: how many deliveries' headers that was seen in; nothing is
    concluded from none. `list_order`: in which order the events are listed; every walk sees that for itself.
    `test_event`: how following a test event came out (`ok`, `warn`, `fail`), None when none was sent.
    """

    bodies: int
    places: Mapping[str, tuple[Place, ...]]
    fits: Mapping[str, float]
    authenticity: str
    signature_headers: tuple[str, ...]
    deliveries: int = 0
    list_order: ListOrder = ListOrder.UNKNOWN
    test_event: str | None = None

    @property
    def authenticity_text(self) -> str:
        """How webhooks are proved, and from what that was learned: a test event that did not arrive taught nothing."""
        if not self.deliveries:
            tried = {None: ": `--test-event --learn` has one sent", "fail": ", and the test event did not arrive"}
            return "no delivery waits or lies in quarantine" + tried.get(self.test_event, "")
        count = "one delivery" if self.deliveries == 1 else f"{self.deliveries} deliveries"
        among = {
            "fail": "; the test event is not among them, it did not arrive",
            "warn": "; whether the test event is among them cannot be told",
        }.get(self.test_event or "", "")
        scheme = " ".join([self.authenticity, *self.signature_headers])
        return f"{scheme} (learned from {count} waiting or in quarantine{among})"

    @property
    def settings(self) -> dict[str, str]:
        """The settings to write down: only what today's locators miss and the proposal finds."""
        found = {}
        for fact, places in self.places.items():
            if places and self.fits[fact] < min(GOOD_SHARE, places[0].share):
                found[f"CONSUMER_LOCATE_{fact.upper()}"] = ",".join(place.pointer for place in places)
        return found


def propose(bodies: Sequence[Mapping[str, Any]], headers: Sequence[Mapping[str, str]], locators: Locators) -> Proposal:
    """What these captured bodies and delivery headers suggest."""
    leaves = [list(_leaves(body)) for body in bodies]
    types = [_type_of(found) for found in leaves]
    finders: dict[str, tuple[Callable[[Leaf], bool], Callable[[str], bool]]] = {
        "id": (_is_event_id, _always),
        "type": (_is_type, _always),
        "time": (_is_time, _always),
        "object": (_is_object, lambda kind: kind.startswith(_KINDS)),
        "order": (_ends("order_id"), lambda kind: kind.startswith(("order.", "checkout.session."))),
        "subscription": (_is_subscription, lambda kind: kind.startswith("subscription.")),
        "customer": (_ends("customer_reference", "customer_id", "customer"), lambda kind: kind.startswith(_KINDS)),
    }
    places, fits = {}, {}
    for fact, (is_it, concerns) in finders.items():
        relevant = [number for number, kind in enumerate(types) if concerns(kind)]
        places[fact] = _best([leaves[number] for number in relevant], is_it)
        fits[fact] = _share([bodies[number] for number in relevant], getattr(locators, fact))
    names = _signature_names(headers)
    kind = "signature" if names >= _STANDARD else "hmac" if names else "api"
    return Proposal(
        bodies=len(bodies),
        places=places,
        fits=fits,
        authenticity=kind,
        signature_headers=tuple(sorted(names)),
        deliveries=len(headers),
    )


def listed_order(listed: Sequence[Mapping[str, Any]], proposal: Proposal, locators: Locators) -> ListOrder:
    """In which order these events came from the list, by the time that today's locators or, failing them, the proposed
    ones find."""
    for pointers in (locators.time, tuple(place.pointer for place in proposal.places["time"])):
        order = order_of([parse_time(first(body, pointers)) for body in listed])
        if order is not ListOrder.UNKNOWN:
            return order
    return ListOrder.UNKNOWN


def _leaves(document: Any, at: str = "", depth: int = 0) -> Iterator[Leaf]:
    if isinstance(document, Mapping) and depth < DEPTH_MAX:
        for name, value in list(document.items())[:LEAVES_MAX]:
            yield from _leaves(value, f"{at}/{str(name).replace('~', '~0').replace('/', '~1')}", depth + 1)
    elif not isinstance(document, Mapping | list) and document is not None:
        yield at, document


def _best(bodies: Sequence[Sequence[Leaf]], is_it: Callable[[Leaf], bool]) -> tuple[Place, ...]:
    """Up to three pointers that are found most often; of equals the shallower one first. What names a subscription
    stands before the id of an object, which may be a charge's."""
    counts = Counter(pointer for body in bodies for pointer, value in body if is_it((pointer, value)))
    ranked = sorted(counts.items(), key=lambda item: (_weakness(item[0]), -item[1], item[0].count("/"), item[0]))
    return tuple(Place(pointer, count / len(bodies)) for pointer, count in ranked[:3])


def _share(bodies: Sequence[Mapping[str, Any]], pointers: tuple[str, ...]) -> float:
    if not bodies:
        return 1.0
    return sum(first(body, pointers) is not None for body in bodies) / len(bodies)


def _type_of(leaves: Sequence[Leaf]) -> str:
    kinds = [value for pointer, value in leaves if _is_type((pointer, value))]
    known = [kind for kind in kinds if kind.startswith(_KINDS)]
    return str((known or kinds or [""])[0])


def _always(_: str) -> bool:
    return True


def _name(pointer: str) -> str:
    return pointer.rpartition("/")[2]


def _is_event_id(leaf: Leaf) -> bool:
    return isinstance(leaf[1], str) and _EVENT_ID.match(leaf[1]) is not None


def _is_type(leaf: Leaf) -> bool:
    return isinstance(leaf[1], str) and _TYPE.match(leaf[1]) is not None and leaf[1].startswith((*_KINDS, "webhook."))


def _is_time(leaf: Leaf) -> bool:
    return leaf[0].count("/") <= 2 and _TIME_NAME.search(_name(leaf[0])) is not None and parse_time(leaf[1]) is not None


def _is_object(leaf: Leaf) -> bool:
    name = _name(leaf[0])
    is_id = name in ("id", "object_id", "resource_id") or (name == "object" and leaf[0].count("/") == 1)
    return is_id and isinstance(leaf[1], str | int) and not _is_event_id(leaf)


def _is_subscription(leaf: Leaf) -> bool:
    return (_names_subscription(leaf[0]) and isinstance(leaf[1], str | int)) or _is_object(leaf)


def _names_subscription(pointer: str) -> bool:
    return pointer.endswith(("/subscription_id", "/subscription", "/subscription/id"))


def _weakness(pointer: str) -> int:
    """0 for what names a subscription, 1 for anything else, 2 beside the envelope's own fields: it may be the
    webhook's."""
    if pointer in ("/subscription", "/subscription/id"):
        return 2
    return 0 if _names_subscription(pointer) else 1


def _ends(*names: str) -> Callable[[Leaf], bool]:
    return lambda leaf: _name(leaf[0]) in names and isinstance(leaf[1], str | int) and not isinstance(leaf[1], bool)


def _signature_names(headers: Sequence[Mapping[str, str]]) -> set[str]:
    seen = {name.lower() for one in headers for name in one}
    return {name for name in seen if name in _STANDARD or "signature" in name}
