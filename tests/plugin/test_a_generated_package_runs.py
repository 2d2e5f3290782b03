"""`handlers new` writes a package that installs beside the consumer; its tests pass, and `consumer dev` runs it."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from consumer.cli.scaffold import write_package
from consumer.errors import UsageError
from tests.support.load import SECRET, paid_orders, send
from tests.support.ports import eventually
from tests.support.process import INHERITED, ConsumerProcess, ended

NAME, PLUGIN = "shop-shipping", "shop_shipping"


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An environment of its own that sees everything of this one, so that installing changes nothing here."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    inside = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    outside = [*site.getsitepackages(), sysconfig.get_path("purelib")]
    (inside / "outside.pth").write_text("".join(f"import site; site.addsitedir({one!r})\n" for one in set(outside)))
    return str(folder / "bin" / "python")


def run(python: str, *arguments: str, cwd: Path, environ: dict[str, str] | None = None) -> str:
    """Run a module to its end, which must be a good one; what it printed."""
    inherited = {key: os.environ[key] for key in INHERITED if key in os.environ and key != "VIRTUAL_ENV"}
    done = subprocess.run(
        [python, "-m", *arguments], cwd=cwd, env=inherited | (environ or {}), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# case: H11
@pytest.mark.slow
async def test_written_installed_tested_checked_and_run(tmp_path: Path, python: str) -> None:
    run(python, "consumer", "handlers", "new", NAME, cwd=tmp_path)
    folder = tmp_path / NAME
    run(python, "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-e", str(folder), cwd=tmp_path)
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


def test_names_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for name in ("json", "Shop", "1shop", "shop--ping", "class", "../shop", "consumer", "a" * 51):
        with pytest.raises(UsageError):
            write_package(name, tmp_path)
    assert not list(tmp_path.iterdir())
