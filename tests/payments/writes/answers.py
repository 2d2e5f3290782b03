"""What the tests of writes share: the answers of the service, its addresses, and the keys that were sent."""

from __future__ import annotations

from tests.payments.support import Reply, ScriptedService, session_json

CREATED = Reply(200, session_json())
CREATED_AGAIN = Reply(200, session_json(url=None))
LINKED = Reply(200, session_json(url="https://pay.example/cs_1?n=2"))
NOT_FOUND = Reply(404, b"")
CUT = Reply(cut=True)
LOST = (CUT,) * 4
PENDING_ORDER = Reply(200, {"id": "ord_1", "status": "PENDING"})

CREATE = "POST /v1/checkout-sessions"
LINK = "POST /v1/checkout-sessions/cs_1/link"
LOOKUP = "GET /v1/orders/lookup"


def keys(service: ScriptedService) -> list[str]:
    return [seen.headers["Idempotency-Key"] for seen in service.seen if seen.method == "POST"]
