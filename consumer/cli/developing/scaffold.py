"""Scaffold: writes a handler package from `handlers/template` (`consumer handlers new NAME`)."""

from __future__ import annotations

import hashlib
import keyword
import re
import sys
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from consumer.errors import UsageError
from consumer.work.registry import GROUP

TEMPLATE = "handlers.template"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*\Z")
NAME_MAX_CHARS = 50
REVISION_MAX_CHARS = 32
_FIRST = "_0001"


def write_package(name: str, into: Path, *, consumer: str, tables: bool = False) -> list[Path]:
    """Write the package `name` into the new folder `into / name`; returns the files. Raises UsageError.

    With `tables`, its handler is transactional and has a table and a branch of migrations of its own. `consumer`: what
    its dependency on the consumer is (see `provenance`).
    """
    package = package_name(name)
    folder = into / name
    if folder.exists():
        raise UsageError("there is something of that name already", path=str(folder))
    files_of = _with_tables if tables else _with_an_effect
    words = {"name": name, "package": package, "plugin": package, "requirement": consumer}
    contents = {folder / path: text for path, text in files_of(package, words).items()}
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the package cannot be written: {error.strerror}", path=str(folder)) from error
    return list(contents)


def _with_an_effect(package: str, words: dict[str, str]) -> dict[str, str]:
    return {
        ".github/workflows/test.yml": _template("ci.yml"),
        "pyproject.toml": _filled(_template("package.toml"), words),
        "README.md": _filled(_template("package.md"), words),
        f"{package}/__init__.py": _introduction(package),
        f"{package}/py.typed": "",
        f"{package}/handler.py": _renamed(_template("handler.py"), package),
        "tests/test_handler.py": _renamed(_template("tests/test_handler.py"), package),
    }


def _with_tables(package: str, words: dict[str, str]) -> dict[str, str]:
    words = words | {"revision": revision_id(package)}
    return {
        ".github/workflows/test.yml": _template("ci.yml"),
        "pyproject.toml": _filled(_template("package.toml") + _template("tables.toml"), words),
        "README.md": _filled(_template("tables.md"), words),
        f"{package}/__init__.py": _introduction(package),
        f"{package}/py.typed": "",
        f"{package}/handler.py": _renamed(_template("projection.py"), package),
        f"{package}/tables.py": _renamed(_template("tables.py"), package),
        f"{package}/migrations/__init__.py": _renamed(_template("migrations/__init__.py"), package),
        f"{package}/migrations/versions/0001_{package}.py": _renamed(
            _template("migrations/versions/0001_template.py"), package
        ),
        "tests/test_handler.py": _renamed(_template("tests/test_projection.py"), package),
    }


def package_name(name: str) -> str:
    """The Python package of a distribution called `name`. Raises UsageError when it cannot be one."""
    if len(name) > NAME_MAX_CHARS or not _NAME.match(name):
        raise UsageError("a name is lower case letters, digits, '-' and '_', and begins with a letter", given=name[:60])
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or package in sys.stdlib_module_names or find_spec(package) is not None:
        raise UsageError("a Python module of that name exists already", given=package)
    if package in {entry.name for entry in entry_points(group=GROUP)}:
        raise UsageError("a plugin of that name is installed already", given=package)
    return package


def revision_id(package: str) -> str:
    """The id of the package's first revision: at most 32 characters, since that is what Alembic's table holds."""
    if len(package) + len(_FIRST) <= REVISION_MAX_CHARS:
        return package + _FIRST
    mark = "_" + hashlib.sha256(package.encode()).hexdigest()[:8]
    return package[: REVISION_MAX_CHARS - len(mark) - len(_FIRST)] + mark + _FIRST


def _template(file: str) -> str:
    return files(TEMPLATE).joinpath(file).read_text(encoding="utf-8")


def _introduction(package: str) -> str:
    return f'"""A handler for payments-consumer: see `{package}/handler.py`."""\n'


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace("{" + word + "}", value)
    return text


def _renamed(text: str, package: str) -> str:
    """The template's text about a package of that name: imports, names of handlers, tables, revisions."""
    names = {
        f"{TEMPLATE}.projection": f"{package}.handler",
        TEMPLATE: package,
        "template:": f"{package}:",
        "OPTIONS.template": f"OPTIONS.{package}",
        "template_0001": revision_id(package),
        "template_": f"{package}_",
        '("template",)': f'("{package}",)',
        "Template": "".join(part.capitalize() for part in package.split("_")),
    }
    for name, own in names.items():
        text = text.replace(name, own)
    return text
