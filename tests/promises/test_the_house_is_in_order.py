"""The house: a stranger finds the place of a change from folders, files and a page each; and what the pages say is so.

No floor has many files; every README is short, in short sentences, and its map names each file; the tests it cites are
there; the ways through the code in `consumer/README.md` lead through functions that exist."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from tests import heavy

ROOT = Path(__file__).resolve().parents[2]

FILES_MOST = 20
FILES_WANTED = 12
CROWDED = {
    "consumer/decisions",  # a shelf of records
    "consumer/payments",
    "consumer/sandbox/engine",  # a file per noun of the service
    "consumer/testing",
    "tests/contract/ledger/handling",  # a promise a file, of the tables that every role writes
    "tests/promises",
    "tests/sync",
}
"""Floors with more files than are wanted. Nothing may be added here without a reason."""

WORDS_MOST = 700
MEAN_SENTENCE_MOST = 18.0
CELL_WORDS_MOST = 40
"""A cell that says more is text, or two rows."""

CLASS_LINES_MOST = 200
SYNC = ("sync", "lists", "runtime", "checks")
"""What reads the service, and what it stands on."""

OF_TESTS_ONLY = {
    "chaos", "contract", "crash", "deploy", "drills", "faults", "hostile", "mutants", "promises",  # through the whole
    "simulation",  # two workers on one loop
    "payments/against_sandbox", "payments/budget", "payments/writes", "receive/refused", "receive/telling",
    "sandbox/pages",
    "work/execution/blocking", "work/loading", "work/telling",  # rooms for one floor's files
}  # fmt: skip
"""Folders of tests that mirror none of the code's, and why (decision 24)."""

SQL_FROM = ("sqlalchemy", "sqlmodel", "consumer.columns")
SAYS_SQL = {"select", "text", "union", "union_all", "exists", "values", "bindparam"}
WRITES_SQL = {"insert", "update", "delete", "insert_into"}
MAY_READ = {
    "consumer/console": "its questions are about the ledger's tables and a plugin's; only a face knows both",
    "consumer/testing": "the tables of the plugin under test",
    "consumer/work/execution/savepoint.py": "whether a transaction still takes statements",
}
MAY_WRITE = {
    "consumer/ledger": "its own tables",
    "consumer/columns.py": "an insert on both databases",
    "consumer/plugin": "what a plugin writes with, and sends often",
    "consumer/testing/onwards.py": "a due time comes sooner",
    "handlers": "a plugin's own tables",
}
"""Who may hold SQL, and why (decision 23)."""

ROOTS = ("consumer", "handlers")
UNNAMED = {"__init__.py", "__main__.py", "py.typed"}
TABLE_HEAD = re.compile(r"\|.*\n\|(?: ?:?-+:? ?\|)+")
STEP = re.compile(r"^\d+\. `([^`]+)` `([^`]+)`: ", re.MULTILINE)


