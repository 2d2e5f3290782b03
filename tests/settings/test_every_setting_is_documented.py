"""Every setting is documented: the README's table is the one the code writes."""

from __future__ import annotations

from pathlib import Path

from consumer.settings.load import KNOWN
from consumer.settings.table import settings_table

README = Path(__file__).resolve().parents[2] / "consumer" / "README.md"


def test_the_readme_lists_every_setting() -> None:
    text = README.read_text()
    assert settings_table() in text, (
        "run: python -m consumer.settings.table, and put its output into consumer/README.md"
    )
    assert all(f"`{name}`" in text for name in KNOWN)
