"""The drill: a part that fails is told with its reason, and the others are played all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.errors import BrokerUnavailable
from consumer.sync.confirm.policy import MAX_HINTS
from tests.chaos import __main__ as drill
from tests.chaos import outages
from tests.chaos.campaign import Outcome
from tests.chaos.hour import Hour
from tests.chaos.outages import PARTS, Part

GOOD = Outcome([("orders paid", 1, 1)], 1.0)


def failing_in(monkeypatch: pytest.MonkeyPatch, failures: dict[str, BaseException]) -> list[Part]:
    """The parts that are played, in their order; those with a failure fail with it."""
    played: list[Part] = []

    def play(part: Part, hour: Hour, folder: Path) -> Outcome:
        assert folder.is_dir()
        played.append(part)
        if part.title in failures:
            raise failures[part.title]
        return GOOD

    monkeypatch.setattr(outages, "play", play)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return played


def test_whatever_a_part_fails_with_is_told_and_the_others_are_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # case: O7
    late = AssertionError("not settled\nwithin 5 s")
    late.__cause__ = OSError("connection refused")
    failures: dict[str, BaseException] = {
        "the endpoint": TimeoutError(),
        "Kafka": BrokerUnavailable(within_s=15),
        "the database": ExceptionGroup("several", [late, ValueError("odd")]),
    }
    played = failing_in(monkeypatch, failures)
    assert drill.main(["outages"]) == 1
    assert [part.title for part in played] == [part.title for part in PARTS.values()]
    told = capsys.readouterr().out
    assert "endpoint: FAILED: TimeoutError\n" in told
    assert f"kafka: FAILED: {BrokerUnavailable(within_s=15).line()}\n" in told
    assert (
        "database: FAILED: AssertionError: not settled within 5 s (because of OSError: connection refused); "
        "ValueError: odd\n"
    ) in told
    assert "outage of the API (401)\n" in told
    assert "api: FAILED" not in told
    missing = pytest.skip.Exception("Kafka: no Java")
    failing_in(monkeypatch, {"Kafka": missing})
    assert drill.main(["outages", "--part", "kafka"]) == 1, "what is missing proves nothing"
    assert "kafka: FAILED: Skipped: Kafka: no Java\n" in capsys.readouterr().out


def test_a_wrong_outcome_and_a_right_one_are_told_by_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_in(monkeypatch, {})
    assert drill.main(["outages", "--part", "kafka"]) == 0
    monkeypatch.setattr(outages, "play", lambda *_: Outcome([("orders paid", 1, 0)], 1.0))
    assert drill.main(["outages", "--part", "kafka"]) == 1


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([], ["api", "api", "signature", "api"]),
        (["--authenticity", "api"], ["api"] * 4),
        (["--authenticity", "signature"], ["signature"] * 4),
    ],
)
def test_the_authenticity_is_chosen_for_every_part(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], expected: list[str]
) -> None:
    played = failing_in(monkeypatch, {})
    assert drill.main(["outages", *asked]) == 0
    assert [part.authenticity for part in played] == expected


@pytest.mark.parametrize(
    ("asked", "plays"),
    [
        (["--rate", "50"], True),
        (["--rate", "56"], False),
        (["--rate", "100", "--hours", "0.5"], True),
        (["--rate", "56", "--part", "database"], True),
        (["--rate", "56", "--part", "database", "--authenticity", "api"], False),
        (["--rate", "56", "--authenticity", "signature"], True),
        (["--rate", "56", "--part", "endpoint"], False),
    ],
    ids=str,
)
def test_more_webhooks_than_may_wait_to_be_confirmed_are_refused_with_what_can_be_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: list[str], plays: bool
) -> None:
    played = failing_in(monkeypatch, {})
    if plays:
        assert drill.main(["outages", *asked]) == 0
        assert played
        return
    with pytest.raises(SystemExit) as ended:
        drill.main(["outages", *asked])
    assert (ended.value.code, played) == (2, [])
    told = capsys.readouterr().err
    assert f"no more than {MAX_HINTS:,} are kept: use --rate 54, fewer --hours, or --authenticity signature" in told


@pytest.mark.parametrize(
    ("asked", "expected"),
    [([], ["files", "servers"]), (["--on", "files"], ["files"]), (["--on", "servers"], ["servers"])],
)
def test_strangers_are_played_on_files_and_on_servers(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], expected: list[str]
) -> None:
    failing_in(monkeypatch, {})
    played: list[tuple[str, float]] = []

    def play(on: str, minutes: float) -> bool:
        played.append((on, minutes))
        return on == "servers"

    monkeypatch.setattr(drill, "_strangers", play)
    assert drill.main(["strangers", "--minutes", "2", *asked]) == (1 if "files" in expected else 0)
    assert played == [(on, 2) for on in expected]
