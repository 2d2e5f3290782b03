"""`handlers new` writes a package that installs beside the consumer; its tests pass, and `consumer dev` runs it."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumer.cli.developing import provenance
from consumer.cli.developing.provenance import requirement, unreachable
from consumer.cli.developing.scaffold import REVISION_MAX_CHARS, revision_id, write_package
from consumer.errors import UsageError
from tests.support.desk import Desk
from tests.support.load import SECRET, paid_orders, send
from tests.support.merchant.environment import install_packages, make_environment
from tests.support.merchant.environment import run_module as run
from tests.support.merchant.terminal import Terminal
from tests.support.merchant.warehouse import Warehouse
from tests.support.ports import eventually
from tests.support.process import ConsumerProcess, ended

NAME, PLUGIN = "shop-shipping", "shop_shipping"
ELSEWHERE = "payments-consumer @ git+https://git.example/consumer@v1"


@pytest.fixture
def python(tmp_path: Path) -> str:
    """The Python of an environment of its own."""
    return make_environment(tmp_path / "environment")


def test_it_shows_where_a_word_to_whoever_is_on_call_goes(tmp_path: Path) -> None:
    write_package(NAME, tmp_path, consumer=ELSEWHERE)
    handler = (tmp_path / NAME / PLUGIN / "handler.py").read_text()
    assert f'name="{PLUGIN}:ship", attempts=8, timeout_s=30, runbook=RUNBOOK)' in handler


# case: H11
@pytest.mark.slow
async def test_written_installed_tested_checked_and_run(tmp_path: Path, python: str) -> None:
    run(python, "consumer", "handlers", "new", NAME, cwd=tmp_path)
    folder = tmp_path / NAME
    install_packages(python, folder)
    assert "5 passed" in run(python, "pytest", "-q", "-p", "no:cacheprovider", str(folder), cwd=tmp_path)
    checked = json.loads(run(python, "consumer", "handlers", "check", "--json", cwd=tmp_path))
    assert f"{PLUGIN}:ship" in checked["handlers"]
    assert checked["problems"] == []
    run(python, "mypy", "--strict", str(folder / PLUGIN), "--cache-dir", str(tmp_path / "types"), cwd=tmp_path)

    environ = {
        "CONSUMER_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path}/ledger.db",
        "CONSUMER_BROKER_URL": f"embedded:{tmp_path}/log.db",
        "CONSUMER_AUTHENTICITY": "signature",
        "CONSUMER_WEBHOOK_SECRETS": SECRET,
        "SVC_BASE_URL": "http://127.0.0.1:9",  # nobody: with a service configured, `dev` starts no sandbox
        "SVC_APP_ID": "svc_app_test",
        "SVC_APP_SECRET": "svc_sk_live_test",
    }
    async with Warehouse() as warehouse:
        environ["CONSUMER_HANDLER_OPTIONS"] = json.dumps({PLUGIN: {"url": warehouse.url}})
        await ships(tmp_path, python, environ)
        assert list(warehouse.parcels.values()) == [1] * 5


async def ships(tmp_path: Path, python: str, environ: dict[str, str]) -> None:
    """`dev` takes five paid orders, and the package's handler ships them."""
    dev = ConsumerProcess("dev", environ, tmp_path, python=python)
    with ended(dev):
        dev.spawn()
        await dev.ready()
        await send(f"{dev.addresses['public_url']}/webhooks/default", paid_orders(5, 2))

        def shipped() -> bool:
            listed = run(python, "consumer", "events", "list", "--handler", f"{PLUGIN}:ship", "--status", "succeeded",
                         "--json", cwd=tmp_path, environ=environ)  # fmt: skip
            return len(json.loads(listed)["events"]) == 5

        await eventually(shipped, within_s=60, every_s=0.5)


# case: H11
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_ci_example_of_the_package_is_green(tmp_path: Path) -> None:
    """Its steps, as they are written; what they would fetch is there already."""
    terminal = Terminal(tmp_path)
    terminal.types(f"consumer handlers new {NAME}")
    terminal.folder = tmp_path / NAME
    workflow = yaml.safe_load((terminal.folder / ".github" / "workflows" / "test.yml").read_text())
    steps = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert len(steps) == 3
    told = [terminal.types(step) for step in steps]
    assert "5 passed" in told[1]
    assert "0 problem(s)" in told[2]


# case: H11
def test_the_consumer_is_an_explicit_reference_that_nobody_else_can_claim(tmp_path: Path) -> None:
    write_package("shop-mails", tmp_path, consumer=ELSEWHERE)
    said = tomllib.loads((tmp_path / "shop-mails" / "pyproject.toml").read_text())["project"]
    assert said["dependencies"] == [], "beside the consumer nothing of it is touched"
    assert ELSEWHERE in said["optional-dependencies"]["test"]
    write_package("shop-points", tmp_path, consumer=requirement())
    own = tomllib.loads((tmp_path / "shop-points" / "pyproject.toml").read_text())["project"]
    assert not {"payments-consumer"} & set(own["optional-dependencies"]["test"]), "a name alone is anybody's"


