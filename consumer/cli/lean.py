"""Lean: structlog without rich, which it would import for tracebacks in colours that nobody here prints: a tenth of
what a command's start costs. Whoever imports rich later gets it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

_HIDDEN: Final = "rich"


def _without(name: str) -> ModuleType:
    modules: dict[str, Any] = sys.modules  # None is how Python says that there is none
    was, modules[name] = modules.get(name), None
    try:
        import structlog
    finally:
        del modules[name]
        if was is not None:
            modules[name] = was
    return structlog


structlog: Final = _without(_HIDDEN)
