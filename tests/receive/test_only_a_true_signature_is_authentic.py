"""Authenticity: one suite on both schemes, and exact agreement with the library `standardwebhooks`."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from consumer.errors import BadSignature
from consumer.receive.authenticity import HmacLayout, Key, Signature, StandardWebhooks

ONE, TWO = "whsec_" + "c2VjcmV0LW51bWJlci1vbmU=", "whsec_" + "c2VjcmV0LW51bWJlci10d28="
NOW = 1_772_366_400.0
BODY = b'{"id":"evt_1"}'
Sign = Callable[[bytes, str, float], dict[str, str]]


def standard(body: bytes, secret: str, at: float) -> dict[str, str]:
    signed = Webhook(secret).sign("msg_1", datetime.fromtimestamp(int(at), UTC), body.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(int(at)), "webhook-signature": signed}


def like_stripe(body: bytes, secret: str, at: float) -> dict[str, str]:
    digest = hmac.new(secret.encode(), b"%d." % int(at) + body, hashlib.sha256).hexdigest()
    return {"x-signature": f"t={int(at)},v1={digest},v0=old"}


def with_headers(body: bytes, secret: str, at: float) -> dict[str, str]:
    content = b"id-1:" + body + b":%d" % int(at)
    digest = base64.b64encode(hmac.new(secret.encode(), content, hashlib.sha512).digest()).decode()
    return {"x-signature": f"sha512={digest}", "x-id": "id-1", "x-time": str(int(at))}


SCHEMES: dict[str, tuple[Callable[[tuple[str, ...]], Signature], Sign]] = {
    "standard": (StandardWebhooks, standard),
    "stripe": (
        lambda secrets: HmacLayout(secrets=secrets, header="x-signature", prefix="v1=", timestamp="param:t"),
        like_stripe,
    ),
    "headers": (
        lambda secrets: HmacLayout(
            secrets=secrets,
            header="x-signature",
            prefix="sha512=",
            algorithm="sha512",
            encoding="base64",
            timestamp="x-time",
            content="{header:X-Id}:{body}:{timestamp}",
        ),
        with_headers,
    ),
}


@pytest.fixture(params=sorted(SCHEMES))
def scheme(request: pytest.FixtureRequest) -> tuple[Callable[[tuple[str, ...]], Signature], Sign]:
    return SCHEMES[request.param]


def refused(signature: Signature, body: bytes, headers: Mapping[str, str], now: float = NOW) -> str:
    with pytest.raises(BadSignature) as caught:
        signature.check(body, headers, now)
    return caught.value.message


class TestEveryScheme:
    def test_a_good_signature_passes(self, scheme: tuple[Callable[[tuple[str, ...]], Signature], Sign]) -> None:
        make, sign = scheme
        make((ONE,)).check(BODY, sign(BODY, ONE, NOW), NOW)
        make((ONE,)).check(b"", sign(b"", ONE, NOW), NOW)

    def test_any_of_several_secrets_may_match(
        self, scheme: tuple[Callable[[tuple[str, ...]], Signature], Sign]
    ) -> None:
        # case: I19
        make, sign = scheme
        for secret in (ONE, TWO):
            make((ONE, TWO)).check(BODY, sign(BODY, secret, NOW), NOW)

    def test_another_secret_or_body_fails(self, scheme: tuple[Callable[[tuple[str, ...]], Signature], Sign]) -> None:
        # case: I20
        make, sign = scheme
        assert refused(make((TWO,)), BODY, sign(BODY, ONE, NOW)) == "no signature matches"
        assert refused(make((ONE,)), BODY + b" ", sign(BODY, ONE, NOW)) == "no signature matches"

    def test_a_signature_ages(self, scheme: tuple[Callable[[tuple[str, ...]], Signature], Sign]) -> None:
        # case: I20
        make, sign = scheme
        headers = sign(BODY, ONE, NOW)
        make((ONE,)).check(BODY, headers, NOW + 300)
        make((ONE,)).check(BODY, headers, NOW - 300)
        assert refused(make((ONE,)), BODY, headers, NOW + 301) == "the signed time is too old"
        assert refused(make((ONE,)), BODY, headers, NOW - 301) == "the signed time is too new"

    def test_each_missing_header_fails(self, scheme: tuple[Callable[[tuple[str, ...]], Signature], Sign]) -> None:
        # case: I20
        make, sign = scheme
        headers = sign(BODY, ONE, NOW)
        for name in headers:
            refused(make((ONE,)), BODY, {key: value for key, value in headers.items() if key != name})

    @pytest.mark.parametrize("secrets", [(), ("",), (ONE, "")])
    def test_an_empty_secret_is_refused(
        self, scheme: tuple[Callable[[tuple[str, ...]], Signature], Sign], secrets: tuple[str, ...]
    ) -> None:
        make, _ = scheme
        with pytest.raises(ValueError, match="empty secret"):
            make(secrets)

    def test_no_secret_is_in_the_repr(self, scheme: tuple[Callable[[tuple[str, ...]], Signature], Sign]) -> None:
        # case: S9
        make, _ = scheme
        assert ONE[6:] not in repr(make((ONE,)))
        assert "secret-number" not in repr(make((ONE,)))

    def test_a_comparison_takes_constant_time_and_sees_every_secret(
        self, scheme: tuple[Callable[[tuple[str, ...]], Signature], Sign], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # case: I20
        make, sign = scheme
        compared: list[tuple[bytes, bytes]] = []
        real = hmac.compare_digest

        def watched(one: bytes, two: bytes) -> bool:
            compared.append((one, two))
            return real(one, two)

        signature, headers = make((ONE, TWO)), sign(BODY, ONE, NOW)
        monkeypatch.setattr(hmac, "compare_digest", watched)
        signature.check(BODY, headers, NOW)
        assert len(compared) == 2


@given(st.binary(max_size=200), st.binary(max_size=300), st.sampled_from(["sha256", "sha512"]))
def test_a_key_is_an_hmac(secret: bytes, content: bytes, algorithm: str) -> None:
    expected = hmac.new(secret, content, algorithm).digest()
    key = Key(secret, "sha256" if algorithm == "sha256" else "sha512")
    assert key.digest(content) == key.digest(content) == expected


class TestAgreementWithTheLibrary:
    """Where the library takes a webhook, so do we; where it refuses one, so do we."""

    @given(
        secret=st.binary(min_size=1, max_size=64),
        body=st.text(max_size=80),
        message_id=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20),
        shift=st.integers(-400, 400),
        change=st.sampled_from(["none", "body", "id", "time", "signature", "secret"]),
        form=st.sampled_from(["{}", "v2,aaaa {}", "v1,AAAA {}", "{} v1a,xx", "v1,{}", "{},", "", "v1,"]),
        unprefixed=st.booleans(),
    )
    def test_on_every_variation(
        self, secret: bytes, body: str, message_id: str, shift: int, change: str, form: str, unprefixed: bool
    ) -> None:
        now = datetime.now(UTC)
        text = base64.b64encode(secret).decode()
        given_secret = text if unprefixed else f"whsec_{text}"
        stamp = int(now.timestamp()) + shift
        signed = Webhook(given_secret).sign(message_id, datetime.fromtimestamp(stamp, UTC), body)
        headers = {"webhook-id": message_id, "webhook-timestamp": str(stamp), "webhook-signature": form.format(signed)}
        if change == "body":
            body += "x"
        elif change == "id":
            headers["webhook-id"] += "x"
        elif change == "time":
            headers["webhook-timestamp"] = str(stamp + 1)
        elif change == "signature":
            headers["webhook-signature"] = headers["webhook-signature"][:-3] + "AA="
        elif change == "secret":
            given_secret = "whsec_" + base64.b64encode(secret + b"x").decode()
        ours = self._ours(given_secret, body, headers, now)
        theirs = self._theirs(given_secret, body, headers)
        if abs(abs(shift) - 300) > 2:  # the clocks of the two checks are a moment apart
            assert ours is theirs or (theirs is None and (not ours or change == "none"))

    @pytest.mark.parametrize("stamp", ["{}.0", "{}.75", " {}", "{}e0"])
    def test_on_odd_numbers_as_time(self, stamp: str) -> None:
        now = datetime.now(UTC)
        at = int(now.timestamp())
        signed = Webhook(ONE).sign("m", datetime.fromtimestamp(at, UTC), "x")
        headers = {"webhook-id": "m", "webhook-timestamp": stamp.format(at), "webhook-signature": signed}
        assert self._ours(ONE, "x", headers, now) is self._theirs(ONE, "x", headers) is True

    def _ours(self, secret: str, body: str, headers: Mapping[str, str], now: datetime) -> bool:
        try:
            StandardWebhooks([secret]).check(body.encode(), headers, now.timestamp())
        except BadSignature:
            return False
        return True

    def _theirs(self, secret: str, body: str, headers: Mapping[str, str]) -> bool | None:
        """True or False, or None where the library stumbles over a part it does not expect."""
        from standardwebhooks.webhooks import WebhookVerificationError

        try:
            Webhook(secret).verify(body, dict(headers), json_parse=False)
        except WebhookVerificationError:
            return False
        except Exception:  # noqa: BLE001 - it raises whatever comes while it splits and decodes
            return None
        return True


class TestLayout:
    def test_github_like_without_a_time(self) -> None:
        layout = HmacLayout(secrets=("s",), header="x-hub-signature-256", prefix="sha256=", content="{body}")
        digest = hmac.new(b"s", BODY, hashlib.sha256).hexdigest()
        layout.check(BODY, {"x-hub-signature-256": f"sha256={digest}"}, NOW)
        refused(layout, BODY, {"x-hub-signature-256": digest})
        refused(layout, BODY, {"x-hub-signature-256": "sha256=zz"})
        refused(layout, BODY, {})

    @pytest.mark.parametrize("content", ["", "{timestamp}", "{body}{body}"])
    def test_a_layout_that_signs_no_body_is_refused(self, content: str) -> None:
        with pytest.raises(ValueError, match="body"):
            HmacLayout(secrets=("s",), header="x", content=content, timestamp="t")

    def test_a_time_without_a_place_is_refused(self) -> None:
        with pytest.raises(ValueError, match="timestamp"):
            HmacLayout(secrets=("s",), header="x")

    @given(st.text(max_size=50), st.text(max_size=50))
    def test_no_header_text_crashes_a_check(self, value: str, other: str) -> None:
        layout = HmacLayout(
            secrets=("s",), header="x", prefix="v1=", timestamp="param:t", content="{header:y}{timestamp}{body}"
        )
        refused(layout, BODY, {"x": value, "y": other})
        refused(layout, BODY, {"x": f"t={int(NOW)},v1={value}", "y": other})
