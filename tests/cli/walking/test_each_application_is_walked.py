"""What stops the walk of one application keeps nobody from the others, and is told with its name."""

from __future__ import annotations

import pytest

from consumer.cli.walking.each import each, told
from consumer.errors import ConsumerError, LedgerUnavailable, UsageError, WrongApplication


async def _walk(one: str | ConsumerError) -> str:
    if isinstance(one, ConsumerError):
        raise one
    return one


async def test_the_others_are_walked_and_the_failure_has_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    # case: S7, I29, B32
    wrong = WrongApplication(expected="a")
    applications: dict[str, str | ConsumerError] = {"first": wrong, "shop": "walked", "last": LedgerUnavailable()}
    walked, failures = await each(applications, _walk)
    assert walked == ["walked"]
    assert [one.shown()["application"] for one in failures] == ["first", "last"]
    assert failures[0].shown()["error"] == "wrong_application"
    assert told(failures) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"error[wrong_application]: first: {wrong.message} (expected=a)"
    assert lines[1].startswith("error[ledger_unavailable]: last: ")


async def test_what_was_misused_is_misuse_only_when_nothing_else_failed() -> None:
    _, failures = await each({"one": UsageError("no"), "two": UsageError("no")}, _walk)
    assert told(failures) == 2
    assert told(failures, walked=True) == 1, "another application was changed"
    _, failures = await each({"one": UsageError("no"), "two": WrongApplication()}, _walk)
    assert told(failures) == 1
    assert told([]) == 0


async def test_what_nobody_foresaw_is_no_failure_of_an_application() -> None:
    async def broken(_: str) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await each({"one": ""}, broken)
