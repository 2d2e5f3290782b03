"""Assumptions: every one is a switch, printed, listed, and in the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import consumer.sandbox
from consumer.sandbox import SWITCHES, Assumptions, Sandbox, SandboxConfig, SandboxMisconfigured
from consumer.sandbox.assumptions import readme_table
from consumer.sandbox.faults import TEXTS, Faults
from tests.sandbox.support import Api, make_engine

FOLDER = Path(consumer.sandbox.__file__).parent


async def test_every_switch_is_printed_at_start_and_listed(api: Api, sandbox: Sandbox) -> None:
    # case: X63
    printed = "\n".join(sandbox.announce())
    listed = (await api.get("/_sandbox/assumptions")).json["assumptions"]
    assert [row["name"] for row in listed] == [switch.name for switch in SWITCHES]
    for switch in SWITCHES:
        assert f"assumed, not documented: {switch.name}={switch.default} " in printed


def test_the_readme_lists_every_switch() -> None:
    # case: X63
    assert readme_table() in (FOLDER / "README.md").read_text(), "put the output of readme_table() there"


def test_every_switch_is_read_somewhere() -> None:
    # case: X63
    code = "\n".join(path.read_text() for path in FOLDER.rglob("*.py") if path.name != "assumptions.py")
    for switch in SWITCHES:
        assert re.search(rf'(text|flag|number|status)\(\s*"{switch.name}"', code) or switch.name in (
            "create_status", "create_again_status", "missing_idempotency_key",
        ), f"{switch.name} changes nothing"  # fmt: skip


async def test_a_switch_is_set_by_name(api: Api, sandbox: Sandbox) -> None:
    # case: X63
    await api.control("/assumptions", {"signature": "none", "retention_s": 3600, "auto_renew": False})
    assert (sandbox.assumptions.text("signature"), sandbox.assumptions.number("retention_s")) == ("none", 3600)
    reply = await api.post("/_sandbox/assumptions", {"signature": "hmac", "nope": 1})
    assert (reply.status, reply.code) == (400, "validation_failed")
    assert sandbox.assumptions.text("signature") == "none", "all or none"


@pytest.mark.parametrize(
    ("name", "value"),
    [("signature", "rot13"), ("auto_renew", "yes"), ("read_lag_s", -1), ("read_lag_s", "x"), ("read_lag_s", True),
     ("create_status", 302), ("nope", 1)],
)  # fmt: skip
def test_what_does_not_fit_is_refused(name: str, value: object) -> None:
    # case: X63
    with pytest.raises(SandboxMisconfigured, match=name):
        Assumptions({name: value})


def test_values_may_be_text_as_from_a_command_line() -> None:
    # case: X63
    chosen = Assumptions({"create_status": "200", "auto_renew": "false", "read_lag_s": "1.5"})
    assert (chosen.status("create_status"), chosen.flag("auto_renew"), chosen.number("read_lag_s")) == (200, False, 1.5)


def test_every_fault_is_explained() -> None:
    # case: X58
    faults: Faults = make_engine().faults
    names = {name for name in faults.values() if not name.endswith("_next")}
    assert names == set(TEXTS)
    readme = (FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in names)


def test_a_secret_from_the_settings_is_not_printed() -> None:
    # case: X63
    config = SandboxConfig(driven=True, app_secret="svc_sk_live_mine", webhook_secret="whsec_bWluZQ==")
    printed = "\n".join(Sandbox(config).announce())
    assert "mine" not in printed
    assert "bWluZQ" not in printed
    assert "svc_sk_live_sandbox" in "\n".join(Sandbox(SandboxConfig(driven=True)).announce())
    assert "svc_sk_live_mine" not in repr(config)
