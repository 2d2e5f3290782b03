"""What the receiving peers share: the check of a signature (Standard Webhooks), and where they say their port."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import time
from collections.abc import Mapping

import orjson

TOLERANCE_S = 300
_KEY = base64.b64decode(os.environ["SECRET"].removeprefix("whsec_"))


def order_of(headers: Mapping[str, str], body: bytes) -> str | None:
    """The order that a webhook is about; None: it is not signed with our secret, or not lately."""
    sent_at = headers.get("webhook-timestamp", "")
    signed = f"{headers.get('webhook-id', '')}.{sent_at}.".encode() + body
    wanted = "v1," + base64.b64encode(hmac.digest(_KEY, signed, hashlib.sha256)).decode()
    if not any(hmac.compare_digest(wanted, one) for one in headers.get("webhook-signature", "").split()):
        return None
    if abs(time.time() - int(sent_at)) > TOLERANCE_S:
        return None
    order: str = orjson.loads(body)["data"]["object"]["order_id"]
    return order
