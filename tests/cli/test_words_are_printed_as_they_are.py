"""A name that a person copies, a reason that an exception gave: printed letter by letter, whatever they look like."""

from __future__ import annotations

import pytest

from consumer.cli.output import Output

ODD = ["shop:ship: paused", "[red]alert[/red]", "no end [/b]", "[SQL: SELECT 1]", ":warning:"]


@pytest.mark.parametrize("odd", ODD)
def test_in_lines_tables_and_fields(odd: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=False)
    output.line(odd)
    output.table(["name", odd], [[odd, odd]], empty="")
    output.table(["name"], [], empty=odd)
    output.fields({"name": odd})
    assert capsys.readouterr().out.count(odd) == 6
