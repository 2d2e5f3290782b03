"""Policies: what a schema cannot say of our manifests. Pure: manifests in, one line per violation out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from consumer.app.root import STOP_SLACK_S
from consumer.cli.entry import LEAVE_S
from consumer.cli.supervisor import SLACK_S
from consumer.plugin import Handler

Manifest = dict[str, Any]
WORKLOADS = ("Deployment", "Job", "CronJob")
RESTARTED_WITHIN_S = 300
"""How long the kubelet waits at most before it starts a container again."""
INSIDE = {"10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"}
"""Where pods, nodes, services and the cloud's own data are."""
NODE_NAMES = "169.254.20.10/32"
"""Where NodeLocal DNSCache answers, on the node itself: no pod of kube-system is there to be selected."""
DEFAULT_HANDLER_S = float(str(Handler.__dataclass_fields__["timeout_s"].default))
ROLES = ("serve", "work", "sync", "console")
NAME, COMPONENT = "app.kubernetes.io/name", "app.kubernetes.io/component"


def violations(manifests: Sequence[Manifest], longest_handler_s: float = DEFAULT_HANDLER_S) -> list[str]:
    """Everything that is not as it must be. `longest_handler_s`: the longest timeout of a handler."""
    found = [line for one in manifests if one["kind"] in WORKLOADS for rule in PER_POD for line in rule(one)]
    for one in _roles(manifests):
        found += [*_probes(one, manifests), *_grace(one, manifests, longest_handler_s), *_spread(one)]
    for rule_of_all in OVERALL:
        found += rule_of_all(manifests)
    return found


