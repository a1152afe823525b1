#!/usr/bin/env bash
# debian_system.sh ARCHITECTURE FOLDER PACKAGE...: unpacks the packages, and all that they depend on, of Debian 12 for amd64 or arm64 into
# FOLDER: a system with one user. Needs no root. No script of a package runs; shells and Python work without. Keeps a folder that has
# these packages. DIST_MIRROR names a mirror of Debian's packages (default: this machine's).
set -euo pipefail
architecture=${1:?amd64 or arm64} folder=$(realpath -m "${2:?a folder}")
shift 2
[ "$(cat "$folder.packages" 2>/dev/null)" != "$*" ] || exit 0
command -v apt-get >/dev/null || { echo "debian_system.sh: needs apt-get" >&2; exit 2; }
# Fails for a missing one of the two files.
mirrors=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)*\(\S*\) .*/\2/p' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null || true)
mirror=${DIST_MIRROR:-${mirrors%%$'\n'*}}

rm -rf "$folder" "$folder.packages"
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt"/{lists,cache/archives}/partial "$folder"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" >"$apt/sources"
touch "$apt/status"
# Lists of packages of its own: apt-get neither reads nor changes what this machine has installed.
options=(-qq -o "APT::Architecture=$architecture" -o "APT::Architectures::=$architecture" -o "Dir::State::lists=$apt/lists"
  -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache" -o "Dir::Etc::SourceList=$apt/sources" -o Dir::Etc::SourceParts=-
  -o APT::Sandbox::User= -o Acquire::Languages=none)
apt-get "${options[@]}" update
apt-get "${options[@]}" install --yes --no-install-recommends --download-only -- "$@"
for package in "$apt"/cache/archives/*.deb; do dpkg -x "$package" "$folder"; done

# What the scripts of packages would make.
[ -e "$folder/bin/sh" ] || ln -s bash "$folder/bin/sh"
mkdir -p "$folder/home/user"
echo 'user:x:1000:1000::/home/user:/bin/bash' >"$folder/etc/passwd"
echo "$*" >"$folder.packages"
