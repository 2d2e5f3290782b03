"""`explain` answers why, and an operator's word changes the answer, with its reason in the audit trail."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.ports import eventually, free_port
from tests.support.process import ConsumerProcess, ended

pytestmark = pytest.mark.slow


# case: A42, A50, G12
async def test_of_a_paid_order_and_a_customer_on_hold(consumer: Run, environ: dict[str, str], tmp_path: Path) -> None:
    port = free_port()
    dev = ConsumerProcess("dev", environ, tmp_path, arguments=["--sandbox-port", str(port), "--data", str(tmp_path)])
    with ended(dev):
        dev.spawn()
        await dev.ready()
        at = f"http://127.0.0.1:{port}"
        for made in (
            ["order.paid", "--set", "order_id=A-1"],
            ["subscription.created", "--set", "customer_reference=c1"],
        ):
            assert consumer("sandbox", "trigger", *made, "--base-url", at).returncode == 0

        def explained(*about: str) -> dict[str, object]:
            done = consumer("explain", *about, "--json")
            assert done.returncode == 0, done.stderr
            return dict(json.loads(done.stdout))

        def allowed() -> object:
            state = explained("customer", "c1")["state"]
            assert isinstance(state, dict)
            return state["allowed"]

        await eventually(lambda: allowed() is True, within_s=30)
        assert "\nrule: past_due=grace:14d\n" in consumer("explain", "customer", "c1").stdout, "as the page says"
        order = explained("order", "A-1")
        assert isinstance(order["state"], dict)
        assert order["state"]["fulfilment"] == "requested"
        assert "order.paid" in json.dumps(order["timeline"])
        told = consumer("explain", "order", "A-1").stdout
        assert re.search(r"  requested at: - → \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ(  |\n)", told), "as the page says it"

        mistyped = consumer("explain", "order", "A-12")
        assert (mistyped.returncode, "near=A-1" in mistyped.stderr) == (1, True), mistyped.stderr

        refused = consumer("say", "access.held", "c1", "--reason", "chargeback")
        assert (refused.returncode, refused.stderr.startswith("error[usage]")) == (2, True)
        assert consumer("say", "access.held", "c1", "--reason", "chargeback", "--yes").returncode == 0
        await eventually(lambda: allowed() is False, within_s=30)
        assert "chargeback" in json.dumps(explained("customer", "c1"))