def test_names_that_cannot_be_are_refused(tmp_path: Path) -> None:
    taken = ("json", "class", "consumer", "fulfilment", "access")
    for name in (*taken, "Shop", "1shop", "shop--ping", "../shop", "a" * 51):
        with pytest.raises(UsageError):
            write_package(name, tmp_path, consumer=ELSEWHERE)
        with pytest.raises(UsageError):
            write_package(name, tmp_path, consumer=ELSEWHERE, tables=True)
    assert not list(tmp_path.iterdir())


def test_ids_of_revisions_fit_into_alembics_table_and_differ() -> None:
    """PostgreSQL refuses one of more than 32 characters; SQLite would not notice."""
    assert revision_id("shop_sales") == "shop_sales_0001"
    long = [revision_id("a" * 40 + suffix) for suffix in ("", "b", "c")]
    assert len(set(long)) == 3
    assert {len(one) for one in long} == {REVISION_MAX_CHARS}


class Origin:
    """An installed consumer that came from there."""

    def __init__(self, direct_url: dict[str, Any] | None) -> None:
        self._told = None if direct_url is None else json.dumps(direct_url)

    def read_text(self, _: str) -> str | None:
        return self._told


def came_from(monkeypatch: pytest.MonkeyPatch, direct_url: dict[str, Any] | None) -> None:
    monkeypatch.setattr(provenance, "distribution", lambda _: Origin(direct_url))


def test_a_package_never_refers_to_the_consumer_by_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may claim a name on an index; so where nothing tells where this one came from, it has to be said."""
    came_from(monkeypatch, None)
    with pytest.raises(UsageError, match="--consumer"):
        requirement()
    came_from(monkeypatch, {"url": "https://git.example/c.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}})
    assert requirement() == "payments-consumer @ git+https://git.example/c.git@abc"


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=A", "-c", "user.email=a@shop.example", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *author, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


# case: H11
@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://shop:s3cret@git.example/shop/consumer.git", "git+https://git.example/shop/consumer.git"),
        ("git@git.example:shop/consumer.git", "git+ssh://git@git.example/shop/consumer.git"),
        ("ssh://git@git.example:2222/consumer.git", "git+ssh://git@git.example:2222/consumer.git"),
        ("/srv/consumer.git", None),
    ],
)
def test_a_clone_is_referred_to_by_what_a_ci_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: str, address: str | None
) -> None:
    """By its remote and commit once that was pushed; before, a warning says that only this machine can follow it."""
    clone, bare = tmp_path / "a clone", tmp_path / "bare.git"
    clone.mkdir()
    git(tmp_path, "init", "--bare", str(bare))
    git(clone, "init")
    git(clone, "commit", "--allow-empty", "-m", "one")
    git(clone, "remote", "add", "origin", str(bare))
    came_from(monkeypatch, {"url": clone.as_uri(), "dir_info": {"editable": True}})
    local = f"payments-consumer @ {clone.as_uri()}"
    assert requirement() == local
    assert "a CI cannot reach file:///" in (unreachable(local) or "")

    git(clone, "push", "origin", "HEAD:main")
    git(clone, "remote", "set-url", "origin", remote)
    commit = git(clone, "rev-parse", "HEAD")
    assert requirement() == (f"payments-consumer @ {address}@{commit}" if address else local)
    assert "s3cret" not in requirement()
    assert (unreachable(requirement()) is None) is (address is not None)
    git(clone, "commit", "--allow-empty", "-m", "two")
    assert requirement() == local, "what was not pushed is nowhere else"


def test_the_command_warns_of_what_only_this_machine_can_follow(tmp_path: Path) -> None:
    done = Desk({}).ask(
        "handlers", "new", NAME, "--into", str(tmp_path), "--consumer", "payments-consumer @ file:///srv/consumer.whl"
    )
    assert "payments-consumer @ file:///srv/consumer.whl" in (tmp_path / NAME / "pyproject.toml").read_text()
    assert "payments-consumer @ file:///srv/consumer.whl" in (tmp_path / NAME / "README.md").read_text()
    assert "--consumer 'payments-consumer @ git+https://" in done["warnings"][0]
    done = Desk({}).ask("handlers", "new", "shop-mails", "--into", str(tmp_path), "--consumer", ELSEWHERE)
    assert done["warnings"] == []
    assert "a CI cannot reach" in (unreachable("payments-consumer @ git+file://localhost/srv/consumer@abc") or "")
