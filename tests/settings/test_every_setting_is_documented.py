"""Every setting is documented, and read by somebody: the README's table is the one the code writes."""

from __future__ import annotations

import ast
from pathlib import Path

from consumer.settings import Settings
from consumer.settings.load import KNOWN
from consumer.settings.table import settings_table

CONSUMER = Path(__file__).resolve().parents[2] / "consumer"
README = CONSUMER / "README.md"


def test_the_readme_lists_every_setting() -> None:
    text = README.read_text()
    assert settings_table() in text, (
        "run: python -m consumer.settings.table, and put its output into consumer/README.md"
    )
    assert all(f"`{name}`" in text for name in KNOWN)


def test_every_setting_is_read_by_somebody() -> None:
    read = {
        node.attr
        for path in CONSUMER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert [name for name in Settings.model_fields if name not in read] == []
