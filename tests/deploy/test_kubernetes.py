"""Kubernetes: overlays and components render, are taken by four minors and the operators, and keep our policies."""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from consumer.app import log_parts
from consumer.broker.kafka.topics import settings_for
from consumer.settings import Role, load_settings
from consumer.settings.table import settings_table
from consumer.telemetry.metrics import Metrics
from consumer.work.registry import load_registry
from tests.deploy.manifests import KUBERNETES, MINORS, Manifest, render, wrong_in
from tests.deploy.policies import (
    DEFAULT_HANDLER_S,
    ROLES,
    WORKLOADS,
    containers,
    pod,
    role_container,
    setting,
    violations,
)
from tests.support.checkout.commands import is_command

COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
OF_THE_LOG = {"consumer-serve", "consumer-work", "consumer-sync", "consumer-reconcile"}
HELD = {
    "CONSUMER_DATABASE_URL_FILE": "postgresql+asyncpg://u:p@db/consumer",
    "CONSUMER_WEBHOOK_SECRETS_FILE": "whsec_" + base64.b64encode(b"k" * 32).decode(),
}
OF_A_TARGET = {"instance", "job", "namespace", "pod", "container"}
"""What Prometheus Operator says of a pod, and rules and panels ask for."""


@pytest.fixture(scope="module", params=["base", *OVERLAYS, *COMPONENTS])
def manifests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """The base, each overlay, and the base with each component by itself."""
    name = request.param
    if name == "base":
        return render(KUBERNETES / "base")
    if name in OVERLAYS:
        return render(KUBERNETES / "overlays" / name)
    return _with_component(name, tmp_path_factory.mktemp(name))


