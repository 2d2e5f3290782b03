"""The rules as Prometheus Operator wants them: `python -m deploy.prometheus.operator` writes the PrometheusRule."""

from __future__ import annotations

from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
SOURCES = ("recording.yml", "alerts.yml")
RESULT = HERE.parent / "kubernetes" / "components" / "monitoring" / "rules.yaml"


def prometheus_rule() -> str:
    """The manifest: every group of the files, as it stands there."""
    groups = [group for name in SOURCES for group in yaml.safe_load((HERE / name).read_text())["groups"]]
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "consumer"},
        "spec": {"groups": groups},
    }
    told = "# Written by `python -m deploy.prometheus.operator` from deploy/prometheus/*.yml.\n"
    return told + yaml.safe_dump(manifest, sort_keys=False, width=1000)


if __name__ == "__main__":
    RESULT.write_text(prometheus_rule())
