#!/usr/bin/env bash
# dist.sh: makes what a release needs, in target/dist: a tarball with the stripped command, a wheel for every Python from 3.9,
# a bill of materials (CycloneDX) and checksums.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
out=$target/dist
host=$(rustc -vV | sed -n 's/^host: //p')
version=$(cargo metadata --no-deps --format-version 1 |
  python3 -c 'import json, sys; print(next(p["version"] for p in json.load(sys.stdin)["packages"] if p["name"] == "cotensor-cli"))')
# One date for all files, that of the commit, so that equal commits give equal archives.
date=@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
rm -rf "$out"
mkdir -p "$out"

cargo build --release -p cotensor-cli
name=cotensor-$version-$host
folder=$target/dist-folder/$name
rm -rf "$target/dist-folder"
mkdir -p "$folder"/{bin,share/completions,share/systemd}
strip -o "$folder/bin/cotensor" "$target/release/cotensor"
for shell in bash zsh fish; do "$folder/bin/cotensor" completions "$shell" >"$folder/share/completions/cotensor.$shell"; done
cp dist/cotensor.service dist/cotensor.socket "$folder/share/systemd/"
cp README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$folder/"

# Every crate in the command, with its version and licence.
command -v cargo-cyclonedx >/dev/null || cargo install --locked --version 0.5.9 cargo-cyclonedx
cargo cyclonedx --quiet --format json --target "$host" --manifest-path crates/cotensor-cli/Cargo.toml --override-filename dist-sbom
mv crates/cotensor-cli/dist-sbom.json "$out/$name.cdx.json"
find crates tools tests attacks python web -name dist-sbom.json -delete
cp "$out/$name.cdx.json" "$folder/"

tar --create --gzip --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" \
  --file "$out/$name.tar.gz" --directory "$target/dist-folder" "$name"

# maturin names the oldest manylinux whose symbols suffice.
venv=$(scripts/python_environment.sh numpy)
"$venv/bin/maturin" build --release --strip --quiet --manifest-path python/Cargo.toml --target-dir "$target" --out "$out"

(cd "$out" && sha256sum -- *.tar.gz *.whl *.cdx.json >SHA256SUMS)
ls -l "$out"