def _with_component(name: str, folder: Path) -> list[Manifest]:
    above = os.path.relpath(KUBERNETES, folder.resolve())
    wanted = {"resources": [f"{above}/base"], "components": [f"{above}/components/{name}"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    return render(folder)


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_four_minors_and_the_operators_take_it(overlay: str) -> None:
    manifests = render(KUBERNETES / "overlays" / overlay)
    assert [line for one in manifests for minor in MINORS for line in wrong_in(one, minor)] == []


def test_it_keeps_every_policy(manifests: list[Manifest]) -> None:
    longest_s = max([DEFAULT_HANDLER_S, *[handler.timeout_s for handler in load_registry().handlers]])
    assert violations(manifests, longest_s) == []


def test_every_name_is_there_once(manifests: list[Manifest]) -> None:
    names = Counter((one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in manifests)
    assert [name for name, count in names.items() if count > 1] == []


def test_every_setting_exists_and_is_valid(manifests: list[Manifest], tmp_path: Path) -> None:
    known = set(re.findall(r"(?m)^\| `([A-Z_]+)`", settings_table()))
    given: dict[str, str] = {}
    for one in manifests:
        if one["kind"] == "ConfigMap" and one["metadata"]["name"].startswith("consumer-settings"):
            given |= {name: value for name, value in one["data"].items() if re.match("CONSUMER_|SVC_", name)}
    assert given
    variables = {
        variable["name"]: variable["value"]
        for one in manifests
        if one["kind"] in WORKLOADS and pod(one)["metadata"]["labels"]["app.kubernetes.io/name"] == "consumer"
        for container in containers(one)
        for variable in container.get("env", [])
    }
    assert {*given, *variables} <= known
    mounted = {name for name, value in variables.items() if value.startswith("/run/secrets/")}
    for name in mounted:  # the files are there, as the kubelet puts them
        (tmp_path / name).write_text(HELD.get(name, "svc_sk_live_1"))
    files = variables | {name: str(tmp_path / name) for name in mounted}
    addresses = {"SVC_BASE_URL": "https://api.example", "SVC_APP_ID": "svc_app_1"}
    for role in (Role.SERVE, Role.WORK, Role.SYNC, Role.CONSOLE, Role.OPERATE):
        load_settings(addresses | given | files, role)


def test_every_command_parses(manifests: list[Manifest]) -> None:
    told = [
        (one["metadata"]["name"], container["args"])
        for one in manifests
        if one["kind"] in WORKLOADS
        for container in containers(one)
        if "args" in container
    ]
    by_night = setting(manifests, "SVC_BASE_URL") != "http://127.0.0.1:4010"  # else `sync` alone has a service to ask
    assert {arguments[0] for _, arguments in told} >= {*ROLES, "db", "reconcile" if by_night else "sandbox"}
    assert [name for name, arguments in told if not is_command(arguments)] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_status_misses_every_role_that_the_ledger_can_know_of(overlay: str) -> None:
    manifests = render(KUBERNETES / "overlays" / overlay)
    tells = [
        container["args"][0]
        for one in manifests
        if one["kind"] == "Deployment"
        for container in containers(one)
        if "CONSUMER_DATABASE_URL_FILE" in [variable["name"] for variable in container.get("env", [])]
    ]
    assert sorted(str(setting(manifests, "CONSUMER_EXPECT")).split(",")) == sorted(tells)


def test_archives_are_mounted_where_they_are_written() -> None:
    [volume] = yaml.safe_load_all((KUBERNETES / "components" / "archives" / "volume.yaml").read_text())
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]  # two `sync`, on two nodes


@pytest.mark.parametrize(
    ("component", "more"),
    [
        ("archives", {"CONSUMER_RETENTION": "90d"}),
        ("webhook-secrets", {"CONSUMER_AUTHENTICITY": "signature"}),
        ("kafka-login", {}),
    ],
)
def test_with_what_a_component_wants_in_settings_env_each_pod_starts(
    component: str, more: dict[str, str], tmp_path: Path
) -> None:
    """`settings.env` is for all pods; what a component mounts is for some of them."""
    rendered = _with_component(component, tmp_path)
    shared = {"SVC_BASE_URL": "https://api.example", "SVC_APP_ID": "svc_app_1", **more}
    roles: set[Role] = set()
    for one in rendered:
        if one["kind"] not in WORKLOADS:
            continue
        container = role_container(one)
        given = {variable["name"]: variable["value"] for variable in container.get("env", [])}
        for name in [name for name, value in given.items() if value.startswith("/run/secrets/")]:
            (tmp_path / name).write_text(HELD.get(name, "svc_sk_live_1"))
            given[name] = str(tmp_path / name)
        role = Role(container["args"][0]) if container["args"][0] in set(Role) else Role.OPERATE
        load_settings(shared | given, role)
        roles.add(role)
    assert roles == {*map(Role, ROLES), Role.OPERATE}


@pytest.mark.parametrize(
    ("component", "pods", "variable"),
    [
        ("archives", {"consumer-sync", "consumer-reconcile"}, "CONSUMER_ARCHIVE_DIR"),
        ("kafka-login", {*OF_THE_LOG, "consumer-console"}, "CONSUMER_KAFKA_SASL_PASSWORD_FILE"),
        ("kafka-login", {*OF_THE_LOG, "consumer-console"}, "CONSUMER_KAFKA_CA_FILE"),
        ("webhook-secrets", {"consumer-serve", "consumer-sync"}, "CONSUMER_WEBHOOK_SECRETS_FILE"),
    ],
)
def test_a_component_gives_the_file_to_who_needs_it(
    component: str, pods: set[str], variable: str, tmp_path: Path
) -> None:
    rendered = _with_component(component, tmp_path)
    has: set[str] = set()
    for one in rendered:
        for container in containers(one) if one["kind"] in WORKLOADS else []:
            given = {about["name"]: about["value"] for about in container.get("env", [])}
            if variable in given:
                has.add(one["metadata"]["name"])
                mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
                assert any(f"{given[variable]}/".startswith(f"{path}/") for path in mounted)
    assert has == pods


def test_the_migration_in_dev_waits_for_a_database_that_comes_late() -> None:
    rendered = render(KUBERNETES / "overlays" / "dev")
    [job] = [one for one in rendered if one["kind"] == "Job"]
    [wait] = pod(job)["spec"]["initContainers"]
    [service] = [one for one in rendered if (one["kind"], one["metadata"]["name"]) == ("Service", "postgres")]
    there = ("postgres", service["spec"]["ports"][0]["port"])
    script = wait["command"][2]
    assert repr(there).replace("'", '"') in script
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, and refuses until it listens
        script = script.replace('"postgres", 5432', f'"127.0.0.1", {listener.getsockname()[1]}')
        with subprocess.Popen([sys.executable, "-c", script]) as waiting:
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(0.5)
            listener.listen()
            assert waiting.wait(10) == 0


def test_a_label_of_ours_is_not_overwritten_by_the_operators() -> None:
    """It calls the port that it asks `endpoint`: without `honorLabels` every call of the service is `internal`."""
    monitor = yaml.safe_load((KUBERNETES / "components" / "monitoring" / "monitor.yaml").read_text())
    assert [one["honorLabels"] for one in monitor["spec"]["podMetricsEndpoints"]] == [True]
    ours = {label for _, _, labels, _ in Metrics().listed() for label in labels}
    assert "endpoint" in ours
    assert ours & OF_A_TARGET == set()


def test_topics_as_code_are_what_the_roles_would_make() -> None:
    rendered = render(KUBERNETES / "overlays" / "production")
    topics = {one["metadata"]["name"]: one["spec"] for one in rendered if one["kind"] == "KafkaTopic"}
    partitions = setting(rendered, "CONSUMER_TOPIC_PARTITIONS") or ""
    wanted = log_parts.topics(load_settings({"CONSUMER_TOPIC_PARTITIONS": partitions}, Role.OPERATE))
    assert set(topics) == {topic.name for topic in wanted}
    for topic in wanted:
        spec = topics[topic.name]
        assert (spec["partitions"], spec["replicas"]) == (topic.partitions, 3)
        assert {name: str(value) for name, value in spec["config"].items()} == settings_for(topic, 3)
