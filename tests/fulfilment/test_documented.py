"""The plugins' READMEs name every setting and every finding there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from handlers.access.policy import Brake, Policy
from handlers.fulfilment.options import Options

HANDLERS = Path(__file__).resolve().parents[2] / "handlers"


@pytest.mark.parametrize(("plugin", "model"), [("fulfilment", Options), ("access", Policy), ("access", Brake)])
def test_every_setting_is_documented(plugin: str, model: type[BaseModel]) -> None:
    text = (HANDLERS / plugin / "README.md").read_text()
    assert [name for name in model.model_fields if f"`{name}`" not in text and f"{name}=" not in text] == []


@pytest.mark.parametrize("plugin", ["fulfilment", "access"])
def test_every_finding_is_documented(plugin: str) -> None:
    text = (HANDLERS / plugin / "README.md").read_text()
    code = "".join(path.read_text() for path in (HANDLERS / plugin).glob("*.py"))
    kinds = set(re.findall(r'FINDINGS, "([a-z_]+)"', code)) | set(re.findall(r'Hold\.[A-Z]+: "([a-z_]+)"', code))
    kinds |= set(re.findall(r'_finding\(ctx, "([a-z_]+)"', code))
    assert len(kinds) >= 5
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in text] == []


def test_every_type_the_plugins_handle_or_emit_is_documented() -> None:
    text = (HANDLERS / "REFERENCE.md").read_text() + "".join(
        (HANDLERS / plugin / "README.md").read_text() for plugin in ("fulfilment", "access")
    )
    code = "".join(path.read_text() for plugin in ("fulfilment", "access") for path in (HANDLERS / plugin).glob("*.py"))
    types = set(re.findall(r'"((?:fulfilment|access)\.[a-z_]+)"', code))
    missing = [one for one in sorted(types) if one not in text and f"`.{one.partition('.')[2]}`" not in text]
    assert missing == []
