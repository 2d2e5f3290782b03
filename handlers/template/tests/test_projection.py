"""A sale is written down once, whatever happens on the way; the migrations make the tables that the models say."""

from __future__ import annotations

from consumer.testing import Workbench, assert_idempotent, assert_migrated, assert_order_independent
from handlers.template.projection import keep
from handlers.template.tables import TemplateSale


def test_it_keeps_the_sale(workbench: Workbench) -> None:
    event = workbench.event("fulfilment.requested", order_id="A-1", data={"amount": "25.00"})
    assert workbench.run(keep, event).succeeded
    (sale,) = workbench.rows(TemplateSale)
    assert (sale.application, sale.order_id, sale.amount) == ("default", "A-1", "25.00")
    assert sale.sold_at == event.received_at


def test_repetition_changes_nothing() -> None:
    assert_idempotent(keep)


def test_order_changes_nothing(workbench: Workbench) -> None:
    events = [workbench.event("fulfilment.requested", order_id=order) for order in ("A-1", "A-2", "A-3")]
    assert_order_independent(keep, events)


def test_the_migrations_make_what_the_models_say() -> None:
    assert_migrated(TemplateSale, migrations="handlers.template.migrations")
