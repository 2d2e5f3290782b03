"""Signatures: the headers that authenticate a delivery, in three profiles (cases X60, U3)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime

from standardwebhooks import Webhook


def signature_headers(
    profile: str, secrets: Sequence[str], *, message_id: str, at: datetime, body: bytes
) -> dict[str, str]:
    """Headers for the profile: `standard`, `hmac` or `none`. Several secrets give several signatures."""
    if profile == "standard":
        return standard(secrets, message_id=message_id, at=at, body=body)
    if profile == "hmac":
        return hmac_hex(secrets, at=at, body=body)
    return {}


def standard(secrets: Sequence[str], *, message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Standard Webhooks: webhook-id, webhook-timestamp, webhook-signature with one `v1,` entry per secret."""
    text = body.decode()
    signed = [Webhook(secret).sign(message_id, at, text) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signed),
    }


def hmac_hex(secrets: Sequence[str], *, at: datetime, body: bytes) -> dict[str, str]:
    """`X-Signature: t=<unix>,v1=<hex>,…`: HMAC-SHA256 over `<unix>.<body>`, keyed with the secret's own text."""
    stamp = str(int(at.timestamp()))
    signed = stamp.encode() + b"." + body
    parts = [f"v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}" for secret in secrets]
    return {"X-Signature": ",".join([f"t={stamp}", *parts])}
