"""Origin: our own types come from our own stages; the service has no say in them."""

from __future__ import annotations

from consumer.plugin import Event, Reject

_OURS = ("drv_", "obs_")


def is_own(event: Event) -> bool:
    """Whether it is derived or a read, and nothing that the service sent."""
    return event.id.startswith(_OURS)


def own(event: Event) -> Event:
    """The event. Raises Reject for one of the service's."""
    if not is_own(event):
        raise Reject("the service does not send events of this type")
    return event
