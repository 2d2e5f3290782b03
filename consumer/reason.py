"""Reason: why a delivery lies in quarantine. A closed set of codes, each with its sentence (cases I10, I15, I16)."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """A code, for filters, metrics and scripts; `detail` is the sentence for eyes. No code changes its meaning."""

    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    NO_EVENT_ID = "no_event_id"
    UNSUPPORTED_CONTENT_TYPE = "unsupported_content_type"
    NOT_UNDERSTOOD = "not_understood"
    NOT_STORABLE = "not_storable"
    TOO_LARGE = "too_large"
    NOT_A_DELIVERY = "not_a_delivery"
    UNKNOWN_APPLICATION = "unknown_application"
    FLOODED = "flooded"
    NOT_CONFIRMED = "not_confirmed"
    OTHER_EVENT_FETCHED = "other_event_fetched"
    FETCHED_NOT_UNDERSTOOD = "fetched_not_understood"
    OTHER_BODY = "other_body"

    @property
    def detail(self) -> str:
        """What it means, in one sentence without a full stop."""
        return _DETAILS[self]


_DETAILS = {
    Reason.NOT_JSON: "the body is not JSON",
    Reason.NOT_AN_OBJECT: "the body is JSON, but not an object",
    Reason.NO_EVENT_ID: "no event id (evt_...) was found in the body",
    Reason.UNSUPPORTED_CONTENT_TYPE: "the content type is not JSON",
    Reason.NOT_UNDERSTOOD: "no event was found in a listed event, or in a record of topic events",
    Reason.NOT_STORABLE: "the ledger refuses this very event, even singly; the log has the error",
    Reason.TOO_LARGE: "the service's record of this event is larger than topic events takes",
    Reason.NOT_A_DELIVERY: "a record of topic deliveries that `serve` did not write",
    Reason.UNKNOWN_APPLICATION: "the record is of an application that is not configured",
    Reason.FLOODED: "too many hints waited already; backfill finds what is real among these",
    Reason.NOT_CONFIRMED: "the service does not show this event to this application",
    Reason.OTHER_EVENT_FETCHED: "the service answered with another event than the one asked for",
    Reason.FETCHED_NOT_UNDERSTOOD: "the service's own record of this event was not understood",
    Reason.OTHER_BODY: "another body came under an event id that is known: one of the two is not the service's word",
}
# What `serve` once wrote instead of a code; it stands in old rows, and in old records of topic deliveries.
_OLD = {
    "the body is not JSON": Reason.NOT_JSON,
    "the body is JSON, but not an object": Reason.NOT_AN_OBJECT,
    "no event id (evt_...) was found in the body": Reason.NO_EVENT_ID,
    "the content type is not JSON": Reason.UNSUPPORTED_CONTENT_TYPE,
}


def reason_of(stored: str) -> Reason:
    """The code of what is stored, a code or a sentence of old; what nobody knows is `not_understood`."""
    if stored in _OLD:
        return _OLD[stored]
    try:
        return Reason(stored)
    except ValueError:
        return Reason.NOT_UNDERSTOOD


def stored_as(reason: Reason) -> tuple[str, ...]:
    """Everything that a row of this reason may hold: the code, and the sentence of old."""
    return (reason.value, *(sentence for sentence, code in _OLD.items() if code is reason))
