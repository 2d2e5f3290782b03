"""Scaffold: writes a handler package from `handlers/template` (`consumer handlers new NAME`)."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from consumer.errors import UsageError

TEMPLATE = "handlers.template"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*\Z")
NAME_MAX_CHARS = 50


def write_package(name: str, into: Path) -> list[Path]:
    """Write the package `name` into the new folder `into / name`; returns the files. Raises UsageError."""
    package = package_name(name)
    folder = into / name
    if folder.exists():
        raise UsageError("there is something of that name already", path=str(folder))
    template = files(TEMPLATE)
    words = {"name": name, "package": package, "plugin": package}

    def text(file: str) -> str:
        return template.joinpath(file).read_text(encoding="utf-8")

    contents = {
        folder / "pyproject.toml": _filled(text("package.toml"), words),
        folder / "README.md": _filled(text("package.md"), words),
        folder / package / "__init__.py": f'"""A handler for payments-consumer: see `{package}/handler.py`."""\n',
        folder / package / "py.typed": "",
        folder / package / "handler.py": _renamed(text("handler.py"), package),
        folder / "tests" / "test_handler.py": _renamed(text("tests/test_handler.py"), package),
    }
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the package cannot be written: {error.strerror}", path=str(folder)) from error
    return list(contents)


def package_name(name: str) -> str:
    """The Python package of a distribution called `name`. Raises UsageError when it cannot be one."""
    if len(name) > NAME_MAX_CHARS or not _NAME.match(name):
        raise UsageError("a name is lower case letters, digits, '-' and '_', and begins with a letter", given=name[:60])
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or package in sys.stdlib_module_names or find_spec(package) is not None:
        raise UsageError("a Python module of that name exists already", given=package)
    return package


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace("{" + word + "}", value)
    return text


def _renamed(text: str, package: str) -> str:
    return text.replace(TEMPLATE, package).replace("template:", f"{package}:")
