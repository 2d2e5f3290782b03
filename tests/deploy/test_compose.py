"""compose.yaml: its commands parse, its settings are valid, its files are there, and all wait for what they need."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumer.settings import Role, load_settings
from tests.deploy.policies import DEFAULT_HANDLER_S, ROLES, stop_takes_s
from tests.support.checkout.commands import is_command
from tests.support.tools import need_program

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: one for name, one in SERVICES.items() if one["image"].startswith("payments-consumer:")}


def test_it_is_the_whole_system() -> None:
    commands = [one["command"][0] for one in OURS.values()]
    assert sorted(commands) == ["console", "db", "sandbox", "serve", "sync", "sync", "work", "work"]
    assert {"kafka", "postgres", "prometheus", "grafana"} <= set(SERVICES)


def test_status_misses_every_role() -> None:
    roles = {one["command"][0] for one in OURS.values()} - {"db", "sandbox"}
    expected = [one["environment"]["CONSUMER_EXPECT"].split(",") for one in OURS.values() if "environment" in one]
    assert all(set(one) == roles for one in expected)


@pytest.mark.parametrize("name", OURS)
def test_every_command_parses(name: str) -> None:
    assert is_command(OURS[name]["command"])


@pytest.mark.parametrize("name", [name for name, one in OURS.items() if "environment" in one])
def test_every_setting_is_valid(name: str) -> None:
    """As the role gets them, secrets read from the very files."""
    one = OURS[name]
    role = {"db": Role.OPERATE}.get(one["command"][0]) or Role(one["command"][0])
    files = {f"/run/secrets/{secret}": str(DEPLOY / about["file"]) for secret, about in COMPOSE["secrets"].items()}
    given = {key: files.get(value, value) for key, value in one["environment"].items()}
    assert {value for value in one["environment"].values() if value.startswith("/run/secrets/")} <= {
        f"/run/secrets/{secret}" for secret in one["secrets"]
    }
    load_settings(given | {"CONSUMER_HOST": "0.0.0.0", "CONSUMER_INTERNAL_HOST": "0.0.0.0"}, role)


def test_each_role_says_whether_it_lives_where_the_image_has_no_health_check() -> None:
    """An OCI image has none."""
    [written] = re.findall(r"(?s)HEALTHCHECK [^\[]*CMD (\[.*?\])\n", (DEPLOY / "Dockerfile").read_text())
    asked = [one["healthcheck"]["test"] for one in OURS.values() if one["command"][0] in ROLES]
    assert asked == [["CMD", *json.loads(written)]] * 6


def test_nothing_is_killed_before_it_has_ended_nor_cut_off_within_a_handlers_time() -> None:
    for name, one in OURS.items():
        given = {key: value for key, value in one.get("environment", {}).items() if re.search("LINGER|DRAIN", key)}
        settings = load_settings(given, Role.OPERATE)
        grace_s = float(one["stop_grace_period"].removesuffix("s"))
        assert grace_s >= stop_takes_s(settings.linger_s, settings.drain_s), name
        assert one["command"][0] not in ROLES or settings.drain_s >= DEFAULT_HANDLER_S, name


def test_everything_is_pinned_bounded_to_the_loopback_and_waits_for_what_it_needs() -> None:
    for name, one in SERVICES.items():
        assert one["image"].rpartition(":")[2] not in ("", "latest"), name
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", [])), name
        for other, condition in one.get("depends_on", {}).items():
            assert other in SERVICES
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], f"{name} waits for the health of {other}"
    for one in OURS.values():
        assert one["read_only"]
        assert one["cap_drop"] == ["ALL"]
    for role in ("serve", "work-1", "work-2", "sync-1", "sync-2", "console"):
        assert OURS[role]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_what_is_kept_is_kept_together() -> None:
    """The ledger, the log and the simulator's state: one of them old beside another that is new is a fault."""
    kept = {name: next(iter(one.get("volumes", [""]))).split(":") for name, one in SERVICES.items()}
    volumes = [kept[name][0] for name in ("postgres", "kafka", "sandbox")]
    assert sorted(volumes) == sorted(COMPOSE["volumes"])
    assert SERVICES["kafka"]["environment"]["KAFKA_LOG_DIRS"] == kept["kafka"][1]
    command = SERVICES["sandbox"]["command"]
    assert command[command.index("--data") + 1].startswith(f"{kept['sandbox'][1]}/")


def test_every_file_it_mounts_is_there() -> None:
    for one in SERVICES.values():
        for volume in one.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_dir()


def test_prometheus_takes_its_configuration_and_asks_every_process() -> None:
    promtool = need_program("promtool", "Debian's package prometheus")
    path = DEPLOY / "prometheus" / "prometheus.yml"
    done = subprocess.run([promtool, "check", "config", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    targets = set(yaml.safe_load(path.read_text())["scrape_configs"][0]["static_configs"][0]["targets"])
    told = {
        ("sandbox" if "network_mode" in one else name) + ":" + one["environment"].get("CONSUMER_INTERNAL_PORT", "9090")
        for name, one in OURS.items()
        if one["command"][0] in ("serve", "work", "sync", "console")
    }
    assert targets == told