@cache
def files() -> tuple[PurePosixPath, ...]:
    """Every file of the repository (and new ones that are not ignored)."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return tuple(PurePosixPath(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file())


def readmes() -> list[str]:
    return [str(path) for path in files() if path.name == "README.md"]


def prose(text: str) -> Iterator[str]:
    """The lines that are read as text: no tables, no code, no comments."""
    text = re.sub(r"<!--.*?-->", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.DOTALL)
    return (line for line in text.splitlines() if not line.startswith(("|", "    ")))


def sentences(text: str) -> list[str]:
    """A heading is none; a paragraph and an item of a list end one."""
    blocks: list[list[str]] = [[]]
    for line in prose(text):
        is_heading = line.startswith("#")
        if is_heading or not line.strip() or re.match(r"\s*([-*]|\d+\.) ", line):
            blocks.append([])
        if not is_heading:
            blocks[-1].append(line)
    found = [part for block in blocks for part in re.split(r"(?<=[.!?])\s+", " ".join(block))]
    return [part for part in found if re.search(r"\w", part)]


def test_no_floor_has_many_files() -> None:
    counted = Counter(
        str(path.parent)
        for path in files()
        if path.parts[0] in ("consumer", "handlers", "tests")
        and path.name not in UNNAMED | {"README.md", "conftest.py"}
        and "migrations" not in path.parts
    )
    assert {floor for floor, count in counted.items() if count > FILES_MOST} == set()
    assert {floor for floor, count in counted.items() if count > FILES_WANTED} <= CROWDED


@pytest.mark.parametrize("path", readmes())
def test_a_page_is_short_and_so_are_its_sentences(path: str) -> None:
    text = (ROOT / path).read_text()
    words = sum(len(line.split()) for line in prose(text))
    told = sentences(text)
    assert words <= WORDS_MOST
    assert sum(len(sentence.split()) for sentence in told) / len(told) <= MEAN_SENTENCE_MOST


def test_the_map_of_each_page_names_each_file() -> None:
    homes = {PurePosixPath(path).parent for path in readmes()}
    missing: dict[str, list[str]] = {}
    for path in files():
        if path.suffix != ".py" or path.parts[0] not in ("consumer", "handlers") or path.name in UNNAMED:
            continue
        if {"migrations", "template"} & set(path.parts):
            continue  # numbered, and the template of another package
        home = next(parent for parent in path.parents if parent in homes)
        if f"{path.name}`" not in (ROOT / home / "README.md").read_text():
            missing.setdefault(str(home), []).append(str(path.relative_to(home)))
    assert missing == {}


@pytest.mark.parametrize("path", [str(path) for path in files() if path.suffix == ".md"])
def test_every_table_has_its_head(path: str) -> None:
    """A blank line in a table makes text of what follows."""
    text = re.sub(r"```.*?```", "", (ROOT / path).read_text(), flags=re.DOTALL)
    tables = re.findall(r"(?m)(?:^\|.*\n)+", f"{text}\n")
    assert [table for table in tables if not TABLE_HEAD.match(table)] == []


@pytest.mark.parametrize("path", readmes())
def test_a_cell_of_a_table_is_no_text(path: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / path).read_text(), flags=re.DOTALL)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert [cell for cell in cells if len(cell.split()) > CELL_WORDS_MOST] == []


def test_no_class_of_sync_is_long() -> None:
    long = [
        f"{path}: {node.name}"
        for path in files()
        if any(path.is_relative_to(f"consumer/{floor}") for floor in SYNC) and path.suffix == ".py"
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= CLASS_LINES_MOST
    ]
    assert long == []


def test_a_folder_of_tests_mirrors_one_of_the_code() -> None:
    folders = {str(path.parent.relative_to("tests")) for path in files() if re.match(r"tests/.*/test_", str(path))}
    code = {str(parent) for path in files() for parent in path.parents}
    odd = {one for one in folders if not code & {f"{root}/{one.removeprefix('contract/')}" for root in ROOTS}}
    assert {one for one in odd if not any(PurePosixPath(one).is_relative_to(room) for room in OF_TESTS_ONLY)} == set()
    assert OF_TESTS_ONLY - odd == set(), "these mirror one now, or are gone"


def test_sql_stands_where_a_decision_says() -> None:
    may = dict.fromkeys(MAY_READ, SAYS_SQL) | dict.fromkeys(MAY_WRITE, SAYS_SQL | WRITES_SQL)
    strays = []
    for path in files():
        if path.suffix != ".py" or path.parts[0] not in ("consumer", "handlers"):
            continue
        allowed = [words for place, words in may.items() if path.is_relative_to(place)]
        strays += [f"{path}: {word}" for word in sorted(sql_of(path) - set().union(*allowed))]
    assert strays == []


def sql_of(path: PurePosixPath) -> set[str]:
    """The words of SQL that a file imports."""
    return {
        name.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(SQL_FROM)
        for name in node.names
        if name.name in SAYS_SQL | WRITES_SQL
    }


def test_every_test_that_a_page_cites_is_there() -> None:
    cited = {
        (page, name)
        for page in readmes()
        for name in re.findall(r"`(tests/[\w/]+(?:\.py|/))`", (ROOT / page).read_text())
    }
    assert len(cited) > 50, "the pages say what proves their promises"
    assert [found for found in sorted(cited) if not (ROOT / found[1]).exists()] == []


def test_every_heavy_test_is_there() -> None:
    assert [path for path in heavy.FIRST if not (ROOT / path).exists()] == []
    for name in heavy.names():
        path, test, *_ = name.split("::")
        assert re.search(rf"^(async def |def |class )?{test}\b", (ROOT / path).read_text(), re.MULTILINE), name


def test_the_three_ways_lead_through_functions_that_exist() -> None:
    page = (ROOT / "consumer" / "README.md").read_text()
    ways = page.partition("## Three ways through the code")[2].partition("\n## ")[0].split("\n\n1. ")[1:]
    assert [len(STEP.findall(f"1. {way}")) for way in ways] == [10, 10, 10]
    steps = [step for way in ways for step in STEP.findall(f"1. {way}")]
    assert [step for step in steps if step[1] not in defined_in(step[0])] == []


def test_the_way_of_many_hints_leads_through_functions_that_exist() -> None:
    page = (ROOT / "consumer" / "sync" / "README.md").read_text()
    way = STEP.findall(page.partition("## The way of many hints")[2].partition("\n## ")[0])
    assert len(way) == 10
    assert [step for step in way if step[1] not in defined_in(step[0])] == []


def test_the_questions_of_a_newcomer_are_answered_by_names_that_exist() -> None:
    page = (ROOT / "consumer" / "README.md").read_text()
    table = page.partition("## Where would you look?")[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if "?" in row.partition(" | ")[0]]
    answers = [re.findall(r"`([^`]+\.py)` `([^`]+)`", row.partition(" | ")[2]) for row in rows]
    assert len(rows) >= 10
    assert all(answers), "each is answered by a place and a name"
    assert [one for answer in answers for one in answer if one[1] not in defined_in(one[0])] == []


def test_every_file_that_the_package_page_names_is_there() -> None:
    page = (ROOT / "consumer" / "README.md").read_text()
    places = re.findall(r"`([\w/]+/[\w/]+\.py)`", page)
    assert len(places) > 30
    assert [place for place in places if not found(place).is_file()] == []


def found(place: str) -> Path:
    """A place that a page names: from the package, or from the repository."""
    inside = ROOT / "consumer" / place
    return inside if inside.exists() else ROOT / place


def defined_in(place: str) -> set[str]:
    """The names of a file's constants, functions and classes, and of their methods as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(found(place).read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {one.id for one in targets if isinstance(one, ast.Name)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {f"{node.name}.{one.name}" for one in inner}
    return names
