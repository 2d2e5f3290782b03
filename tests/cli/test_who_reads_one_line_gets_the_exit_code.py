"""`consumer status | head -1`: the exit code says how things stand, whoever reads how much of the text. Where
the answer goes to a full disk, that is what is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from consumer.cli.output import BLOCK_BYTES, Whole
from tests.support.desk import Desk

ENDLESS = """
from consumer.cli.output import Whole
whole = Whole()
while True:
    whole.write(b"x" * 1000)
"""
STUCK = 2
"""No `work` process lives."""
LONG = "from consumer.cli.output import Output; Output(as_json=True).document(['x' * 1000] * 200)"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["status"], STUCK, ""),
        (["status", "--json"], STUCK, ""),
        # An export that was cut is none: whoever keeps it must be told.
        (["audit", "export", "-"], 1, "error[output_unwritable]: "),
    ],
)
def test_the_exit_code_is_the_answers(tmp_path: Path, words: list[str], code: int, told: str) -> None:
    settings = {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db", "CONSUMER_LOG_LEVEL": "error"}
    assert Desk(settings).call("db", "upgrade").returncode == 0
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CONSUMER_", "SVC_"))}
    reads, writes = os.pipe()
    os.close(reads)
    try:
        command = [sys.executable, "-m", "consumer", *words]
        done = subprocess.run(
            command, env=kept | settings, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60
        )
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr.startswith(told), done.stderr.count("\n")) == (code, True, bool(told))


def test_an_export_that_nobody_reads_ends_at_once() -> None:
    """It read all of the trail into nowhere, and exit 0 said that it was whole."""
    reads, writes = os.pipe()
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=writes, stderr=subprocess.PIPE) as process:
        os.close(writes)
        assert os.read(reads, 1)
        os.close(reads)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b"Broken pipe" in told


def test_an_export_is_written_in_blocks(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: Any) -> None:
    """A flush and a write for each line of a trail is two calls of the system for each."""
    calls: list[int] = []

    def put(text: bytes) -> None:
        calls.append(len(text))
        os.write(1, text)

    monkeypatch.setattr("consumer.cli.output._put", put)
    lines = [b"%d\n" % number for number in range(50_000)]
    whole = Whole()
    for line in lines:
        whole.write(line)
    whole.end()
    assert capfdbinary.readouterr().out == b"".join(lines)
    assert len(calls) == sum(map(len, lines)) // BLOCK_BYTES + 1


def test_a_full_disk_is_not_taken_for_the_ledgers(tmp_path: Path) -> None:
    settings = {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db"}
    assert Desk(settings).call("db", "upgrade").returncode == 0
    for words in (["events", "list"], ["audit", "export", "-"]):
        done = _into_a_full_disk(*words, settings=settings)
        assert done.returncode == 1, words
        assert done.stderr.startswith("error[output_unwritable]: "), words
        assert done.stderr.endswith("(reason=No space left on device)\n"), words
        assert done.stderr.count("\n") == 1, words


@pytest.mark.parametrize("unbuffered", ["1", ""], ids=["as in the image", "buffered"])
def test_a_pipe_that_is_full_for_now_is_waited_for(unbuffered: str) -> None:
    """Who started it may have made the pipe non-blocking: the answer was cut there."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    more = {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen([sys.executable, "-c", LONG], env=os.environ | more, stdout=writes) as process:
        os.close(writes)
        with os.fdopen(reads, "rb") as answer:
            assert json.loads(answer.read()) == ["x" * 1000] * 200
    assert process.returncode == 0


@pytest.mark.parametrize("unbuffered", ["1", ""], ids=["as in the image", "buffered"])
def test_a_disk_that_takes_a_part_has_not_taken_the_answer(tmp_path: Path, unbuffered: str) -> None:
    """Unbuffered, a write that finds room for a part says so and raises nothing: the JSON was cut, with exit 0."""
    words = ["sh", "-c", 'ulimit -f 64; exec "$PYTHON" -c "$CODE" > "$FILE"']
    more = {"PYTHON": sys.executable, "CODE": LONG, "FILE": str(tmp_path / "answer"), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(words, env=os.environ | more, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "OutputUnwritable" in done.stderr


def test_a_help_text_that_finds_no_room_is_told_as_that() -> None:
    for words in (["--help"], ["events", "--help"]):
        done = _into_a_full_disk(*words, settings={})
        assert done.returncode == 1, words
        assert done.stderr.startswith("error[output_unwritable]: "), words
        assert done.stderr.count("\n") == 1, words
    done = _into_a_full_disk("events", settings={})
    assert (done.returncode, done.stderr) == (2, "")


def test_an_error_that_nobody_can_be_told_leaves_its_exit_code() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        words = [sys.executable, "-m", "consumer", "events", "list", "--nonsense"]
        assert subprocess.run(words, stderr=full, timeout=60, check=False).returncode == 2


def _into_a_full_disk(*words: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CONSUMER_", "SVC_"))}
    with Path("/dev/full").open("wb", buffering=0) as full:
        command = [sys.executable, "-m", "consumer", *words]
        return subprocess.run(command, env=kept | settings, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)


@pytest.mark.parametrize(
    "closed", [*(pytest.param(some, marks=pytest.mark.slow) for some in ("<&-", "<&- >&-")), "<&- >&- 2>&-"]
)
def test_who_closes_the_streams_gets_it_too(tmp_path: Path, closed: str) -> None:
    settings = {"CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db", "PYTHON": sys.executable}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CONSUMER_", "SVC_"))}
    for command, code in (("db upgrade", 0), ("events list", 0), ("status", STUCK)):
        words = ["sh", "-c", f'exec "$PYTHON" -m consumer {command} {closed}']
        assert subprocess.run(words, env=kept | settings, timeout=60, check=False).returncode == code, command
