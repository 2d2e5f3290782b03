"""deploy/runbooks and commands.md: each runbook tells meaning, impact, diagnosis and cure, every command in it is
one of ours, and where it is typed has what it needs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import KUBERNETES, Manifest, render
from tests.deploy.policies import COMPONENT, pod, role_container
from tests.support.checkout.commands import is_command

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PAGE = (DEPLOY / "commands.md").read_text()
ALIASES = [shlex.split(line)[0] for line in re.findall(r"alias consumer=(.+)", PAGE)]
RUNBOOKS = sorted((DEPLOY / "runbooks").glob("*.md"))


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_it_tells_what_it_must(path: Path) -> None:
    text = path.read_text()
    told = [text.find(f"**{word}.**") for word in ("Meaning", "Impact", "Diagnosis", "Cure")]
    assert -1 not in told
    assert told == sorted(told)
    commands = [*re.findall(r"(?m)^    consumer (.+)$", text), *re.findall(r"`consumer ([^`]+)`", text)]
    assert commands
    assert [line for line in commands if not is_command([one for one in shlex.split(line) if one != "--help"])] == []
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (path.parent / link).exists(), link


def test_the_pod_they_are_typed_in_may_reach_the_log_the_database_and_the_service() -> None:
    [words] = [shlex.split(one) for one in ALIASES if one.startswith("kubectl")]
    rendered = render(KUBERNETES / "overlays" / "production")
    kind, _, name = next(word for word in words if "/" in word).partition("/")
    assert kind == "deploy"
    target = _named(rendered, "Deployment", name)
    assert (words[words.index("-n") + 1], words[words.index("-c") + 1]) == (
        target["metadata"]["namespace"],
        role_container(target)["name"],
    )
    job = _named(rendered, "CronJob", *re.findall(r"--from=cronjob/(\S+)", PAGE))
    assert is_command(json.loads(re.findall(r"args = (\[.*?\])", PAGE)[0]))
    for one in (target, job):
        component = pod(one)["metadata"]["labels"][COMPONENT]
        opened = {
            policy["metadata"]["name"]
            for policy in rendered
            if policy["kind"] == "NetworkPolicy"
            for rule in policy["spec"]["podSelector"].get("matchExpressions", [])
            if component in rule["values"]
        }
        assert opened == {"consumer-log", "consumer-database", "consumer-service"}
        assert {"SVC_APP_SECRET_FILE", "CONSUMER_DATABASE_URL_FILE"} <= _variables(one)


def test_what_is_stopped_is_there() -> None:
    rendered = render(KUBERNETES / "overlays" / "production")
    scaled = set(re.findall(r"annotate scaledobject (\S+) ", PAGE))
    assert {one["metadata"]["name"] for one in rendered if one["kind"] == "ScaledObject"} == scaled
    for name in re.findall(r"deploy/([a-z-]+)", PAGE.partition("## Stop")[2]):
        assert _named(rendered, "Deployment", name)["spec"]["replicas"] == 2  # as it is started again


def test_systemd_and_compose_run_the_program_that_their_units_and_services_run() -> None:
    unit = (DEPLOY / "systemd" / "consumer@.service").read_text()
    [words] = [shlex.split(one) for one in ALIASES if one.startswith("systemd-run")]
    for given in [words[place + 1] for place, word in enumerate(words) if word == "-p"]:
        assert f"\n{given}\n" in unit
    assert f"ExecStart={words[-1]} " in unit
    [words] = [shlex.split(one) for one in ALIASES if one.startswith("docker")]
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services[words[-2]]["command"] == ["sync"]


def test_the_audit_trail_names_who_types_and_not_whom_the_program_runs_as() -> None:
    # case: G12
    assert [re.findall(r'LOGNAME="([^"]+)"', one) for one in ALIASES] == [["$USER"], ["${SUDO_USER:-$USER}"], ["$USER"]]
    for alias in ALIASES:
        environ = {"PATH": os.environ["PATH"], "USER": "ada"}
        words = ["sh", "-c", f"set -- {alias}; printf '%s\\n' \"$@\""]
        assert "LOGNAME=ada" in subprocess.run(words, env=environ, capture_output=True, text=True).stdout.splitlines()


def test_every_runbook_and_every_way_names_the_page() -> None:
    assert [path.name for path in RUNBOOKS if "(../commands.md)" not in path.read_text()] == []
    for name in ("README.md", "kubernetes.md", "systemd.md"):
        assert "(commands.md)" in (DEPLOY / name).read_text()


def test_the_namespace_is_there_before_its_secrets_and_the_image_has_a_registry() -> None:
    page = (DEPLOY / "kubernetes.md").read_text()
    assert (
        page.index("newName:") < page.index("apply -f overlays/production/namespace.yaml") < page.index("create secret")
    )
    assert _kinds(KUBERNETES / "overlays/production/namespace.yaml") == ["Namespace"]


def _named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return next(one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name))


def _variables(one: Manifest) -> set[str]:
    return {variable["name"] for variable in role_container(one)["env"]}


def _kinds(path: Path) -> list[str]:
    return [one["kind"] for one in yaml.safe_load_all(path.read_text())]
