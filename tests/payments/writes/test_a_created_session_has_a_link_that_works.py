"""Who creates a session gets a link that works, or is told why there is none."""

from __future__ import annotations

import pytest

from consumer.payments import (
    LinkUnavailable,
    PaymentInProgress,
    SessionMismatch,
    SessionNotReissuable,
    kept_url,
)
from consumer.payments.models import CheckoutSession
from tests.payments.support import SESSION_FIELDS, Bench, Reply, ScriptedService, error_reply, session_json
from tests.payments.writes.answers import CREATE, CREATED, CREATED_AGAIN, CUT, LINK, LINKED, keys


async def test_a_lost_create_that_comes_again_without_its_link_gets_a_new_link(
    service: ScriptedService, b: Bench
) -> None:
    # case: C18, C26
    service.will(CUT, CREATED_AGAIN, LINKED)
    session = await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert session.url == "https://pay.example/cs_1?n=2"
    assert service.paths == [CREATE, CREATE, LINK]


@pytest.mark.parametrize(
    ("code", "reason"), [("session_not_reissuable", SessionNotReissuable), ("payment_in_progress", PaymentInProgress)]
)
async def test_a_link_that_cannot_be_had_is_explained(
    service: ScriptedService, b: Bench, code: str, reason: type[Exception]
) -> None:
    # case: C18, C20
    service.will(CREATED_AGAIN, error_reply(409, code))
    with pytest.raises(LinkUnavailable) as caught:
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert isinstance(caught.value.reason, reason)
    assert caught.value.session.id == "cs_1"


async def test_a_refused_reissue_suggests_a_new_session(service: ScriptedService, b: Bench) -> None:
    # case: C20
    service.will(error_reply(409, "session_not_reissuable"))
    with pytest.raises(SessionNotReissuable, match=r"under 120 seconds left.*expired, create a new session"):
        await b.client.checkout_sessions.reissue_link("cs_1")


@pytest.mark.parametrize("again", [session_json(url=None, status="COMPLETED"), session_json(url=None, id=None)])
async def test_a_session_that_is_not_open_gets_no_link(
    service: ScriptedService, b: Bench, again: dict[str, object]
) -> None:
    # case: C18
    service.will(Reply(200, again))
    with pytest.raises(LinkUnavailable):
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert service.paths == [CREATE]


async def test_an_open_session_with_other_terms_is_refused(service: ScriptedService, b: Bench) -> None:
    # case: U24
    service.will(Reply(200, session_json(url=None, amount="99.00", order_id="order-1")))
    with pytest.raises(SessionMismatch) as caught:
        await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert caught.value.differing == ("amount",)
    service.will(Reply(200, session_json(url=None, amount="10.500000")), LINKED)
    assert (await b.client.checkout_sessions.create_from(SESSION_FIELDS)).url is not None


async def test_an_old_answer_played_back_is_not_taken_for_a_new_session(service: ScriptedService, b: Bench) -> None:
    # case: C18, U17
    lapsed = Reply(200, session_json(expires_at="2025-12-31T23:00:00Z"))
    service.will(lapsed, CREATED)
    session = await b.client.checkout_sessions.create_from(SESSION_FIELDS)
    assert session.expires_at is not None
    assert session.expires_at > b.clock.now()
    first, second = keys(service)
    assert first != second
    service.will(lapsed)
    with pytest.raises(LinkUnavailable, match="use a new key"):
        await b.client.checkout_sessions.create_from(SESSION_FIELDS, idempotency_key="mine")


def test_a_read_never_erases_the_stored_link() -> None:
    # case: C19
    stored = kept_url(None, CheckoutSession.read(session_json()))
    assert stored == "https://pay.example/cs_1"
    assert kept_url(stored, CheckoutSession.read(session_json(url=None))) == stored
    assert kept_url(stored, CheckoutSession.read(session_json(url="https://new"))) == "https://new"
