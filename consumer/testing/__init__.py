"""The test kit for handler authors. Its pytest plugin loads by itself; nothing heavy is imported before it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consumer.testing.assertions import assert_idempotent, assert_order_independent
    from consumer.testing.migrated import assert_migrated
    from consumer.testing.outside import Answer, Outside, Request
    from consumer.testing.payments_fake import PaymentsCall, PaymentsFake, Refusal
    from consumer.testing.refusal import Refused
    from consumer.testing.simulation import assert_history
    from consumer.testing.workbench import Ran, Workbench

__all__ = [
    "Answer",
    "Outside",
    "PaymentsCall",
    "PaymentsFake",
    "Ran",
    "Refusal",
    "Refused",
    "Request",
    "Workbench",
    "assert_history",
    "assert_idempotent",
    "assert_migrated",
    "assert_order_independent",
]
_HOMES = {
    "Answer": "outside",
    "Outside": "outside",
    "Request": "outside",
    "PaymentsCall": "payments_fake",
    "PaymentsFake": "payments_fake",
    "Ran": "workbench",
    "Refusal": "payments_fake",
    "Refused": "refusal",
    "Workbench": "workbench",
    "assert_history": "simulation",
    "assert_idempotent": "assertions",
    "assert_migrated": "migrated",
    "assert_order_independent": "assertions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
