#!/usr/bin/env bash
# The image without an engine: buildah (chroot isolation, vfs storage) on a base made by mmdebstrap. Needs root.
#   deploy/image/build.sh [TAG]      builds it, prints its digest
#   BASE=python:3.13-slim-trixie   takes another base, from a registry of images
set -euo pipefail
cd "$(dirname "$0")/../.."
tag=${1:-payments-consumer:$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
cache=${CONSUMER_IMAGE_CACHE:-.cache/image}
epoch=0 # of every file and layer: two builds of the same sources are the same bytes
mkdir -p "$cache"
exec 9>"$cache/.lock" && flock 9

for tool in buildah mmdebstrap; do
  command -v "$tool" >/dev/null || { echo "error[image]: $tool is not installed (Debian's package $tool)" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "error[image]: needs root" >&2; exit 2; }

engine() { buildah --root "$PWD/$cache/storage" --runroot "$PWD/$cache/run" --storage-driver vfs "$@"; }

mirror() { # the machine's own mirror of Debian, or DEBIAN_MIRROR
  echo "${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $(. /etc/os-release && echo "$VERSION_CODENAME")" | sed -n 1p)}"
}

debian_base() { # Debian 13 with its Python 3.13 and nothing to read by people; kept until .cache is deleted
  engine inspect --type image localhost/debian-python:trixie >/dev/null 2>&1 && return
  SOURCE_DATE_EPOCH=$epoch mmdebstrap --quiet --skip=output/dev --variant=essential --include=python3-venv,ca-certificates,libstdc++6 \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='rm -rf "$1"/var/log/* "$1"/var/cache/* "$1"/etc/machine-id' \
    trixie "$cache/base.tar" "$(mirror)"
  local container
  container=$(engine from scratch)
  engine add -q "$container" "$cache/base.tar" / >/dev/null
  engine config --cmd /bin/sh --env PATH=/usr/local/bin:/usr/bin:/bin "$container"
  engine commit -q --rm --timestamp "$epoch" "$container" localhost/debian-python:trixie >/dev/null
  rm "$cache/base.tar"
}

wheels() { # fetched once for these locks, by this machine's own pip: the build itself needs no network
  local stamp=$cache/wheels-3.13.stamp
  [ "$stamp" -nt requirements.lock ] && [ "$stamp" -nt requirements-build.lock ] && return
  "${PYTHON:-python3}" -m pip download -q --disable-pip-version-check --require-hashes --only-binary :all: --python-version 3.13 \
    --no-deps -d "$cache/wheels" -r requirements.lock -r requirements-build.lock
  touch "$stamp"
}

base=${BASE:-}
[ -n "$base" ] || { debian_base; base=localhost/debian-python:trixie; }
wheels
# Format oci: docker's names the container it was built in, and is another one each time. (It has no health check:
# compose.yaml and Kubernetes have theirs; an engine that builds from the Dockerfile keeps the one there.)
engine build -q --isolation chroot --format oci --timestamp "$epoch" --no-cache \
  --ignorefile deploy/Dockerfile.dockerignore --file deploy/Dockerfile --volume "$PWD/$cache/wheels:/wheels:ro" \
  --build-arg BASE="$base" --build-arg PIP_FIND_LINKS=/wheels --build-arg PIP_NO_INDEX=1 \
  --build-arg VERSION="$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" \
  --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
  --tag "$tag" . 2> >(grep -v 'HEALTHCHECK is not supported' >&2) >/dev/null
engine rmi --prune >/dev/null # what the tag named before
engine images --format '{{.Digest}}' "$tag"
