"""The catalogue of payloads as a page: `python -m consumer.plugin.catalogue` writes `handlers/EVENTS.md`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from consumer.payload import Payload
from consumer.plugin.payloads import SHOWN

PAGE = Path(__file__).parents[2] / "handlers" / "EVENTS.md"
HEAD = """# Events and their payloads

Every event that a handler may get, and the class of its payload:
`async def ship(event: Event[FulfilmentRequested], ctx: Context)`. Unknown fields are in `event.payload.more`; the body
as it came is `event.data`. A field without a default is always there.

Written by `python -m consumer.plugin.catalogue`.
"""


def page() -> str:
    """The whole page, as Markdown."""
    return HEAD + "".join(_section(model) for model in SHOWN)


def _section(model: type[Payload]) -> str:
    types = ", ".join(f"`{one}`" for one in model.event_types)
    lines = [
        f"\n## {model.__name__}\n",
        f"{types}. {' '.join((model.__doc__ or '').split())}\n",
        "| field | type | default | meaning |",
    ]
    lines += ["|---|---|---|---|"]
    for name, field in model.model_fields.items():
        default = "" if field.is_required() else f"`{field.get_default(call_default_factory=False)}`"
        if field.default_factory is not None:
            default = "made"
        lines.append(f"| `{name}` | `{_type(field.annotation)}` | {default} | {field.description or ''} |")
    return "\n".join(lines) + "\n"


def _type(annotation: Any) -> str:
    text = (
        annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else str(annotation)
    )
    text = re.sub(r"\b(?:[a-z_]+\.)+([A-Za-z])", r"\1", text)
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
