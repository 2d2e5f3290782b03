"""A name that a person copies, a reason that an exception gave: printed letter by letter, whatever they look like."""

from __future__ import annotations

import json

import pytest

from consumer.cli.output import Output
from consumer.cli.walking.each import Failure, told
from consumer.errors import ConsumerError

ODD = ["shop:ship: paused", "[red]alert[/red]", "no end [/b]", "[SQL: SELECT 1]", ":warning:"]


@pytest.mark.parametrize("odd", ODD)
def test_in_lines_tables_and_fields(odd: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=False)
    output.line(odd)
    output.table(["name", odd], [[odd, odd]], empty="")
    output.table(["name"], [], empty=odd)
    output.fields({"name": odd})
    assert capsys.readouterr().out.count(odd) == 6


@pytest.mark.parametrize(
    ("odd", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("A1\nerror[none]: all is well", "A1\\nerror[none]: all is well"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\x9b2J\r\x00", "\\x9b2J\\r\\x00"),
        ("Zoë ✓", "Zoë ✓"),
    ],
)
def test_what_would_move_the_cursor_is_shown_as_its_escape(
    odd: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(as_json=False)
    output.line(f"order {odd}")
    output.table(["order"], [[odd]], empty="")
    output.fields({"order": odd, "all": [odd, {"deep": odd}]})
    printed = capsys.readouterr().out
    assert printed.count(shown) == 5
    assert len(printed.splitlines()) == 5


def test_json_says_the_same_and_moves_no_cursor(capfd: pytest.CaptureFixture[str]) -> None:
    odd = {"order": "\x9b2J\x7f\u202e\x1b[2J", "far": "\U000e0001", "plain": "Zoë ✓ 😀", "line": "a\nb\u2028c"}
    Output(as_json=True).document(odd)
    printed = capfd.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert len(printed.splitlines()) == 2 + len(odd)
    assert "Zoë ✓ 😀" in printed
    assert json.loads(printed) == odd


def test_a_failed_walk_is_one_line_whatever_the_error_says(capsys: pytest.CaptureFixture[str]) -> None:
    told([Failure("default", ConsumerError("odd\x1b[2J", order="A1\nall is well"))])
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "odd\\x1b[2J" in printed
    assert "A1\\nall is well" in printed
