"""Thirty and more mistakes, each planted into the production manifests: every one is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.deploy.manifests import KUBERNETES, Manifest, render, wrong_in
from tests.deploy.policies import pod, violations

Mistake = Callable[[Sequence[Manifest]], object]
_RENDERED: list[Manifest] = []


@pytest.fixture
def production() -> list[Manifest]:
    """The production overlay, to be spoilt."""
    if not _RENDERED:
        _RENDERED.extend(render(KUBERNETES / "overlays" / "production"))
    return copy.deepcopy(_RENDERED)


def _one(manifests: Sequence[Manifest], kind: str, name: str) -> Any:
    return next(one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name))


def _pod(manifests: Sequence[Manifest], role: str = "work") -> Any:
    return pod(_one(manifests, "Deployment", f"consumer-{role}"))["spec"]


def _box(manifests: Sequence[Manifest], role: str = "work") -> Any:
    return _pod(manifests, role)["containers"][0]


def _settings(manifests: Sequence[Manifest]) -> Any:
    return next(one["data"] for one in manifests if one["kind"] == "ConfigMap" and "CONSUMER_DRAIN_S" in one["data"])


def _keda(manifests: Sequence[Manifest]) -> Any:
    return _one(manifests, "ScaledObject", "consumer-work")["spec"]


def _budget(manifests: Sequence[Manifest]) -> Any:
    return _one(manifests, "PodDisruptionBudget", "consumer-serve")["spec"]


def _policy(manifests: Sequence[Manifest], name: str) -> Any:
    return _one(manifests, "NetworkPolicy", name)["spec"]


POLICY: dict[str, Mistake] = {
    "runs as root": lambda m: _pod(m)["securityContext"].update(runAsUser=0),
    "may run as root": lambda m: _pod(m)["securityContext"].pop("runAsNonRoot"),
    "privileged": lambda m: _box(m)["securityContext"].update(privileged=True),
    "may gain privileges": lambda m: _box(m)["securityContext"].pop("allowPrivilegeEscalation"),
    "keeps capabilities": lambda m: _box(m)["securityContext"].pop("capabilities"),
    "adds a capability": lambda m: _box(m)["securityContext"]["capabilities"].update(add=["NET_ADMIN"]),
    "root can be written": lambda m: _box(m)["securityContext"].update(readOnlyRootFilesystem=False),
    "no seccomp": lambda m: _pod(m)["securityContext"].pop("seccompProfile"),
    "network of the host": lambda m: _pod(m).update(hostNetwork=True),
    "path of the host": lambda m: _pod(m)["volumes"].append({"name": "host", "hostPath": {"path": "/"}}),
    "token of the cluster": lambda m: _pod(m).pop("automountServiceAccountToken"),
    "variables of every Service": lambda m: _pod(m).pop("enableServiceLinks"),
    "no limits": lambda m: _box(m)["resources"].pop("limits"),
    "no request of memory": lambda m: _box(m)["resources"]["requests"].pop("memory"),
    "a folder without end": lambda m: _pod(m)["volumes"][0].update(emptyDir={}),
    "latest": lambda m: _box(m).update(image="payments-consumer:latest"),
    "no tag": lambda m: _box(m).update(image="registry.example:5000/payments-consumer"),
    "secret in a variable": lambda m: _box(m)["env"].append({"name": "SVC_APP_SECRET", "value": "x"}),
    "secret from a key": lambda m: _box(m)["env"].append(
        {"name": "OTHER", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    ),
    "secret by subPath": lambda m: next(one for one in _box(m)["volumeMounts"] if one["name"] == "service").update(
        subPath="app-secret"
    ),
    "secret not mounted": lambda m: _box(m).update(
        volumeMounts=[one for one in _box(m)["volumeMounts"] if one["name"] != "database"]
    ),
    "no liveness": lambda m: _box(m).pop("livenessProbe"),
    "liveness asks what depends on others": lambda m: _box(m)["livenessProbe"]["httpGet"].update(path="/readyz"),
    "liveness more hasty than the cutoff": lambda m: _box(m)["livenessProbe"].update(timeoutSeconds=1),
    "liveness once and dead": lambda m: _box(m)["livenessProbe"].update(failureThreshold=1),
    "a longer cutoff": lambda m: _settings(m).update(CONSUMER_WORK_CUTOFF_S="20"),
    "no readiness": lambda m: _box(m, "serve").pop("readinessProbe"),
    "no preStop": lambda m: _box(m, "serve").pop("lifecycle"),
    "killed before it drained": lambda m: _pod(m).update(terminationGracePeriodSeconds=30),
    "a longer drain": lambda m: _settings(m).update(CONSUMER_DRAIN_S="120"),
    "drain shorter than a handler": lambda m: _settings(m).update(CONSUMER_DRAIN_S="10"),
    "no spread": lambda m: _pod(m).pop("topologySpreadConstraints"),
    "pods away before new ones": lambda m: _one(m, "Deployment", "consumer-serve")["spec"]["strategy"].update(
        rollingUpdate={"maxUnavailable": 1}
    ),
    "no budget": lambda m: _budget(m)["selector"]["matchLabels"].update({"app.kubernetes.io/component": "others"}),
    "a budget nobody can keep": lambda m: _budget(m).update(minAvailable=2),
    "a budget that keeps the last one": lambda m: (_budget(m).pop("maxUnavailable"), _budget(m).update(minAvailable=1)),
    "a budget that keeps what is not ready": lambda m: _budget(m).pop("unhealthyPodEvictionPolicy"),
    "a hasty roll-out": lambda m: _one(m, "Deployment", "consumer-work")["spec"].pop("progressDeadlineSeconds"),
    "out, and into the cluster": lambda m: _policy(m, "consumer-service")["egress"][0]["to"][0]["ipBlock"].pop(
        "except"
    ),
    "a Service that selects nobody": lambda m: _one(m, "Service", "consumer-serve")["spec"]["selector"].update(
        {"app.kubernetes.io/component": "web"}
    ),
    "a Service to no port": lambda m: _one(m, "Service", "consumer-serve")["spec"]["ports"][0].update(
        targetPort="http"
    ),
    "HPA and replicas": lambda m: _one(m, "Deployment", "consumer-serve")["spec"].update(replicas=3),
    "one worker": lambda m: _keda(m).update(minReplicaCount=1),
    "more workers than partitions": lambda m: _keda(m).update(maxReplicaCount=50),
    "fewer partitions": lambda m: _settings(m).update(CONSUMER_TOPIC_PARTITIONS="6"),
    "no fallback": lambda m: _keda(m).pop("fallback"),
    "hasty scale-down": lambda m: _keda(m).pop("advanced"),
    "a poison record scales up": lambda m: _keda(m)["triggers"][0]["metadata"].pop("excludePersistentLag"),
    "lag of another group": lambda m: _keda(m)["triggers"][0]["metadata"].update(consumerGroup="payments"),
    "two walks at once": lambda m: _one(m, "CronJob", "consumer-reconcile")["spec"].update(concurrencyPolicy="Allow"),
    "a walk without end": lambda m: _one(m, "CronJob", "consumer-reconcile")["spec"]["jobTemplate"]["spec"].pop(
        "activeDeadlineSeconds"
    ),
    "nothing is shut": lambda m: _policy(m, "consumer-deny").update(policyTypes=["Ingress"]),
    "no names on a node": lambda m: _policy(m, "consumer-deny")["egress"][0]["to"].pop(),
    "no names in the cluster": lambda m: _policy(m, "consumer-deny")["egress"][0]["to"].pop(0),
    "no names by TCP": lambda m: _policy(m, "consumer-deny")["egress"][0]["ports"].pop(),
    "more of a node than names": lambda m: _policy(m, "consumer-deny")["egress"][0]["ports"].append(
        {"protocol": "TCP", "port": 10250}
    ),
    "open to everyone": lambda m: _policy(m, "consumer-database")["egress"][0].update(to=[{}]),
    "every port": lambda m: _policy(m, "consumer-webhooks")["ingress"][0].pop("ports"),
    "settings that are not there": lambda m: _box(m)["envFrom"][0]["configMapRef"].update(name="others"),
    "topics in another namespace": lambda m: _one(m, "KafkaTopic", "payments.events")["metadata"].update(
        namespace="payments"
    ),
    "topics of another cluster": lambda m: _one(m, "KafkaTopic", "payments.events")["metadata"].update(
        labels={"strimzi.io/cluster": "other"}
    ),
    "a claim that is not there": lambda m: _pod(m)["volumes"].append(
        {"name": "x", "persistentVolumeClaim": {"claimName": "x"}}
    ),
    "a service on a loopback where there is none": lambda m: _settings(m).update(SVC_BASE_URL="http://127.0.0.1:4010"),
    "a namespace for anything": lambda m: _one(m, "Namespace", "payments")["metadata"].pop("labels"),
}

SCHEMA: dict[str, tuple[str, str, Mistake]] = {
    "a field misspelt": ("Deployment", "consumer-work", lambda m: _pod(m).update(terminationGracePeriod=60)),
    "a number that is a word": ("Deployment", "consumer-work", lambda m: _box(m)["livenessProbe"].update(
        periodSeconds="10")),
    "a field gone from the API": ("HorizontalPodAutoscaler", "consumer-serve", lambda m: _one(
        m, "HorizontalPodAutoscaler", "consumer-serve")["spec"].update(targetCPUUtilizationPercentage=70)),
    "KEDA misspelt": ("ScaledObject", "consumer-work", lambda m: _keda(m).update(minReplicas=2)),
    "KEDA without triggers": ("ScaledObject", "consumer-work", lambda m: _keda(m).pop("triggers")),
    "a rule misspelt": ("PrometheusRule", "consumer", lambda m: _one(
        m, "PrometheusRule", "consumer")["spec"]["groups"][0]["rules"][0].update(expression="1")),
    "a monitor misspelt": ("PodMonitor", "consumer", lambda m: _one(
        m, "PodMonitor", "consumer")["spec"].update(port="x")),
}  # fmt: skip


def test_there_are_thirty_of_them_and_nothing_is_wrong_before(production: list[Manifest]) -> None:
    assert len(POLICY) + len(SCHEMA) >= 30
    assert violations(production) == []


@pytest.mark.parametrize("mistake", POLICY)
def test_a_policy_refuses(mistake: str, production: list[Manifest]) -> None:
    POLICY[mistake](production)
    assert violations(production) != []


@pytest.mark.slow
@pytest.mark.parametrize("mistake", SCHEMA)
def test_a_schema_refuses(mistake: str, production: list[Manifest]) -> None:
    kind, name, plant = SCHEMA[mistake]
    assert list(wrong_in(_one(production, kind, name), "1.35")) == []
    plant(production)
    assert list(wrong_in(_one(production, kind, name), "1.35")) != []
