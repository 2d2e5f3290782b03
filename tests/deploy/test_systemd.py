"""systemd: the units are valid, their commands parse, their settings are valid, and a role gets the time it drains."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest

from consumer.settings import Role, load_settings
from tests.deploy.policies import DEFAULT_HANDLER_S, stop_takes_s
from tests.support.checkout.commands import is_command
from tests.support.tools import need_program

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
PAGE = UNITS.with_suffix(".md").read_text()
SECRETS = {
    "app-secret": "svc_sk_live_x",
    "database-url": "postgresql+asyncpg://u:p@db/c",
    "api-token": "t" * 32,
    "users": (UNITS.parent / "kubernetes" / "overlays" / "dev" / "users").read_text(),
}
PROGRAM = "/opt/consumer/current/bin/consumer"
INSTANCES = sorted(path.stem for path in (UNITS / "env").glob("*.env") if path.stem != "consumer")


def test_systemd_takes_them(tmp_path: Path) -> None:
    analyze = need_program("systemd-analyze", "Debian's package systemd")
    program = tmp_path / "consumer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for path in UNITS.glob("*.*"):
        (tmp_path / path.name).write_text(path.read_text().replace(PROGRAM, str(program)))
    names = ["consumer.target", "consumer-reconcile.timer", *(f"consumer@{name}.service" for name in INSTANCES)]
    done = subprocess.run(
        [analyze, "verify", "--man=no", *(str(tmp_path / name) for name in names)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    about_ours = [line for line in done.stderr.splitlines() if "consumer" in line]
    assert (done.returncode, about_ours) == (0, []), done.stderr


@pytest.mark.parametrize("name", INSTANCES)
def test_each_process_has_a_role_a_port_of_its_own_and_valid_settings(name: str, tmp_path: Path) -> None:
    own = settings_of(name)
    role = own.pop("ROLE")
    words = given("consumer@.service", "ExecStart")
    assert words.split()[-1] == "$ROLE"  # as words: it may be `serve --processes 4`, which ${ROLE} would make one of
    assert is_command(words.replace("$ROLE", role).split()[1:])
    ports = [settings_of(other)["CONSUMER_INTERNAL_PORT"] for other in INSTANCES]
    assert ports.count(own["CONSUMER_INTERNAL_PORT"]) == 1
    for secret, value in SECRETS.items():
        (tmp_path / secret).write_text(value)
        (tmp_path / secret).chmod(0o600)
    given_to_it = settings_of("consumer") | own
    settings = load_settings(
        {key: value.replace("/etc/consumer/secrets", str(tmp_path)) for key, value in given_to_it.items()}, Role(role)
    )
    assert role != "console" or (settings.console_users and settings.api_token), "everybody on the machine may act"
    assert float(given("consumer@.service", "TimeoutStopSec")) >= stop_takes_s(settings.linger_s, settings.drain_s)
    assert settings.drain_s >= DEFAULT_HANDLER_S, "a stop would cut off what a handler does within its time"


def test_the_target_starts_what_has_settings() -> None:
    wanted = given("consumer.target", "Wants").split()
    assert sorted(wanted) == [f"consumer@{name}.service" for name in INSTANCES]


def test_status_misses_every_role() -> None:
    roles = {settings_of(name)["ROLE"] for name in INSTANCES}
    assert set(settings_of("consumer")["CONSUMER_EXPECT"].split(",")) == roles


def test_a_failed_migration_is_tried_again_and_keeps_no_webhook_out() -> None:
    text = (UNITS / "consumer-migrate.service").read_text()
    assert given("consumer-migrate.service", "Restart") == "on-failure"
    assert float(given("consumer-migrate.service", "RestartSec")) >= 5
    assert given("consumer-migrate.service", "StartLimitIntervalSec") == "0"
    assert text.index("StartLimitIntervalSec=") < text.index("[Service]")
    before = given("consumer-migrate.service", "Before").split()
    assert sorted(before) == [f"consumer@{name}.service" for name in INSTANCES if name != "serve"]
    for unit in ("consumer@.service", "consumer-reconcile.service"):
        text = (UNITS / unit).read_text()
        assert ("\nWants=consumer-migrate.service\n" in text, "\nRequires=" in text) == (True, False)
    afters = re.findall(r"^After=(.*)$", (UNITS / "consumer@.service").read_text(), re.MULTILINE)
    assert "consumer-migrate.service" not in " ".join(afters).split()


@pytest.mark.parametrize("unit", ["consumer-migrate.service", "consumer-reconcile.service"])
def test_the_other_commands_parse(unit: str) -> None:
    assert is_command(given(unit, "ExecStart").split()[1:])


def test_a_release_migrates_first_and_then_replaces_every_process() -> None:
    [line] = re.findall(r"(?m)^    (systemctl restart .+)$", PAGE)
    names = re.findall(r"for name in ([^;]+);", line)[0].split()
    assert sorted(names) == INSTANCES
    assert line.startswith("systemctl restart consumer-migrate && for name in serve ")


# case: O8
@pytest.mark.slow
def test_what_runs_goes_on_with_the_files_it_was_started_from(tmp_path: Path) -> None:
    """The lines of the page, with a program that imports a part of itself late."""
    _release("1", tmp_path)
    program = tmp_path / "consumer" / "current" / "bin" / "consumer"
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runs:
        assert runs.stdout is not None
        assert runs.stdout.readline() == "1\n"
        _release("2", tmp_path)
        assert runs.communicate("go on", timeout=60)[0] == "1\n"
    assert subprocess.run([program], input="go on", capture_output=True, text=True, timeout=60).stdout == "2\n2\n"


def _release(version: str, folder: Path) -> None:
    """Install the program as the page says."""
    wheel = folder / f"program-{version}-py3-none-any.whl"
    about = f"program-{version}.dist-info"
    files = {
        "early.py": f"def main():\n print({version}, flush=True)\n input()\n import late\n print(late.VERSION)\n",
        "late.py": f"VERSION = {version}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: program\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\nconsumer = early:main\n",
        f"{about}/RECORD": "",
    }
    with ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    lines = re.findall(r"(?m)^    (release=.+(?:\n    .+)*)$", PAGE)[0].replace("\n    ", "\n")
    lines = lines.replace("/opt/consumer/0.1.0", f"/opt/consumer/{version}").replace("/opt/", f"{folder}/")
    lines = re.sub(r"(?m)^(\$release/bin/pip install) .*$", rf"\1 -q --no-index --no-deps {wheel}", lines)
    assert lines.count(str(wheel)) == 2
    subprocess.run(["bash", "-euc", lines], check=True, timeout=300)


def given(unit: str, name: str) -> str:
    """What a unit says of this name."""
    [value] = re.findall(rf"^{name}=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)
    return str(value)


def settings_of(name: str) -> dict[str, str]:
    """An environment file, as systemd reads it."""
    lines = (UNITS / "env" / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
