"""deploy/runbooks and commands.md: each runbook tells meaning, impact, diagnosis and cure, every command in it is
one of ours, and where it is typed has what it needs."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from consumer.console.alarms.queues import KINDS
from tests.deploy.manifests import KUBERNETES, Manifest, render
from tests.deploy.policies import COMPONENT, pod, role_container
from tests.support.checkout.commands import is_command

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PAGE = (DEPLOY / "commands.md").read_text()
DEFINED = re.findall(r"(?m)^    ((?:alias consumer=|consumer\(\) ).+)$", PAGE)
"""What makes `consumer` a command of a shell: in Kubernetes, by systemd, in compose."""
TYPED = ("say", "a word", "--yes")
RUNBOOKS = sorted((DEPLOY / "runbooks").glob("*.md"))


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_it_tells_what_it_must(path: Path) -> None:
    text = path.read_text()
    told = [text.find(f"**{word}.**") for word in ("Meaning", "Impact", "Diagnosis", "Cure")]
    assert -1 not in told
    assert told == sorted(told)
    commands = [*re.findall(r"(?m)^    consumer (.+)$", text), *re.findall(r"`consumer ([^`]+)`", text)]
    assert commands
    assert [line for line in commands if "$" in line] == [], "the shell it is typed in has no variable of a role"
    assert [line for line in commands if not is_command([one for one in shlex.split(line) if one != "--help"])] == []
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (path.parent / link).exists(), link


def test_every_kind_of_finding_has_what_ends_it() -> None:
    rows = re.findall(r"(?m)^\| (`.+?) \|", (DEPLOY / "runbooks" / "findings.md").read_text())
    assert {kind for row in rows for kind in re.findall(r"`(\w+)`", row)} == KINDS


def test_the_pod_they_are_typed_in_may_reach_the_log_the_database_and_the_service(tmp_path: Path) -> None:
    words = _called(DEFINED[0], tmp_path)
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


def test_systemd_and_compose_run_the_program_that_their_units_and_services_run(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd" / "consumer@.service").read_text()
    words = _called(DEFINED[1], tmp_path)
    for given in [words[place + 1] for place, word in enumerate(words) if word == "-p"]:
        assert f"\n{given}\n" in unit
    assert f"ExecStart={words[-1 - len(TYPED)]} " in unit
    words = _called(DEFINED[2], tmp_path)
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services[words[-2 - len(TYPED)]]["command"] == ["sync"]


def test_the_audit_trail_names_who_types_and_not_whom_the_program_runs_as(tmp_path: Path) -> None:
    # case: G12
    assert [re.findall(r'LOGNAME="([^"]+)"', one) for one in DEFINED] == [["$USER"], ["${SUDO_USER:-$USER}"], ["$USER"]]
    for defined in DEFINED:
        assert "LOGNAME=ada" in _called(defined, tmp_path)


def test_who_types_on_a_terminal_can_be_asked_and_a_pipe_gets_what_was_written(tmp_path: Path) -> None:
    """What destroys or repeats asks on a terminal; one in between would change each end of a line of an export."""
    for defined, piped, asked in ((DEFINED[0], "-i", "-it"), (DEFINED[2], "-T", "-t")):
        assert _called(defined, tmp_path)[: -len(TYPED)].count(piped) == 1
        assert _called(defined, tmp_path, on_terminal=True)[: -len(TYPED)].count(asked) == 1
    assert "--pipe" in _called(DEFINED[1], tmp_path)  # it hands on what this shell has


def test_a_second_command_gets_a_pod_of_its_own_too() -> None:
    """A Job cannot be changed."""
    assert 0 < PAGE.find("delete job desk --ignore-not-found") < PAGE.find("create job desk")


def test_a_command_in_a_pod_of_its_own_is_called_once() -> None:
    """The job it is made from is tried again, and was so with what had been refused, or was half done."""
    [made] = [line for line in PAGE.splitlines() if "create job desk" in line]
    assert ".spec.backoffLimit = 0 " in made
    job = _named(render(KUBERNETES / "base"), "CronJob", "consumer-reconcile")["spec"]["jobTemplate"]["spec"]
    assert (pod({"kind": "Job", "spec": job})["spec"]["restartPolicy"], "podFailurePolicy" in job) == ("Never", False)


def test_what_a_command_may_write_there_is_said() -> None:
    """A pod that writes more is evicted, with the role in it."""
    sync = _named(render(KUBERNETES / "base"), "Deployment", "consumer-sync")
    [room] = [one["emptyDir"]["sizeLimit"] for one in pod(sync)["spec"]["volumes"] if one["name"] == "tmp"]
    assert f"`/tmp` holds {room.removesuffix('Mi')} MiB;" in PAGE


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


def _called(defined: str, folder: Path, *, on_terminal: bool = False) -> list[str]:
    """What is called where somebody has typed TYPED into a shell with this definition."""
    for name in ("kubectl", "systemd-run", "docker"):
        (folder / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$WORDS"\n')
        (folder / name).chmod(0o755)
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "USER": "ada", "WORDS": str(folder / "words")}
    script = f"shopt -s expand_aliases\n{defined}\nconsumer {shlex.join(TYPED)}"
    ours, theirs = pty.openpty()
    ends: dict[str, Any] = {"stdin": theirs, "stdout": theirs} if on_terminal else {"stdin": subprocess.DEVNULL}
    try:
        subprocess.run(["bash", "-c", script], env=environ, check=True, timeout=30, **ends)
    finally:
        os.close(ours)
        os.close(theirs)
    words = (folder / "words").read_text().splitlines()
    assert tuple(words[-len(TYPED) :]) == TYPED
    return words


def _named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return next(one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name))


def _variables(one: Manifest) -> set[str]:
    return {variable["name"] for variable in role_container(one)["env"]}


def _kinds(path: Path) -> list[str]:
    return [one["kind"] for one in yaml.safe_load_all(path.read_text())]
