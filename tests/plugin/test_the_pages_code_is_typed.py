"""What the pages show to be copied is typed: mypy --strict finds nothing in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import consumer.plugin
from tests.plugin.test_face import code_blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("handlers/README.md", "handlers/REFERENCE.md", "consumer/shop/README.md")
MIN_BLOCKS = 8


def examples() -> list[str]:
    """Every piece of Python, with what its page leaves to the reader."""
    texts = [(ROOT / page).read_text() for page in PAGES] + [consumer.plugin.__doc__ or ""]
    found = [block for text in texts for block in code_blocks(text) if "@handles" in block]
    found += [block for text in texts for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    return [completed(block) for block in found]


def completed(block: str) -> str:
    """The tutorial's readers have an address of their own."""
    return f'URL = "https://shop.example"\n{block}' if re.search(r"\bURL\b", block) else block


# case: H10
@pytest.mark.slow
def test_mypy_finds_nothing_in_what_is_shown_to_be_copied(tmp_path: Path) -> None:
    shown = examples()
    assert len(shown) >= MIN_BLOCKS
    for number, block in enumerate(shown):
        (tmp_path / f"example_{number}.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"),
         *sorted(str(path) for path in tmp_path.glob("*.py"))],
        capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == "", done.stdout + done.stderr
