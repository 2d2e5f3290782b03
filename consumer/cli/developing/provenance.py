"""Provenance: where this consumer came from, as a reference that a package of handlers can be installed with."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from consumer import DISTRIBUTION
from consumer.errors import UsageError

GIT_LIMIT_S = 10.0
EXAMPLE = f"--consumer '{DISTRIBUTION} @ git+https://HOST/PATH@REVISION'"
_SCP = re.compile(r"(?:(?P<user>[\w.-]+)@)?(?P<host>[\w.-]+):(?P<path>[^/].*)\Z")


def requirement() -> str:
    """The dependency on this consumer, as an explicit reference to where it came from (PEP 610): a name alone could be
    claimed by anybody on an index. A clone whose commit was pushed is referred to by its remote, so that a CI can
    reach it. Raises UsageError where nothing tells where it came from."""
    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except ValueError:
        origin = {}
    url, version_control = origin.get("url"), origin.get("vcs_info") or {}
    if not isinstance(url, str):
        raise UsageError(f"nothing tells where this consumer was installed from: say it, like {EXAMPLE}")
    if version_control:
        return f"{DISTRIBUTION} @ {version_control['vcs']}+{url}@{version_control['commit_id']}"
    pushed = _pushed(Path(unquote(urlsplit(url).path))) if url.startswith("file:") else None
    return f"{DISTRIBUTION} @ {pushed or url}"


def unreachable(wanted: str) -> str | None:
    """What is to be said of a reference that only this machine can follow, or None."""
    url = wanted.partition("@ ")[2]
    if not url.startswith(("file:", "git+file:")):
        return None
    return f"a CI cannot reach {url}: push this consumer's clone, or say it, like {EXAMPLE}"


def _pushed(folder: Path) -> str | None:
    """The remote and the commit of a clone, if the remote has that commit."""
    commit, remote = _git(folder, "rev-parse", "HEAD"), _git(folder, "remote", "get-url", "origin")
    if not commit or not remote or not _git(folder, "branch", "--remotes", "--contains", commit):
        return None
    address = _address(remote)
    return f"git+{address}@{commit}" if address else None


def _address(remote: str) -> str | None:
    """A remote as pip takes it, without a password; None for one on this machine."""
    if "://" not in remote:
        found = _SCP.match(remote)
        return f"ssh://{found['user'] or 'git'}@{found['host']}/{found['path']}" if found else None
    parts = urlsplit(remote)
    if parts.scheme not in ("https", "http", "ssh"):
        return None
    host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    user = f"{parts.username}@" if parts.scheme == "ssh" and parts.username else ""
    return urlunsplit((parts.scheme, user + host, parts.path, "", ""))


def _git(folder: Path, *words: str) -> str:
    """What git says; nothing where there is no git, or no clone."""
    if not folder.is_dir():
        return ""
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            ["git", "-C", str(folder), *words],  # noqa: S607 - the one that is installed
            capture_output=True, text=True, timeout=GIT_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
