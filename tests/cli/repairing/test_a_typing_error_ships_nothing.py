"""What is typed wrong is told to who typed it: a handler, an order, an id that nobody knows."""

from __future__ import annotations

from tests.support.desk import Desk


def test_a_handler_that_does_not_exist_is_refused(desk: Desk) -> None:
    desk.call("db", "upgrade")
    for verb in ("redrive", "discard"):
        said = desk.ask("dead", verb, "--handler", "shop:shpi", "--reason", "x", "--yes", code=2)
        assert "there is no such handler" in said


# case: F8
def test_an_order_that_nobody_knows_is_marked_paid_only_when_that_is_said(desk: Desk) -> None:
    desk.call("db", "upgrade")
    words = ("say", "fulfilment.marked_paid", "ordr-1", "--reason", "paid by wire", "--yes")
    refused = desk.ask(*words, code=2)
    assert "--unknown" in refused
    assert desk.ask(*words, "--unknown")["event_id"].startswith("drv_")


def test_an_id_that_nobody_has_is_not_found(desk: Desk) -> None:
    desk.call("db", "upgrade")
    for words in (("find", "evt_nobody"), ("explain", "evt_nobody"), ("findings", "show", "order-1")):
        said = desk.ask(*words, code=1)
        assert said.startswith("error[not_found]")
    assert desk.ask("findings", "list") == {"findings": [], "total": 0}
