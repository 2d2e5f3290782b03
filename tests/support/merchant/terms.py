"""The terms of a checkout, for tests that only need some."""

from __future__ import annotations

from typing import Any, Final

PAYMENT: Final[dict[str, Any]] = {
    "mode": "payment",
    "order_id": "order-1",
    "amount": "25.00",
    "description": "A book",
    "success_url": "https://shop.example/ok",
    "cancel_url": "https://shop.example/no",
}
