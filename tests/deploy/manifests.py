"""The manifests as a cluster gets them: rendered by Kustomize, held against Kubernetes' and the operators' schemas."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.tools import missing, need_program

CHECKOUT = Path(__file__).resolve().parents[2]
KUBERNETES = CHECKOUT / "deploy" / "kubernetes"
MINORS = ("1.34", "1.35", "1.36", "1.37")
# Where an operator's own schemas are published: Go module, version, folder.
OPERATORS = {
    "keda.sh": ("github.com/kedacore/keda/v2", "v2.17.2", "config/crd/bases"),
    "monitoring.coreos.com": (
        "github.com/prometheus-operator/prometheus-operator",
        "v0.85.0",
        "example/prometheus-operator-crd",
    ),
}
# Strimzi publishes its schemas in no registry of packages: its topics are compared with our own settings instead.
UNCHECKED = {"kafka.strimzi.io"}

Manifest = dict[str, Any]


class _Loader(yaml.CSafeLoader):
    """A quick one, for which `=` is text (it is, in a schema's list of operators)."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda _, node: node.value)


def render(folder: Path) -> list[Manifest]:
    """What `kustomize build` makes of a folder; skips where there is no Kustomize. Raises CalledProcessError."""
    done = subprocess.run([*_kustomize(), str(folder)], capture_output=True, text=True, timeout=60, check=True)
    return [one for one in yaml.load_all(done.stdout, Loader=_Loader) if one]


def _kustomize() -> list[str]:
    own = CHECKOUT / ".cache" / "bin" / "kustomize"
    for program in (str(own) if own.exists() else None, shutil.which("kustomize")):
        if program:
            return [program, "build"]
    if kubectl := shutil.which("kubectl"):
        return [kubectl, "kustomize"]
    missing("no kustomize (go install sigs.k8s.io/kustomize/kustomize/v5 with GOBIN=.cache/bin) and no kubectl")
    return []


def wrong_in(manifest: Manifest, minor: str) -> Iterator[str]:
    """What the API server of this minor, or the operator, would refuse."""
    import jsonschema  # it takes two seconds, which no other test should wait for
    import kubernetes_validate

    group = manifest["apiVersion"].partition("/")[0]
    name = f"{manifest['kind']}/{manifest['metadata']['name']}"
    if group in UNCHECKED:
        return
    try:
        if group in OPERATORS:
            jsonschema.Draft202012Validator(_operators_schema(group, manifest["kind"])).validate(manifest)
        else:
            kubernetes_validate.validate(manifest, minor, strict=True)
    except (kubernetes_validate.ValidationError, jsonschema.ValidationError) as error:
        yield f"{name}: {error.message}"


@functools.cache
def _operators_schema(group: str, kind: str) -> dict[str, Any]:
    for path in sorted(_operators_folder(group).glob(f"{group}_{kind.lower()}s.yaml")):
        found = yaml.load(path.read_text(), Loader=_Loader)
        if found["spec"]["names"]["kind"] == kind and found["spec"]["group"] == group:
            schema: dict[str, Any] = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            _close(schema)
            schema["properties"]["metadata"].pop("additionalProperties", None)
            return schema
    raise LookupError(f"{group} has no {kind}")


def _close(schema: Any) -> None:
    """A field nobody knows is refused, as `kubectl apply` does with strict validation."""
    if isinstance(schema, dict):
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        if schema.pop("x-kubernetes-int-or-string", False):
            schema.pop("format", None)
        for value in schema.values():
            _close(value)
    elif isinstance(schema, list):
        for value in schema:
            _close(value)


@functools.cache
def _operators_folder(group: str) -> Path:
    module, version, folder = OPERATORS[group]
    go = need_program("go", "Go 1.22 or newer")
    environ = os.environ | {"GOFLAGS": "-mod=mod"}
    done = subprocess.run(
        [go, "mod", "download", "-json", f"{module}@{version}"],
        capture_output=True, text=True, timeout=300, check=False, env=environ, cwd="/",
    )  # fmt: skip
    told = json.loads(done.stdout or "{}")
    if "Dir" not in told:
        missing(f"the schemas of {group} cannot be had: {told.get('Error', done.stderr).strip()}")
    return Path(told["Dir"]) / folder
