#!/usr/bin/env bash
# dist.sh: makes what a release needs, in target/dist: for this machine's target and, on x86-64, for aarch64 Linux, a tarball with the
# stripped command, a wheel for every Python from 3.9 and a bill of materials (CycloneDX); and checksums of all.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
out=$target/dist
host=$(rustc -vV | sed -n 's/^host: //p')
version=$(cargo metadata --no-deps --format-version 1 |
  python3 -c 'import json, sys; print(next(p["version"] for p in json.load(sys.stdin)["packages"] if p["name"] == "cotensor-cli"))')
# One date for all files, that of the commit, so that equal commits give equal archives.
date=@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
rm -rf "$out" "$target/dist-folder"
mkdir -p "$out"
command -v cargo-cyclonedx >/dev/null || cargo install --locked --version 0.5.9 cargo-cyclonedx
venv=$(scripts/python_environment.sh numpy)

# tarball TRIPLE BUILT STRIP [EMULATOR]...: packs the built command. The emulator runs commands of another processor.
tarball() {
  local triple=$1 built=$2 strip=$3 name=cotensor-$version-$1 shell
  shift 3
  local folder=$target/dist-folder/$name
  mkdir -p "$folder"/{bin,share/completions,share/systemd}
  "$strip" -o "$folder/bin/cotensor" "$built"
  "$@" "$folder/bin/cotensor" version
  for shell in bash zsh fish; do "$@" "$folder/bin/cotensor" completions "$shell" >"$folder/share/completions/cotensor.$shell"; done
  cp dist/cotensor.service dist/cotensor.socket "$folder/share/systemd/"
  cp README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$folder/"

  # Every crate in the command, with its version and licence.
  cargo cyclonedx --quiet --format json --target "$triple" --manifest-path crates/cotensor-cli/Cargo.toml --override-filename dist-sbom
  mv crates/cotensor-cli/dist-sbom.json "$out/$name.cdx.json"
  find crates tools tests attacks python web -name dist-sbom.json -delete
  cp "$out/$name.cdx.json" "$folder/"

  tar --create --gzip --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" \
    --file "$out/$name.tar.gz" --directory "$target/dist-folder" "$name"
}

# wheel [OPTION]...: maturin names the oldest manylinux whose symbols suffice.
wheel() {
  "$venv/bin/maturin" build --release --strip --quiet --manifest-path python/Cargo.toml --out "$out" "$@"
}

# build_command [OPTION]...: builds the command. The Python package selects features of dependencies, too; here, so that the wheel reuses them.
build_command() { cargo build --release -p cotensor-cli -p cotensor-python --bin cotensor "$@"; }

build_command
tarball "$host" "$target/release/cotensor" strip
wheel --target-dir "$target"

if [ "$host" = x86_64-unknown-linux-gnu ]; then
  source scripts/aarch64.sh
  build_command --target "$aarch64" --target-dir "$target/aarch64"
  tarball "$aarch64" "$target/aarch64/$aarch64/release/cotensor" aarch64-linux-gnu-strip "${run_aarch64[@]}"
  wheel --target "$aarch64" --target-dir "$target/aarch64"
fi

(cd "$out" && sha256sum -- *.tar.gz *.whl *.cdx.json >SHA256SUMS)
ls -l "$out"