def pod(workload: Manifest) -> dict[str, Any]:
    """The pod's template."""
    spec = workload["spec"]
    if workload["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    template: dict[str, Any] = spec["template"]
    return template


def containers(workload: Manifest) -> list[dict[str, Any]]:
    """All of a pod, those that run first included."""
    spec = pod(workload)["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def role_container(workload: Manifest) -> dict[str, Any]:
    """The one that runs the role."""
    found: dict[str, Any] = next(one for one in pod(workload)["spec"]["containers"] if one["name"] == "consumer")
    return found


def stop_takes_s(linger_s: float, drain_s: float) -> float:
    """The most that a role takes from SIGTERM to its end, where a handler blocks its thread."""
    return linger_s + drain_s + max(STOP_SLACK_S, SLACK_S) + LEAVE_S


def setting(manifests: Sequence[Manifest], name: str) -> str | None:
    """The value that the roles' ConfigMap gives."""
    for one in manifests:
        if one["kind"] == "ConfigMap" and one["metadata"]["name"].startswith("consumer-settings"):
            value: str | None = one["data"].get(name)
            return value
    return None


def _called(workload: Manifest) -> str:
    return f"{workload['kind']}/{workload['metadata']['name']}"


def _is_ours(workload: Manifest) -> bool:
    return bool(pod(workload)["metadata"]["labels"].get(NAME) == "consumer")


def _roles(manifests: Sequence[Manifest]) -> Iterator[Manifest]:
    for one in manifests:
        if one["kind"] == "Deployment" and pod(one)["metadata"]["labels"].get(COMPONENT) in ROLES:
            yield one


def _restricted(one: Manifest) -> Iterator[str]:
    """Kubernetes' own standard `restricted`, and a root that cannot be written."""
    spec, name = pod(one)["spec"], _called(one)
    of_pod = spec.get("securityContext", {})
    if of_pod.get("runAsNonRoot") is not True or of_pod.get("runAsUser", 0) == 0:
        yield f"{name}: may run as root"
    if of_pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield f"{name}: no seccomp profile"
    for place in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(place):
            yield f"{name}: {place}"
    if any("hostPath" in volume for volume in spec.get("volumes", [])):
        yield f"{name}: a path of the host"
    for container in containers(one):
        context = container.get("securityContext", {})
        if (
            context.get("runAsUser") == 0
            or context.get("privileged")
            or context.get("allowPrivilegeEscalation") is not False
        ):
            yield f"{name}: privileges"
        if context.get("capabilities", {}).get("drop") != ["ALL"] or context.get("capabilities", {}).get("add"):
            yield f"{name}: capabilities"
        if _is_ours(one) and context.get("readOnlyRootFilesystem") is not True:
            yield f"{name}: its root can be written"


def _no_token(one: Manifest) -> Iterator[str]:
    if pod(one)["spec"].get("automountServiceAccountToken") is not False:
        yield f"{_called(one)}: holds a token of the cluster"
    if pod(one)["spec"].get("enableServiceLinks") is not False:
        yield f"{_called(one)}: gets the addresses of every Service as variables"


def _bounded(one: Manifest) -> Iterator[str]:
    for container in containers(one):
        resources = container.get("resources", {})
        for kind in ("requests", "limits"):
            yield from (
                f"{_called(one)}: no {kind} of {what}"
                for what in ("cpu", "memory")
                if what not in resources.get(kind, {})
            )
    for volume in pod(one)["spec"].get("volumes", []):
        if "emptyDir" in volume and not (volume["emptyDir"] or {}).get("sizeLimit"):
            yield f"{_called(one)}: {volume['name']} may grow without end"
    if one["kind"] in ("Job", "CronJob"):
        spec = one["spec"] if one["kind"] == "Job" else one["spec"]["jobTemplate"]["spec"]
        yield from (
            f"{_called(one)}: no {what}" for what in ("activeDeadlineSeconds", "backoffLimit") if what not in spec
        )


def _pinned(one: Manifest) -> Iterator[str]:
    for container in containers(one):
        tag = container["image"].rpartition("/")[2].partition(":")[2]
        if "@sha256:" not in container["image"] and tag in ("", "latest"):
            yield f"{_called(one)}: {container['image']} is not pinned"


def _secrets_are_files(one: Manifest) -> Iterator[str]:
    """A file changes where it lies; a variable, and a file mounted by subPath, only with a new pod."""
    spec, name = pod(one)["spec"], _called(one)
    if not _is_ours(one):
        return
    secret_volumes = {volume["name"] for volume in spec.get("volumes", []) if "secret" in volume}
    for container in containers(one):
        for variable in container.get("env", []):
            word = variable["name"]
            if "secretKeyRef" in variable.get("valueFrom", {}):
                yield f"{name}: {word} is a secret in a variable"
            if re.search(r"SECRETS?$|PASSWORD$|TOKEN$|DATABASE_URL$", word):
                yield f"{name}: {word} is a secret in a variable"
        if any("secretRef" in source for source in container.get("envFrom", [])):
            yield f"{name}: a secret in variables"
        for mount in container.get("volumeMounts", []):
            if mount["name"] in secret_volumes and (mount.get("subPath") or mount.get("readOnly") is not True):
                yield f"{name}: {mount['mountPath']} is not a read-only folder"


def _probes(one: Manifest, manifests: Sequence[Manifest]) -> Iterator[str]:
    """Liveness asks the event loop only, and outlasts a handler that blocks it until it is cut off, twice."""
    name, container = _called(one), role_container(one)
    cutoff_s = float(setting(manifests, "CONSUMER_WORK_CUTOFF_S") or 5)
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
    for kind, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz"), ("startupProbe", "/healthz")):
        probe = container.get(kind, {})
        if probe.get("httpGet", {}).get("path") != path or ports.get(probe["httpGet"]["port"]) != 9090:
            yield f"{name}: {kind} does not ask {path} of the internal port"
    alive = container.get("livenessProbe", {})
    if (
        alive.get("periodSeconds", 10) * (alive.get("failureThreshold", 3) - 1) + alive.get("timeoutSeconds", 1)
        < 2 * cutoff_s
    ):
        yield f"{name}: liveness gives up before a blocked event loop is free again"
    if alive.get("timeoutSeconds", 1) < cutoff_s:
        yield f"{name}: liveness does not wait for CONSUMER_WORK_CUTOFF_S"


def _grace(one: Manifest, manifests: Sequence[Manifest], longest_handler_s: float) -> Iterator[str]:
    """SIGKILL comes after everything that a stop may take."""
    name, spec = _called(one), pod(one)["spec"]
    hook = role_container(one).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    linger_s = float(setting(manifests, "CONSUMER_LINGER_S") or 3)
    drain_s = float(setting(manifests, "CONSUMER_DRAIN_S") or 20)
    if hook < 3:
        yield f"{name}: no preStop, so requests still come when it stops"
    if spec.get("terminationGracePeriodSeconds", 30) < hook + stop_takes_s(linger_s, drain_s):
        yield f"{name}: is killed before it has ended"
    if drain_s < longest_handler_s:
        yield f"{name}: CONSUMER_DRAIN_S is shorter than the longest handler's timeout"


def _spread(one: Manifest) -> Iterator[str]:
    spread = pod(one)["spec"].get("topologySpreadConstraints", [])
    if {item["topologyKey"] for item in spread} < {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}:
        yield f"{_called(one)}: not spread over hosts and zones"
    labels = pod(one)["metadata"]["labels"]
    if any(not item["labelSelector"]["matchLabels"].items() <= labels.items() for item in spread):
        yield f"{_called(one)}: spreads something else"
    if one["spec"].get("strategy", {}).get("rollingUpdate", {}).get("maxUnavailable") != 0:
        yield f"{_called(one)}: a roll-out takes pods away before new ones are ready"


def _selectors(manifests: Sequence[Manifest]) -> Iterator[str]:
    pods = [pod(one)["metadata"]["labels"] for one in manifests if one["kind"] in WORKLOADS]
    ports = {
        (tuple(sorted(pod(one)["metadata"]["labels"].items())), port["name"])
        for one in manifests
        if one["kind"] == "Deployment"
        for container in containers(one)
        for port in container.get("ports", [])
    }
    for one in manifests:
        if (
            one["kind"] == "Deployment"
            and not one["spec"]["selector"]["matchLabels"].items() <= pod(one)["metadata"]["labels"].items()
        ):
            yield f"{_called(one)}: does not select its own pods"
        wanted = _selector(one)
        if wanted is None:
            continue
        met = [labels for labels in pods if wanted.items() <= labels.items()]
        if not met:
            yield f"{_called(one)}: selects nobody"
        if one["kind"] == "Service":
            named = {name for labels, name in ports if wanted.items() <= dict(labels).items()}
            yield from (
                f"{_called(one)}: nobody has a port {port['targetPort']}"
                for port in one["spec"]["ports"]
                if port["targetPort"] not in named
            )


def _selector(one: Manifest) -> dict[str, str] | None:
    spec = one.get("spec", {})
    if one["kind"] == "Service":
        return dict(spec["selector"])
    if one["kind"] in ("PodDisruptionBudget", "PodMonitor"):
        return dict(spec["selector"].get("matchLabels", {}))
    if one["kind"] == "NetworkPolicy":
        return dict(spec["podSelector"].get("matchLabels", {}))
    return None


def _disruption(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Every role of which there is more than one keeps one when a node is emptied, and lets it be emptied."""
    budgets = {
        one["spec"]["selector"]["matchLabels"].get(COMPONENT): one["spec"]
        for one in manifests
        if one["kind"] == "PodDisruptionBudget"
    }
    for one in _roles(manifests):
        role, count = pod(one)["metadata"]["labels"][COMPONENT], _least(one, manifests)
        if role not in budgets:
            if count > 1:
                yield f"{_called(one)}: no PodDisruptionBudget"
        elif "minAvailable" in budgets[role] or budgets[role].get("maxUnavailable", 1) == 0:
            yield f"{_called(one)}: its PodDisruptionBudget lets no node be emptied, where there is one pod of it"
        elif budgets[role].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{_called(one)}: no node is emptied while the pods are not ready, as in an outage of the database"


def _least(one: Manifest, manifests: Sequence[Manifest]) -> int:
    """How many there are at least."""
    for other in manifests:
        target = other.get("spec", {}).get("scaleTargetRef", {}).get("name")
        if target == one["metadata"]["name"]:
            return int(other["spec"].get("minReplicas") or other["spec"].get("minReplicaCount") or 1)
    return int(one["spec"].get("replicas", 1))


def _rollouts(manifests: Sequence[Manifest]) -> Iterator[str]:
    """New pods wait for the migration, and are started again within five minutes: no roll-out has failed then."""
    longest_s = max([one["spec"]["activeDeadlineSeconds"] for one in manifests if one["kind"] == "Job"], default=0)
    for one in _roles(manifests):
        if one["spec"].get("progressDeadlineSeconds", 600) < longest_s + RESTARTED_WITHIN_S:
            yield f"{_called(one)}: its roll-out counts as failed while the database is migrated"


def _scaling(manifests: Sequence[Manifest]) -> Iterator[str]:
    partitions = int(setting(manifests, "CONSUMER_TOPIC_PARTITIONS") or 6)
    prefix = setting(manifests, "CONSUMER_TOPIC_PREFIX") or "payments"
    scaled = {one["metadata"]["name"]: one for one in manifests if one["kind"] == "Deployment"}
    for one in manifests:
        if one["kind"] not in ("HorizontalPodAutoscaler", "ScaledObject"):
            continue
        target = scaled.get(one["spec"]["scaleTargetRef"]["name"])
        if target is None:
            yield f"{_called(one)}: scales nothing"
        elif "replicas" in target["spec"]:
            yield f"{_called(one)}: every apply sets the number back"
        if one["kind"] == "ScaledObject":
            yield from _keda(one, partitions, prefix)


def _keda(one: Manifest, partitions: int, prefix: str) -> Iterator[str]:
    spec, name = one["spec"], _called(one)
    if spec.get("minReplicaCount", 0) < 2:
        yield f"{name}: fewer than two workers"
    if spec.get("maxReplicaCount", 100) > partitions:
        yield f"{name}: more workers than partitions"
    if "fallback" not in spec:
        yield f"{name}: no fallback when the lag cannot be read"
    behavior = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {}).get("behavior", {})
    if behavior.get("scaleDown", {}).get("stabilizationWindowSeconds", 300) < 600:
        yield f"{name}: workers go too fast: each time partitions move"
    for trigger in spec["triggers"]:
        about = trigger["metadata"]
        if about.get("topic") != f"{prefix}.events" or about.get("consumerGroup") != f"{prefix}.work":
            yield f"{name}: asks for the lag of something else"
        if about.get("excludePersistentLag") != "true":
            yield f"{name}: one record that cannot be worked on drives it to the maximum"


def _topics(manifests: Sequence[Manifest]) -> Iterator[str]:
    for one in manifests:
        if one["kind"] == "KafkaTopic" and str(one["spec"]["partitions"]) != setting(
            manifests, "CONSUMER_TOPIC_PARTITIONS"
        ):
            yield f"{_called(one)}: other partitions than CONSUMER_TOPIC_PARTITIONS"
        if one["kind"] == "KafkaTopic" and not _is_watched(one, setting(manifests, "CONSUMER_BROKER_URL")):
            yield f"{_called(one)}: not in the namespace, or not of the cluster, of CONSUMER_BROKER_URL: without effect"


def _is_watched(topic: Manifest, broker_url: str | None) -> bool:
    """Strimzi's operator looks at topics in its cluster's namespace: CLUSTER-kafka-bootstrap.NAMESPACE.svc:9092."""
    about = topic["metadata"]
    told = re.match(r"kafka://(.+)-kafka-bootstrap\.([^.:]+)", broker_url or "")
    return told is None or told.groups() == (about["labels"]["strimzi.io/cluster"], about.get("namespace"))


def _database(manifests: Sequence[Manifest]) -> Iterator[str]:
    """A database that comes with the same `apply` is not there yet: the migration waits for it."""
    if not any(one["kind"] == "Service" and one["metadata"]["name"] == "postgres" for one in manifests):
        return
    for one in manifests:
        if one["kind"] == "Job" and not pod(one)["spec"].get("initContainers"):
            yield f"{_called(one)}: gives up while the image of the database is pulled"


def _loopback(manifests: Sequence[Manifest]) -> Iterator[str]:
    """A walk of a service on the loopback needs that service in its pod."""
    if "//127.0.0.1:" not in (setting(manifests, "SVC_BASE_URL") or ""):
        return
    for one in manifests:
        if one["kind"] in WORKLOADS and pod(one)["metadata"]["labels"].get(COMPONENT) in ("sync", "reconcile"):
            commands = [container.get("args", [""])[0] for container in containers(one)]
            if "sandbox" not in commands:
                yield f"{_called(one)}: nobody answers at its SVC_BASE_URL"


def _nightly(manifests: Sequence[Manifest]) -> Iterator[str]:
    for one in manifests:
        if one["kind"] == "CronJob" and one["spec"].get("concurrencyPolicy") != "Forbid":
            yield f"{_called(one)}: two walks at once"


def _network(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Where there are policies, everything not opened is shut, and nothing is opened to everyone."""
    policies = [one for one in manifests if one["kind"] == "NetworkPolicy"]
    shut = [one for one in policies if one["spec"]["podSelector"].get("matchLabels") == {NAME: "consumer"}
            and set(one["spec"]["policyTypes"]) == {"Ingress", "Egress"} and "ingress" not in one["spec"]]  # fmt: skip
    if policies and not shut:
        yield "NetworkPolicy: nothing is shut"
    for one in shut:
        asked = [peer for rule in one["spec"].get("egress", []) for peer in rule["to"] if _is_names(rule)]
        if not any("namespaceSelector" in peer for peer in asked):
            yield f"{_called(one)}: no names"
        if not any(peer.get("ipBlock", {}).get("cidr") == NODE_NAMES for peer in asked):
            yield f"{_called(one)}: no names where NodeLocal DNSCache answers"
    for one in policies:
        for way, peers in (("ingress", "from"), ("egress", "to")):
            for rule in one["spec"].get(way, []):
                if not rule.get(peers) or not rule.get("ports") or {} in rule[peers]:
                    yield f"{_called(one)}: open to everyone"
                for block in [peer["ipBlock"] for peer in rule.get(peers, []) if "ipBlock" in peer]:
                    is_outside = block["cidr"] == "0.0.0.0/0" and set(block.get("except", [])) >= INSIDE
                    if not is_outside and not (block["cidr"] == NODE_NAMES and _is_names(rule)):
                        yield f"{_called(one)}: leads into the cluster"


def _is_names(rule: Manifest) -> bool:
    """Whether it opens what names are asked by, and nothing else."""
    return {(one["protocol"], one["port"]) for one in rule.get("ports", [])} == {("UDP", 53), ("TCP", 53)}


def _references(manifests: Sequence[Manifest]) -> Iterator[str]:
    """What a pod names is there; secrets may come from elsewhere, but by the names the README tells."""
    maps = {one["metadata"]["name"] for one in manifests if one["kind"] == "ConfigMap"}
    accounts = {one["metadata"]["name"] for one in manifests if one["kind"] == "ServiceAccount"}
    claims = {one["metadata"]["name"] for one in manifests if one["kind"] == "PersistentVolumeClaim"}
    for one in manifests:
        if one["kind"] not in WORKLOADS or not _is_ours(one):
            continue
        spec = pod(one)["spec"]
        if spec.get("serviceAccountName", "consumer") not in accounts:
            yield f"{_called(one)}: no such ServiceAccount"
        wanted = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in spec.get("volumes", [])}
        yield from (f"{_called(one)}: {name} is no claim" for name in wanted - claims - {None})
        for container in containers(one):
            for source in container.get("envFrom", []):
                if "configMapRef" in source and source["configMapRef"]["name"] not in maps:
                    yield f"{_called(one)}: no such ConfigMap"
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            yield from (
                f"{_called(one)}: {lost} is no volume"
                for lost in mounted - {volume["name"] for volume in spec.get("volumes", [])}
            )
            paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
            for variable in container.get("env", []):
                value = variable.get("value", "")
                if value.startswith("/run/secrets/") and not any(value.startswith(f"{path}/") for path in paths):
                    yield f"{_called(one)}: {variable['name']} names a file that is not mounted"


def _namespaces(manifests: Sequence[Manifest]) -> Iterator[str]:
    for one in manifests:
        if (
            one["kind"] == "Namespace"
            and one["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce") != "restricted"
        ):
            yield f"{_called(one)}: pods are not held to `restricted`"


PER_POD: Sequence[Callable[[Manifest], Iterator[str]]] = (_restricted, _no_token, _bounded, _pinned, _secrets_are_files)
OVERALL: Sequence[Callable[[Sequence[Manifest]], Iterator[str]]] = (
    _selectors, _disruption, _rollouts, _scaling, _topics, _nightly, _network, _references, _namespaces, _database,
    _loopback,
)  # fmt: skip
