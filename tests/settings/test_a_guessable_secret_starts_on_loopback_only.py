"""A webhook secret that strangers can guess, or know, starts for a simulator on this machine only."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import pytest

from consumer.settings import Role, load_settings
from consumer.settings.application import SANDBOX_WEBHOOK_SECRET
from tests.settings.reading import CREDENTIALS, SECRET, problems

OPEN = {**CREDENTIALS, "CONSUMER_AUTHENTICITY": "signature", "CONSUMER_HOST": "0.0.0.0"}
SHORT = "whsec_" + base64.b64encode(b"x").decode()
HMAC = {
    "CONSUMER_SIGNATURE_SCHEME": "hmac",
    "CONSUMER_SIGNATURE_HEADER": "x-sign",
    "CONSUMER_SIGNATURE_CONTENT": "{body}",
}
TWO = {
    "CONSUMER_WEBHOOK_SECRETS": SECRET,
    "CONSUMER_APPLICATIONS": f'[{{"name": "club", "webhook_secrets": ["{SECRET}"]}}]',
}

SPELLED_TWICE = {**TWO, "CONSUMER_WEBHOOK_SECRETS": SECRET.removeprefix("whsec_").rstrip("=")}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"CONSUMER_WEBHOOK_SECRETS": SHORT}, "a secret has 1 byte(s); at least 16"),
        ({"CONSUMER_WEBHOOK_SECRETS": f"{SECRET},{SHORT}"}, "a secret has 1 byte(s)"),
        ({"CONSUMER_WEBHOOK_SECRETS": SANDBOX_WEBHOOK_SECRET}, "the sandbox's own secret"),
        ({"CONSUMER_WEBHOOK_SECRETS": "fifteen-letters", **HMAC}, "a secret has 15 byte(s)"),
        (
            {"CONSUMER_WEBHOOK_SECRETS": SANDBOX_WEBHOOK_SECRET.removeprefix("whsec_").rstrip("=")},
            "the sandbox's own secret",
        ),
        ({"CONSUMER_WEBHOOK_SECRETS": base64.b64encode(b"x" + b"\0" * 31).decode()}, "a secret has 1 byte(s)"),
        ({"CONSUMER_WEBHOOK_SECRETS": "sandbox-webhook-secret-32-bytes!", **HMAC}, "the sandbox's own secret"),
        (TWO, "club and default have the same secret"),
        (SPELLED_TWICE, "club and default have the same secret"),
    ],
)
def test_a_weak_secret_is_refused_where_strangers_can_reach_it(given: Mapping[str, str], reason: str) -> None:
    # case: I19, S1
    [problem] = problems({**OPEN, **given}, Role.SERVE)
    assert problem.startswith("CONSUMER_WEBHOOK_SECRETS: ")
    assert reason in problem
    assert SHORT not in problem
    assert problems({**OPEN, **given, "CONSUMER_HOST": "127.0.0.1"}, Role.SERVE), "a proxy may stand before it"
    load_settings({**OPEN, **given, "CONSUMER_HOST": "127.0.0.1", "SVC_BASE_URL": "http://127.0.0.1:4010"}, Role.SERVE)


def test_a_strong_secret_starts(tmp_path: object) -> None:
    assert load_settings(OPEN | {"CONSUMER_WEBHOOK_SECRETS": SECRET}, Role.SERVE).host
