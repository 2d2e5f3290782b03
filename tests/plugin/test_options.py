"""`ctx.options` is the plugin's own model `OPTIONS`, with its defaults; validated once, not once for each event."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from consumer.clock import DrivenClock
from consumer.errors import HandlerMisuse
from consumer.plugin import Context, Event, declared, handles
from consumer.plugin.options import ValidatedOptions
from consumer.testing import Workbench
from consumer.work.execution.contexts import Contexts
from consumer.work.inspection import warnings_of
from consumer.work.registry import load_registry
from tests.support.merchant.plugin import install_plugin

ROOT = Path(__file__).resolve().parents[2]
validated: list[str] = []


class Options(BaseModel):
    url: str = "https://warehouse.example"
    limit: int = 5

    @field_validator("limit")
    @classmethod
    def _count(cls, value: int) -> int:
        validated.append("limit")
        return value


OPTIONS = Options
seen: list[Any] = []


@handles("fulfilment.requested", name="test:keeps")
async def keeps(event: Event, ctx: Context) -> None:
    seen.append(ctx.options)


# case: H11
def test_the_defaults_are_there_and_values_have_their_types(workbench: Workbench) -> None:
    workbench.options["limit"] = "7"
    seen.clear()
    assert workbench.run(keeps, workbench.event("fulfilment.requested")).succeeded
    assert seen == [Options(limit=7)]


def test_once_for_each_handler_and_not_for_each_event() -> None:
    handler = declared(keeps)
    assert handler is not None
    contexts = Contexts(DrivenClock(), {"": {"limit": 3}})
    with Workbench() as bench:
        event = bench.event("fulfilment.requested")
    validated.clear()
    made = [contexts.make(handler, event, attempt=1, plan=None).options for _ in range(100)]
    assert validated == ["limit"]
    assert made == [Options(limit=3)] * 100


def test_what_does_not_fit_names_the_field_and_no_value() -> None:
    with pytest.raises(HandlerMisuse, match="limit") as refused:
        ValidatedOptions({"shop": {"limit": "s3cret"}}).of(keeps, "shop")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("given", ["{'limit': 5}", "Options()", "Named"])
def test_options_that_are_no_model_are_warned_of(on_the_path: Path, given: str) -> None:
    """They counted for nothing: what the handler was configured with was never checked, and nobody said so."""
    source = (
        "from dataclasses import dataclass\nfrom pydantic import BaseModel\nfrom consumer.plugin import handles\n"
        "class Options(BaseModel):\n    limit: int = 5\n@dataclass\nclass Named:\n    limit: int = 5\n"
        "@handles('fulfilment.requested', name='p:a')\nasync def a(event, ctx) -> None: ...\n"
    )
    install_plugin(on_the_path, "modelled", f"{source}OPTIONS = Options\n")
    install_plugin(on_the_path, "unmodelled", f"{source.replace('p:a', 'p:b')}OPTIONS = {given}\n")
    (warning,) = warnings_of(load_registry())
    assert (warning.plugin, warning.handler) == ("unmodelled", "p:b")
    assert "OPTIONS in its module is no class of a pydantic model" in warning.text


def test_the_built_in_handlers_take_it_as_it_is() -> None:
    """One that validated `ctx.options` again would do so on every event."""
    for path in (ROOT / "handlers").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        again = [one.lineno for one in calls if "options" in ast.unparse(one) and "validate" in ast.unparse(one.func)]
        assert not again, f"{path.name}: {again}"
