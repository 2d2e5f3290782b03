"""Table: the settings as the Markdown that README.md holds; `python -m consumer.settings.table` prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pydantic import SecretStr

from consumer.events import Locators
from consumer.settings.application import APPLICATIONS, DEFAULT_NAMES, ApplicationTable
from consumer.settings.load import CONFIG, FIELDS, FROM_FILE


def settings_table() -> str:
    """Every setting with its default and meaning: a Markdown table."""
    rows = ["| name | default | meaning |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in _rows())]
    return "\n".join(rows) + "\n"


def _rows() -> Iterator[tuple[str, str, str]]:
    yield f"`{CONFIG}`", "", "a TOML file with the same names; the environment wins"
    for item, name in DEFAULT_NAMES.items():
        if item.startswith("locators."):
            fact = item.removeprefix("locators.")
            pointers = ", ".join(f"`{pointer}`" for pointer in getattr(Locators(), fact))
            yield f"`{name}`", pointers, f"JSON pointers to the {fact}, comma-separated, first hit wins"
        else:
            meaning = ApplicationTable.model_fields[item].description or ""
            yield f"`{name}`", "`api`" if item == "authenticity" else "", meaning
    yield f"`{APPLICATIONS}`", "", "a TOML table per application (or JSON): " + _keys()
    for name, field in FIELDS.items():
        yield f"`{name}`", _shown(field.default), field.description or ""
    for name, target in FROM_FILE.items():
        yield f"`{name}`", "", f"file that holds `{target}`"


def _keys() -> str:
    return ", ".join(f"`{name}`" for name in ApplicationTable.model_fields)


def _shown(default: Any) -> str:
    if default is None or default in ("", {}):
        return ""
    value = default.get_secret_value() if isinstance(default, SecretStr) else default
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(settings_table())
