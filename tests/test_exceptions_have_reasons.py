"""Every exception from a rule of ruff or mypy says why: `# noqa: RULE - why`, `# type: ignore[code]  # why`."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LISTED = re.compile(r"# *(?:ruff: *)?noqa|# *type: *ignore|# *mypy:", re.IGNORECASE)
REASONED = re.compile(
    r"(?:# *(?:ruff: *)?noqa: *[A-Z]+[0-9]+(?:, *[A-Z]+[0-9]+)* *- *\S.*"
    r"|# *type: *ignore\[[a-z-]+(?:, *[a-z-]+)*\] *(?:#|-) *\S.*)"
)


def without_reason(source: str) -> list[int]:
    """The lines of the comments that except something and do not say why."""
    comments = (
        token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT
    )
    return [token.start[0] for token in comments if LISTED.match(token.string) and not REASONED.match(token.string)]


@pytest.mark.parametrize(
    ("comment", "fine"),
    [
        ("# noqa: S105 - the documented prefix, no secret", True),
        ("# type: ignore[misc]  # SQLAlchemy builds it", True),
        ("# ruff: noqa: E501 - tables read better", True),
        ("# a word about # noqa: that excepts nothing", True),
        ("# noqa", False),
        ("# noqa: S105", False),
        ("# noqa: S105, A002 -", False),
        ("# type: ignore", False),
        ("# type: ignore[misc]", False),
        ("# type: ignore  # all of them", False),
    ],
)
def test_what_counts_as_a_reason(comment: str, *, fine: bool) -> None:
    assert (without_reason(f"x = 1  {comment}\n") == []) is fine


def test_every_exception_says_why() -> None:
    sources = [path for folder in ("consumer", "handlers", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 400
    listing = {path: text for path in sources if LISTED.search(text := path.read_text())}
    assert len(listing) > 100
    found = {path.relative_to(ROOT): without_reason(text) for path, text in listing.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}
