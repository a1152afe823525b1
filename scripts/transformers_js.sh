#!/usr/bin/env bash
# Puts the browser files of transformers.js into target/transformers-js/package, for tests and benches. The package's own dependencies are
# programs for Node of 300 MB, which no browser uses.
set -euo pipefail
cd "$(dirname "$0")/.."
version=4.3.1
folder=target/transformers-js
[ -f "$folder/$version" ] && exit
rm -rf "$folder"
mkdir -p "$folder"
npm pack --silent --pack-destination "$folder" "@huggingface/transformers@$version" >/dev/null
tar xzf "$folder"/*.tgz -C "$folder"
rm "$folder"/*.tgz
touch "$folder/$version"
