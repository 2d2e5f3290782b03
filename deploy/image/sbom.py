"""SBOM: what is installed in the image, as CycloneDX 1.6. `python -m deploy.image.sbom FILE`."""

from __future__ import annotations

import shlex
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PathDistribution
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from deploy.image.store import unpacked

PROJECT = "payments-consumer"


def software_of(root: Path) -> Bom:
    """Every Python distribution and every Debian package below `root`; the project itself is the subject."""
    components = [*_python(root), *_debian(root)]
    bom = Bom(components=[one for one in components if one.name != PROJECT])
    bom.metadata.component = next(one for one in components if one.name == PROJECT)
    bom.register_dependency(bom.metadata.component, bom.components)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, " ".join(sorted(str(one.purl) for one in components)))
    bom.metadata.timestamp = datetime.fromtimestamp(0, UTC)  # the image's own: the same image has the same SBOM
    return bom


def _python(root: Path) -> Iterator[Component]:
    for folder in sorted(root.glob("opt/consumer/lib/python3.*/site-packages/*.dist-info")):
        found = PathDistribution(folder)
        name = found.metadata["Name"].lower().replace("_", "-").replace(".", "-")
        kind = ComponentType.APPLICATION if name == PROJECT else ComponentType.LIBRARY
        purl = PackageURL("pypi", name=name, version=found.version)
        yield Component(name=name, version=found.version, type=kind, purl=purl, bom_ref=str(purl))


def _debian(root: Path) -> Iterator[Component]:
    release = dict(word.split("=", 1) for word in shlex.split((root / "etc/os-release").read_text()))
    distro = f"debian-{release['VERSION_ID']}"
    for paragraph in (root / "var/lib/dpkg/status").read_text().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if not fields["Status"].endswith(" installed"):
            continue
        where = {"arch": fields["Architecture"], "distro": distro}
        purl = PackageURL("deb", "debian", fields["Package"], fields["Version"], where)
        yield Component(
            name=fields["Package"],
            version=fields["Version"],
            type=ComponentType.LIBRARY,
            purl=purl,
            bom_ref=str(purl),
        )


def as_json(bom: Bom) -> str:
    """The document, always in the same order."""
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def main() -> None:
    """Write the SBOM of the image that was built."""
    with unpacked() as image:
        bom = software_of(image.root)
    Path(sys.argv[1]).write_text(as_json(bom))
    print(f"{sys.argv[1]}: {len(bom.components) + 1} components")


if __name__ == "__main__":
    main()
