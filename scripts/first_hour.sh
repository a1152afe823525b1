#!/usr/bin/env bash
# first_hour.sh [WHEEL]: the first hour of a new user in a new folder, which is the home folder (first_hour_as_user.sh), with the wheel of
# target/dist or another one. Its packages and a real encoder are downloaded once, before the time is taken. try_dist.sh does the same in a new
# system.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
wheel=${1:-$(echo "$target"/dist/cotensor-*"$(uname -m)".whl)}
[ -f "$wheel" ] || { echo "first_hour.sh: $wheel is missing: make dist" >&2; exit 2; }

scripts/encoder.sh "$target/first-hour/encoder" "$target/first-hour/wheels"
"${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --only-binary :all: --dest "$target/first-hour/packages" "$wheel[numpy,onnxruntime]"

# The names of sockets are short.
home=$(mktemp --directory /tmp/first-hour-XXXXXX)
trap 'rm -rf "$home"' EXIT
cp "$wheel" scripts/first_hour_as_user.sh "$home/"
cp -r "$target/first-hour/encoder" "$target/first-hour/packages" "$home/"
cd "$home"
env -i HOME="$home" TMPDIR="$home" COTENSOR_RUNTIME_DIR="$home/run" XDG_CACHE_HOME="$home/cache" PATH=/usr/local/bin:/usr/bin:/bin \
  bash ./first_hour_as_user.sh
